"""What the machine gives; imports nothing else of Gossamer."""
