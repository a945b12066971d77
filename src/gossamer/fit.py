"""Whether a method can run on a graph, said before anything runs."""

from gossamer.errors import ExperimentError
from gossamer.graphs import Network
from gossamer.methods import METHODS, Method, Operator


def misfit(operator: Operator, network: Network) -> str | None:
    """What a message mixed by `operator` needs that the graph does not give; None if it fits."""
    claims, server = network.claims, network.participants(0) is not None
    if operator == "server":
        return None if server else "needs a server"
    if server:
        return "has no use for a server"
    if operator == "average" and not claims.rows:
        return "needs weights whose rows sum to one"
    if operator == "push" and not (claims.columns and claims.self_loops):
        return "needs weights whose columns sum to one, with self loops"
    if operator == "sum" and not (claims.undirected and network.period == 1):
        return "needs an undirected graph that stays the same"
    return None


def check_fit(method: Method, network: Network) -> None:
    """Refuse a method on a graph that it is not defined for, naming the methods that would do."""
    for operator in method.sends.values():
        if need := misfit(operator, network):
            would_do = [
                name
                for name, known in METHODS.items()
                if all(not misfit(o, network) for o in known.sends.values())  # type: ignore[attr-defined]
            ]
            name = next((n for n, known in METHODS.items() if type(method) is known), type(method).__name__)
            raise ExperimentError(
                f"method '{name}' cannot run on graph '{network.name}': it {need}. "
                f"Methods that can: {', '.join(would_do) or 'none of the built-in ones'}."
            )
