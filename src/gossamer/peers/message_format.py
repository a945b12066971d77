"""The tensors in this experiment's letters, found by one round of the method without training."""

from gossamer.methods import mixes, probe
from gossamer.peers.store.letters import describe, size_of
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.training import Training

#: The tensors of a letter: name, type and shape of each.
Description = list[wire.Tensor]
MASS_OPERATORS = ("push", "deliver")


class MessageFormat:
    """The letters that one peer sends and expects: their tensors, and how many gossip steps a round has."""

    def __init__(self, training: Training) -> None:
        self.model_dtype, traits = training.model.initial.dtype, training.traits
        client = probe(training.method, training.model.initial)
        message, opening = client.message, client.opening
        pairs = mixes(training.method.sends, message).values()
        #: The names of the tensors that are pushed as mass, and of those that are averaged or summed.
        self.pushed = sorted({name for name, operator in pairs if operator in MASS_OPERATORS})
        self.mixed = sorted(message.keys() - set(self.pushed))
        plain = {name: message[name] for name in self.mixed}
        #: A letter after decoding, and as it is sent.
        self.decoded = describe(plain)
        self.letter = describe(traits.encoded(plain) if self.mixed else {})
        mass = {name: message[name] for name in self.pushed}
        #: A parcel with a single share, and one with a sum of several.
        self.mass = (describe(mass), describe({name: value.double() for name, value in mass.items()}))
        #: A letter of the exchange before the first round.
        self.opening = describe(opening)
        #: Gossip steps of a round, and before the first round.
        self.steps = traits.gossip_steps
        self.open_steps = traits.open_mixings if opening else 0

    @property
    def all(self) -> tuple[Description, ...]:
        """Every kind of letter."""
        return (self.letter, *self.mass, self.opening)

    @property
    def largest(self) -> int:
        """Bytes of the largest letter."""
        return max(map(size_of, self.all))
