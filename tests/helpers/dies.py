"""Run before a peer: has its process kill itself with SIGKILL in a `round`, or soon after it, at a `stage`."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gossamer.peers.report import Report
from gossamer.peers.store import letters
from gossamer.peers.wire import links, service
from gossamer.runs import checkpoint
from gossamer.training import Client


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arrange(stage: str, round: int) -> None:
    """Have this process die at a stage, in a round or soon after it."""
    current: dict[str, int] = {"round": -1}
    train = Client.train

    def training(self: Client, index: int) -> float:
        current["round"] = index
        if stage == "training" and index == round:
            original = self.method.step

            def step(*given: Any) -> Any:
                result = original(*given)
                die()
                return result

            object.__setattr__(self.method, "step", step)
        return train(self, index)

    Client.train = training  # type: ignore[method-assign]
    due = lambda: current["round"] >= round  # noqa: E731

    if stage == "sending":
        pieces = links.Link._pieces

        async def sending(self: Any, letter: letters.Letter) -> AsyncIterator[Any]:
            async for piece in pieces(self, letter):
                yield piece
                if due():
                    die()

        links.Link._pieces = sending  # type: ignore[method-assign]
    elif stage == "checkpoint":
        replace_file = checkpoint.replace_file

        def replacing(path: Path, write: Any) -> None:
            def half(aside: Path) -> None:
                write(aside)
                if due():
                    os.truncate(aside, aside.stat().st_size // 2)
                    die()

            replace_file(path, half)

        checkpoint.replace_file = replacing
    elif stage == "acknowledging":
        receive = service.Service._receive

        async def taking(self: Any, *given: Any) -> Any:
            receipt = await receive(self, *given)
            if due():
                die()
            return receipt

        service.Service._receive = taking  # type: ignore[method-assign]
    elif stage == "committed":
        record = Report.round

        async def recording(self: Any, *given: Any) -> None:
            if due():
                die()
            await record(self, *given)

        Report.round = recording  # type: ignore[method-assign]


if __name__ == "<run_path>":
    arrange(globals()["stage"], globals()["round"])
