"""What happens to messages on their way."""

from gossamer.mixing.linear import bytes_sent, mix, operator_matrix

__all__ = ["bytes_sent", "mix", "operator_matrix"]
