"""How a local step is run."""
