"""The command line: one small file per group of commands, assembled in `app.py`.

A command reads its options, calls the function that a notebook would call, and prints a view of `gossamer.terminal`.
"""
