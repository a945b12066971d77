"""What is measured: the quality of models, how far they are apart, and the record of a round."""

from gossamer.measure.metrics import Evaluator, Quality, squared_distances
from gossamer.measure.own_metrics import OWN_METRICS, OwnMetric, metric_key
from gossamer.measure.rounds import Measured, Measurement
from gossamer.measure.table import CLIENT_VALUES, METRICS, SCORES, Metric, Metrics, Score, add_totals, best_round

__all__ = [
    "CLIENT_VALUES",
    "METRICS",
    "OWN_METRICS",
    "SCORES",
    "Evaluator",
    "Measured",
    "Measurement",
    "Metric",
    "Metrics",
    "OwnMetric",
    "Quality",
    "Score",
    "add_totals",
    "best_round",
    "metric_key",
    "squared_distances",
]
