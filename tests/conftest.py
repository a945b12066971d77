"""Every test process computes on one thread: tests run side by side, and small products do not gain from threads."""

import os
import signal

import torch

from gossamer import startup

torch.set_num_threads(1)
os.environ.setdefault("GOSSAMER_WORKERS", "1")  # tests that want more say so
# Started in the background, this process would not hear Ctrl-C, nor would those it starts; some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)
startup.put_off_compiler()  # as the command does
