"""`python -m gossamer` is the `gossamer` command."""

import sys


def main() -> None:
    """Run the command line. Imported here, so that Ctrl-C during the seconds that torch takes is no traceback."""
    try:
        from gossamer.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
