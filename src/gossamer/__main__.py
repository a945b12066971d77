"""`python -m gossamer` is the `gossamer` command."""

import sys

from gossamer.system import startup


def main() -> None:
    """Run the command line."""
    with startup.importing(sys.argv[1:]):
        from gossamer.commands.app import app
    startup.put_off_compiler()
    startup.stop_when_terminated()
    try:
        app()
    finally:
        startup.end_when_told()


if __name__ == "__main__":
    main()
