"""`python -m gossamer` is the `gossamer` command."""

import sys

from gossamer.system import startup


def main() -> None:
    """Run the command line."""
    with startup.importing(sys.argv[1:]):
        from gossamer.commands.app import app
        from gossamer.system.torch_private import defer_compiler_import
    defer_compiler_import()
    startup.interrupt_on_sigterm()
    try:
        app()
    finally:
        startup.exit_quietly_on_signals()


if __name__ == "__main__":
    main()
