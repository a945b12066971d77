"""The range of clients that each worker owns."""

import numpy as np

#: A client without samples still keeps and mixes a model. That takes about as long as local steps with so many samples
#: (3 in W4 of docs/benchmarks.md, 14 for 100,000 clients of a tiny model).
MIXING_WORK = 4


def balanced_ranges(work: np.ndarray, workers: int) -> list[range]:
    """One range of clients for each worker, so that all have about the same work (counted in samples).

    Ranges and not a free choice: neighbours on a ring, a grid or a torus have near numbers, so few messages cross.

    >>> balanced_ranges(np.array([10, 10, 10, 10, 40]), 2)
    [range(0, 4), range(4, 5)]
    """
    clients = len(work)
    if not 1 <= workers <= clients:
        raise ValueError(f"{clients} clients cannot be shared out among {workers} workers")
    done = np.concatenate([[0.0], np.cumsum(work + MIXING_WORK)])
    cuts = [0]
    for worker in range(1, workers):
        target = done[-1] * worker / workers
        after = int(np.searchsorted(done, target))
        nearest = after if done[after] - target <= target - done[after - 1] else after - 1
        # Every worker gets at least one client, also those after this one.
        cuts.append(min(max(nearest, cuts[-1] + 1), clients - (workers - worker)))
    return [range(a, b) for a, b in zip(cuts, [*cuts[1:], clients], strict=True)]
