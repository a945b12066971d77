"""Real peers: the same methods between machines that do not trust the network."""
