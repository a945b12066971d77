"""What one client does in a round, whoever runs it."""

from gossamer.training.steps import Training

__all__ = ["Training"]
