"""The command line, for all tests of this folder."""

from command_line import gossamer, place, refused, settings_fixture, spawn

__all__ = ["gossamer", "place", "refused", "settings_fixture", "spawn"]
