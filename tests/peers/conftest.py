"""Peers under attack, which some files share the way to."""

import logging
from collections.abc import Iterator

import pytest

from attacker import Live, experiment
from networks import make_kits


@pytest.fixture(scope="module")
def errors() -> Iterator[list[str]]:
    """What would be printed on a terminal."""
    seen: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    yield seen
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, errors: list[str]) -> Iterator[Live]:
    """Peers that average. All have heard each other when the attacks begin, and after the last one a round goes on."""
    with Live(make_kits(tmp_path_factory.mktemp("letters"), experiment("dfedavg"))) as network:
        network.round()
        yield network
        network.round()
    assert not errors
