"""How a run gets its workers: forked from this process on one machine, or started from outside by `torchrun`.

Forked workers share everything that was prepared before the fork (samples, graph, compiled steps) without a copy.
Nothing of it is serialised: an experiment may hold any Python object.
"""

import gc
import json
import multiprocessing
import os
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from gossamer.errors import DivergenceError, GossamerError
from gossamer.system.allocator import trim_freed_memory
from gossamer.system.orphans import die_with_parent
from gossamer.workers.board import Board, Forked
from gossamer.workers.forks import START_TIMEOUT, STARTED, forking
from gossamer.workers.group import ALONE, GROUP_TIMEOUT, Distributed, Group, WorkerLost

Result = TypeVar("Result")

#: Characters of an error and of its traceback that are passed on. They are read when the worker has ended, and a pipe
#: holds 64 kB.
ERROR_LENGTH, TRACEBACK_LENGTH = 4_000, 10_000


def launched_from_outside() -> bool:
    """Whether a launcher such as `torchrun` has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


def machines() -> int:
    """How many machines a launcher's processes are spread over, if there is one."""
    if not launched_from_outside():
        return 1
    size = int(os.environ["WORLD_SIZE"])
    return max(1, size // int(os.environ.get("LOCAL_WORLD_SIZE", size)))


def first_process() -> bool:
    """Whether this process is the only one, or the first of those that a launcher started."""
    return not launched_from_outside() or os.environ["RANK"] == "0"


def restarted() -> bool:
    """Whether `torchrun` has started this process again after a worker died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def as_group(workers: int, device: torch.device, work: Callable[[Group], Result], shared: Sequence[int] = ()) -> Result:
    """Run `work` in every worker; gives its result in this one. Forked workers share memory of these sizes in bytes."""
    if launched_from_outside():
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        group = Distributed(rank, size, device, store=_fresh_store(rank, size))
        group.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        try:
            return work(group)
        finally:
            with suppress(RuntimeError):
                group.close()
    if workers == 1:
        return work(ALONE)
    return _Forks(workers).run(work, shared)


def _fresh_store(rank: int, size: int) -> Store:
    """A part of the launcher's store that was never used before, agreed upon by all processes.

    The store outlives restarts, and runs that follow each other: it may hold the addresses of processes that are gone.
    So the first process draws a name, and gives it to every process that asks with a random token of its own.
    """
    store, own = _launchers_store(), secrets.token_hex(8)
    until = time.monotonic() + GROUP_TIMEOUT.total_seconds()

    def wait_for(key: str, meanwhile: Callable[[], None] = lambda: None) -> str:
        while not store.check([key]):
            meanwhile()
            if time.monotonic() > until:
                raise WorkerLost(f"worker {rank} of {size} cannot join the others: not all started in time.")
            time.sleep(0.01)
        return bytes(store.get(key)).decode()

    def answer(other: int) -> None:
        if store.check([f"gossamer/asks/{other}"]):
            token = bytes(store.get(f"gossamer/asks/{other}")).decode()
            store.set(f"gossamer/answers/{other}/{token}", own)

    if rank == 0:
        name = own
        for other in range(1, size):  # a process of an earlier run cannot know the name
            wait_for(f"gossamer/joins/{other}/{name}", partial(answer, other))
    else:
        store.set(f"gossamer/asks/{rank}", own)
        name = wait_for(f"gossamer/answers/{rank}/{own}")
        store.set(f"gossamer/joins/{rank}/{name}", "")
    return PrefixStore(f"gossamer/{name}", store)


@cache
def _launchers_store() -> Store:
    """The launcher's store; where the launcher has none, the first process serves it."""
    try:
        store, _, _ = next(rendezvous("env://", timeout=GROUP_TIMEOUT))
    except (RuntimeError, ValueError) as error:
        raise WorkerLost(f"this worker cannot reach the first one: {str(error).splitlines()[0]}") from error
    return store  # type: ignore[no-any-return]


class Relayed(GossamerError):
    """The error of a worker, raised again in the first one."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class _Forks:
    """This process and the workers it forked."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.children: list[ForkProcess] = []
        #: For each child: whether it has started, and its error.
        self.pipes: list[Connection] = []
        #: Whether the death of a worker is an error: not before all have started, nor after it was reported.
        self.watching = False

    def run(self, work: Callable[[Group], Result], shared: Sequence[int]) -> Result:
        context, frozen = multiprocessing.get_context("fork"), gc.get_freeze_count()
        board = Board(self.workers, shared=shared)
        try:
            # Pages that are written to after the fork are copied. So free memory is given back to the system first, and
            # existing objects are hidden from the garbage collector, which writes to every object that it visits.
            gc.collect()
            trim_freed_memory()
            gc.freeze()
            for rank in range(1, self.workers):
                reader, writer = context.Pipe(duplex=False)
                child = context.Process(
                    target=self._run_worker, args=(rank, board, work, writer, os.getpid()), daemon=True
                )
                with forking():
                    child.start()
                writer.close()
                self.children.append(child)
                self.pipes.append(reader)
            self._wait_for_start()
            with self._watch_children():
                try:
                    self.watching = True
                    self._check_children()
                    result = work(Forked(board, 0, [child.sentinel for child in self.children]))
                finally:
                    self.watching = False  # the others may fail because this one ended
            self._end(timeout=10)
        except WorkerLost as error:
            raise self._cause() or error from None
        finally:
            self._end(timeout=0)
            board.close()
            if not frozen:  # otherwise objects were frozen before, for as long as this process lives
                gc.unfreeze()
        return result

    def _wait_for_start(self) -> None:
        """Wait until every worker runs: a fork may hang."""
        for rank, (child, reader) in enumerate(zip(self.children, self.pipes, strict=True), start=1):
            wait([reader, child.sentinel], timeout=START_TIMEOUT)
            try:
                started = reader.poll() and reader.recv_bytes() == STARTED
            except (EOFError, OSError):
                started = False
            if not started:
                raise WorkerLost(
                    f"worker {rank} of {self.workers} (process {child.pid}) did not start within {START_TIMEOUT:g} s. "
                    "The machine may be overloaded, or something in this program does not survive a fork. Try it "
                    "again, or with one worker."
                )

    def _run_worker(
        self, rank: int, board: Board, work: Callable[[Group], Any], writer: Connection, parent: int
    ) -> None:
        """The main function of a forked worker."""
        die_with_parent(parent)
        gc.freeze()
        gc.enable()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first worker gets it too, and decides for all
        # A scheduler sends this one to all processes of a group: a worker that it ends is not reported as lost.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        torch.set_num_threads(1)
        try:
            writer.send_bytes(STARTED)
            work(Forked(board, rank))
        except (DivergenceError, KeyboardInterrupt):
            return  # all workers raise it together, and the first one reports it
        except GossamerError as error:
            _send(writer, str(error)[:ERROR_LENGTH], error.exit_code)
            raise SystemExit(1) from None
        except BaseException as error:
            place = traceback.format_exc()[-TRACEBACK_LENGTH:]
            _send(writer, f"{type(error).__name__}: {str(error)[:ERROR_LENGTH]}\n{place}", None)
            raise SystemExit(1) from None

    @contextmanager
    def _watch_children(self) -> Iterator[None]:
        """Notice at once when a worker dies, also in the middle of a long round."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can handle signals; another one notices at the next barrier
            return
        before = signal.signal(signal.SIGCHLD, self._check_children)
        try:
            yield
        finally:
            signal.signal(signal.SIGCHLD, before)

    def _check_children(self, *_: Any) -> None:
        """Raise if a worker has died, but only once: another signal may come while the error is handled."""
        if self.watching and any(map(_has_failed, self.children)):
            self.watching = False
            raise WorkerLost("a worker died")

    def _cause(self) -> GossamerError | None:
        """The worker that failed first, and its error."""
        ended = wait([child.sentinel for child in self.children], timeout=0)
        for child in self.children:
            if child.sentinel in ended:  # its descriptors are closed a moment before its exit code is known
                child.join(timeout=3)
        for rank, (child, reader) in enumerate(zip(self.children, self.pipes, strict=True), start=1):
            worker = f"worker {rank} of {self.workers} (process {child.pid})"
            if child.exitcode is not None and child.exitcode < 0:
                name = signal.Signals(-child.exitcode).name
                hint = " The system does that when memory runs out." if name == "SIGKILL" else ""
                return WorkerLost(f"{worker} was killed by {name}.{hint}")
            with suppress(EOFError, OSError, ValueError):
                if reader.poll():
                    message, code = json.loads(reader.recv_bytes())
                    return WorkerLost(f"{worker} failed: {message}") if code is None else Relayed(message, code)
            if child.exitcode:
                return WorkerLost(f"{worker} ended without an error message, with exit code {child.exitcode}.")
        for rank, child in enumerate(self.children, start=1):  # one that ended well while others waited for it
            if child.sentinel in ended:
                return WorkerLost(f"worker {rank} of {self.workers} (process {child.pid}) ended before the others.")
        return None

    def _end(self, timeout: float) -> None:
        """Wait so many seconds for the workers to end, then kill them."""
        deadline = time.monotonic() + timeout
        for child in self.children:
            child.join(timeout=max(0.0, deadline - time.monotonic()))
            if child.exitcode is None:
                child.kill()
            child.join()
        while self.children:
            self.children.pop().close()
            self.pipes.pop().close()


def _send(writer: Connection, message: str, exit_code: int | None) -> None:
    with suppress(OSError):
        writer.send_bytes(json.dumps([message, exit_code], ensure_ascii=False).encode())


def _has_failed(child: ForkProcess) -> bool:
    """Whether a worker has ended with an error. Leaves its exit status in place for the `join` that follows."""
    assert child.pid is not None
    try:
        found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # the status was read when the next worker was started
        return bool(child.exitcode)
    return found is not None and (found.si_code, found.si_status) != (os.CLD_EXITED, 0)
