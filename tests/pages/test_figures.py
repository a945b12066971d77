"""Figures: what is drawn where, what labels say, and that nothing is dropped, cut off or left half-written."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from gossamer.data import PartitionSummary
from gossamer.errors import ExperimentError, RunFolderError
from gossamer.pages import figures
from gossamer.pages.figures import Curve, Look, Plot, overview, plot, plot_partition, sweep_figure
from gossamer.pages.tables import sheets
from gossamer.runs.record import RunRecord
from gossamer.studies import Comparison, VariantResult
from records import comparison, record


def swept(cells: dict[tuple[Any, ...], list[RunRecord]], *keys: str) -> Comparison:
    """A comparison over swept keys: the runs of each combination, one for each seed."""
    found = {}
    for values, runs in cells.items():
        label = ", ".join(map(str, values))
        found[label] = VariantResult(label, dict(zip(keys, values, strict=True)), dict(enumerate(runs)))
    return Comparison(found)


def lost(*accuracies: float) -> RunRecord:
    run = record(*accuracies)
    return RunRecord(run.label, run.experiment, run.metrics, run.timings, "diverged in round 3 at client 0")


def words(figure: Plot) -> str:
    """Everything that is written in a figure."""
    from matplotlib.text import Text

    figure.render("png")
    return "\n".join(text.get_text() for text in figure.findobj(Text))  # type: ignore[arg-type]


def lines(figure: Plot, number: int = 0) -> list[Any]:
    return [line for line in figure.axes[number].lines if len(line.get_xdata()) > 1]


def test_bands_are_what_their_label_says() -> None:
    runs = [record(0.2, 0.5), record(0.4, 0.8), record(0.3, 0.5)]
    curve = Curve.of(runs, "test_accuracy")
    assert curve.mean == pytest.approx([30, 60])
    assert curve.high[0] - curve.mean[0] == pytest.approx(10)
    assert curve.mean[0] - curve.low[0] == pytest.approx(10)
    ends = Curve.of(runs, "test_accuracy", band="range")
    assert (ends.low, ends.high) == (pytest.approx([20, 50]), pytest.approx([40, 80]))
    three = comparison({"a": dict(enumerate(runs))})
    assert "mean over 3 seeds; bands: ± one standard deviation" in words(plot(three))
    assert "mean over 3 seeds; bands: minimum to maximum" in words(plot(three, band="range"))
    one = plot(comparison({"a": {0: runs[0]}}))
    assert not one.axes[0].collections
    assert "seeds" not in words(one)


def test_a_metric_against_everything_that_a_run_counts() -> None:
    runs = comparison({"a": {0: record(0.2, 0.5)}, "b": {0: record(0.3, 0.6)}})
    expected = {"round": [1, 2], "bytes": [10, 20], "messages": [3, 6], "gradients": [7, 14], "seconds": [2, 4]}
    for against, x in expected.items():
        (first, _) = lines(plot(runs, against=against))
        assert list(first.get_xdata()) == x
        assert list(first.get_ydata()) == pytest.approx([20, 50])
    both = plot(runs, ["test_accuracy", "consensus"], ["round", "bytes"], width="page")
    assert [axes.get_ylabel() for axes in both.axes[:4]] == ["test accuracy (%)"] * 2 + ["consensus distance"] * 2


def test_seeds_are_averaged_only_where_all_have_a_value() -> None:
    curve = Curve.of([record(0.2, None, 0.6), record(0.4, 0.5, 0.8)], "test_accuracy")
    assert curve.x == [1, 3]
    assert curve.mean == pytest.approx([30, 70])


def test_equal_curves_are_seen_to_be_two() -> None:
    looks = [Look.of(number) for number in range(28)]
    assert len({(look.colour, str(look.dash)) for look in looks}) == 28
    same_dash = [(a, b) for a in range(12) for b in range(a) if looks[a].dash == looks[b].dash]
    assert all(looks[a].width < looks[b].width for a, b in same_dash)
    figure = plot(comparison({name: {0: record(*[0.5] * 30)} for name in "abcdefghijkl"}))
    starts = [line.get_markevery() for line in lines(figure)]
    assert len({start for start, _ in starts}) > 4


@pytest.mark.parametrize("width", ["column", "page", 2.5])
def test_twelve_long_labels_and_a_long_title_stay_inside(width: str | float) -> None:
    names = [f"dfedsam-mgs(rho=0.{n}, gossip_steps={n}), k-regular(k=4), clients={n}" for n in range(12)]
    figure = plot(comparison({name: {0: record(0.2, 0.5)} for name in names}), width=width, title="very long " * 30)
    figure.draw_without_rendering()
    box = figure.bbox
    for part in (*figure.legends, *(axes for axes in figure.axes)):
        found = part.get_tightbbox()
        assert found is not None
        assert found.x0 >= box.x0 - 1
        assert found.x1 <= box.x1 + 1
        assert found.y0 >= box.y0 - 1
        assert found.y1 <= box.y1 + 1
    assert figure.axes[0].get_position().height * figure.get_figheight() > 1


def test_names_are_names_and_no_formulas() -> None:
    names = ["_own", "$broken_{", "a $x$ b", "类"]
    text = words(plot(comparison({name: {0: record(0.2, 0.5)} for name in names}), title="$"))
    assert all(name.replace("$", r"\$") in text for name in names)


def test_a_variant_that_diverged_is_named_and_leaves_the_axis_to_the_others() -> None:
    runs = comparison({
        "good": {0: record(0.5, 0.8)}, "wild": {0: lost(0.1)}, "half": {0: record(0.5, 0.6), 1: lost(0.5)},
        "at once": {0: lost()},
    })  # fmt: skip
    figure = plot(runs)
    text = words(figure)
    assert "wild (diverged)" in text
    assert "at once (diverged)" in text
    assert "half (1 of 2 seeds diverged)" in text
    assert figure.axes[0].get_ylim()[0] > 40
    assert [line.get_marker() for line in figure.axes[0].lines].count("x") == 2


def test_numbers_that_are_not_finite_are_told_though_the_run_went_on() -> None:
    run = record(0.5, 0.4, 0.1)
    run.metrics["local_loss"] = [1.0, math.nan, math.nan]
    assert "a (diverged)" in words(plot(comparison({"a": {0: run}, "b": {0: record(0.5)}})))


def test_a_consensus_of_zero_is_drawn_as_zero() -> None:
    apart, same = record(0.2, 0.5), record(0.2, 0.5)
    apart.metrics["consensus"] = [10.0, 0.1]
    same.metrics["consensus"] = 0.0
    axes = plot(comparison({"ring": {0: apart}, "full": {0: same}}), "consensus").axes[0]
    assert axes.get_yscale() == "log"
    assert "0" in [text.get_text() for text in axes.texts]
    assert 0 < axes.lines[1].get_ydata()[0] < 0.1
    alone = plot(comparison({"full": {0: same}}), "consensus").axes[0]
    assert alone.get_yscale() == "linear"
    assert list(alone.lines[0].get_ydata()) == [0, 0]
    assert plot(comparison({"ring": {0: apart}}), "consensus", log=False).axes[0].get_yscale() == "linear"


def test_a_swept_number_is_a_line_with_error_bars_and_crosses() -> None:
    cells = {(lr, "ring"): [record(0.5, lr), record(0.5, lr + 0.2)] for lr in (0.3, 0.01)}
    runs = swept({**cells, (0.5, "ring"): [lost(0.1), record(0.1)]}, "lr", "graph")
    figure = plot(runs, against="lr")
    axes = figure.axes[0]
    assert axes.get_xscale() == "log"
    assert list(axes.lines[0].get_xdata()) == [0.01, 0.3]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([11, 40])
    assert axes.get_ylabel() == "last test accuracy (%)"
    assert "×: diverged" in words(figure)
    assert "error bars: ± one standard deviation" in words(figure)


def test_graphs_are_bars_with_their_lambda_beside_them() -> None:
    about = {"clients": 8, "seed": 0}
    cells = {(g, m): [record(0.5, graph=g, **about)] for g in ("ring", "full", "own") for m in ("x", "y")}
    figure = plot(swept(cells, "graph", "method"), against="graph")
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["ring\nλ = 0.805", "full\nλ = 0", "own"]
    assert len(figure.axes[0].patches) == 6
    assert to_hex(figure.axes[0].patches[0].get_facecolor()) == figures.COLOURS[0].lower()


def test_a_bar_has_the_number_of_the_table() -> None:
    about = {"graph": "ring", "clients": 8, "seed": 0}
    cells = {("ring",): [record(0.5722222222222222, **about), record(0.6527777777777778, **about)]}
    runs = swept(cells, "graph")
    assert "61.3 ± 5.7 %" in (cell.text for cell in sheets(runs)[0].columns[1].cells)
    assert "61.3" in [text.get_text().strip() for text in plot(runs, against="graph").axes[0].texts]


def test_two_swept_keys_are_a_heat_map_for_each_of_the_others() -> None:
    cells = {(lr, k, m): [record(lr)] for lr in (0.3, 0.1) for k in (2, 4) for m in ("x", "y")}
    runs = swept({**cells, (0.1, 4, "y"): [lost(0.1)]}, "lr", "k", "method")
    figure = plot(runs, against="k,lr")
    maps = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title(loc="left") for axes in maps] == ["x", "y"]
    assert np.asarray(maps[0].images[0].get_array()).tolist() == [[pytest.approx(10), pytest.approx(30)]] * 2
    assert maps[1].images[0].get_array().mask.tolist() == [[False, False], [True, False]]
    sensitivity = plot(runs, against="lr")
    assert {"k=2, x", "k=4, x"} <= set(words(sensitivity).split("\n")), "a number alone does not say what it is"
    assert "×" in words(figure)
    assert sweep_figure(runs) is not None
    assert sweep_figure(comparison({"a": {0: record(0.2)}})) is None


def test_the_clients_spread_goes_from_the_worst_to_the_best() -> None:
    run = record(0.2, 0.5)
    for name, value in (("mean", 0.5), ("worst", 0.2), ("best", 0.9)):
        run.metrics[f"client_accuracy_{name}"] = value
        run.metrics[f"client_loss_{name}"] = 1 - value
    for metric, ends in (("client_accuracy", [20, 90]), ("client_loss", [0.1, 0.8])):
        curve = Curve.of([run], metric)
        assert [curve.low[0], curve.high[0]] == pytest.approx(ends)
        assert "bands of clients: worst to best" in words(plot(comparison({"a": {0: run}}), metric))


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".SVG", b"<?xml"), (".pdf", b"%PDF")])
def test_files_are_the_same_for_the_same_numbers(tmp_path: Path, suffix: str, start: bytes) -> None:
    runs = comparison({"a": {0: record(0.2, 0.5)}})
    one, two = (overview(runs, "t").save(tmp_path / name / f"f{suffix}").read_bytes() for name in ("x", "y"))
    assert one.startswith(start)
    assert one == two


def test_a_full_disk_leaves_the_figure_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = plot(comparison({"a": {0: record(0.2, 0.5)}}))
    figure.save(tmp_path / "figures" / "f.pdf")
    before = (tmp_path / "figures" / "f.pdf").read_bytes()

    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figures, "_write", full)
    with pytest.raises(RunFolderError, match=r"f\.pdf: cannot be written: No space left on device"):
        figure.save(tmp_path / "figures" / "f.pdf")
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["f.pdf"]
    assert (tmp_path / "figures" / "f.pdf").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"metric": "test_acuracy"}, "metric: no run has 'test_acuracy': did you mean 'test_accuracy'?"),
        ({"metric": "test_loss"}, "metric: no run has 'test_loss'"),
        ({"against": "byts"}, "against: unknown 'byts': did you mean 'bytes'?"),
        ({"against": "variant,round"}, "should be one of round, bytes, messages, gradients, seconds, variant, or two"),
        ({"against": "variant,variant"}, "or two swept keys"),
        ({"band": "sem"}, "band: known: deviation, range"),
        ({"width": "wide"}, "width: should be column, page or a number of inches between 2 and 30"),
        ({"width": 0.1}, "width: should be column"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ExperimentError) as error:
        plot(comparison({"a": {0: record(0.2)}}), **options)
    assert told in str(error.value)


def test_runs_without_a_round_have_no_figure(tmp_path: Path) -> None:
    for draw in (plot, overview):
        with pytest.raises(RunFolderError, match="no round has been measured yet"):
            draw(comparison({"a": {0: record()}}))
    with pytest.raises(RunFolderError, match=r"f\.gif: a figure is written as \.png, \.svg, \.pdf"):
        plot(comparison({"a": {0: record(0.2)}})).save(tmp_path / "f.gif")


def test_partitions(tmp_path: Path) -> None:
    labels = np.array([[5, 0, 1], [0, 7, 2]])
    assert "15 samples, 2 clients, heterogeneity" in words(plot_partition(PartitionSummary(labels))).replace("\n", " ")
    many = plot_partition(PartitionSummary(np.arange(12_000).reshape(200, 60))).save(tmp_path / "many.png")
    assert many.stat().st_size > 1000
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot be written"):
        plot_partition(PartitionSummary(labels)).save(tmp_path / "file" / "labels.png")
