"""The command line, for all tests of this folder."""

from command_line import gossamer, own_module, place, refused, settings_fixture, spawn

__all__ = ["gossamer", "own_module", "place", "refused", "settings_fixture", "spawn"]
