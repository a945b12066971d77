"""Every test process computes on one thread: tests run side by side, and small products do not gain from threads."""

import torch

torch.set_num_threads(1)
