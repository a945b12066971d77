"""What is measured."""

from gossamer.measure.metrics import Evaluator, Quality, consensus_distance

__all__ = ["Evaluator", "Quality", "consensus_distance"]
