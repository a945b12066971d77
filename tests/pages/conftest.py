"""The command line, for all tests of this folder."""

from command_line import gossamer, place, refused

__all__ = ["gossamer", "place", "refused"]
