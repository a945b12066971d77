"""`gossamer network`: kits are made, checked and taken back, runs are replayed; mistakes are told in one message."""

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gossamer import Experiment
from gossamer.peers.identity.kit import open_kit
from gossamer.runs.checkpoint import load_tensors, save_tensors
from networks import make_kits, make_peers, run_together

Command = Callable[..., object]
Refused = Callable[..., str]

NETWORK = """
[experiment]
rounds = 2
[peers.alice]
port = 1
[peers.bob]
port = 2
[peers.carol]
port = 3
"""


@pytest.fixture(autouse=True)
def network_file(place: Path) -> Path:
    (place / "network.toml").write_text(NETWORK)
    return place / "network.toml"


def test_create_check_revoke_renew(gossamer: Command, place: Path) -> None:
    made = gossamer("network", "create", "network.toml", "--out", "my kits", "--days", "10")
    assert made.code == 0, made.text
    assert "3 kits for experiment" in made.out
    assert "gossamer peer 'my kits/alice'" in made.out
    assert "gossamer network check 'my kits'" in made.out
    kit = open_kit(place / "my kits" / "carol")
    assert kit.roster.digest in made.out

    checked = gossamer("network", "check", "my kits")
    assert checked.code == 1  # nobody has been started yet
    assert checked.out.count("refused: nobody listens there") == 3
    assert checked.out.count("9 days left") == 3
    assert gossamer("network", "check", "my kits/alice").out.count("not here") == 2

    revoked = gossamer("network", "revoke", "my kits", "bob")
    assert revoked.code == 0
    assert "the list is in 3 kits" in revoked.out
    checked = gossamer("network", "check", "my kits")
    assert checked.code == 2
    assert "certificate of 'bob' revoked since" in checked.out

    renewed = gossamer("network", "renew", "my kits", "bob", "--days", "40")
    assert renewed.code == 0, renewed.text
    assert re.match(r"bob: valid until 20\d\d-\d\d-\d\d \d\d:\d\d UTC\n", renewed.out)
    assert "A running peer uses them from its next connection on" in " ".join(renewed.out.split())
    checked = gossamer("network", "check", "my kits")
    assert checked.code == 1
    assert "39 days left" in checked.out
    assert "alice, carol: less than 30 days left" in checked.out
    assert "gossamer network renew 'my kits' alice carol" in checked.out
    assert "gossamer network renew KITS alice" in gossamer("network", "check", "my kits/alice").out
    assert gossamer("network", "renew", "my kits").out.count(": valid until ") == 3
    assert "less than" not in gossamer("network", "check", "my kits").out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "nowhere.toml"), ("nowhere.toml: cannot be read: No such file",)),
        (("create", "network.toml", "--days", "0"), ("days: a certificate is valid for 1 to 3650 days (got 0)",)),
        (("create", "network.toml", "--out", "."), ("is the current folder",)),
        (("create", "network.toml", "--out", "network.toml"), ("exists already",)),
        (("check", "nowhere"), ("nowhere: does not exist; name a kit",)),
        (("check", "network.toml"), ("network.toml: is a file; name a kit",)),
        (("check", "."), ("there are no kits in it",)),
        (("revoke", ".", "alice"), ("has no authority/key.pem",)),
        (("renew", "."), ("has no authority/key.pem; name the folder that 'gossamer network create' wrote",)),
        (("renew", "nowhere", "alice"), ("has no authority/key.pem",)),
        (("replay", "."), ("there are no kits in it; name the folder that 'gossamer network create' wrote",)),
        (("replay", "nowhere"), ("nowhere: cannot be read: No such file",)),
    ],
)
def test_mistakes(refused: Refused, arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    refused("network", *arguments, says=says)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("rounds = 2", "method = 'fedavg'", ("network.toml: method 'fedavg' needs a server", "'dfedavg'")),
        ("rounds = 2", "model = 'lenet'", ("lenet", "8")),
        ("rounds = 2", "rouns = 2", ("network.toml: experiment: unknown key 'rouns'", "'rounds'")),
        ("port = 2", "port = 1", ("peers.bob", "127.0.0.1:1 is taken by 'alice'")),
    ],
)
def test_networks_that_cannot_work(
    refused: Refused, network_file: Path, old: str, new: str, says: tuple[str, ...]
) -> None:
    network_file.write_text(NETWORK.replace(old, new))
    refused("network", "create", "network.toml", says=says)


def test_other_commands_do_not_wait_for_what_peers_need() -> None:
    code = (
        "import sys, gossamer.commands.app; "
        "print([m for m in ('grpc', 'cryptography', 'google.protobuf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module", params=["float32", "float64"])
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Numbers of which the models are, and kits with the finished runs of three peers."""
    folder = tmp_path_factory.mktemp("network")
    experiment = Experiment(
        clients=3, rounds=2, model="softmax", dtype=request.param, batch_size=16, local_steps=2,
        dataset={"name": "digits", "train_samples": 100},
    )  # fmt: skip
    run_together(make_peers(make_kits(folder, experiment)))
    return request.param, folder / "kits"


def test_a_network_runs_with_certificates_old_and_new(gossamer: Command, place: Path) -> None:
    """One was revoked and renewed, one was renewed, one still has its first."""
    experiment = Experiment(clients=3, rounds=1, model="softmax", local_steps=1)
    folders = make_kits(place, experiment)
    assert gossamer("network", "revoke", "kits", "p1").code == 0
    assert gossamer("network", "renew", "kits", "p1", "p2").code == 0
    run_together(make_peers(folders))
    assert all((folder / "run/final.safetensors").exists() for folder in folders)


def test_a_stopped_peer_says_how_to_go_on(spawn: Command, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOSSAMER_DATA")
    make_kits(place, Experiment(clients=3, rounds=2, model="softmax"))
    peer = spawn("peer", "kits/p0", "--data", "experiment", "--out", "my run")
    log = place / "my run/log.jsonl"
    until = time.monotonic() + 60
    while time.monotonic() < until and peer.runs() and not (log.exists() and log.read_text()):
        time.sleep(0.01)
    peer.send(signal.SIGTERM)
    answer = peer.wait()
    assert answer.code == 130, answer.text
    assert "stopped after round 0. Go on with:  gossamer peer kits/p0 --data experiment --out 'my run'" in answer.err


def test_renewing_is_refused_as_a_whole(gossamer: Command, refused: Refused, place: Path) -> None:
    gossamer("network", "create", "network.toml")
    refused("network", "renew", "kits", "alice", "bo", says=("no certificate of a peer 'bo'", "did you mean 'bob'"))
    refused("network", "renew", "kits", "--days", 0, says=("days: a certificate is valid for 1 to 3650 days (got 0)",))
    shutil.rmtree(place / "kits/carol")
    refused("network", "renew", "kits", says=("kits/carol: is not there",))


@pytest.fixture
def kits(ended: tuple[str, Path], place: Path) -> Path:
    shutil.copytree(ended[1], place / "kits")
    return place / "kits"


def change(path: Path, by: float) -> None:
    """Add to one number of a file, which then is whole again."""
    about, tensors = load_tensors(path)
    name = next(name for name in tensors if name.endswith(("x", "weight")))
    tensors[name].view(-1)[0] += by
    save_tensors(path, tensors, about)


def content(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_a_replay_ends_with_the_same_models(gossamer: Command, kits: Path) -> None:
    (kits / "p0" / "certificate.pem").write_text("expired long ago")  # a replay needs none
    before = content(kits)
    answer = gossamer("network", "replay", "kits")
    assert answer.code == 0, answer.text
    assert "3 peers, 2 rounds: the replay ends with the same models (largest difference " in answer.out
    assert "letters not waited for: 0, shares of mass held back: 0, rounds missed: 0, drift of the mean: " in answer.out
    assert content(kits) == before


@pytest.mark.parametrize("file", ["checkpoints/round-000002.safetensors", "final.safetensors"])
def test_a_replay_finds_what_was_changed(gossamer: Command, ended: tuple[str, Path], kits: Path, file: str) -> None:
    little, much = {"float32": (1e-7, 1e-3), "float64": (1e-12, 1e-7)}[ended[0]]
    change(kits / "p1/run" / file, little)
    assert gossamer("network", "replay", "kits").code == 0
    for by in (much, float("nan")):
        change(kits / "p1/run" / file, by)
        answer = gossamer("network", "replay", "kits")
        assert answer.code == 1, answer.text
        assert f"the replay ends with other models than p1 (by {by:.1e}); up to" in answer.out


def test_a_replay_of_runs_that_are_elsewhere(gossamer: Command, refused: Refused, kits: Path, place: Path) -> None:
    for name in ("p1", "p2"):
        (kits / name / "run").rename(place / name)
    refused(
        "network", "replay", "kits",
        says=("there is none of p1 (kits/p1/run), p2 (kits/p2/run)", "with --runs FOLDER"),
    )  # fmt: skip
    refused("network", "replay", "kits", "--runs", ".", says=("there is none of p0 (p0)",))
    (kits / "p0" / "run").rename(place / "p0")
    shutil.rmtree(kits / "p2")  # given away: one kit is enough
    answer = gossamer("network", "replay", "kits", "--runs", ".")
    assert answer.code == 0, answer.text


def drop_a_round(run: Path) -> None:
    (run / "final.safetensors").unlink()
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().split("\n")[0] + "\n")


def other_size(run: Path) -> None:
    about, tensors = load_tensors(run / "final.safetensors")
    save_tensors(run / "final.safetensors", {name: value[:1] for name, value in tensors.items()}, about)


def own_samples(run: Path) -> None:
    file = run.parent / "network.toml"
    file.write_text(file.read_text().replace('data = "experiment"', 'data = "mine.npz"'))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (drop_a_round, ("these are not: p2 (1 of 2 rounds).", "'gossamer peer'")),
        (lambda run: (run / "trace.jsonl").unlink(), ("kits/p2/run: is not whole",)),
        (lambda run: (run / "trace.jsonl").write_text('{"step": 0'), ("kits/p2/run: is not whole",)),
        (lambda run: (run / "trace.jsonl").write_text("{}\n"), ("kits/p2/run: is not whole",)),
        (lambda run: (run / "trace.jsonl").write_text('{"step\n'), ("kits/p2/run: is not whole", "Copy the run anew")),
        (lambda run: (run / "checkpoints/round-000002.safetensors").write_text("?"), ("kits/p2/run: is not whole",)),
        (lambda run: (run / "trace.jsonl").write_text('{"step": 1}\n'), ("trace of peer 2: says step 1 where step 0",)),
        (lambda run: shutil.rmtree(run / "checkpoints"), ("kits/p2/run: is not whole",)),
        (lambda run: (run / "checkpoints/round-000002.safetensors").unlink(), ("kits/p2/run: is not whole",)),
        (lambda run: (run / "final.safetensors").write_bytes(b""), ("kits/p2/run/final.safetensors: damaged",)),
        (other_size, ("kits/p2/run: holds another model",)),
        (own_samples, ("samples of their own", "p2", 'data = "experiment"')),
    ],
)
@pytest.mark.parametrize("ended", ["float64"], indirect=True)
def test_runs_that_cannot_be_replayed(
    refused: Refused, kits: Path, damage: Callable[[Path], None], says: tuple[str, ...]
) -> None:
    damage(kits / "p2/run")
    refused("network", "replay", "kits", says=says)


def test_a_peers_run_is_not_gone_on_with_as_a_simulation(
    gossamer: Command, refused: Refused, kits: Path, place: Path
) -> None:
    (kits / "p2/run/final.safetensors").unlink()
    shown = " ".join(gossamer("show", "kits/p2/run").text.split())
    assert "unfinished: 'gossamer peer' with the kit of p2 goes on with it" in shown
    refused("resume", "kits/p2/run", says=("kits/p2/run: is the run of a peer", "'gossamer peer' with the kit of p2"))
    refused("run", "--out", "kits/p2/run", says=("holds a run already (unfinished)", "'gossamer peer' with the kit"))
