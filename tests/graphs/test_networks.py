"""Every graph keeps its claims, for many sizes and seeds, and refuses what cannot be."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from gossamer.errors import ExperimentError, GraphError
from gossamer.graphs import GRAPHS, Claims, Network, as_graph, check
from gossamer.graphs.drawn_once import random_pairs, random_regular
from gossamer.graphs.weights import column, metropolis, uniform
from gossamer.parts import summary_of

# What each graph needs of n: a rule that turns any number into one that it accepts, and parameters that fit it.
FITTING: dict[str, tuple[Callable[[int], int], Callable[[int], dict[str, Any]]]] = {
    "ring": (lambda n: n + 2, lambda n: {}),
    "double-ring": (lambda n: n + 4, lambda n: {}),
    "grid": (lambda n: n + 1, lambda n: {}),
    "torus": (lambda n: 3 * (n + 2), lambda n: {}),
    "exponential": (lambda n: n + 1, lambda n: {"symmetric": n % 2 == 0}),
    "one-peer-exponential": (lambda n: n + 1, lambda n: {}),
    "full": (lambda n: n, lambda n: {}),
    "star": (lambda n: n + 1, lambda n: {}),
    "erdos-renyi": (lambda n: n + 1, lambda n: {"p": 0.5}),
    "k-regular": (lambda n: 2 * n + 2, lambda n: {"k": min(3, n)} if n % 3 else {"k": n - 1}),
    "base-k": (lambda n: n, lambda n: {"k": 1 + n % 4}),
    "random-symmetric": (lambda n: n + 3, lambda n: {"neighbours": (n + 1) // 2}),
    "random-regular": (lambda n: 2 * n, lambda n: {"k": 1 + n % 3 if n > 4 else n - 1}),
    "random-group": (lambda n: n + 1, lambda n: {"members": 2 + n // 5 if n > 2 else 2}),
    "random-pull": (lambda n: n + 1, lambda n: {"neighbours": (n + 1) // 2}),
    "directed-by-loss": (lambda n: n + 1, lambda n: {"neighbours": (n + 1) // 2}),
    "directed-random": (lambda n: n + 1, lambda n: {"neighbours": (n + 1) // 2}),
    "circulant": (lambda n: n + 2, lambda n: {"offsets": [1, n - 1], "symmetric": n % 2 == 1}),
    "isolated": (lambda n: n, lambda n: {}),
    "server": (lambda n: n, lambda n: {"participation": 0.4, "sampling": ["fixed", "coin"][n % 2]}),
}


def bind(spec: Any, clients: int, seed: int = 0) -> Network:
    return GRAPHS.build(spec).bind(clients, seed)


def dense(network: Network, step: int = 0) -> np.ndarray:
    return network.matrix(step).toarray()


def refusal(*arguments: Any) -> str:
    with pytest.raises(GraphError) as caught:
        check(bind(*arguments))
    return str(caught.value)


@pytest.mark.parametrize("name", FITTING)
@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 30), seed=st.integers(0, 2**32))
def test_every_graph_keeps_its_claims(name: str, size: int, seed: int) -> None:
    fit, parameters = FITTING[name]
    clients = fit(size)
    network = bind({"name": name, **parameters(clients)}, clients, seed)
    assert network.name == name
    check(network)
    for step in (0, 1, 57):
        weights = dense(network, step)
        assert weights.shape == (clients, clients)
        assert weights.dtype == np.float64
        assert (weights >= 0).all()
        assert network.claims.rows or network.claims.columns
        if network.claims.rows:
            np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-12)
        if network.claims.columns:
            np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-12)
        if network.claims.symmetric:
            np.testing.assert_allclose(weights, weights.T, atol=1e-12)
        if network.claims.undirected:
            assert ((weights > 0) == (weights > 0).T).all()
        if network.claims.self_loops:
            assert (np.diag(weights) > 0).all()
        if name != "server":
            others = (weights > 0) & ~np.eye(clients, dtype=bool)
            assert (network.sends(step) == others.sum(axis=0)).all()
            assert network.participants(step) is None
            assert network.server_sends(step) == 0


def test_every_graph_is_listed_with_a_description_and_tested() -> None:
    assert set(FITTING) | {"edges", "edge-list", "matrix"} == set(GRAPHS)
    for name, maker in GRAPHS.items():
        assert summary_of(maker).endswith("."), name


@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_can_be_written_to_toml_and_read_again(name: str) -> None:
    required = {"edges": {"edges": [[0, 1]]}, "edge-list": {"path": "links.txt"}, "matrix": {"matrix": [[1.0]]}}
    parameters = required.get(name) or FITTING[name][1](12)
    graph = GRAPHS.build({"name": name, **parameters})
    text = tomli_w.dumps({"graph": GRAPHS.describe(graph)})
    assert GRAPHS.build(tomllib.loads(text)["graph"]) == graph


@pytest.mark.parametrize(
    "name",
    [
        "erdos-renyi",
        "k-regular",
        "random-symmetric",
        "random-regular",
        "random-group",
        "random-pull",
        "directed-random",
    ],
)
def test_draws_depend_on_seed_and_step_alone(name: str) -> None:
    a, b, other = bind(name, 20, 7), bind(name, 20, 7), bind(name, 20, 8)
    for step in (5, 0, 3):  # in another order than drawn below
        dense(a, step)
    for step in (0, 3, 5):
        assert (dense(a, step) == dense(b, step)).all()
    assert (dense(a) != dense(other)).any()
    assert a.period == 1 or (dense(a, 0) != dense(a, 1)).any()


def test_matrices_are_built_once() -> None:
    ring, drawn = bind("ring", 5), bind("random-pull", 20)
    assert ring.matrix(0) is ring.matrix(17)
    assert drawn.matrix(3) is drawn.matrix(3)


# Weights, on paper.


def test_ring_of_four() -> None:
    third = 1 / 3
    expected = [[third, third, 0, third], [third, third, third, 0], [0, third, third, third], [third, 0, third, third]]
    np.testing.assert_allclose(dense(bind("ring", 4)), expected, atol=1e-15)


def test_weights_of_a_path() -> None:
    path = csr_array(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    half, third = 1 / 2, 1 / 3
    np.testing.assert_allclose(
        metropolis(path).toarray(), [[2 * third, third, 0], [third, third, third], [0, third, 2 * third]]
    )
    np.testing.assert_allclose(uniform(path).toarray(), [[half, half, 0], [third, third, third], [0, half, half]])
    np.testing.assert_allclose(column(path).toarray(), uniform(path).toarray().T)


def test_metropolis_needs_an_undirected_graph() -> None:
    with pytest.raises(GraphError, match="undirected"):
        metropolis(csr_array(np.array([[0, 1], [0, 0]])))


@pytest.mark.parametrize("name", ["star", "grid", "random-symmetric"])
def test_claims_follow_the_weights(name: str) -> None:
    claimed = {w: bind({"name": name, "weights": w}, 12).claims for w in ("metropolis", "uniform", "column")}
    kinds = {w: (c.rows, c.columns, c.symmetric) for w, c in claimed.items()}
    assert kinds == {
        "metropolis": (True, True, True),
        "uniform": (True, False, False),
        "column": (False, True, False),
    }
    assert all(c.undirected and c.connected and c.self_loops for c in claimed.values())


def test_regular_graphs_are_doubly_stochastic_also_when_directed() -> None:
    claims = bind("exponential", 12).claims
    assert claims.rows
    assert claims.columns
    assert not claims.symmetric
    assert not claims.undirected
    assert bind({"name": "exponential", "symmetric": True}, 12).claims.symmetric


def test_exponential_offsets() -> None:
    weights = dense(bind("exponential", 100))
    assert sorted(np.flatnonzero(weights[:, 0])) == [0, 1, 2, 4, 8, 16, 32, 64]  # to whom client 0 sends
    assert weights[1, 0] == 1 / 8


def test_drawn_directed_graphs_have_the_asked_number_of_neighbours() -> None:
    pull, push = dense(bind("random-pull", 30)), dense(bind("directed-random", 30))
    assert ((pull > 0).sum(axis=1) == 11).all()
    assert ((push > 0).sum(axis=0) == 11).all()
    assert np.isclose(pull[pull > 0], 1 / 11).all()
    assert np.isclose(push[push > 0], 1 / 11).all()
    assert bind({"name": "directed-random", "weights": "uniform"}, 30).claims.rows
    assert bind({"name": "random-pull", "weights": "column"}, 30).claims.columns


def test_random_symmetric_follows_its_edge_law() -> None:
    network = bind("random-symmetric", 100)
    assert np.mean([network.sends(step) for step in range(60)]) == pytest.approx(8.91, abs=0.15)


def test_at_most_so_many_neighbours_means_at_most_so_many() -> None:
    free, bounded = bind("random-symmetric", 100), bind({"name": "random-symmetric", "at_most": 10}, 100)
    assert max(free.sends(step).max() for step in range(5)) > 10
    for step in range(5):
        assert bounded.sends(step).max() == 10
        kept, drawn = dense(bounded, step) > 0, dense(free, step) > 0
        assert (kept <= drawn).all()  # of the links that are drawn anyway
        full = bounded.sends(step) == 10
        dropped = np.argwhere(drawn & ~kept)
        assert all(full[pair].any() for pair in dropped)  # and only those of a client that is full


def test_a_random_regular_graph_gives_every_client_k_others_at_every_step() -> None:
    network = bind({"name": "random-regular", "k": 10}, 100)
    for step in range(5):
        assert (network.sends(step) == 10).all()
        np.testing.assert_allclose(dense(network, step)[dense(network, step) > 0], 1 / 11)
    assert (dense(network, 0) != dense(network, 1)).any()


@pytest.mark.parametrize("groups", [1, 4])
def test_a_group_averages_among_itself_and_the_others_keep_their_models(groups: int) -> None:
    network = bind({"name": "random-group", "groups": groups}, 100)
    check(network)  # symmetric, doubly stochastic, and connected over its window
    ever = set()
    for round_ in range(network.draws // groups):
        members = [set(np.flatnonzero(network.sends(round_ * groups + step)).tolist()) for step in range(groups)]
        assert [len(group) for group in members] == [10] * groups
        assert len(set.union(*members)) == 10 * groups  # the groups of one round have no client in common
        ever |= set.union(*members)
        weights = dense(network, round_ * groups)
        for client in range(100):
            own = np.flatnonzero(weights[client])
            assert set(own.tolist()) == (members[0] if client in members[0] else {client})
            np.testing.assert_allclose(weights[client, own], 1 / len(own))
    assert ever == set(range(100))


# Sequences that average exactly.


def product(network: Network) -> np.ndarray:
    result = np.eye(network.clients)
    assert network.period is not None
    for step in range(network.period):
        result = network.matrix(step) @ result
    return result


@pytest.mark.parametrize("clients", [2, 4, 8, 16, 32, 64])
def test_one_peer_exponential_averages_powers_of_two(clients: int) -> None:
    network = bind("one-peer-exponential", clients)
    assert 2**network.period == clients
    np.testing.assert_allclose(product(network), 1 / clients, atol=1e-12)


@pytest.mark.parametrize("clients", [3, 6, 12, 100])
def test_one_peer_exponential_averages_nothing_else(clients: int) -> None:
    assert np.abs(product(bind("one-peer-exponential", clients)) - 1 / clients).max() > 1e-3


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_base_graph_averages_any_number_of_clients(k: int) -> None:
    for clients in range(1, 41):
        network = bind({"name": "base-k", "k": k}, clients)
        check(network)
        np.testing.assert_allclose(product(network), 1 / clients, atol=1e-12)
        assert network.period <= max(1, 2 * np.log(clients) / np.log(k + 1) + 2)
        assert max(network.sends(step).max() for step in range(network.period)) <= k


# The server.


def test_server_with_everyone() -> None:
    network = bind("server", 5)
    np.testing.assert_allclose(dense(network), 0.2)
    assert network.period == 1
    assert network.claims == Claims(rows=True, columns=True, symmetric=True, self_loops=False, connected=True)
    assert network.participants(0).tolist() == [0, 1, 2, 3, 4]
    assert network.sends(0).tolist() == [1] * 5
    assert network.server_sends(0) == 5


def test_server_samples_a_fixed_number() -> None:
    network = bind({"name": "server", "participation": 0.1}, 100, 3)
    check(network)
    rounds = [network.participants(t) for t in range(50)]
    assert all(len(called) == 10 and (np.diff(called) > 0).all() for called in rounds)
    assert len(np.unique(np.concatenate(rounds))) > 90
    assert (rounds[7] == bind({"name": "server", "participation": 0.1}, 100, 3).participants(7)).all()
    weights = dense(network, 7)
    assert (weights == weights[0]).all()
    assert np.flatnonzero(weights[0]).tolist() == rounds[7].tolist()
    assert network.sends(7).sum() == network.server_sends(7) == 10
    assert not network.claims.columns


def test_server_coins_are_independent_and_never_all_tails() -> None:
    network = bind({"name": "server", "participation": 0.02, "sampling": "coin"}, 20)
    sizes = [len(network.participants(t)) for t in range(200)]
    assert min(sizes) == 1
    assert len(set(sizes)) > 1
    assert len(bind({"name": "server", "participation": 0.001}, 20).participants(0)) == 1


# Given by the user.


def test_edges_and_edge_list_agree(tmp_path: Path) -> None:
    file = tmp_path / "links.txt"
    file.write_text("# a path\n0 1\n\n1 2   # and on\n2 1\n2 2\n")
    listed = bind({"name": "edge-list", "path": str(file)}, 3)
    given_ = bind({"name": "edges", "edges": [[0, 1], [1, 2]]}, 3)
    assert (dense(listed) == dense(given_)).all()
    assert listed.claims.symmetric


def test_directed_edges_go_from_source_to_target() -> None:
    network = bind({"name": "edges", "edges": [(0, 1), (1, 2), (2, 0), (0, 2)], "directed": True}, 3)
    check(network)
    third = 1 / 3
    np.testing.assert_allclose(dense(network), [[third, 0, 0.5], [third, 0.5, 0], [third, 0.5, 0.5]])
    assert network.claims.columns
    assert not network.claims.rows


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0 1\n1 5\n", r"links.txt, line 2: there is no client 5; 3 clients are numbered 0 to 2"),
        ("0 1 0.5\n", r"links.txt, line 1: expected 'source target'"),
        ("0 one\n", r"links.txt, line 1: 'one' is not a client"),
        ("0 1\n", r"links.txt: graph 'edge-list' must link all 3 clients: no edge for client 2"),
    ],
)
def test_edge_list_errors_name_file_line_and_node(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "links.txt"
    file.write_text(text)
    with pytest.raises(GraphError, match=reason):
        bind({"name": "edge-list", "path": str(file)}, 3)


def test_a_missing_edge_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"cannot read .*nowhere.txt: No such file"):
        bind({"name": "edge-list", "path": str(tmp_path / "nowhere.txt")}, 3)


def test_a_binary_edge_list_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "links.bin"
    file.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(GraphError, match=r"cannot read .*links.bin"):
        bind({"name": "edge-list", "path": str(file)}, 3)


def test_a_matrix_is_taken_for_what_it_is() -> None:
    weights = [[0.5, 0.5], [0.25, 0.75]]
    network = bind({"name": "matrix", "matrix": weights}, 2)
    check(network)
    assert (dense(network) == weights).all()
    assert (network.claims.rows, network.claims.columns) == (True, False)
    assert bind({"name": "matrix", "matrix": np.array(weights).T}, 2).claims.columns
    spec = GRAPHS.describe(as_graph(np.array(weights)))
    assert spec == {"name": "matrix", "matrix": weights}


@pytest.mark.parametrize(
    ("matrix", "stochastic", "reason"),
    [
        ([[0.5, 0.4], [0.5, 0.5]], None, "client 0 applies sum to 0.9 at step 0, not to 1"),
        ([[0.5, 0.5], [0.25, 0.75]], "both", r"on what client 0 sends sum to 0.75 at step 0, not to 1 \(column 0"),
        ([[0.5, 0.5], [0.25, 0.75]], "columns", "column 0 of its"),
        ([[0.5, 0.25], [0.5, 0.75]], "rows", "row 0 of its"),
        ([[1.5, -0.5], [0.5, 0.5]], None, "client 0 gives client 1 the weight -0.5 at step 0"),
        ([[float("nan"), 0.5], [0.5, 0.5]], None, "weight nan"),
        ([[1.0, 0.0], [0.0, 1.0]], None, "not connected: client 1 cannot reach client 0"),
        ([[1.0, 0.0], [0.5, 0.5]], None, "not connected: client 1 cannot reach client 0"),
        ([[0.5, 0.5], [0.0, 1.0]], None, "not connected: client 0 cannot reach client 1"),
        ([[0.5, 0.5]], None, r"row 0 needs as many \(got 2\)"),
        ([[1.0]], None, "is for 1 clients, but there are 2"),
    ],
)
def test_wrong_matrices_are_refused_with_the_reason(matrix: Any, stochastic: str | None, reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        check(bind({"name": "matrix", "matrix": matrix, "stochastic": stochastic}, 2))


# Refusals.


@pytest.mark.parametrize(
    ("spec", "clients", "reason"),
    [
        ("double-ring", 3, "graph 'double-ring' needs at least 5 clients (got 3); 'ring' or 'full' would do"),
        ("ring", 2, "graph 'ring' needs at least 3 clients (got 2); 'full' would do"),
        ("star", 1, "at least 2 clients (got 1); 'full' would do"),
        ("full", 0, "graph 'full' needs at least 1 client (got 0)"),
        ("torus", 14, "the nearest that do: 12 and 15"),
        ("torus", 4, "the nearest that do: 9"),
        ({"name": "torus", "rows": 6}, 12, "3, 4 rows would do"),
        ({"name": "grid", "rows": 3}, 10, "10 clients do not fill 3 rows; 1, 2, 5, 10 rows would do"),
        ({"name": "k-regular", "k": 3}, 5, "k = 2 would do"),
        ({"name": "k-regular", "k": 1}, 4, "fall into pairs"),
        ({"name": "random-regular", "k": 3}, 5, "k = 2 would do"),
        ({"name": "random-group", "groups": 4}, 30, "groups = 4 of members = 10 need 40 clients (got 30)"),
        ({"name": "k-regular", "k": 8}, 8, "set k to at most 7, or take 'full'"),
        ("random-pull", 10, "neighbours = 10, but each of 10 clients has only 9 others"),
        ("random-symmetric", 9, "set neighbours to at most 8"),
        ("directed-random", 4, "set neighbours to at most 3"),
        ({"name": "erdos-renyi", "p": 0.001}, 30, "not connected in any of 100 draws; p above ln(n)/n = 0.113"),
        ({"name": "circulant", "offsets": [3, 6]}, 6, "offset 6 leads a client of 6 back to itself"),
        ({"name": "circulant", "offsets": [2]}, 6, "not connected: clients 1, 3 and 5 cannot reach client 0"),
        ({"name": "edges", "edges": [(0, 1), (1, 9)]}, 3, "edge 1, (1, 9): there is no client 9"),
        ({"name": "edges", "edges": [(0, 1), (2, 3)]}, 4, "clients 2 and 3 cannot reach client 0"),
        ({"name": "edges", "edges": [(0, 1), (0, 2)], "directed": True, "weights": "metropolis"}, 3, "undirected"),
    ],
)
def test_refusals_say_what_would_be_right(spec: Any, clients: int, reason: str) -> None:
    assert reason in refusal(spec, clients)


def test_parameters_out_of_range_are_refused() -> None:
    for spec in ({"name": "server", "participation": 0}, {"name": "base-k", "k": 0}, {"name": "circulant"}):
        with pytest.raises(ExperimentError, match=spec["name"]):
            GRAPHS.build(spec)


def claim(**changes: bool) -> Claims:
    return Claims(
        **{"rows": True, "columns": False, "symmetric": False, "self_loops": False, "connected": False} | changes
    )


@pytest.mark.parametrize(
    ("weights", "claims", "reason"),
    [
        (
            [[0.5, 0.5], [0.25, 0.75]],
            claim(symmetric=True),
            r"not symmetric: clients 0 and 1 .* 0.5 and 0.25 at step 4",
        ),
        ([[1, 0], [0.5, 0.5]], claim(undirected=True), r"not undirected: clients 0 and 1 .* step 4"),
        ([[0, 1], [0.5, 0.5]], claim(self_loops=True), "client 0 gives itself no weight at step 4"),
        ([[1.0]], claim(), "is a 1 x 1 matrix at step 4; 2 clients need 2 x 2"),
    ],
)
def test_later_steps_are_held_to_the_claims_too(weights: Any, claims: Claims, reason: str) -> None:
    def build(step: int) -> csr_array:
        return csr_array(np.array(weights if step == 4 else [[0.5, 0.5], [0.5, 0.5]]))

    network = Network("own", 2, None, claims, build)
    network.matrix(3)
    with pytest.raises(GraphError, match=reason):
        network.matrix(4)
    with pytest.raises(GraphError, match=reason):
        check(network)


def test_connectivity_is_asked_of_the_whole_window() -> None:
    step_one = csr_array(np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]))
    step_two = csr_array(np.array([[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]]))
    claims = claim(columns=True, symmetric=True, connected=True)
    check(Network("own", 3, 2, claims, lambda step: (step_one, step_two)[step]))
    with pytest.raises(GraphError, match="not connected over its 2 steps: client 2 cannot reach client 0"):
        check(Network("own", 3, 2, claims, lambda _: step_one))
    with pytest.raises(GraphError, match="not connected over its first 10 steps"):
        check(Network("own", 3, None, claims, lambda _: step_one))


# What a user may pass.


def test_as_graph_takes_whatever_can_be_bound() -> None:
    ring = dense(bind("ring", 6))
    cycle = nx.cycle_graph(6)
    for thing in (
        GRAPHS.build("ring"),
        GRAPHS["ring"],
        cycle,
        nx.relabel_nodes(cycle, dict(enumerate("abcdef"))),
        lambda: cycle,
        ring,
        csr_array(ring),
    ):
        network = as_graph(thing).bind(6, 0)
        check(network)
        np.testing.assert_allclose(dense(network), ring, atol=1e-15)


def test_as_graph_keeps_numbered_nodes_by_number() -> None:
    graph = nx.Graph([(2, 0), (0, 1), (1, 1)])
    assert as_graph(graph).bind(3, 0).sends(0).tolist() == [2, 1, 1]


def test_as_graph_directed() -> None:
    network = as_graph(nx.DiGraph([(0, 1), (1, 2), (2, 0)])).bind(3, 0)
    check(network)
    np.testing.assert_allclose(dense(network), [[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])


@pytest.mark.parametrize("thing", ["ring", 3, None, np.ones(3)])
def test_as_graph_says_what_it_accepts(thing: Any) -> None:
    with pytest.raises(GraphError, match="a networkx graph"):
        as_graph(thing)


def test_as_graph_calls_without_arguments() -> None:
    with pytest.raises(GraphError, match=r"without arguments, missing a required argument: 'n'"):
        as_graph(lambda n: nx.cycle_graph(n))


def test_the_number_of_clients_must_match() -> None:
    with pytest.raises(GraphError, match="no client 5"):
        as_graph(nx.cycle_graph(6)).bind(5, 0)
    with pytest.raises(GraphError, match="no edge for client 6"):
        as_graph(nx.cycle_graph(6)).bind(7, 0)
    with pytest.raises(GraphError, match="is for 3 clients, but there are 4"):
        as_graph(np.full((3, 3), 1 / 3)).bind(4, 0)


@pytest.mark.parametrize(("clients", "k"), [(6, 2), (16, 7), (30, 12), (101, 8)])
def test_k_regular_graphs_are_those_of_networkx(clients: int, k: int) -> None:
    for key in range(10):
        expected = nx.to_scipy_sparse_array(nx.random_regular_graph(k, clients, seed=key), nodelist=range(clients))
        assert (random_regular(clients, k, key) != expected).nnz == 0


@pytest.mark.parametrize(("clients", "p"), [(2, 0.5), (20, 1e-4), (50, 0.1), (300, 0.02), (5, 1.0)])
def test_erdos_renyi_graphs_are_those_of_networkx(clients: int, p: float) -> None:
    for key in range(10):
        expected = nx.to_scipy_sparse_array(nx.fast_gnp_random_graph(clients, p, seed=key), nodelist=range(clients))
        assert (random_pairs(clients, p, key) != expected).nnz == 0


@pytest.mark.parametrize(
    "graph",
    ["full", "directed-by-loss", {"name": "k-regular", "k": 5000}, {"name": "erdos-renyi", "p": 0.01}]
    + [{"name": name, "neighbours": 5000} for name in ("random-symmetric", "random-pull", "directed-random")]
    + [{"name": "circulant", "offsets": list(range(1, 5000))}],
)
def test_a_graph_that_does_not_fit_into_memory_is_refused_before_it_is_made(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossamer.graphs.construction.free_memory", lambda: 10**10)
    with pytest.raises(GraphError, match=r"links between 1,000,000 clients take about .* and 10 GB are free"):
        GRAPHS.build(graph).bind(1_000_000, 0)
