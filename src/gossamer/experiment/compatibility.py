"""Whether a method can run on a graph; checked before a run starts."""

import torch

from gossamer.errors import ExperimentError
from gossamer.graphs import Network
from gossamer.methods import METHODS, Method, Need, Operator, Setting, bind, traits_of


def incompatibility(method: Method, network: Network) -> str | None:
    """The requirement of a method that the graph does not meet; None if it meets all."""
    traits = traits_of(method)
    lacks = [lack for operator in method.sends.values() if (lack := _operator_lacks(operator, network))]
    if traits.codec and traits.gossip_steps > 1:
        lacks.append("encodes its messages, and a mixed message cannot be encoded again for a second gossip step")
    lacks += [lack for need in traits.needs if (lack := _need_lacks(need, network))]
    return lacks[0] if lacks else None


def unmet_assumptions(method: Method, network: Network) -> list[str]:
    """What the theory of a method assumes and the graph does not have."""
    return [lack.removeprefix("needs ") for need in traits_of(method).assumes if (lack := _need_lacks(need, network))]


def _operator_lacks(operator: Operator, network: Network) -> str | None:
    claims, server = network.claims, network.has_server
    if operator == "server":
        return None if server else "needs a server (graph 'server')"
    if server:
        return "exchanges messages with neighbours, which a server does not have"
    if operator == "average" and not claims.rows:
        return "averages, which needs weights whose rows sum to one"
    if operator in ("push", "deliver") and not claims.columns:
        return "pushes shares, which needs weights whose columns sum to one"
    if operator in ("push", "deliver") and not claims.self_loops:
        return "keeps a share of its own message, which needs self loops"
    return None


def _need_lacks(need: Need, network: Network) -> str | None:
    claims = network.claims
    if need == "undirected" and not claims.undirected:
        hint = " ('exponential' with symmetric=true is)" if network.name == "exponential" else ""
        return f"needs an undirected graph{hint}"
    if need == "doubly stochastic" and not (claims.rows and claims.columns):
        return "needs weights whose rows and columns sum to one (weights='metropolis' gives them)"
    if need == "static" and network.period != 1:
        return "needs a graph that stays the same in every round"
    if need == "everyone" and not claims.columns:  # the columns of clients that a server does not call are zero
        return "needs every client in every round (participation=1)"
    return None


def check_compatibility(method: Method, network: Network) -> None:
    """Refuse a method on a graph that it is not defined for. The error names the methods that can run on it."""
    setting = Setting(server=network.has_server, shapes=())
    if lack := incompatibility(bind(method, setting), network):
        known = {name: bind(METHODS.build(name), setting) for name in METHODS}
        name = next((n for n, maker in METHODS.items() if type(method) is maker), type(method).__name__)
        would_do = [n for n, one in known.items() if not incompatibility(one, network)]
        raise ExperimentError(
            f"method '{name}' cannot run on graph '{network.name}': it {lack}. "
            f"Methods that can: {', '.join(would_do) or 'none of the built-in ones'}."
        )


def check_in_turn(method: Method) -> None:
    """Refuse a method whose clients cannot be taken in turn: the state must hold all that a client has sent."""
    traits, state = traits_of(method), method.init(torch.zeros(2))
    plain = method.sends == {"x": "average"} and "x" in state and traits.gossip_steps == 1
    if not plain or traits.codec or traits.opening or traits.shares_loss:
        raise ExperimentError(
            f'order: method {type(method).__name__} cannot take its clients in turn: it should send one model, "x", '
            "that is averaged once a round. Leave order out."
        )
