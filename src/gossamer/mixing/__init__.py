"""What happens to messages on their way."""

from gossamer.mixing.linear import Traffic, mix, operator_matrix

__all__ = ["Traffic", "mix", "operator_matrix"]
