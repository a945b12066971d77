"""What `gossamer theory` prints."""

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gossamer.system.words import counted, number
from gossamer.terminal.console import ruled_table, with_caption
from gossamer.theory.rates import RATES
from gossamer.theory.report import Bound, RunMeasures, Theory, Values, percent


def theory_view(theory: Theory, epsilon: float | None = None) -> RenderableType:
    """The constants, then every bound with its terms and what dominates it, then what to keep in mind.

    Between them the bounds beside a run, if there is one, and the rounds to a squared gradient norm of ε.
    """
    parts: list[RenderableType] = [_constants(theory)]
    for bound in theory.bounds:
        parts += ["", *_bound(bound)]
    if theory.run is not None:
        parts += ["", _beside(theory, theory.run)]
    if epsilon is not None:
        parts += ["", _rates(theory, epsilon)]
    parts += ["", "[bold]Keep in mind[/]"]
    worst = "the bounds are worst cases with constants measured at one point: compare their terms, not their sizes"
    notes = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    for note in (worst, *theory.notes):
        notes.add_row("·", escape(note))
    return Group(*parts, notes)


def _constants(theory: Theory) -> Table:
    c, m = theory.constants, theory.measured
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(justify="right", no_wrap=True)
    shown.add_column(style="dim")

    def row(name: str, value: float | str, meaning: str) -> None:
        shown.add_row(name, value if isinstance(value, str) else number(value), meaning)

    what = "second largest |eigenvalue|" if theory.graph.period == 1 else "left of the disagreement by one step"
    row("λ", f"{c.lambda_:.6f}", f"{what}: {theory.graph.name}, {c.clients} clients")
    row("spectral gap", f"{1 - c.lambda_:.6f}", "1 − λ: larger mixes faster")
    row("p", f"{c.p:.6f}", "1 − λ²")
    row("Φ(λ, m, Q)", theory.phi, f"what the graph costs DFedSAM; Q = {c.gossip_steps} gossip steps")
    row("K, T, η", f"{number(c.steps)}, {c.rounds}, {number(c.lr)}", "local steps, rounds, step size")
    chosen = {"ρ": c.rho, "momentum α": c.momentum, "penalty λ": c.penalty}
    row("method", "", ", ".join(f"{name} = {number(value)}" for name, value in chosen.items()))
    row("Δ", m.loss, "f(x⁰): f(x⁰) − f* is at most this, as f* ≥ 0")
    row("L", c.smoothness, "smoothness: the largest |curvature| at x⁰")
    row("σ_l", m.sigma_l, f"noise of a mini-batch gradient (largest: {number(m.sigma_l_largest)})")
    row("σ_g = ζ", m.sigma_g, f"heterogeneity of the gradients (largest, β: {number(m.beta)})")
    row("B", m.gradient, "largest gradient of a client")
    if c.push_factor != 1 or c.least_weight != 1:
        row("C, δ", f"{number(c.push_factor)}, {number(c.least_weight)}", "push-sum: disagreement ≤ C λᵗ; least weight")
    return shown


def _beside(theory: Theory, run: RunMeasures) -> Table:
    """The bounds beside what the run measured."""
    shown = ruled_table(f"The bounds beside the run of {counted(run.last_round, 'round')}")
    shown.add_column("theorem or lemma", overflow="fold")
    shown.add_column("of", no_wrap=True)
    for head in ("measured", "bound"):
        shown.add_column(head, justify="right", no_wrap=True)
    shown.add_column("conditions")
    for bound in theory.bounds:
        theorem = bound.theorem
        style = "bold" if bound.covers else None
        holds = ("hold" if bound.valid else "do not hold") + ("" if bound.covers else "; another method")
        measured = run.least if theorem.over_rounds == "least" else run.mean
        about = "up to a constant" if theorem.up_to_a_constant else ""
        shown.add_row(
            f"{theorem.name}, {theorem.place}", f"{theorem.over_rounds} ‖∇f(x̄)‖²", number(measured),
            number(bound.here.total), "; ".join(filter(None, (holds, about))), style=style,
        )  # fmt: skip
        if theorem.consensus is not None:
            shown.add_row(
                f"{theorem.name}, {theorem.consensus_place}", "last consensus", number(run.consensus),
                number(bound.consensus), holds, style=style,
            )  # fmt: skip
    captions = [f"‖∇f(x̄)‖² was measured in {counted(run.rounds, 'round')}; the largest consensus was "
                f"{number(run.consensus_largest)}."]  # fmt: skip
    if not run.rounds:
        captions = ["The run did not measure ‖∇f(x̄)‖²: set evaluate.gradient=1, and evaluate.start=true for round 0."]
    return with_caption(shown, captions)


def _rates(theory: Theory, epsilon: float) -> Table:
    """Rounds to ε."""
    shown = ruled_table(f"Rounds until ‖∇f‖² ≤ {number(epsilon)}, with all hidden constants taken as 1")
    for head in ("method", "from"):
        shown.add_column(head, no_wrap=True)
    shown.add_column("rounds", justify="right", no_wrap=True)
    shown.add_column("rate", overflow="fold", style="dim")
    found = theory.rounds_to(epsilon)
    for rate in RATES:
        shown.add_row(rate.method, rate.place, number(found[rate.method]), rate.formula)
    return shown


def _bound(bound: Bound) -> Iterator[RenderableType]:
    theorem = bound.theorem
    yours = " [green](covers this method)[/]" if bound.covers else ""
    yield f"[bold]{theorem.name}[/], {theorem.place}{yours}"
    constant = ", up to a constant factor" if theorem.up_to_a_constant else ""
    yield f"[dim]bounds {theorem.bounds}{constant}[/]"
    for condition in bound.conditions:
        if not condition.holds:
            yield Text.assemble(("does not hold here: ", "yellow"), f"it needs {condition.text}")
    if bound.here.undefined and bound.allowed:
        yield Text.assemble(("no value here: ", "yellow"), bound.here.undefined)
    if bound.best_values.terms:
        yield _terms(bound)
    yield Text(f"→ {bound.verdict}", style="bold" if bound.covers else "")


def _terms(bound: Bound) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold", show_footer=True)
    columns = [bound.here, bound.allowed] if bound.allowed else [bound.here]
    shown.add_column("term", "bound", no_wrap=True)
    shown.add_column("", overflow="fold", style="dim")
    for values in columns:
        shown.add_column(_heading(bound, values), number(values.total), justify="right", no_wrap=True)
        shown.add_column("share", justify="right", no_wrap=True)
    for index, term in enumerate(bound.best_values.terms):
        cells: list[str] = []
        for values in columns:
            found = values.terms[index] if values.terms else None
            share = values.share(found) if found else None
            cells += [number(found.value) if found else "–", "–" if share is None else percent(share)]
        shown.add_row(term.kind, term.formula, *cells, style="bold cyan" if term.kind == bound.dominant else None)
    return shown


def _heading(bound: Bound, values: Values) -> str:
    penalty = bound.allowed is not None and bound.allowed.penalty != bound.here.penalty
    return f"η = {number(values.lr)}" + (f"\npenalty {number(values.penalty)}" if penalty else "")
