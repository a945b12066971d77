"""How clients train: what is the same for all of them in every round."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gossamer.data import Batches, Dataset
from gossamer.graphs import Network
from gossamer.methods import Method, Traits, traits_of
from gossamer.models import Loss, VectorModel


@dataclass(frozen=True)
class Training:
    """How clients train: what is the same for all of them in every round."""

    #: Bound to the network and the model, with its optional members.
    method: Method
    traits: Traits = field(init=False, repr=False)
    model: VectorModel
    loss: Loss
    dataset: Dataset
    batches: Batches
    network: Network
    rounds: int
    lr: float
    lr_decay: float
    weight_decay: float
    clip: float | None
    seed: int
    #: The experiment's own metric of outputs and targets.
    metric: Callable[[Any, Tensor], Any] | None = None
    #: Whether clients mix and train one after the other, and not all at once.
    in_turn: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "traits", traits_of(self.method))

    def lr_at(self, index: int) -> float:
        """The learning rate of a round."""
        return self.lr * self.lr_decay**index

    def gossip_steps(self, index: int) -> range:
        """The gossip steps of a round, numbered through all rounds."""
        return range(index * self.traits.gossip_steps, (index + 1) * self.traits.gossip_steps)
