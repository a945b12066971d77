"""How letters travel between peers."""
