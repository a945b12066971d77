"""As many workers as have something to do."""

import pytest

from gossamer import Experiment
from gossamer.engines.planning.workers import WORTH_A_WORKER, number_of_workers
from gossamer.experiment import prepare


@pytest.mark.parametrize(
    ("clients", "local_steps", "cores", "expected"),
    [
        (10, 1, 8, 1),  # 10 clients · 16 samples · 650 parameters: much less than is worth a worker
        (10, 500, 8, 6),  # 5.2e7
        (10, 500, 4, 4),
        (3, 20000, 8, 3),
    ],
)
def test_by_default_one_for_each_core_that_has_enough_to_do(
    clients: int, local_steps: int, cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOSSAMER_WORKERS", raising=False)
    described = Experiment(
        clients=clients, model="softmax", batch_size=16, local_steps=local_steps, partition="iid",
        dataset={"name": "digits", "train_samples": 16 * clients},
    )  # fmt: skip
    assert WORTH_A_WORKER == 8e6
    assert number_of_workers(None, prepare(described).training, cores=cores) == expected
    assert number_of_workers(2, prepare(described).training, cores=cores) == 2
