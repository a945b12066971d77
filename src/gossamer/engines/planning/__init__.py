"""Which way to run clients is best, found by a short measurement."""
