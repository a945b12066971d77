"""What one client does in a round, whoever runs it."""

from gossamer.training.gradients import count_gradients
from gossamer.training.steps import Training

__all__ = ["Training", "count_gradients"]
