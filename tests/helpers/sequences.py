"""Models of sequences that tests train."""

import numpy as np
from torch import Tensor, nn

from gossamer import per_client
from gossamer.data import Dataset


class LastState(nn.Module):
    """A recurrent network that classifies a sequence by its last state."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.recurrent, self.scores = kind(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.recurrent(inputs)[0][:, -1])
        return scores


def lstm() -> nn.Module:
    return LastState(nn.LSTM)


def gru() -> nn.Module:
    return LastState(nn.GRU)


def signals() -> Dataset:
    """Sequences of three numbers, of which two classes differ in their sum."""
    rng = np.random.default_rng(0)

    def pair(size: int) -> tuple[np.ndarray, np.ndarray]:
        inputs = rng.normal(size=(size, 5, 3)).astype(np.float32)
        return inputs, (inputs.sum((1, 2)) > 0).astype(np.int64)

    return per_client([pair(n) for n in (20, 9, 0, 14)], test=pair(30))
