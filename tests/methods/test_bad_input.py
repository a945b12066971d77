"""Methods where they are not defined: refused on the command line before anything runs, with what would do."""

from collections.abc import Callable

import pytest

import command_line
from gossamer import Experiment
from gossamer.experiment import prepare

#: The fixtures of `tests/commands`, for this module alone.
place, gossamer, refused = command_line.place, command_line.gossamer, command_line.refused
settings = command_line.settings_fixture

Refused = Callable[..., str]
Settings = Callable[..., list[str]]

DIRECTED = '{name="directed-random", neighbours=2}'
#: Columns sum to one, but nobody keeps a share of its own.
NO_SELF_LOOPS = (
    '{name="matrix", stochastic="columns", matrix=[[0, 0.5, 0, 1], [1, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 1, 0]]}'
)
PUSH_SUM = ["sgp", "osgp", "overlap-sgp", "dfedsgpm", "dfedsgpsm", "dfedsgpsm-s", "asyng"]


def would_do(message: str) -> list[str]:
    """The methods that would do: the list at the end of a refusal."""
    return message.rpartition(": ")[2].strip(" .\n").replace("\n", " ").split(", ")


@pytest.mark.parametrize("method", ["d-scaffold", "g-ecl", "local-g-ecl", "k-gt"])
@pytest.mark.parametrize("graph", [DIRECTED, "exponential", "one-peer-exponential"])
def test_duals_on_a_directed_graph(refused: Refused, settings: Settings, method: str, graph: str) -> None:
    says = (f"method '{method}'", "graph")
    found = would_do(refused("run", *settings(method=method, graph=graph), says=says))
    assert "dfedsgpsm" in found
    assert "k-gt" not in found
    if graph == "exponential":
        refused("run", *settings(method=method, graph=graph), says=("undirected", "symmetric=true"))


@pytest.mark.parametrize("method", ["dfedadmm", "dfedadmm-sam"])
def test_dfedadmm_where_the_mean_is_not_kept(refused: Refused, settings: Settings, method: str) -> None:
    says = (f"method '{method}'", "rows")
    assert "dfedadmm" not in would_do(refused("run", *settings(method=method, graph=DIRECTED), says=says))


def test_dfedadmm_runs_on_a_directed_graph_and_says_what_its_theory_asks_for() -> None:
    """Table 2 of its paper has the exponential graph, which is doubly stochastic and directed."""
    directed = Experiment(method="dfedadmm", graph="exponential", clients=8)
    assert any("asks for an undirected graph" in note for note in prepare(directed).notes)
    assert not prepare(directed.but(graph={"name": "exponential", "symmetric": True})).notes


@pytest.mark.parametrize("method", ["ecl", "pdmm", "ecl-isvr"])
@pytest.mark.parametrize(
    "graph", ['{name="random-symmetric", neighbours=2}', '{name="base-k", k=1}'], ids=["drawn", "periodic"]
)
def test_edge_consensus_on_a_graph_that_changes(refused: Refused, settings: Settings, method: str, graph: str) -> None:
    clients = 5  # where base-k takes several steps
    says = (f"method '{method}'", "graph")
    found = would_do(refused("run", *settings(method=method, graph=graph, clients=clients), says=says))
    assert {"dfedavg", "dfedadmm", "local-g-ecl"} <= set(found)
    assert not {"ecl", "pdmm", "ecl-isvr"} & set(found)


@pytest.mark.parametrize("method", ["ecl", "pdmm", "ecl-isvr"])
def test_edge_consensus_on_a_directed_graph(refused: Refused, settings: Settings, method: str) -> None:
    refused("run", *settings(method=method, graph="exponential"), says=(f"method '{method}'", "undirected"))


@pytest.mark.parametrize("method", PUSH_SUM)
def test_push_sum_without_self_loops(refused: Refused, settings: Settings, method: str) -> None:
    says = (f"method '{method}'", "graph 'matrix'", "self loops")
    refused("run", *settings(method=method, graph=NO_SELF_LOOPS), says=says)


@pytest.mark.parametrize("method", PUSH_SUM)
def test_push_sum_on_weights_whose_rows_sum_to_one(refused: Refused, settings: Settings, method: str) -> None:
    graph = '{name="random-pull", neighbours=2}'
    found = would_do(refused("run", *settings(method=method, graph=graph), says=(f"method '{method}'", "columns")))
    assert "dfedavg" in found
    assert not set(PUSH_SUM) & set(found)


@pytest.mark.parametrize("method", ["fedpd", "local-g-ecl"])
def test_methods_that_need_everyone_with_a_server_that_calls_some(
    refused: Refused, settings: Settings, method: str
) -> None:
    graph = '{name="server", participation=0.5}'
    says = (f"method '{method}'", "graph 'server'", "participation=1")
    assert would_do(refused("run", *settings(method=method, graph=graph), says=says)) == [
        "fedavg",
        "fedsam",
        "scaffold",
    ]


@pytest.mark.parametrize("method", ["fedpd", "local-g-ecl"])
def test_methods_that_need_everyone_with_a_server_that_throws_coins(
    refused: Refused, settings: Settings, method: str
) -> None:
    graph = '{name="server", participation=0.8, sampling="coin"}'
    refused("run", *settings(method=method, graph=graph), says=(f"method '{method}'", "participation=1"))


@pytest.mark.parametrize("method", ["dfedadmm", "g-ecl", "ecl", "sgp", "dispfl", "q-dfedavgm", "k-gt", "oledfl"])
def test_methods_without_a_use_for_a_server(refused: Refused, settings: Settings, method: str) -> None:
    found = would_do(refused("run", *settings(method=method, graph="server"), says=(f"method '{method}'", "server")))
    assert found == ["fedavg", "fedsam", "scaffold", "fedpd", "local-g-ecl"]


POSITIVE, NOT_NEGATIVE = "greater than 0", "greater than or equal to 0"


@pytest.mark.parametrize(
    ("method", "key", "value", "says"),
    [
        *[(m, "penalty", v, POSITIVE) for m in ("dfedadmm", "dfedadmm-sam", "fedpd") for v in ("0", "-1")],
        *[(m, "coupling", v, POSITIVE) for m in ("ecl", "pdmm") for v in ("0", "-1")],
        *[(m, "rho", "-0.1", NOT_NEGATIVE) for m in ("fedsam", "dfedsam", "dfedsam-mgs", "dfedadmm-sam")],
        *[(m, "rho", "-0.1", NOT_NEGATIVE) for m in ("dfedsgpsm", "dfedsgpsm-s", "oledfl")],
        *[(m, "momentum", v, "less than 1") for m in ("dfedavgm", "q-dfedavgm", "qg-dsgdm") for v in ("1", "1.5")],
        *[(m, "momentum", "1", "less than 1") for m in ("dfedsgpm", "dfedsgpsm", "dfedsgpsm-s")],
        *[(m, "momentum", "-0.1", NOT_NEGATIVE) for m in ("dfedavgm", "dfedsgpm")],
        ("q-dfedavgm", "bits", "0", "greater than or equal to 1"),
        ("q-dfedavgm", "bits", "17", "less than or equal to 16"),
        ("local-g-ecl", "warm_start", "-1", NOT_NEGATIVE),
        *[(m, "alpha", "-1", NOT_NEGATIVE) for m in ("g-ecl", "local-g-ecl")],
        ("dfedsam-mgs", "gossip_steps", "0", "greater than or equal to 1"),
        *[("dispfl", "density", v, w) for v, w in (("0", POSITIVE), ("1.5", "less than or equal to 1"))],
        *[(m, "relaxation", "0", POSITIVE) for m in ("ecl", "pdmm", "ecl-isvr")],
        ("oledfl", "beta", "1", "less than 1"),
        *[(m, "server_lr", "0", POSITIVE) for m in ("fedavg", "fedsam", "scaffold", "k-gt")],
    ],
)
def test_parameters_out_of_range(
    refused: Refused, settings: Settings, method: str, key: str, value: str, says: str
) -> None:
    spec = f'{{name="{method}", {key}={value}}}'
    refused("run", *settings(method=spec), says=(f"method '{method}'", key, says, f"got {value}"))


@pytest.mark.parametrize(
    ("method", "key", "words"),
    [
        ("d-scaffold", "reading", ("'tracked'", "'neighbourhood'")),
        ("local-g-ecl", "start", ("'local'", "'aggregated'")),
        ("dfedadmm", "dual", ("'old'", "'new'")),
        ("dfedadmm-sam", "dual", ("'old'", "'new'")),
        ("d-psgd", "order", ("'adapt-then-combine'", "'combine-then-adapt'")),
        ("d-psgd", "work", ("'step'", "'epoch'")),
        ("sgp", "work", ("'step'", "'epoch'")),
        ("q-dfedavgm", "rounding", ("'stochastic'", "'down'")),
        ("dispfl", "regrow", ("'random'", "'gradient'")),
    ],
)
def test_unknown_words(refused: Refused, settings: Settings, method: str, key: str, words: tuple[str, ...]) -> None:
    spec = f'{{name="{method}", {key}="whatever"}}'
    refused("run", *settings(method=spec), says=(f"method '{method}'", key, "got 'whatever'", *words))


@pytest.mark.parametrize("method", ["dfedadmm", "dfedadmm-sam", "fedpd"])
@pytest.mark.parametrize(("lr", "penalty"), [("0.2", "0.1"), ("0.5", "0.1"), ("20", "10")])
def test_a_step_for_which_the_penalty_alone_diverges(
    refused: Refused, settings: Settings, method: str, lr: str, penalty: str
) -> None:
    spec = f'{{name="{method}", penalty={penalty}}}'
    message = refused("run", *settings(method=spec, lr=lr), says=(f"lr={lr}", "penalty"))
    assert f"2λ={2 * float(penalty):g}" in message


@pytest.mark.parametrize("method", ["dfedadmm", "dfedadmm-sam", "fedpd"])
def test_a_step_just_below_is_none_of_our_business(
    gossamer: Callable[..., object], settings: Settings, method: str
) -> None:
    spec = f'{{name="{method}", penalty=0.1}}'
    answer = gossamer("run", *settings(method=spec, lr="0.19", rounds="1", local_steps="1"), "--out", "fine")
    assert answer.code == 0, answer.text  # type: ignore[attr-defined]


def test_the_pull_of_edges_needs_clients_with_equally_many_steps(refused: Refused, settings: Settings) -> None:
    method = '{name="local-g-ecl", alpha=0.3}'
    unequal = settings(method=method, partition='{name="dirichlet-by-class", alpha=0.1}')
    refused(
        "run",
        *unequal,
        "--set",
        "local_epochs=1",
        "--set",
        "batch_size=4",
        says=("local_steps",),
    )


def test_a_pull_of_edges_that_provably_diverges(refused: Refused, settings: Settings) -> None:
    method = '{name="pdmm", coupling=11.0}'
    says = ("lr", "coupling=11", "2 neighbours", "coupling below 10")
    refused("run", *settings(method=method, graph="ring"), "--set", "lr=0.1", says=says)
