"""The table of a tuned study: every method at its best settings; which is ahead per round, byte and gradient."""

import math
from collections.abc import Callable, Mapping

from gossamer.runs.record import RunRecord
from gossamer.studies.reproduction import PaperStudy
from gossamer.studies.results import Difference, Estimate, Measure, VariantResult
from gossamer.studies.targets import Target, reach

#: What is counted until a target: the heading, the quantity of a `Cost`, and what it is divided by besides clients.
COUNTED: dict[str, tuple[str, float]] = {"rounds": ("rounds", 1), "MB": ("bytes", 1e6), "gradients": ("gradients", 1)}
UNITS = {"rounds": "rounds", "MB": "MB sent by a client", "gradients": "gradients of a client"}


def headings(paper: PaperStudy) -> list[str]:
    """The headings of the table."""
    rounds = paper.study.experiment.rounds
    first = ["method", "chosen", "seeds", f"% after {rounds} rounds", "worst client %"]
    return [*first, *(f"{name} to {target} %" for target in paper.targets for name in COUNTED)]


def rows(paper: PaperStudy, runs: Mapping[str, VariantResult]) -> list[list[str]]:
    """One row for each method whose winner has been run: its settings, accuracy, and what it took to reach targets."""
    assert paper.tuning is not None
    winners, found = paper.tuning.winners(runs, paper.metric), []
    for method, result in paper.reported(runs).items():
        chosen = winners[method].removeprefix(f"{method}, ")
        row = [method, chosen, str(len(result.runs))]
        row += [_percent(result.last(paper.metric)), _percent(result.last("client_accuracy_worst"))]
        for target in paper.targets:
            row += [_cost(result, _until(paper, target, name)) for name in COUNTED]
        found.append(row)
    return found


def unfinished(paper: PaperStudy, runs: Mapping[str, VariantResult]) -> list[str]:
    """The methods that have no reported run yet."""
    assert paper.tuning is not None
    return [method for method in paper.tuning.candidates if method not in paper.reported(runs)]


def standings(paper: PaperStudy, runs: Mapping[str, VariantResult]) -> list[str]:
    """Who is ahead, and by how much more than its standard error, in sentences."""
    found = paper.reported(runs)
    if len(found) < 2:
        return []
    rounds = paper.study.experiment.rounds
    lines = [_ahead(found, f"After {rounds} rounds", lambda run: 100 * run.last(paper.metric), "points", most=True)]
    for target in paper.targets:
        for name in COUNTED:
            measure = _until(paper, target, name)
            met = {label: each for label, each in found.items() if all(map(math.isfinite, _values(each, measure)))}
            if len(met) > 1:
                lines.append(_ahead(met, f"To {target} %", measure, UNITS[name], most=False))
    return lines


def _ahead(found: Mapping[str, VariantResult], when: str, measure: Measure, unit: str, most: bool) -> str:
    """The sentence on one measure: the best, the next, their paired difference, and all that it cannot be told from."""
    order = sorted(found, key=lambda label: found[label].estimate(measure).mean, reverse=most)
    best, second = order[0], order[1]
    ahead = Difference.between(found[best], found[second], measure)
    error = "" if ahead.error is None else f" ± {ahead.error:.3g}"
    close = [o for o in order[1:] if not Difference.between(found[best], found[o], measure).exceeds]
    means = ", ".join(f"{label} {found[label].estimate(measure).mean:.4g}" for label in order[:3])
    words = f"{when}: {means} {unit}; {best} before {second} by {abs(ahead.mean):.3g}{error}"
    return words + (f", not to be told from {', '.join(close)}." if close else ", more than its standard error.")


def _until(paper: PaperStudy, target: str, name: str) -> Measure:
    """What a run took until it reached an accuracy, for one client; infinite if it did not."""
    quantity, unit = COUNTED[name]
    goal = Target(paper.metric, float(target) / 100)

    def cost(run: RunRecord) -> float:
        reached = reach(run, goal)
        clients = 1 if quantity == "rounds" else int(run.experiment["clients"])
        return float(getattr(reached.cost, quantity)) / unit / clients if reached.met else math.inf

    return cost


def _values(result: VariantResult, measure: Callable[[RunRecord], float]) -> list[float]:
    return [measure(run) for run in result.runs.values()]


def _cost(result: VariantResult, measure: Measure) -> str:
    """Mean and spread of what was counted; how many seeds reached the target, if not all."""
    values = _values(result, measure)
    met = [value for value in values if math.isfinite(value)]
    if not met:
        return "–"
    mean, spread = Estimate.of(met)
    text = f"{mean:.3g}" if spread is None else f"{mean:.3g} ± {spread:.2g}"
    return text if len(met) == len(values) else f"{text} ({len(met)} of {len(values)})"


def _percent(estimate: Estimate) -> str:
    spread = "" if estimate.spread is None else f" ± {100 * estimate.spread:.2f}"
    return f"{100 * estimate.mean:.2f}{spread}"
