"""What an operator of a network uses."""
