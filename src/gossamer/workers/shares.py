"""Which clients a worker owns."""

import numpy as np


def shares(work: np.ndarray, workers: int) -> list[range]:
    """Cut the clients into one stretch for each worker, so that all have about the same work.

    Stretches and not a free choice: neighbours on a ring, a grid or a torus have near numbers, so few messages cross.

    >>> shares(np.array([1, 1, 1, 1, 4]), 2)
    [range(0, 4), range(4, 5)]
    """
    clients = len(work)
    if not 1 <= workers <= clients:
        raise ValueError(f"{clients} clients cannot be shared out among {workers} workers")
    # A client without samples still keeps and mixes a model, so nobody counts for nothing.
    done = np.concatenate([[0.0], np.cumsum(work + 1e-3 * max(1.0, float(work.mean())))])
    cuts = [0]
    for worker in range(1, workers):
        target = done[-1] * worker / workers
        after = int(np.searchsorted(done, target))
        nearest = after if done[after] - target <= target - done[after - 1] else after - 1
        # Everyone gets at least one client, those still to come included.
        cuts.append(min(max(nearest, cuts[-1] + 1), clients - (workers - worker)))
    return [range(a, b) for a, b in zip(cuts, [*cuts[1:], clients], strict=True)]
