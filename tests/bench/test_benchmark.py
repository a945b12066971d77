"""`gossamer bench`: what it reports. No test looks at how fast anything is."""

import io
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from gossamer import Experiment, per_client
from gossamer.bench import BenchReport, benchmark
from gossamer.bench.benchmark import TURNS
from gossamer.bench.engine import EngineSpeed, RoundSeconds, steps_of_round
from gossamer.bench.loop import LoopSpeed, plain_loop
from gossamer.bench.memory import data_bytes, memory_in_use, state_bytes
from gossamer.bench.processor import Convolution, fastest_products, flops_per_sample, shapes_of_step
from gossamer.bench.report import LIMITS
from gossamer.errors import ExperimentError
from gossamer.experiment import prepare
from gossamer.methods import METHODS
from gossamer.terminal.bench_view import bench_view
from gossamer.training import count_gradients

TINY = {"clients": 4, "local_steps": 2, "batch_size": 4, "rounds": 6, "model": "softmax"}


#: Stride, padding, dilation, not transposed, no output padding, one group.
CONVOLVED = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)


def shown(report):
    console = Console(width=100, file=io.StringIO())
    console.print(bench_view(report))
    return console.file.getvalue()


@pytest.fixture(scope="module")
def measured():
    told = []
    # One local step is never shortened, however busy the machine is.
    experiment = Experiment(method="dfedsam", **TINY | {"local_steps": 1})
    report = benchmark(experiment, workers=2, seconds=0.06, say=told.append)
    assert len(told) == 2 + 2 * TURNS + 2  # the experiment, the limit, two loops in turns, two engines
    return report


def test_a_report_holds_both_loops_and_both_engines(measured):
    assert [loop.threads for loop in measured.loops] == [1, 2]
    assert [engine.workers for engine in measured.engines] == [1, 2]
    assert measured.best is measured.engines[-1]
    assert all(loop.gradients_per_second > 0 for loop in measured.loops)
    for engine in measured.engines:
        assert engine.client_steps_per_second > 0
        assert engine.rounds > 0
        assert engine.start_up > 0
        assert engine.how
        assert measured.share_of_limit(engine) > 0
    assert (measured.clients, measured.parameters, measured.batch) == (4, 650, 4)
    assert (measured.steps_per_round, measured.gradients_per_step, measured.shortened) == (4, 2, None)
    assert measured.state_bytes == 4 * 650 * 4


def test_a_report_names_one_limit_and_says_what_to_do(measured):
    assert sum(measured.shares().values()) == pytest.approx(1)
    assert measured.limit in LIMITS
    assert LIMITS[measured.limit] in measured.verdict


def test_a_report_can_be_printed_and_written_as_json(measured):
    told = json.loads(json.dumps(measured.to_dict()))
    assert told["limit"] == measured.limit
    assert len(told["engines"][1]["against"]) == 2
    text = shown(measured)
    assert "plain loop, 2 threads" in text
    assert "Gossamer, 1 worker" in text
    assert "A step takes 2 gradients" in text
    assert measured.limit in text


def made(**split):
    seconds = RoundSeconds(**{"local": 0.1, "mixing": 0.1, "waiting": 0.1, "evaluation": 0.1} | split)
    engine = EngineSpeed(2, "somehow", 100.0, seconds, rounds=3, start_up=1.0, peak_bytes=None)
    return BenchReport(
        **{"clients": 10, "parameters": 5, "batch": 8.0, "steps_per_round": 50.0, "gradients_per_step": 1},
        **{
            "flops_per_gradient": 2e6,
            "matrix_rate": 1e9,
            "fastest": "oneDNN, 1024 × 1024 × 1024",
            "state_bytes": 200,
            "data_bytes": 100,
            "shortened": 3,
            "others": 0.05,
        },
        loops=(LoopSpeed(1, 50.0), LoopSpeed(2, 80.0)),
        engines=(engine,),
    )


@pytest.mark.parametrize(
    ("split", "limit"),
    [
        ({"mixing": 0.5}, "mixing"),
        ({"waiting": 0.5}, "waiting for the slowest worker"),
        ({"evaluation": 0.5}, "evaluation"),
        ({"local": 0.5}, "overhead of small operations"),
        ({"local": 0.06, "mixing": 0.01, "waiting": 0.01, "evaluation": 0.01}, "matrix products"),
    ],
)
def test_the_limit_is_what_takes_most_of_the_time(split, limit):
    report = made(**split)
    assert report.limit == limit
    assert limit in report.verdict


def test_a_busy_machine_is_told():
    busy = replace(made(), others=0.7)
    assert "70 %" not in shown(made())
    assert "70 % of the cores" in " ".join(shown(busy).split())
    assert busy.to_dict()["disturbed"] is True


def test_ratios_and_shares_on_paper():
    report = made()
    assert report.against(report.best, report.loops[0]) == 2
    assert replace(report, gradients_per_step=2).against(report.best, report.loops[1]) == 2.5
    assert report.share_of_limit(report.best) == pytest.approx(100 * 2e6 / 2e9)
    assert report.shares()["matrix products"] == pytest.approx(50 * 2e6 / 2e9 / 0.4)
    text = shown(report)
    assert "not known on this system" in text
    assert "measured with 3 local steps" in text


def test_products_are_counted_as_on_paper():
    linear = prepare(Experiment(**TINY)).training
    assert flops_per_sample(linear) == 2 * 64 * 10 * 2  # the outputs, the weights' gradient; no input's gradient
    two = prepare(Experiment(**TINY | {"model": {"name": "mnist-2nn", "width": 20}})).training
    layers = [64 * 20, 20 * 20, 20 * 10]
    assert flops_per_sample(two) == 2 * (2 * sum(layers) + sum(layers[1:]))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_tells_how_many_gradients_a_step_takes(name):
    work = prepare(Experiment(**TINY | {"method": name, "clients": 6})).training
    assert count_gradients(work).step == (2 if "sam" in name or "sgpsm" in name else 1)


def test_only_called_clients_count_in_a_round():
    work = prepare(
        Experiment(**TINY | {"method": "fedavg", "graph": {"name": "server", "participation": 0.5}})
    ).training
    assert steps_of_round(work, 0) == 4
    assert steps_of_round(prepare(Experiment(**TINY)).training, 0) == 8


def test_a_round_that_would_take_too_long_is_shortened():
    report = benchmark(Experiment(**TINY | {"local_steps": 400}), workers=1, seconds=0.06)
    assert report.shortened is not None
    assert 1 <= report.shortened < 400
    assert report.steps_per_round == 4 * report.shortened


def test_nothing_to_do_is_nothing_to_benchmark():
    with pytest.raises(ExperimentError, match="nothing to measure"):
        benchmark(Experiment(**TINY | {"local_steps": 0}))


def test_a_user_s_own_mean_loss_and_arrays_can_be_measured():
    data = per_client([(torch.randn(5, 3).numpy(), [0, 1, 2, 0, 1])] * 3)
    experiment = Experiment(
        **TINY | {"clients": 3, "dataset": data, "loss": torch.nn.functional.cross_entropy, "model": "softmax"}
    )
    work = prepare(experiment).training
    assert plain_loop(work, 1, 0.01) > 0
    assert data_bytes(data) == 15 * (3 * 4 + 8)
    assert state_bytes(work) == 3 * (3 * 3 + 3) * 4
    assert benchmark(experiment, workers=1, seconds=0.06).limit in LIMITS


def test_the_machine_is_asked_what_it_can_do():
    found = fastest_products(0.0, shapes=[(4, 3, 2), Convolution((1, 2, 4, 4), (3, 2, 3, 3), CONVOLVED)])
    assert found.rate > 0
    assert found.by.partition(",")[0] in ("torch.mm", "oneDNN", "numpy", "torch")
    assert memory_in_use() is None or memory_in_use() > 0


def test_the_products_of_a_step_are_those_of_all_its_layers_and_gradients():
    work = prepare(Experiment(**TINY)).training
    assert set(shapes_of_step(work)) == {(4, 64, 10), (10, 4, 64)}  # no gradient of the inputs is needed

    def net() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 10))

    images = prepare(Experiment(**TINY | {"model": net})).training
    assert any(isinstance(shape, Convolution) for shape in shapes_of_step(images))
