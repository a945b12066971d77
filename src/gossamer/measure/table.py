"""The metrics of a round: their names, what they mean, and which direction is better."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Metrics = dict[str, Any]


class Metric(NamedTuple):
    """One metric of a round's record."""

    meaning: str
    #: "up": it rises in the course of a run; "down": it falls; None: neither, so that no run can be stopped at it.
    direction: Literal["up", "down"] | None = None
    #: The key of `[evaluate]` that says how often it is measured; None: in every round.
    cadence: str | None = None


METRICS = {
    "round": Metric("the round, counted from 1; 0 is the state before the first round"),
    "lr": Metric("learning rate of the round"),
    "local_loss": Metric("training loss, the mean over the clients that trained", "down"),
    "client_bytes_round": Metric(
        "bytes that a client sent in the round, the mean over all clients; through a server: the way up alone"
    ),
    "bytes_round": Metric("bytes sent in the round, by all clients and the server: both ways"),
    "bytes_total": Metric("bytes sent in all rounds so far", "up"),
    "messages_round": Metric("messages sent over links in the round, by all clients and the server"),
    "messages_total": Metric("messages sent in all rounds so far", "up"),
    "gradients_round": Metric("mini-batch gradients taken in the round, by all clients"),
    "gradients_total": Metric("mini-batch gradients taken in all rounds so far", "up"),
    "consensus": Metric("mean squared distance of the clients' models from their average", "down", "every"),
    "test_loss": Metric("loss of the averaged model on the test samples", "down", "every"),
    "test_accuracy": Metric("accuracy of the averaged model on the test samples", "up", "every"),
    "test_score": Metric("the experiment's own `metric` of the averaged model, if higher is better", "up", "every"),
    "test_error": Metric("the experiment's own `metric` of the averaged model, if lower is better", "down", "every"),
    "client_accuracy_mean": Metric("accuracy of the clients' own models on the test samples: mean", "up", "clients"),
    "client_accuracy_worst": Metric("the same: the worst client", "up", "clients"),
    "client_accuracy_best": Metric("the same: the best client", "up", "clients"),
    "client_loss_mean": Metric("loss of the clients' own models on the test samples: mean", "down", "clients"),
    "client_loss_worst": Metric("the same: the worst client", "down", "clients"),
    "client_loss_best": Metric("the same: the best client", "down", "clients"),
    "train_loss": Metric("loss of the averaged model on all training samples", "down", "training"),
    "train_accuracy": Metric("accuracy of the averaged model on all training samples", "up", "training"),
    "generalisation_gap": Metric("training accuracy minus test accuracy", None, "training"),
    "gradient_norm_squared": Metric(
        "‖∇f(x̄)‖² of the averaged model x̄; f is the mean of the clients' losses, with weight decay", "down", "gradient"
    ),
    "top_eigenvalue": Metric(
        "largest eigenvalue of the Hessian of the training loss at the averaged model", "down", "sharpness"
    ),
    "hessian_trace": Metric("trace of that Hessian, from 10 random vectors", "down", "sharpness"),
    "hessian_trace_error": Metric("standard error of the trace", None, "sharpness"),
    "sam_sharpness": Metric("rise of the training loss at distance 0.05 along its gradient", "down", "sharpness"),
    "personal_accuracy_mean": Metric(
        "accuracy of the clients' own models on test samples in the proportions of their own labels: mean",
        "up",
        "personal",
    ),
    "personal_accuracy_worst": Metric("the same: the worst client", "up", "personal"),
    "personal_accuracy_best": Metric("the same: the best client", "up", "personal"),
    "personal_average_accuracy_mean": Metric(
        "the same accuracy of the averaged model: mean over the clients", "up", "personal"
    ),
    "personal_average_accuracy_worst": Metric("the same: the worst client", "up", "personal"),
    "personal_average_accuracy_best": Metric("the same: the best client", "up", "personal"),
}


class Score(NamedTuple):
    """A metric that models are judged by."""

    key: str
    #: The metric in a table of numbers.
    words: str
    #: The same of the worst client's own model.
    worst: str | None


#: Runs are judged by the first of these that they have numbers for: a regression has no accuracy.
SCORES = (
    Score("test_score", "score", None),
    Score("test_error", "error", None),
    Score("test_accuracy", "accuracy", "client_accuracy_worst"),
    Score("test_loss", "test loss", "client_loss_worst"),
    Score("local_loss", "training loss", None),
)

#: Per-client values that an observer may want in the record of every round: see `Observer.wants`.
CLIENT_VALUES = {
    "client_accuracy": "accuracy of each client's own model on the test samples",
    "client_loss": "loss of each client's own model on the test samples",
    "client_local_loss": "training loss of each client in the round; NaN for a client that did not train",
    "client_bytes": "bytes that each client sent in the round",
    "client_personal_accuracy": "accuracy of each client's own model on test samples in the proportions of its labels",
    "client_personal_average_accuracy": "the same accuracy of the averaged model",
}


def best_round(history: list[Metrics]) -> Metrics:
    """The metrics of the best round by the experiment's own metric, else by test accuracy, else by test loss.

    Of equals it is the earliest.
    """

    def best(key: str, rank: Callable[[float], float]) -> Metrics | None:
        known = [metrics for metrics in history if metrics.get(key) is not None and metrics[key] == metrics[key]]
        return max(known, key=lambda metrics: (rank(metrics[key]), -metrics["round"]), default=None)

    for key in ("test_score", "test_error", "test_accuracy", "test_loss"):
        if found := best(key, float if METRICS[key].direction == "up" else lambda value: -value):
            return found
    return {}


def add_totals(counts: dict[str, int], before: Metrics) -> Metrics:
    """The counts of a round as metrics of the round and of all rounds, after the metrics of the round before.

    >>> add_totals({"bytes": 5}, {"bytes_total": 20})
    {'bytes_round': 5, 'bytes_total': 25}
    """
    metrics: Metrics = {}
    for name, count in counts.items():
        metrics |= {f"{name}_round": count, f"{name}_total": count + before.get(f"{name}_total", 0)}
    return metrics
