"""Mixing of messages, also across workers."""

from gossamer.mixing.linear import Mixer, Traffic, operator_matrix

__all__ = ["Mixer", "Traffic", "operator_matrix"]
