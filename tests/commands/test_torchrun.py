"""Workers of a launcher, on one node or two, give the numbers of a single process, and go on when restarted."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gossamer import Experiment, resume, simulate

Command = Callable[..., Any]
Settings = Callable[..., list[str]]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux only")
#: Whoever waits longer than this waits in vain, however slow the machine.
SECONDS = 300
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--master-addr", "127.0.0.1"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Launched:
    """Processes that a test has started, and what they print."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        """Start a process as a user would, without what the test-suite has set for its own."""
        inherited = {key: value for key, value in os.environ.items() if key != "GOSSAMER_WORKERS"}
        process = subprocess.Popen(
            command, cwd=self.place, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**inherited, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
            start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def wait(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=SECONDS)
        return process.returncode, out, err

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # a session of its own: the launcher and its workers
                process.communicate()


@pytest.fixture
def launched(place: Path) -> Iterator[Launched]:
    started = Launched(place)
    yield started
    started.end()


@pytest.fixture
def straight(gossamer: Command, settings: Settings, place: Path) -> Callable[..., bytes]:
    """The record of a run by one process."""

    def run(**changed: object) -> bytes:
        assert gossamer("run", *settings(**changed), "--workers", 1, "--out", "straight", "-q").code == 0
        return (place / "straight" / "metrics.jsonl").read_bytes()

    return run


def test_two_nodes_give_the_record_of_one_process(
    launched: Launched, straight: Callable[..., bytes], settings: Settings, place: Path
) -> None:
    port = str(free_port())
    command = ["--nnodes", "2", "--nproc-per-node", "1", "--master-port", port]
    run = ["-m", "gossamer", "run", *settings(), "--out", "r", "--verbose"]
    nodes = [launched.start([*LAUNCHER, *command, "--node-rank", str(node), *run]) for node in (0, 1)]
    expected = straight()
    (first, out, err), (second, silence, lament) = (launched.wait(node) for node in nodes)
    assert (first, second) == (0, 0), err
    assert silence == ""
    # `torchrun` itself may find that the other node's has left a moment before it. The worker says nothing.
    assert lament == "" or "Error waiting on exit barrier" in lament
    assert "round" not in lament
    assert out.count("best accuracy") == 1
    assert err.count("round 3/3") == 1
    assert "on 2 workers" in err
    assert (place / "r" / "metrics.jsonl").read_bytes() == expected
    files = sorted(path.name for path in (place / "r" / "checkpoints").iterdir())
    assert files == ["round-000003-clients-0-1.safetensors", "round-000003-clients-2-3.safetensors"]


def test_several_runs_one_after_the_other_on_one_node(launched: Launched, place: Path) -> None:
    """A script of a user's: every run has a group of its own."""
    methods = ["dfedadmm", "osgp"]
    settings = {
        "clients": 4, "rounds": 2, "model": "softmax", "local_steps": 2,
        "dataset": {"name": "digits", "train_samples": 200},
    }  # fmt: skip
    (place / "several.py").write_text(
        "from gossamer import Experiment, simulate\n"
        f"for method in {methods}:\n"
        f"    simulate(Experiment(method=method, **{settings}), out=f'two-{{method}}')\n"
        "print('done')\n"
    )
    command = ["--nnodes", "1", "--nproc-per-node", "2", "--master-port", str(free_port()), "several.py"]
    together = launched.start([*LAUNCHER, *command])
    for method in methods:
        simulate(Experiment(method=method, **settings), workers=1, out=place / f"one-{method}")
    code, out, err = launched.wait(together)
    assert (code, out.count("done")) == (0, 2), err
    for method in methods:
        one, two = ((place / f"{number}-{method}" / "metrics.jsonl").read_bytes() for number in ("one", "two"))
        assert one == two


def test_an_observer_stops_all_processes_after_the_same_round(launched: Launched, place: Path) -> None:
    settings = {
        "clients": 4, "rounds": 40, "model": "softmax", "local_steps": 4, "partition": "iid",
        "dataset": {"name": "digits", "train_samples": 400},
    }  # fmt: skip
    (place / "stops.py").write_text(
        "from gossamer import Experiment, Observer, simulate\n"
        "class Stops(Observer):\n"
        "    wants = ('client_accuracy',)\n"
        "    def round(self, record):\n"
        "        assert record.clients['client_accuracy'].shape == (4,)\n"
        "        return record.metrics['test_accuracy'] >= 0.75\n"
        f"run = simulate(Experiment(**{settings}), observers=[Stops()], out='two')\n"
        "print(run.ending)\n"
    )
    command = ["--nnodes", "1", "--nproc-per-node", "2", "--master-port", str(free_port()), "stops.py"]
    code, out, err = launched.wait(launched.start([*LAUNCHER, *command]))
    assert code == 0, err
    whole = simulate(Experiment(**settings), workers=1, out=place / "one")
    last = next(line["round"] for line in whole.metrics.to_dict("records") if line["test_accuracy"] >= 0.75)
    assert out.count(f"ended on purpose after round {last}: Stops") == 2
    lines = (place / "one" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert (place / "two" / "metrics.jsonl").read_bytes() == b"".join(lines[:last])
    assert resume(place / "two").ending.kind == "stopped"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"method": "dfedavgx"}, "error: unknown method 'dfedavgx': did you mean 'dfedavg'?"),
        ({"clients": 1, "graph": "full"}, "error: workers: 2 for 1 clients; start at most one for each client"),
    ],
)
def test_a_mistake_is_told_once_and_ends_every_process(
    launched: Launched, settings: Settings, place: Path, changed: dict[str, object], says: str
) -> None:
    """Whether every process sees it, or only the first one, before the others wait for it."""
    port = str(free_port())
    command = [sys.executable, "-m", "gossamer", "run", *settings(**changed), "--out", "r"]
    processes = [
        launched.start(command, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        for rank in (0, 1)
    ]
    (first, out, err), (second, *silence) = (launched.wait(process) for process in processes)
    assert (first, second) == (2, 2)
    assert out == ""
    assert err.startswith(says)
    assert err.count("error:") == 1
    assert silence == ["", ""]
    assert not (place / "r").exists()


def rank_of(process: int) -> str:
    words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return next((word.decode().removeprefix("RANK=") for word in words if word.startswith(b"RANK=")), "")


def children(process: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("**/metrics.jsonl"))


def test_a_restart_goes_on_from_the_last_checkpoint(
    launched: Launched, straight: Callable[..., bytes], settings: Settings, place: Path
) -> None:
    """The launcher starts all workers again when one is killed; the folder is found again, although it has no name."""
    changed = {"rounds": 60, "checkpoint_every": 5, "evaluate": "{clients=1}"}
    command = ["--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "1", "--master-port", str(free_port())]
    launcher = launched.start([*LAUNCHER, *command, "-m", "gossamer", "run", *settings(**changed)])
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and launcher.poll() is None and lines(place / "runs") < 7:
        time.sleep(0.005)
    workers = [process for process in children(launcher.pid) if rank_of(process) == "0"]
    assert len(workers) == 1
    os.kill(workers[0], signal.SIGKILL)
    code, _, err = launched.wait(launcher)
    assert code == 0, err
    assert err.count("going on after round ") == 1
    (folder,) = (place / "runs").iterdir()
    assert (folder / "metrics.jsonl").read_bytes() == straight(**changed)
