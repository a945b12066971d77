"""What happens to messages on their way."""

from gossamer.mixing.linear import Mixer, Traffic, operator_matrix

__all__ = ["Mixer", "Traffic", "operator_matrix"]
