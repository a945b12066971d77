"""What `make bench` measures: Gossamer against the loop one would write by hand, and against the processor's limit."""
