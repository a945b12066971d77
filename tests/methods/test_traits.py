"""A method's optional members: read in one place, refused where they are misspelt, wrong or half there."""

import ast
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from gossamer import Experiment, GossamerError, simulate
from gossamer.errors import ExperimentError
from gossamer.methods import (
    METHODS,
    DFedAvg,
    DFedSAM,
    DisPFL,
    LocalGECL,
    LocalWork,
    QDFedAvgM,
    Setting,
    bind,
    contract,
    costs,
    traits_of,
)
from gossamer.methods.contract import MEMBERS, REQUIRED
from gossamer.parts import part

MODEL = ((3, 2), (2,))
ON_A_SERVER, ON_A_GRAPH = Setting(server=True, shapes=MODEL), Setting(server=False, shapes=MODEL)


def a_method(**members: Any) -> Any:
    """DFedAvg with more members, in a class of one's own."""
    return type("Mine", (DFedAvg,), members)()


def test_a_plain_class_has_the_defaults() -> None:
    traits = traits_of(a_method())
    assert (traits.gossip_steps, traits.local_work, traits.weight_decay, traits.needs) == (1, None, "experiment", ())
    assert not any((traits.draws, traits.shares_loss, traits.needs_equal_steps, traits.may_miss_messages))
    assert traits.codec is traits.opening is traits.weight is traits.refuse is traits.default_graph is None
    message = {"x": torch.ones(2)}
    assert traits.encoded(message) is traits.decoded(message) is message


@pytest.mark.parametrize("name", METHODS)
def test_every_built_in_method_has_traits(name: str) -> None:
    method = METHODS.build(name)
    traits = traits_of(method)
    assert traits.family
    assert traits.paper
    assert traits_of(bind(method, ON_A_GRAPH)).gossip_steps == traits.gossip_steps


@pytest.mark.parametrize(
    ("wrong", "value", "right"),
    [
        ("gosip_steps", 2, "gossip_steps"),
        ("gossip_step", 2, "gossip_steps"),
        ("local_wrok", LocalWork(steps=1), "local_work"),
        ("weigth_decay", 0.0, "weight_decay"),
        ("need", ("undirected",), "needs"),
        ("need_equal_steps", True, "needs_equal_steps"),
        ("draw", True, "draws"),
        ("share_loss", True, "shares_loss"),
        ("may_miss_message", True, "may_miss_messages"),
        ("default_graphs", "ring", "default_graph"),
        ("specialize", lambda self, setting: self, "specialise"),
        ("open_mixing", 2, "open_mixings"),
    ],
)
def test_a_misspelt_member_is_refused_with_the_right_name(wrong: str, value: Any, right: str) -> None:
    with pytest.raises(ExperimentError, match=rf"'Mine'.*'{wrong}'.*did you mean '{right}'\?"):
        Experiment(method=a_method(**{wrong: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("momentum", 0.9),
        ("rho", 0.1),
        ("penalty", 10.0),
        ("steps", 3),
        ("models", 2),
        ("weights", [1, 2]),
        ("weights", lambda self: [1, 2]),
        ("encoder", torch.nn.Identity()),
        ("decoded", lambda self, wire: wire),
        ("refused", lambda self, lr: None),
        ("opening", 3),
        ("_gosip_steps", 2),
    ],
)
def test_members_of_ones_own_are_let_in(name: str, value: Any) -> None:
    Experiment(method=a_method(**{name: value}))


@pytest.mark.parametrize(
    ("member", "value", "says"),
    [
        ("gossip_steps", 0, "greater than or equal to 1"),
        ("gossip_steps", "2", "integer"),
        ("gossip_steps", True, "integer"),
        ("draws", 1, "boolean"),
        ("needs", ("directed",), "'undirected'"),
        ("needs", "undirected", r"\('undirected',\)"),
        ("weight_decay", "none", "experiment"),
        ("weight_decay", -1.0, "0 or more"),
        ("local_work", LocalWork(), "either steps or epochs"),
        ("local_work", LocalWork(epochs=1, steps=2), "either steps or epochs"),
        ("default_graph", 3, "string"),
        ("refuse", "no", "callable"),
    ],
)
def test_a_member_of_the_wrong_kind_is_refused(member: str, value: Any, says: str) -> None:
    with pytest.raises(ExperimentError, match=rf"method 'Mine': {member}.*{says}"):
        Experiment(method=a_method(**{member: value}))


@pytest.mark.parametrize(
    ("have", "lack"), [("encode", "decode"), ("decode", "encode"), ("open", "opened"), ("opened", "open")]
)
def test_half_a_pair_is_refused(have: str, lack: str) -> None:
    with pytest.raises(ExperimentError, match=f"'Mine'.*has '{have}' and no '{lack}'"):
        Experiment(method=a_method(**{have: lambda self, *given: given}))


def test_what_is_no_method_is_refused_with_what_it_lacks() -> None:
    class Half:
        sends: ClassVar = {"x": "average"}

        def step(self) -> None: ...

    with pytest.raises(ExperimentError, match="is not a method: it lacks init, begin, finish, receive, model"):
        Experiment(method=Half())


def test_a_property_that_fails_is_not_taken_for_a_missing_member() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        traits_of(a_method(gossip_steps=property(lambda self: self.nothing)))


def test_optional_members_are_read_in_the_contract_alone() -> None:
    source = Path(contract.__file__).parents[1]
    for page in source.rglob("*.py"):
        if page == Path(contract.__file__):
            continue
        for node in ast.walk(ast.parse(page.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
                assert name not in MEMBERS, f"{page}, line {node.lineno}: reads '{name}', which `Traits` has"


def test_no_member_is_required_and_optional() -> None:
    assert not set(MEMBERS) & set(REQUIRED)


MAY_MISS_MESSAGES = {
    "d-psgd", "gossip", "dfedavg", "dfedavgm", "q-dfedavgm", "dfedsam", "dfedsam-mgs", "qg-dsgdm", "oledfl",
    "sgp", "osgp", "overlap-sgp", "dfedsgpm", "dfedsgpsm", "dfedsgpsm-s", "asyng",
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_which_methods_may_miss_messages(name: str) -> None:
    form = bind(METHODS.build(name), ON_A_GRAPH)
    assert traits_of(form).may_miss_messages == (name in MAY_MISS_MESSAGES)


def test_a_subclass_states_itself_whether_it_may_miss_messages() -> None:
    assert traits_of(DFedSAM()).may_miss_messages
    assert not traits_of(type("Mine", (DFedSAM,), {})()).may_miss_messages
    assert traits_of(type("Mine", (DFedSAM,), {"may_miss_messages": True})()).may_miss_messages


@part
class LocalGECLWithTwist(LocalGECL):
    """Local G-ECL with a step of its own."""

    twist: float = 0.5

    def step(self, state: Any, local: Any, gradient: Any, round: Any) -> Any:
        return super().step(state, local, lambda x: self.twist * gradient(x), round)


def test_a_subclass_whose_parents_form_would_lose_its_step_is_refused() -> None:
    says = r"'LocalGECLWithTwist'.*'LocalGECL'.*'LocalGECLByServer'.*specialise\(self, setting\).*return self"
    with pytest.raises(GossamerError, match=says):
        simulate(Experiment(method=LocalGECLWithTwist(), graph="server", clients=3, rounds=1, local_steps=1))


def test_a_subclass_is_bound_as_itself_where_its_parents_form_is_of_its_class() -> None:
    method = LocalGECLWithTwist(twist=0.25)
    assert bind(method, ON_A_GRAPH) is method

    class Masks(DisPFL): ...

    class Quantized(QDFedAvgM): ...

    assert type(bind(Masks(), ON_A_GRAPH)) is Masks
    assert bind(Quantized(bits=4), ON_A_GRAPH) == Quantized(bits=4, size=8)


def test_a_class_may_give_another_form_of_itself() -> None:
    assert type(bind(LocalGECL(), ON_A_SERVER)) is not LocalGECL
    own = type("Own", (LocalGECLWithTwist,), {"specialise": lambda self, setting: DFedAvg()})()
    assert type(bind(own, ON_A_SERVER)) is DFedAvg


def test_a_form_that_is_no_method_is_refused() -> None:
    with pytest.raises(ExperimentError, match="'Mine': `specialise` gives None"):
        bind(a_method(specialise=lambda self, setting: None), ON_A_GRAPH)


def test_an_opening_is_mixed_once_where_the_method_does_not_say_how_often() -> None:
    class Agrees(DFedAvg):
        """DFedAvg whose clients first agree on the mean of their full gradients."""

        def open(self, state: Any, full_gradient: Any, round: Any) -> Any:
            return state, {"gradient": full_gradient()}

        def opened(self, state: Any, mixed: Any, round: Any) -> Any:
            return {"x": state["x"] - round.lr * mixed["gradient"]}

    opening = traits_of(Agrees()).opening
    assert opening is not None
    assert opening.mixings == 1
    assert costs(Agrees()) == costs(DFedAvg())
    run = simulate(Experiment(method=Agrees(), graph="full", clients=3, rounds=1, local_steps=0))
    assert run.vectors is not None
    assert np.isfinite(run.vectors.numpy()).all()
    torch.testing.assert_close(run.vectors[0], run.vectors[1])
