"""Models of sequences that tests train."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gossamer import Experiment, per_client
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


TEXT = Path(__file__).with_name("harbour.txt")


class CharacterLSTM(nn.Module):
    """Embedding, LSTM, and scores of the next character at every place."""

    def __init__(self, length: int, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 8)
        self.recurrent, self.scores = nn.LSTM(8, 24, batch_first=True), nn.Linear(24, characters)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.recurrent(self.embedding(inputs))[0])
        return scores


class CharacterTransformer(nn.Module):
    """One layer of causal attention, and scores of the next character at every place."""

    def __init__(self, length: int, characters: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(characters, 16), nn.Parameter(0.1 * torch.randn(length, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.scores = nn.Linear(16, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layer(self.embedding(inputs) + self.places, src_mask=self.mask, is_causal=True)
        scores: Tensor = self.scores(hidden)
        return scores


def character_lstm(shape: tuple[int, ...], classes: int) -> nn.Module:
    return CharacterLSTM(shape[0], classes)


def character_transformer(shape: tuple[int, ...], classes: int) -> nn.Module:
    return CharacterTransformer(shape[0], classes)


def reading(network: str, clients: int = 4, **changed: Any) -> Experiment:
    """An experiment that learns the text, described by names alone, as peers need it."""
    return Experiment(**{
        "model": f"sequences:{network}", "dataset": {"name": "characters", "file": str(TEXT), "length": 16},
        "partition": "iid", "clients": clients, "rounds": 3, "local_epochs": 1, "batch_size": 8, "lr": 0.5,
        "dtype": "float64", **changed,
    })  # fmt: skip


class Pooled(nn.Module):
    """The mean embedding of the tokens that a mask leaves, beside a number, to some scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.scores = nn.Embedding(7, 5), nn.Linear(6, 3)

    def forward(self, ids: Tensor, keep: Tensor, age: Tensor) -> Tensor:
        kept = keep.to(age.dtype).unsqueeze(-1)
        mean = (self.embedding(ids) * kept).sum(1) / kept.sum(1).clamp(min=1)
        scores: Tensor = self.scores(torch.cat([mean, age.unsqueeze(1)], 1))
        return scores


def several_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of any number of labels for a sample."""
    return nn.functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none").mean(1)


def wrong_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many of the labels of each sample are wrong."""
    return ((outputs > 0) != (targets > 0.5)).double().sum(1)


wrong_labels.lower_is_better = True  # type: ignore[attr-defined]


def records() -> Dataset:
    """Tokens, a mask and a number for each sample; each of three labels may hold."""
    rng = np.random.default_rng(1)

    def pair(size: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        ids, keep, age = rng.integers(7, size=(size, 4)), rng.random((size, 4)) < 0.7, rng.normal(size=size)
        labels = np.stack([(ids * keep).sum(1) > 8, age > 0, (ids[:, 0] == 3) & keep[:, 0]], 1)
        return {"ids": ids, "keep": keep, "age": age}, labels.astype(np.float64)

    return per_client([pair(n) for n in (30, 11, 24)], test=pair(40))
