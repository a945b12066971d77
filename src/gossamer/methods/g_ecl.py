"""G-ECL and Local G-ECL: edge-consensus learning as gradient tracking, with one or with many local steps.

Every client keeps its local model x_i, the aggregated model x̃_i and the dual variable λ_i. On a graph (Algorithm 1):

    x_i^0 = x_i,  x̃_i^0 = x̃_i;    K times:  v = g_i(x_i^k) − λ_i;   x_i^{k+1} = x̃_i^k − η v;   x̃_i^{k+1} = x_i^{k+1}
    x_i⁺ = x_i^K;   v̄_i = (x̃_i − x_i⁺)/(K η);   exchanged: (x_i⁺, v̄_i)
    x̃_i⁺ = Σ_j W_ij x_j⁺;   λ_i⁺ = λ_i − Σ_j W_ij v̄_j + v̄_i + Σ_{j∈N_i} (α/2)(x̃_j − x̃_i)

Through a server (Algorithm 2):   x̃⁺ = mean x_i⁺;   λ_i⁺ = λ_i + (x̃⁺ − x_i⁺)/(K η)
with unequal numbers of steps K_i, as on the full graph:   λ_i⁺ = λ_i + v̄_i − mean v̄_j

The dual of Algorithm 2 needs one K for all: divided by K_i, the sum of the duals would not stay zero.

G-ECL (equation 6) is one step of it. As in the paper, the first gradient of a round is taken at x_i although the step
starts at x̃_i; `start="aggregated"` takes it at x̃_i. The paper prints v̄ with the opposite sign in one place; only the
sign above turns Algorithm 1 into Algorithm 2 on the full graph.
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


class KeepsAggregated:
    """A client's state: its local model, the aggregated model, which is evaluated, and its dual variable."""

    def init(self, x0: Tensor) -> State:
        return {"x": x0, "aggregated": x0, "dual": x0 * 0}

    def model(self, state: State) -> Tensor:
        return state["aggregated"]


class TracksGradients(KeepsAggregated):
    """What both share on a graph: models and directions averaged with the neighbours, and the dual of equation 6."""

    alpha: float

    family: ClassVar = "gradient tracking"
    needs: ClassVar[tuple[Need, ...]] = ("undirected", "doubly stochastic")

    @property
    def sends(self) -> dict[str, Operator]:
        """Both vectors averaged; with α also summed over the neighbours, from the same messages."""
        sends: dict[str, Operator] = {"x": "average", "v": "average"}
        return {**sends, "sum x": "sum", "sum v": "sum"} if self.alpha else sends

    def aggregate(self, state: State, v: Tensor, mixed: Message, round: Round) -> State:
        """The aggregated model x̃_i⁺ and the dual λ_i⁺ of a client whose own direction was v."""
        dual = state["dual"] - mixed["v"] + v + self.pull_of_edges(state["aggregated"], mixed, round)
        return {**state, "aggregated": mixed["x"], "dual": dual}

    def pull_of_edges(self, aggregated: Tensor, mixed: Message, round: Round) -> Tensor | float:
        """Σ_j (α/2)(x̃_j − x̃_i), with the neighbours' x̃_j = x_j⁺ + K η v̄_j computed from their messages.

        That saves sending a third vector; it holds if all clients take the same number of steps.
        """
        if not self.alpha:
            return 0.0
        neighbours = mixed["sum x"] + round.steps * round.lr * mixed["sum v"]
        return 0.5 * self.alpha * (neighbours - round.degree * aggregated)


@part
class GECL(TracksGradients):
    """Gradient tracking in the form of edge-consensus learning: one local step."""

    alpha: Alpha = 0.0

    paper: ClassVar = "the Local G-ECL paper, equation 6"
    local_work: ClassVar = LocalWork(steps=1)

    def init(self, x0: Tensor) -> State:
        return {**super().init(x0), "v": x0 * 0}

    def begin(self, state: State, round: Round) -> Local:
        return {"x": state["aggregated"], "v": state["v"] * 0}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        v = gradient(state["x"]) - state["dual"]
        return {"x": combine((1, state["aggregated"]), (-round.lr, v)), "v": v}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return {**state, **local}, {"x": local["x"], "v": local["v"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return self.aggregate(state, state["v"], mixed, round)


@part
class StepsFromAggregated(KeepsAggregated):
    """Local G-ECL without its communication: the local steps and the warm start of the dual."""

    start: Annotated[Literal["local", "aggregated"], Field(description="where a round's first gradient is taken")] = (
        "local"
    )
    warm_start: Annotated[int, Field(ge=0, description="r̃, mixings of the full gradients before the first round")] = 0

    def open(self, state: State, full_gradient: FullGradient, round: Round) -> tuple[State, Message]:
        """λ⁰ = G_i − Σ_j (W^r̃)_ij G_j: the client's own full gradient here, its mixed ones subtracted in `opened`."""
        if not self.warm_start:
            return state, {}
        gradient = full_gradient()
        return {**state, "dual": gradient}, {"gradient": gradient}

    def opened(self, state: State, mixed: Message, round: Round) -> State:
        return {**state, "dual": state["dual"] - mixed["gradient"]} if mixed else state

    def begin(self, state: State, round: Round) -> Local:
        return {"x": state["x" if self.start == "local" else "aggregated"], "aggregated": state["aggregated"]}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        v = gradient(local["x"]) - state["dual"]
        x = combine((1, local["aggregated"]), (-round.lr, v))
        return {"x": x, "aggregated": x}


@part
class LocalGECL(StepsFromAggregated, TracksGradients):
    """Gradient tracking with many local steps (on the server graph: Algorithm 2)."""

    alpha: Alpha = 0.0

    paper: ClassVar = "the Local G-ECL paper, Algorithms 1 and 2"

    @property
    def open_mixings(self) -> int:
        return self.warm_start

    @property
    def needs_equal_steps(self) -> bool:
        return self.alpha > 0  # see `pull_of_edges`

    def specialise(self, setting: Setting) -> "LocalGECL | LocalGECLByServer":
        if not setting.server:
            return self
        form = LocalGECLByServer if setting.equal_steps else LocalGECLOfUnequalSteps
        return form(start=self.start, warm_start=self.warm_start)

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        x = local["x"]
        return {**state, "x": x}, {"x": x, "v": per_step(state["aggregated"] - x, round)}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return self.aggregate(state, per_step(state["aggregated"] - state["x"], round), mixed, round)


@part
class LocalGECLByServer(StepsFromAggregated):
    """Local G-ECL through a server (Algorithm 2): one vector each way instead of two."""

    sends: ClassVar[dict[str, Operator]] = {"x": "server"}
    needs: ClassVar[tuple[Need, ...]] = ("everyone",)

    @property
    def open_mixings(self) -> int:
        return min(self.warm_start, 1)  # the server's mean is exact after one

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return {**state, "x": local["x"]}, {"x": local["x"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        dual = state["dual"] + per_step(mixed["x"] - state["x"], round)
        return {**state, "aggregated": mixed["x"], "dual": dual}


@part
class LocalGECLOfUnequalSteps(LocalGECL):
    """Local G-ECL through a server where clients take unequal numbers of steps: Algorithm 1 with the server's means."""

    sends: ClassVar[dict[str, Operator]] = {"x": "server", "v": "server"}
    needs: ClassVar[tuple[Need, ...]] = ("everyone",)

    @property
    def open_mixings(self) -> int:
        return min(self.warm_start, 1)

    def specialise(self, setting: Setting) -> "LocalGECLOfUnequalSteps":
        return self
