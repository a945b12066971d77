"""Sharpness of saved runs: Hessian eigenvalues, Hessian trace and SAM-sharpness of the averaged model and of clients.

Every measurement is a line of `sharpness.jsonl` in the run folder. What is there already is not measured again.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gossamer.errors import DivergenceError, ExperimentError
from gossamer.experiment import Experiment
from gossamer.measure.flatness import eigenvalue_estimates, sam_sharpness, trace_estimates, trace_of
from gossamer.measure.objective import FLATNESS_SAMPLES, training_objective
from gossamer.runs.files import append_line
from gossamer.runs.folder import EXPERIMENT, read_lines, to_json
from gossamer.runs.saved import SavedModel, SavedRun, Which, measuring_workers
from gossamer.system.threads import on_threads
from gossamer.training import Training
from gossamer.workers import Group, as_group

SHARPNESS = "sharpness.jsonl"

#: Called with the share that is done and with what is done at the moment.
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class SharpnessSettings:
    """What is measured, and how well."""

    #: The averaged model at the end, or of the best round.
    saved: Which = "final"
    #: The loss on "train" or "test" samples, and how many of them at most.
    on: str = "train"
    samples: int = FLATNESS_SAMPLES
    #: How many of the largest eigenvalues, and the largest error of one relative to the largest of them.
    eigenvalues: int = 1
    tolerance: float = 1e-4
    limit: int = 200
    #: Random vectors for the trace.
    probes: int = 30
    #: ρ, the radius of SAM-sharpness.
    rho: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("eigenvalues", 1), ("probes", 2), ("limit", self.eigenvalues)):
            if getattr(self, name) < least:
                raise ExperimentError(f"{name} must be {least} or more (got {getattr(self, name)})")
        if not 0 < self.rho < math.inf:
            raise ExperimentError(f"rho must be a finite radius above 0 (got {self.rho})")


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The run folders among these folders and directly inside them."""
    found: list[Path] = []
    for path in paths:
        inside = [] if (path / EXPERIMENT).exists() else sorted(each.parent for each in path.glob(f"*/{EXPERIMENT}"))
        found += inside or [path]
    return list(dict.fromkeys(found))


def measure_sharpness(
    folder: Path | str,
    settings: SharpnessSettings | None = None,
    *,
    clients: int = 0,
    data_dir: Path | None = None,
    workers: int | None = None,
    progress: Progress = lambda share, doing: None,
    experiment: Experiment | None = None,
) -> list[dict[str, Any]]:
    """The sharpness of a saved run's averaged model and of some clients' own models, one dict for each.

    The `clients` are taken at even distances.
    `experiment` is needed only if it holds objects that no file can express.
    """
    settings = settings or SharpnessSettings()
    run = SavedRun.open(Path(folder), data_dir, experiment)
    total = run.training.network.clients
    count = min(clients, total)
    some = [number * total // count for number in range(count)]
    models = [run.average(settings.saved), *(run.client(number) for number in some)]
    known = read_lines(run.folder.path / SHARPNESS)
    wanted = [asdict(settings) | {"model": model.name, "digest": model.digest} for model in models]
    found = [next((line for line in known if line.items() >= keys.items()), None) for keys in wanted]
    left = [model for model, line in zip(models, found, strict=True) if line is None]

    def work(group: Group) -> list[dict[str, Any]]:
        measured = []
        with on_threads(1):
            for number, model in enumerate(left):

                def advance(share: float, doing: str, number: int = number, model: SavedModel = model) -> None:
                    if group.first:
                        progress((number + share) / len(left), f"{model.name}: {doing}")

                measured.append(_measure(run.training, model, settings, group, advance))
                if group.first:
                    append_line(run.folder.path / SHARPNESS, to_json(measured[-1]))
        return measured

    try:
        fresh = iter(
            as_group(measuring_workers(workers, run.training), run.training.model.initial.device, work) if left else ()
        )
    except (ExperimentError, DivergenceError) as error:
        raise type(error)(f"{folder}: {error}") from error
    return [line or next(fresh) for line in found]


def _measure(
    training: Training, model: SavedModel, settings: SharpnessSettings, group: Group, advance: Progress
) -> dict[str, Any]:
    """All measures of one model, as a line of the file."""
    loss = training_objective(training, group, most=settings.samples, test=settings.on == "test")
    steps = settings.probes + 10
    advance(0, "its loss")
    value = loss.finite_value(model.x)
    for last in eigenvalue_estimates(
        loss, model.x, settings.eigenvalues, settings.seed, settings.tolerance, settings.limit
    ):
        advance(min(last.products, 9) / steps, f"eigenvalues, product {last.products}")
    estimates = []
    for estimate in trace_estimates(loss, model.x, range(settings.probes), settings.seed):
        estimates.append(estimate)
        advance((9 + len(estimates)) / steps, f"trace, vector {len(estimates)} of {settings.probes}")
    trace, decay = trace_of(estimates), training.weight_decay
    return {
        "model": model.name,
        "round": model.round,
        **asdict(settings),
        "sample_count": len(loss.samples),
        "parameters": training.model.size,
        "loss": value,
        "top": list(last.values),
        "top_errors": list(last.errors),
        "products": last.products,
        "converged": last.converged,
        "trace": trace.value,
        "trace_error": trace.error,
        "sam_sharpness": sam_sharpness(loss, model.x, settings.rho),
        "weight_decay": decay,
        "top_with_weight_decay": list(last.shifted(decay).values),
        "trace_with_weight_decay": trace.shifted(decay * training.model.size).value,
        "sam_sharpness_with_weight_decay": sam_sharpness(replace(loss, weight_decay=decay), model.x, settings.rho),
        "digest": model.digest,
    }


def read_sharpness(folder: Path) -> Iterator[dict[str, Any]]:
    """The measurements that a run folder holds."""
    yield from read_lines(folder / SHARPNESS)
