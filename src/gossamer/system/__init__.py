"""The machine: cores, memory, processes, start-up, sums. Imports nothing else of Gossamer."""
