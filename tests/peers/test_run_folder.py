"""A peer's run folder: whose it is, that it is whole, and that a trace stays one that can be replayed."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attacker import experiment
from gossamer.errors import GossamerError, RunFolderError
from gossamer.peers import neighbours, report
from gossamer.peers.peer import Peer
from gossamer.peers.replay import replay_kits
from gossamer.peers.store.journal import Journal
from gossamer.peers.store.letters import Draft
from gossamer.peers.wire.service import Service
from networks import SECONDS, make_kits, make_peers, replayed, run_together, traces_of

PUT_BACK = "Put back a copy of this folder"


class Killed(Exception):
    """The end of a process, in a test that has all peers in its own."""


def release(peers: list[Peer]) -> None:
    for peer in peers:
        peer._lock.release()


@pytest.mark.parametrize("method", ["dfedavg", "dfedsam-mgs", "sgp"])
def test_killed_after_the_trace_and_before_the_checkpoint(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back after the others have gone on, it repeats the round that is in its trace, and then catches up."""
    described = experiment(method, graph="full", local_steps=None if method == "sgp" else 1).but(
        rounds=14, dtype="float64"
    )
    kits = make_kits(tmp_path, described, late="reweigh", patience=0.3)
    peers = make_peers(kits)
    victim, commit = peers[0].journal, Journal.commit

    def dying(self: Journal, round: int, tensors: Any, about: Any) -> None:
        if self is victim and round == 4:
            raise Killed
        commit(self, round, tensors, about)

    monkeypatch.setattr(Journal, "commit", dying)

    async def run() -> None:
        others = [asyncio.create_task(peer.run()) for peer in peers[1:]]
        with pytest.raises(Killed):
            await peers[0].run()
        while peers[1].progress.done < 9:
            await asyncio.sleep(0.01)
        peers[0] = make_peers(kits[:1])[0]
        await asyncio.gather(peers[0].run(), *others)

    asyncio.run(asyncio.wait_for(run(), SECONDS))
    (trace, *_) = traces_of(kits)
    mixed = [line["step"] for line in trace if "step" in line]
    assert mixed == sorted(set(mixed))
    vectors = torch.stack([peer.method.model(peer.client.state) for peer in peers])
    torch.testing.assert_close(vectors, replayed(described, kits), rtol=0, atol=1e-10)


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The kits of three networks, after three rounds."""
    found = {}
    for name, (method, late) in {
        "waits": ("dfedavg", "wait"), "goes on": ("dfedavg", "reweigh"), "pushes": ("sgp", "reweigh"),
    }.items():  # fmt: skip
        steps = None if method == "sgp" else 1
        described = experiment(method, clients=3, local_steps=steps).but(rounds=3)
        found[name] = make_kits(tmp_path_factory.mktemp(method), described, late=late)
        run_together(make_peers(found[name]))
    return found


def copy(networks: dict[str, list[Path]], which: str, place: Path) -> list[Path]:
    shutil.copytree(networks[which][0].parent, place / which)
    return [place / which / kit.name for kit in networks[which]]


def test_the_run_folder_of_another_peer_is_refused(networks: dict[str, list[Path]], tmp_path: Path) -> None:
    kits = copy(networks, "waits", tmp_path)
    (kits[0] / "run").rename(tmp_path / "run")
    (kits[1] / "run").rename(kits[0] / "run")
    (tmp_path / "run").rename(kits[1] / "run")
    for mine, other in ((0, 1), (1, 0)):
        with pytest.raises(RunFolderError, match=f"is the run of peer 'p{other}', not of 'p{mine}'"):
            make_peers([kits[mine]])
    with pytest.raises(RunFolderError, match="is the run of peer 'p1', not of 'p0'"):
        replay_kits(kits[0].parent)


def test_the_run_folder_of_another_network_is_refused(networks: dict[str, list[Path]], tmp_path: Path) -> None:
    kits, others = copy(networks, "waits", tmp_path), copy(networks, "goes on", tmp_path)
    shutil.rmtree(kits[0] / "run")
    shutil.copytree(others[0] / "run", kits[0] / "run")
    with pytest.raises(RunFolderError, match="is the run of another network than that of this kit"):
        make_peers(kits[:1])
    (kits[0] / "run/peer.json").unlink()
    with pytest.raises(RunFolderError, match=r"is not the run of a peer, or its peer\.json is missing"):
        make_peers(kits[:1])


def bad_byte(path: Path) -> None:
    found = path.read_bytes()
    path.write_bytes(found[:9] + b"\xff" + found[10:])


def wrong_type(path: Path) -> None:
    path.write_text("5\n" + path.read_text())


def flip(path: Path) -> None:
    found = bytearray(path.read_bytes())
    found[-9] ^= 0xFF
    path.write_bytes(found)


def folder_of_that_name(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


@pytest.mark.parametrize(
    ("which", "where", "damage", "says"),
    [
        ("waits", "checkpoints", shutil.rmtree, "checkpoints: the state after round 2 is missing"),
        ("waits", "checkpoints/round-000003.safetensors", Path.unlink, ""),  # the one before it repeats the last round
        ("waits", "trace.jsonl", bad_byte, r"trace\.jsonl: line 1 is damaged"),
        ("waits", "trace.jsonl", wrong_type, r"trace\.jsonl: line 1 is damaged"),
        ("waits", "starts", lambda path: path.write_text(""), "starts: should hold how often"),
        ("waits", "starts", lambda path: path.write_bytes(b"\xff\x00"), "starts: should hold how often"),
        ("waits", "starts", lambda path: path.write_text("9" * 30), "starts: should hold how often"),
        ("waits", "outbox/2.letter", Path.unlink, r"2\.letter: is missing, and neighbours may wait"),
        ("waits", "outbox/2.letter", flip, r"2\.letter: does not match its digest"),
        ("pushes", "outbox/1.mass", Path.unlink, r"1\.mass: is missing, .* the mass for 'p1' would be lost"),
        ("pushes", "outbox/1.mass", flip, r"1\.mass: does not match its digest"),
        ("waits", ".lock", folder_of_that_name, "run: cannot be written"),
        ("waits", "peer.json", lambda path: path.write_text("[]"), "is not the run of a peer"),
    ],
)
def test_a_start_that_is_refused_with_the_file_and_the_remedy(
    which: str, where: str, damage: Callable[[Path], None], says: str, networks: dict[str, list[Path]], tmp_path: Path
) -> None:
    kit = copy(networks, which, tmp_path)[0]
    damage(kit / "run" / where)
    if not says:
        with pytest.raises(RunFolderError, match="is missing"):
            make_peers([kit])
        return
    with pytest.raises(RunFolderError, match=says) as refused:
        make_peers([kit])
    named = ("starts", ".lock", "peer.json")
    assert PUT_BACK in str(refused.value) or where in named


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_run_folder(networks: dict[str, list[Path]], tmp_path: Path) -> None:
    kit = copy(networks, "waits", tmp_path)[0]
    (kit / "run").chmod(0o500)
    with pytest.raises(RunFolderError, match="cannot be written"):
        make_peers([kit])


@pytest.mark.parametrize(("which", "refused"), [("waits", True), ("goes on", False)])
def test_a_damaged_inbox(which: str, refused: bool, networks: dict[str, list[Path]], tmp_path: Path) -> None:
    """A letter that arrived is not sent again: whoever waits for it would wait for good."""
    kit = copy(networks, which, tmp_path)[0]
    run = kit / "run"
    (run / "inbox").mkdir(exist_ok=True)
    shutil.copy(run / "outbox/2.letter", run / "inbox/1at3.letter")
    (run / "inbox/notes.letter").write_text("not a letter")
    flip(run / "inbox/1at3.letter")
    if refused:
        with pytest.raises(RunFolderError, match=r"1at3\.letter: does not match its digest, and its sender"):
            make_peers([kit])
        return
    (peer,) = make_peers([kit])
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert log[-1]["event"] == "lost letter"
    assert peer.progress.done == 3
    release([peer])


@pytest.mark.parametrize(("method", "late"), [("dfedavg", "wait"), ("dfedavg", "reweigh"), ("sgp", "reweigh")])
def test_an_older_copy_of_the_run_folder_is_refused_with_what_to_do(method: str, late: str, tmp_path: Path) -> None:
    """Its neighbours have mixed letters that the copy knows nothing of: what it would send now contradicts them."""
    described = experiment(method, local_steps=None if method == "sgp" else 1).but(rounds=12)
    kits = make_kits(tmp_path, described, late=late, patience=0.3)
    peers = make_peers(kits)

    async def run() -> None:
        others = [asyncio.create_task(peer.run()) for peer in peers[1:]]
        for stop, folder in ((2, "older"), (6, "newer")):
            running = asyncio.create_task(peers[0].run())
            while peers[0].progress.done < stop:
                await asyncio.sleep(0.001)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            shutil.copytree(kits[0] / "run", tmp_path / folder)
            peers[0] = make_peers(kits[:1])[0]
        release(peers[:1])
        (kits[0] / "run").rename(tmp_path / "away")
        shutil.copytree(tmp_path / "older", kits[0] / "run")
        with pytest.raises(GossamerError, match="this folder is new or an older copy: put back the folder as it was"):
            await make_peers(kits[:1])[0].run()
        shutil.rmtree(kits[0] / "run")
        shutil.copytree(tmp_path / "newer", kits[0] / "run")  # of the last round, but with an older process number
        peers[0] = make_peers(kits[:1])[0]
        await asyncio.gather(peers[0].run(), *others)

    asyncio.run(asyncio.wait_for(run(), SECONDS))
    assert peers[0].progress.done == 12


@pytest.mark.parametrize("which", ["waits", "goes on", "pushes"])
def test_a_finished_peer_that_is_started_again_ends_at_once(
    which: str, networks: dict[str, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others have finished and are gone: nobody is left to acknowledge anything."""
    monkeypatch.setattr(neighbours, "GRACE", 0.1)
    (peer, *others) = make_peers(copy(networks, which, tmp_path))
    release(others)
    asyncio.run(asyncio.wait_for(peer.run(), 5))
    assert "no other peer needs this one" in (peer.folder / "log.jsonl").read_text().splitlines()[-1]


def test_a_finished_peer_that_was_killed_does_not_stay_for_good(
    networks: dict[str, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have finished and are gone, and it was killed before it knew that they have its last letters."""
    monkeypatch.setattr(neighbours, "GRACE", 0.1)
    monkeypatch.setattr(neighbours, "NEEDED", 0.01)
    (peer, *others) = make_peers(copy(networks, "waits", tmp_path))
    release(others)
    (peer.folder / "over").unlink()
    asyncio.run(asyncio.wait_for(peer.run(), 20))
    last = json.loads((peer.folder / "log.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["for_peers"]) == ("left behind", ["p1", "p2"])
    assert not (peer.folder / "over").exists()  # started again, it offers its letters again


def test_letters_of_an_earlier_version_of_the_program_and_of_the_users_code_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All peers were stopped, brought up to date and started again: letters that wait in the outbox go on as new."""
    kits = make_kits(tmp_path, experiment("dfedavg", clients=2).but(rounds=3))
    peers = make_peers(kits)
    first, deliver = peers[1].service, Service.deliver

    async def held(self: Service, *call: Any) -> Any:
        if self is first:
            await asyncio.sleep(SECONDS)
        return await deliver(self, *call)

    monkeypatch.setattr(Service, "deliver", held)

    async def until_one_is_ahead() -> None:
        running = [asyncio.create_task(peer.run()) for peer in peers]
        while peers[0].progress.done < 1:
            await asyncio.sleep(0.01)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(until_one_is_ahead())
    peers = make_peers(kits)
    for peer in peers:
        peer.progress.version, peer.progress.code = "9.9", {"method lab:Mine": "0123"}
    run_together(peers)
    assert [peer.progress.done for peer in peers] == [3, 3]


def test_a_peer_whose_run_folder_is_moved_while_it_waits_ends_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "REMIND", 0.1)
    kits = make_kits(tmp_path, experiment("dfedavg", clients=2))
    (peer,) = make_peers(kits[:1])

    async def run() -> None:
        running = asyncio.create_task(peer.run())
        while peer.progress.doing != "waiting":
            await asyncio.sleep(0.01)
        (kits[0] / "run").rename(tmp_path / "elsewhere")
        await asyncio.wait_for(running, SECONDS)

    with pytest.raises(RunFolderError, match=r"log\.jsonl: cannot be written: No such file"):
        asyncio.run(run())


def test_a_full_disk_does_not_end_a_peer_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log is shown, its neighbours are told why, and it goes on when there is space again."""
    monkeypatch.setattr(neighbours, "REMIND", 0.1)
    kits = make_kits(tmp_path, experiment("dfedavg", clients=2).but(rounds=3))
    peers, shown = make_peers(kits), []
    peers[0].report._watch = shown.append
    append, keep, full = report.append_line, Draft.keep, [False]

    def no_line(path: Path, line: str) -> None:
        if full[0] and path.name == "log.jsonl" and path.parent == peers[0].folder:
            raise RunFolderError(f"{path}: cannot be written: No space left on device")
        append(path, line)

    def no_letter(self: Draft, sync: bool = False) -> None:
        if full[0] and peers[0].folder in self.aside.parents:
            raise RunFolderError("cannot be written: No space left on device")
        keep(self, sync)

    monkeypatch.setattr(report, "append_line", no_line)
    monkeypatch.setattr(Draft, "keep", no_letter)

    async def run() -> None:
        running = [asyncio.create_task(peers[0].run())]
        while peers[0].progress.doing != "waiting":
            await asyncio.sleep(0.01)
        full[0] = True
        running.append(asyncio.create_task(peers[1].run()))
        while (
            not [line for line in shown if line["event"] == "waiting for"]
            or not peers[1].neighbours.links[0].last_verdict
        ):
            assert not any(task.done() for task in running)
            await asyncio.sleep(0.01)
        assert peers[1].neighbours.links[0].last_verdict == "cannot be stored now"
        full[0] = False
        await asyncio.gather(*running)

    asyncio.run(asyncio.wait_for(run(), SECONDS))
    assert not [record for record in caplog.records if record.name == "asyncio"]
    assert "cannot store" in {line["event"] for line in shown}
