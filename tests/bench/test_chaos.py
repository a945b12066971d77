"""A small part of the harness that kills and freezes peers, and that it notices what it looks for."""

from pathlib import Path

import pytest
from benchmarks import chaos
from benchmarks.chaos import Trial

from gossamer.peers.store import letters
from gossamer.peers.store.letters import Letter


def test_every_subset_of_every_network_is_frozen_and_the_seed_gives_the_order() -> None:
    found = chaos.trials(1)
    assert found == chaos.trials(1) != chaos.trials(2)
    assert len({(t.method, t.graph, t.late, t.peers, t.frozen) for t in found}) == len(chaos.NETWORKS) * (8 + 16)


@pytest.mark.parametrize(
    "trial",
    [
        Trial(0, "overlap-sgp", "exponential", "reweigh", 3, frozen=(0, 1, 2)),
        Trial(1, "dfedavg", "full", "reweigh", 3, frozen=()),
    ],
    ids=["all are frozen", "one is killed"],
)
def test_a_trial_ends_well_and_what_is_spoilt_afterwards_is_noticed(trial: Trial, tmp_path: Path) -> None:
    assert chaos.run_trial(trial, 3, tmp_path) == []
    if not trial.frozen:
        return
    network = object.__new__(chaos.Network)
    network.folders = [tmp_path / "kits" / f"p{number}" for number in range(3)]
    assert chaos.mass_problems(network) == []
    parcel = Letter(path := network.folders[0] / "run/outbox/1.mass")
    parcel.header.step += 1  # mass that was never sent
    letters.write(path, parcel.header, {**parcel.message, "weight": parcel.message["weight"] + 0.5})
    assert "the mass is" in chaos.mass_problems(network)[0]
