"""`python -m benchmarks` prints the table of benchmarks."""

from benchmarks.run import main

if __name__ == "__main__":
    main()
