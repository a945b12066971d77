"""G-ECL and Local G-ECL: edge-consensus learning as gradient tracking, with one or with many local steps.

    cur = x_i, base = x̃_i;   K times:  v = g_i(cur) − λ_i,  new = base − η v,  cur = base = new
    x_i⁺ = cur;   v̄_i = (x̃_i − x_i⁺)/(K η);   exchanged: (x_i⁺, v̄_i)
    x̃_i⁺ = Σ_j W_ij x_j⁺;   λ_i⁺ = λ_i − Σ_j W_ij v̄_j + v̄_i + Σ_{j∈N_i} (α/2)(x̃_j − x̃_i)
    through a server (Algorithm 2):   x̃⁺ = mean x_i⁺;   λ_i⁺ = λ_i + (x̃⁺ − x_i⁺)/(K η)

The first gradient of a round is taken at x_i while the step starts at x̃_i, as the paper has it; `start="aggregated"`
takes it at x̃_i. The paper prints v̄ with the opposite sign in one place; only this one gives Algorithm 2 on the full
graph.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from gossamer.methods.contract import (
    FullGradient,
    Local,
    LocalWork,
    Message,
    Need,
    Operator,
    Round,
    Setting,
    State,
    per_step,
)
from gossamer.methods.local import Gradient, combine
from gossamer.parts import part

Alpha = Annotated[float, Field(ge=0, description="α, extra pull of every edge on its two ends")]


@part
class GECL:
    """Gradient tracking in the form of edge-consensus learning: one local step."""

    alpha: Alpha = 0.0

    family: ClassVar = "gradient tracking"
    paper: ClassVar = "the Local G-ECL paper, equation 6"
    laws: ClassVar[tuple[str, ...]] = ("I3", "I6", "I20", "I21", "I22")
    needs: ClassVar[tuple[Need, ...]] = ("undirected", "doubly stochastic")
    local_work: ClassVar = LocalWork(steps=1)

    @property
    def sends(self) -> dict[str, Operator]:
        return sends_with_pull(self.alpha)

    def init(self, x0: Tensor) -> State:
        return {"x": x0, "base": x0, "dual": x0 * 0, "v": x0 * 0}

    def begin(self, state: State, round: Round) -> Local:
        return {"x": state["base"], "v": state["v"] * 0}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        v = gradient(state["x"]) - state["dual"]
        return {"x": combine((1, state["base"]), (-round.lr, v)), "v": v}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return {**state, **local}, {"x": local["x"], "v": local["v"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        dual = state["dual"] - mixed["v"] + state["v"] + pull_of_edges(self.alpha, state["base"], mixed, round)
        return {**state, "base": mixed["x"], "dual": dual}

    def model(self, state: State) -> Tensor:
        return state["base"]


@part
class StepsFromTheAverage:
    """What Local G-ECL does alone, before it talks to neighbours or to a server."""

    start: Annotated[Literal["local", "aggregated"], Field(description="where a round's first gradient is taken")] = (
        "local"
    )
    warm_start: Annotated[int, Field(ge=0, description="r̃, mixings of the full gradients before the first round")] = 0

    def init(self, x0: Tensor) -> State:
        return {"x": x0, "base": x0, "dual": x0 * 0}

    def open(self, state: State, full_gradient: FullGradient, round: Round) -> tuple[State, Message]:
        """λ⁰ = G_i − Σ_j (W^r̃)_ij G_j: the client's own full gradient now; what comes back mixed is taken off."""
        if not self.warm_start:
            return state, {}
        gradient = full_gradient()
        return {**state, "dual": gradient}, {"gradient": gradient}

    def opened(self, state: State, mixed: Message, round: Round) -> State:
        return {**state, "dual": state["dual"] - mixed["gradient"]} if mixed else state

    def begin(self, state: State, round: Round) -> Local:
        return {"y": state["base"], "at": state["x" if self.start == "local" else "base"]}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y = combine((1, local["y"]), (-round.lr, gradient(local["at"]) - state["dual"]))
        return {"y": y, "at": y}

    def model(self, state: State) -> Tensor:
        return state["base"]


@part
class LocalGECL(StepsFromTheAverage):
    """Gradient tracking with many local steps (on the server graph: Algorithm 2)."""

    alpha: Alpha = 0.0

    family: ClassVar = "gradient tracking"
    paper: ClassVar = "the Local G-ECL paper, Algorithms 1 and 2"
    laws: ClassVar[tuple[str, ...]] = ("I3", "I4", "I5", "I6", "I7", "I8", "I20", "I21", "I22")
    needs: ClassVar[tuple[Need, ...]] = ("undirected", "doubly stochastic")

    @property
    def sends(self) -> dict[str, Operator]:
        return sends_with_pull(self.alpha)

    @property
    def open_mixings(self) -> int:
        return self.warm_start

    @property
    def needs_equal_steps(self) -> bool:
        return self.alpha > 0  # see `pull_of_edges`

    def fit(self, setting: Setting) -> "LocalGECL | LocalGECLByServer":
        return LocalGECLByServer(start=self.start, warm_start=self.warm_start) if setting.server else self

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return {**state, "x": local["y"]}, {"x": local["y"], "v": per_step(state["base"] - local["y"], round)}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        v = per_step(state["base"] - state["x"], round)
        dual = state["dual"] - mixed["v"] + v + pull_of_edges(self.alpha, state["base"], mixed, round)
        return {"x": state["x"], "base": mixed["x"], "dual": dual}


@part
class LocalGECLByServer(StepsFromTheAverage):
    """Local G-ECL through a server (Algorithm 2): one vector each way instead of two."""

    laws: ClassVar[tuple[str, ...]] = ("I4", "I5", "I20")
    sends: ClassVar[dict[str, Operator]] = {"x": "server"}
    needs: ClassVar[tuple[Need, ...]] = ("everyone",)

    @property
    def open_mixings(self) -> int:
        return min(self.warm_start, 1)  # the server's mean is exact after one

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return {**state, "x": local["y"]}, {"x": local["y"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        dual = state["dual"] + per_step(mixed["x"] - state["x"], round)
        return {"x": state["x"], "base": mixed["x"], "dual": dual}


def sends_with_pull(alpha: float) -> dict[str, Operator]:
    """Both vectors averaged; with α also summed over the neighbours, from the same messages."""
    sends: dict[str, Operator] = {"x": "average", "v": "average"}
    return {**sends, "sum x": "sum", "sum v": "sum"} if alpha else sends


def pull_of_edges(alpha: float, base: Tensor, mixed: Message, round: Round) -> Tensor | float:
    """Σ_j (α/2)(x̃_j − x̃_i), with the neighbours' x̃_j = x_j⁺ + K η v̄_j read off what they sent.

    That saves sending a third vector and holds where all clients take the same number of steps.
    """
    if not alpha:
        return 0.0
    neighbours = mixed["sum x"] + round.steps * round.lr * mixed["sum v"]
    return 0.5 * alpha * (neighbours - round.degree * base)
