"""What one client does in a round: engines, peers and theory stand on it."""

from gossamer.training.client import Client, own_samples_only
from gossamer.training.gradients import count_gradients
from gossamer.training.letters import Delivery, mix_letters, pushed_names, share_of, together
from gossamer.training.training import Training
from gossamer.training.trial import check_first_step
from gossamer.training.watch import call, watched_round

__all__ = [
    "Client",
    "Delivery",
    "Training",
    "call",
    "check_first_step",
    "count_gradients",
    "mix_letters",
    "own_samples_only",
    "pushed_names",
    "share_of",
    "together",
    "watched_round",
]
