import json

import numpy as np
import pytest

from gossamer.data import summarise

LABELS = np.array([[4, 0, 0], [1, 1, 2], [0, 0, 0]])


def test_numbers_one_can_check_on_paper():
    targets = np.array([0, 0, 0, 0, 0, 1, 2, 2])
    summary = summarise([np.arange(4), np.arange(4, 8), np.array([], int)], targets, 3)
    assert summary.labels.tolist() == LABELS.tolist()
    assert summary.sizes.tolist() == [4, 4, 0]
    assert summary.distinct.tolist() == [1, 3, 0]
    # Everyone: (5, 1, 2)/8. The first client is 3/8 away from it, and so is the second.
    assert summary.heterogeneity == pytest.approx(3 / 8)
    assert json.loads(json.dumps(summary.to_dict())) == {
        "clients": 3,
        "samples": 8,
        "sizes": [4, 4, 0],
        "distinct": [1, 3, 0],
        "labels": LABELS.tolist(),
        "heterogeneity": pytest.approx(3 / 8),
    }


def test_nothing_and_values():
    assert summarise([np.array([], int)], np.array([], int), 3).heterogeneity == 0
    values = summarise([np.arange(2), np.arange(2, 3)], np.array([0.1, 0.2, 0.3]), 1)
    assert values.labels.tolist() == [[2], [1]]
    assert values.heterogeneity == 0
