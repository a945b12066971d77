"""Tools for operators: run, check, watch and demonstrate a network."""
