"""The verdict of a comparison in a sentence or two, made from its numbers."""

import math
from collections.abc import Iterator
from dataclasses import replace

from gossamer.measure import METRICS
from gossamer.studies import Comparison, Difference, VariantResult
from gossamer.system.words import counted, score_text


def verdict(comparison: Comparison) -> str:
    """Who was best, by how much, and whether that is more than the seeds differ."""
    return " ".join(_sentences(comparison))


def _sentences(comparison: Comparison) -> Iterator[str]:
    score = comparison.score
    ranked = ranking(comparison)
    if not ranked:
        yield "No round has been measured yet."
        return
    best = ranked[0]
    reached = score_text(score.key, *best.best(score.key))
    over = f" over {counted(len(best.runs), 'seed')}" if len(best.runs) > 1 else ""
    if len(comparison.variants) == 1:
        yield f"{best.label} reached {_best(comparison)} of {reached}{over}."
        if score.worst and not math.isnan((worst := best.last(score.worst)).mean):
            yield f"The model of its worst client ended at {score_text(score.worst, *worst)}."
        return
    if len(set().union(*(variant.test_sets for variant in ranked))) > 1:
        yield f"{best.label} reached {reached}, but not all variants were tested on the same samples: none is the best."
    elif len(ranked) == 1:
        yield f"{best.label} reached {_best(comparison)} of {reached}{over}."
    else:
        yield from _against_the_second(comparison, best, ranked[1], reached)
    if lost := [variant.label for variant in comparison.variants.values() if variant not in ranked]:
        yield f"{_listed(lost)} {'have' if len(lost) > 1 else 'has'} no finite number to compare."


def _against_the_second(
    comparison: Comparison, best: VariantResult, second: VariantResult, reached: str
) -> Iterator[str]:
    score = comparison.score
    other = score_text(score.key, *second.best(score.key))
    found = replace(comparison, baselines={best.label: second.label}).difference(best.label)
    assert found is not None, "it has a baseline"
    if best.best(score.key).mean == second.best(score.key).mean:
        yield f"{best.label} and {second.label} reached the same {_best(comparison, article='')}: {reached}."
        return
    yield f"{best.label} reached the best {score.words}, {reached}; {second.label} came next with {other}."
    yield _significance(found, "accuracy" in score.key)
    yield from _at_the_end(comparison, best)


def _at_the_end(comparison: Comparison, best: VariantResult) -> Iterator[str]:
    """What a best round hides: that at the end of the runs another variant is ahead."""
    key = comparison.score.key
    ended = {label: v.last(key) for label, v in comparison.variants.items() if math.isfinite(v.last(key).mean)}
    if best.label not in ended:
        yield f"But {best.label} did not end with a finite number."
        return
    first = (max if METRICS[key].direction == "up" else min)(ended, key=lambda label: ended[label].mean)
    if ended[first].mean != ended[best.label].mean:
        mine, other = (score_text(key, *ended[label]) for label in (best.label, first))
        yield f"At the end, {first} is ahead: {other} against {mine}."


def _significance(found: Difference, percent: bool) -> str:
    if math.isnan(found.mean):
        return "They have no seed in common, so that their difference cannot be judged."
    factor, unit, digits = (100, " points", ".1f") if percent else (1, "", ".2g")
    lead = f"{factor * abs(found.mean):{digits}}"
    if found.error is None:
        return f"The lead of {lead}{unit} is that of one seed: whether it is more than chance is not known."
    spread = f"{factor * found.error:{digits}}{unit}"
    of = f"{lead} ± {spread} (mean and standard error of {len(found.seeds)} seeds, in pairs)"
    if found.error == 0 or abs(found.mean) > 2 * found.error:
        return f"The lead of {of} is more than twice its standard error."
    if found.exceeds:
        return f"The lead of {of} is more than its standard error, but less than twice that: take more seeds."
    return f"The lead of {of} is within its standard error: these seeds do not tell the two apart."


def ranking(comparison: Comparison) -> list[VariantResult]:
    """The variants from the best to the worst by the mean of their best score; those without one are left out."""
    key = comparison.score.key
    known = [v for v in comparison.variants.values() if math.isfinite(v.best(key).mean)]
    return sorted(known, key=lambda v: v.best(key).mean, reverse=METRICS[key].direction == "up")


def _best(comparison: Comparison, article: str = "a ") -> str:
    return f"{article}best {comparison.score.words}"


def _listed(labels: list[str], most: int = 3) -> str:
    shown = labels if len(labels) <= most else [*labels[: most - 1], f"{len(labels) - most + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
