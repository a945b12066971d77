"""How a run gets its workers: forked from this process on one machine, or started from outside by `torchrun`.

Forked workers share everything that was prepared before the fork (samples, graph, compiled steps) without a copy, and
need nothing of it to be sent: an experiment may hold any Python object.
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
from gossamer.workers.forks import forking
from gossamer.workers.group import ALONE, PATIENCE, Distributed, Group, WorkerLost

Result = TypeVar("Result")

#: What a worker says first, and the seconds that it may take to say it: it does nothing before.
UP, START_UP = b"up", 120.0
#: Letters of an error that are told, and of where it was: nobody reads before the worker has ended, and a pipe holds
#: only so much.
WORDS, PLACES = 4_000, 10_000


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


def as_group(workers: int, device: torch.device, work: Callable[[Group], Result], rooms: Sequence[int] = ()) -> Result:
    """Run `work` in every worker; give what it returns in this one. Forked workers share `rooms` of so many bytes."""
    if launched_from_outside():
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        group = Distributed(rank, size, device, store=_meeting_place(rank, size))
        group.here = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        try:
            return work(group)
        finally:
            with suppress(RuntimeError):
                group.close()
    if workers == 1:
        return work(ALONE)
    return _Forks(workers).run(work, rooms)


def _meeting_place(rank: int, size: int) -> Store:
    """Where the processes of a launcher find each other: a name in its store that was never used before.

    The store outlives restarts, and runs that follow each other: it may hold the addresses of processes that are
    gone. So the first process draws a name, and gives it to everyone who greets it with a word that is as fresh.
    """
    store, own = _launchers_store(), secrets.token_hex(8)
    until = time.monotonic() + PATIENCE.total_seconds()

    def wait_for(key: str, meanwhile: Callable[[], None] = lambda: None) -> str:
        while not store.check([key]):
            meanwhile()
            if time.monotonic() > until:
                raise WorkerLost(f"worker {rank} of {size} cannot join the others: they do not come.")
            time.sleep(0.01)
        return bytes(store.get(key)).decode()

    def answer(other: int) -> None:
        if store.check([f"gossamer/greets/{other}"]):
            greeting = bytes(store.get(f"gossamer/greets/{other}")).decode()
            store.set(f"gossamer/answers/{other}/{greeting}", own)

    if rank == 0:
        name = own
        for other in range(1, size):  # only a process that lives repeats a word that was drawn just now
            wait_for(f"gossamer/comes/{other}/{name}", partial(answer, other))
    else:
        store.set(f"gossamer/greets/{rank}", own)
        name = wait_for(f"gossamer/answers/{rank}/{own}")
        store.set(f"gossamer/comes/{rank}/{name}", "")
    return PrefixStore(f"gossamer/{name}", store)


@cache
def _launchers_store() -> Store:
    """The launcher's store; without one, the first process holds it, for as long as it lives."""
    try:
        store, _, _ = next(rendezvous("env://", timeout=PATIENCE))
    except (RuntimeError, ValueError) as error:
        raise WorkerLost(f"this worker cannot reach the first one: {str(error).splitlines()[0]}") from error
    return store  # type: ignore[no-any-return]


class Relayed(GossamerError):
    """What went wrong in a worker, told by the first one in the same words."""

    def __init__(self, words: str, exit_code: int) -> None:
        super().__init__(words)
        self.exit_code = exit_code


class _Forks:
    """This process and the workers it forked."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.children: list[ForkProcess] = []
        self.last_words: list[Connection] = []
        #: Whether it is news that a worker has died: not before we work together, nor once it was told.
        self.attentive = False

    def run(self, work: Callable[[Group], Result], rooms: Sequence[int]) -> Result:
        context, frozen = multiprocessing.get_context("fork"), gc.get_freeze_count()
        board = Board(self.workers, rooms=rooms)
        try:
            # Pages that are written to after the fork are there twice. So what is free goes back to the system first,
            # and what is there is not looked at by the collector, which writes to whatever it looks at.
            gc.collect()
            trim_freed_memory()
            gc.freeze()
            for rank in range(1, self.workers):
                hears, says = context.Pipe(duplex=False)
                child = context.Process(
                    target=self._be_worker, args=(rank, board, work, says, os.getpid()), daemon=True
                )
                with forking():
                    child.start()
                says.close()
                self.children.append(child)
                self.last_words.append(hears)
            self._all_are_up()
            with self._watched():
                try:
                    self.attentive = True
                    self._look()
                    result = work(Forked(board, 0, [child.sentinel for child in self.children]))
                finally:
                    self.attentive = False  # what the others make of our going is no news
            self._end(patience=10)
        except WorkerLost as error:
            raise self._why() or error from None
        finally:
            self._end(patience=0)
            board.close()
            if not frozen:  # otherwise somebody else has frozen it, for as long as this process lives
                gc.unfreeze()
        return result

    def _all_are_up(self) -> None:
        """Wait until every worker runs: a fork may hang, and would be waited for in vain."""
        for rank, (child, hears) in enumerate(zip(self.children, self.last_words, strict=True), start=1):
            wait([hears, child.sentinel], timeout=START_UP)
            try:
                up = hears.poll() and hears.recv_bytes() == UP
            except (EOFError, OSError):
                up = False
            if not up:
                raise WorkerLost(
                    f"worker {rank} of {self.workers} (process {child.pid}) did not start within {START_UP:g} s. The "
                    "machine may be overloaded, or something in this program does not survive a fork: try it again, or "
                    "with one worker."
                )

    def _be_worker(self, rank: int, board: Board, work: Callable[[Group], Any], says: Connection, parent: int) -> None:
        """The life of a forked worker; the process ends with it."""
        die_with_parent(parent)
        gc.freeze()
        gc.enable()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first worker hears it too, and decides for all
        # A scheduler sends this one to all processes of a group: who ends by it is not the first one's bad news.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        torch.set_num_threads(1)
        try:
            says.send_bytes(UP)
            work(Forked(board, rank))
        except (DivergenceError, KeyboardInterrupt):
            return  # all come to that together, and the first one says it
        except GossamerError as error:
            with suppress(OSError):
                says.send_bytes(json.dumps([str(error)[:WORDS], error.exit_code], ensure_ascii=False).encode())
            raise SystemExit(1) from None
        except BaseException as error:
            words = f"{type(error).__name__}: {str(error)[:WORDS]}\n{traceback.format_exc()[-PLACES:]}"
            with suppress(OSError):
                says.send_bytes(json.dumps([words, None], ensure_ascii=False).encode())
            raise SystemExit(1) from None

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Notice at once when a worker dies, also in the middle of a long round."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread hears of children; others notice at the next word that is not answered
            return

        before = signal.signal(signal.SIGCHLD, self._look)
        try:
            yield
        finally:
            signal.signal(signal.SIGCHLD, before)

    def _look(self, *_: Any) -> None:
        """Raise if a worker has died, but only once: another signal may come while the first error is on its way."""
        if self.attentive and any(map(_has_failed, self.children)):
            self.attentive = False
            raise WorkerLost("a worker died")

    def _why(self) -> GossamerError | None:
        """Which worker went first, and why."""
        ended = wait([child.sentinel for child in self.children], timeout=0)
        for child in self.children:
            if child.sentinel in ended:  # it closes what it has open a moment before it is gone
                child.join(timeout=3)
        for rank, (child, hears) in enumerate(zip(self.children, self.last_words, strict=True), start=1):
            who = f"worker {rank} of {self.workers} (process {child.pid})"
            if child.exitcode is not None and child.exitcode < 0:
                name = signal.Signals(-child.exitcode).name
                hint = " The system does that when memory runs out." if name == "SIGKILL" else ""
                return WorkerLost(f"{who} was killed by {name}.{hint}")
            with suppress(EOFError, OSError, ValueError):
                if hears.poll():
                    words, code = json.loads(hears.recv_bytes())
                    return WorkerLost(f"{who} failed: {words}") if code is None else Relayed(words, code)
            if child.exitcode:
                return WorkerLost(f"{who} ended without a word, with exit code {child.exitcode}.")
        for rank, child in enumerate(self.children, start=1):  # not even that, while others waited for it
            if child.sentinel in ended:
                return WorkerLost(f"worker {rank} of {self.workers} (process {child.pid}) ended before the others.")
        return None

    def _end(self, patience: float) -> None:
        """Leave no worker behind: let them end by themselves for so many seconds, then kill them."""
        deadline = time.monotonic() + patience
        for child in self.children:
            child.join(timeout=max(0.0, deadline - time.monotonic()))
            if child.exitcode is None:
                child.kill()
            child.join()
        while self.children:
            self.children.pop().close()
            self.last_words.pop().close()


def _has_failed(child: ForkProcess) -> bool:
    """Whether a worker has ended badly. Asks the system without taking the answer away: a second signal may come in
    between, and who waits for the process later must find it."""
    assert child.pid is not None
    try:
        found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # the answer was taken when the next worker was started
        return bool(child.exitcode)
    return found is not None and (found.si_code, found.si_status) != (os.CLD_EXITED, 0)
