"""Every test process computes on one thread: tests run side by side, and small products do not gain from threads."""

import os

import torch

torch.set_num_threads(1)
os.environ.setdefault("GOSSAMER_WORKERS", "1")  # tests that want more say so
