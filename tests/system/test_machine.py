"""What a process may use of its machine, where a container or a scheduler gives it a share."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.system import machine

GIB = 1 << 30


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of control groups, empty; the process is bound to eight cores."""
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.setattr(machine, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content + "\n")


@pytest.mark.parametrize(
    ("own", "above", "cores"),
    [("max 100000", "max 100000", 8), ("200000 100000", "max 100000", 2), ("max 100000", "150000 100000", 2),
     ("10000 100000", "max 100000", 1), ("1600000 100000", "max 100000", 8)],
)  # fmt: skip
def test_cores_of_a_share_in_version_2(groups: Path, own: str, above: str, cores: int) -> None:
    write(groups, membership="0::/jobs/mine")
    write(groups / "jobs", cpu__max=above)
    write(groups / "jobs" / "mine", cpu__max=own)
    assert machine.usable_cores() == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3)])
def test_cores_of_a_share_in_version_1(groups: Path, quota: str, cores: int) -> None:
    write(groups, membership="4:memory:/\n3:cpu,cpuacct:/a container, as its host sees it\n0::/")
    write(groups / "cpu,cpuacct", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert machine.usable_cores() == cores


def test_memory_of_a_share_in_version_2(groups: Path) -> None:
    write(groups, membership="0::/mine")
    assert machine.free_memory() > GIB  # this machine's own
    write(groups / "mine", memory__max="max", memory__current=str(GIB))
    assert machine.free_memory() > GIB
    # What files take of it is given back when it is needed.
    write(groups / "mine", memory__max=str(GIB), memory__current=str(GIB // 2), memory__stat="anon 5\ninactive_file 7")
    assert machine.free_memory() == GIB // 2 + 7


def test_memory_of_a_share_in_version_1(groups: Path) -> None:
    write(groups, membership="5:memory:/mine")
    write(
        groups / "memory" / "mine", memory__limit_in_bytes=str(GIB), memory__usage_in_bytes=str(2 * GIB),
        memory__stat="total_inactive_file 0",
    )  # fmt: skip
    assert machine.free_memory() == 0


def test_without_control_groups_there_is_the_whole_machine(groups: Path) -> None:
    assert machine.usable_cores() == 8
    assert machine.free_memory() > GIB


def test_a_processor_has_a_name() -> None:
    assert machine.processor()
    assert machine.processor_and_features()


@pytest.fixture
def own_group() -> Iterator[Path]:
    """A real control group with half a gigabyte, made for this test."""
    for tree in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = tree / f"gossamer-test-{os.getpid()}"
        limit = group / ("memory.max" if tree.name == "cgroup" else "memory.limit_in_bytes")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            limit.write_text(str(GIB // 2))
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("control groups cannot be made here (they need root, and a system that has them)")


def test_a_state_that_is_larger_than_the_share_is_refused(own_group: Path, tmp_path: Path) -> None:
    """The machine has room for it, the group has not: without the refusal, the system would kill the run."""
    (tmp_path / "big.toml").write_text('method = "dfedavg"\nmodel = "resnet-18"\nclients = 16\nrounds = 1\n')
    code = (
        f"import os, runpy, sys; open({str(own_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()));"
        "sys.argv = ['gossamer', 'run', 'big.toml', '--out', 'r']; runpy.run_module('gossamer', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert "out of memory: the clients' state takes 71" in done.stderr
    assert "--spill FOLDER" in " ".join(done.stderr.split())
    assert not (tmp_path / "r").exists()
