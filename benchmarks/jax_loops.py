# mypy: disable-error-code="import-not-found, import-untyped, no-any-return, no-untyped-call, unused-ignore"
"""The loop that someone who knows JAX well writes by hand: a round is one compiled call, mixing included.

Steps are a `scan`, clients a `vmap` or a `lax.map`, on one device with all threads or on one device for each core
(`shard_map`), and buffers are donated. Which of these is fastest depends on the model: `fastest_loop` tries them all.
Weights lie as XLA likes them best: a linear layer's by inputs, then outputs; images with their channels last. Batches
are gathered by index, from bytes, inside the call; the indices are drawn by numpy, which is faster at that. Where a
batch is all that a client has, its indices are made once.

    python -m benchmarks.environments jax         makes the environment that this runs in
    python -m benchmarks.jax_loops W1             by how much its numbers differ from the engine's, on the same batches
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from torch import nn

from gossamer.training import Training

#: The batches of one client in one round, as indices of samples.
Draw = Callable[[int, int], Sequence[np.ndarray]]
#: A tree of arrays.
Tree = Any
RHO, PENALTY = 0.01, 10.0
#: No further way is tried after so many seconds.
TRYING = 120.0
SUM = partial(jax.tree.map, lambda *leaves: sum(leaves))


class Way(NamedTuple):
    """How clients are run."""

    each: str
    devices: int

    def __str__(self) -> str:
        return f"{self.each}, {self.devices} device{'s' * (self.devices > 1)}"


def scaled(tree: Tree, by: Any) -> Tree:
    """All leaves, multiplied."""
    return jax.tree.map(lambda leaf: by * leaf, tree)


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The layers of a chain of them, one after the other."""
    inside = list(module.children())
    return [layer for child in inside for layer in layers_of(child)] if inside else [module]


def weights_of(layers: Sequence[nn.Module]) -> Tree:
    """Their weights and biases as JAX likes them."""
    tree = []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            tree.append((layer.weight.detach().numpy().T, layer.bias.detach().numpy()))
        elif isinstance(layer, nn.Conv2d):
            tree.append((layer.weight.detach().numpy().transpose(2, 3, 1, 0), layer.bias.detach().numpy()))
    return tree


def forward(layers: Sequence[nn.Module], weights: Tree, x: Any) -> Any:
    """The outputs of these layers."""
    left = iter(weights)
    if any(isinstance(layer, nn.Conv2d) for layer in layers):
        x = x.transpose(0, 2, 3, 1)
    for layer in layers:
        match layer:
            case nn.Linear():
                weight, bias = next(left)
                x = x @ weight + bias
            case nn.Conv2d():
                weight, bias = next(left)
                x = convolution(x, weight) + bias
            case nn.MaxPool2d():
                many, height, width, channels = x.shape
                x = x[:, : height // 2 * 2, : width // 2 * 2]
                x = x.reshape(many, height // 2, 2, width // 2, 2, channels).max((2, 4))
            case nn.Flatten():
                x = (x.transpose(0, 3, 1, 2) if x.ndim == 4 and weights[0][0].ndim == 4 else x).reshape(len(x), -1)
            case nn.ReLU():
                x = jax.nn.relu(x)
            case _:
                raise TypeError(f"no {type(layer).__name__} here")
    return x


def convolution(x: Any, weight: Any) -> Any:
    """A convolution as one product of matrices. On a CPU, XLA's own one is many times as slow backward."""
    high, wide, _, channels = weight.shape
    rows, columns = x.shape[1] - high + 1, x.shape[2] - wide + 1
    patches = [x[:, i : i + rows, j : j + columns] for i in range(high) for j in range(wide)]
    return jnp.concatenate(patches, axis=-1) @ weight.reshape(-1, channels)


class JaxLoop:
    """Rounds of DFedAvg, DFedSAM or DFedADMM of all clients."""

    def __init__(self, method: str, training: Training, way: Way, draw: Draw | None = None) -> None:
        assert training.weight_decay == 0
        assert training.batches.asked_steps is not None
        data, batches = training.dataset, training.batches
        self.way, self.steps, self.done = way, batches.asked_steps, 0
        self.client_rows = [np.asarray(rows) for rows in batches.client_rows]
        self.draw = draw or self._epochs
        self.size = min(batches.batch_size, max(map(len, self.client_rows)))
        self.clients, self.dtype = len(self.client_rows), training.model.initial.numpy().dtype
        self._whole = draw is None and all(len(rows) <= self.size for rows in self.client_rows)
        self._kept: tuple[Any, Any] | None = None

        mesh = jax.sharding.Mesh(np.array(jax.devices()[: way.devices]), ("clients",))
        self._shared = NamedSharding(mesh, PartitionSpec("clients"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        layers = layers_of(training.model.module(training.model.initial))
        samples = [data.train.inputs.numpy(), data.train.targets.numpy().astype(np.int32)]
        self.samples = [jax.device_put(values, everywhere) for values in samples]
        self.graph = [jax.device_put(values, self._shared) for values in neighbours(training, self.dtype)]
        one = weights_of(layers)
        self.models = jax.tree.map(self._for_all, one)
        self.duals = jax.tree.map(lambda leaf: self._for_all(0 * leaf), one) if method == "dfedadmm" else ()
        step = partial(local_steps, method, layers, training.lr, 1 / data.scaling.scale)
        self._round = one_round(step, way, mesh)

    def round(self) -> None:
        """Everyone's local steps, then one average with the neighbours."""
        if self._whole and self._kept:
            rows, shares = self._kept
        else:
            rows, shares = (jax.device_put(values, self._shared) for values in self._batches())
            self._kept = rows, shares
        self.models, self.duals = self._round(self.models, self.duals, rows, shares, self.graph, self.samples)
        jax.block_until_ready(self.models)
        self.done += 1

    def vectors(self) -> np.ndarray:
        """Every client's model as a flat vector, in PyTorch's order."""
        parts = []
        for weight, bias in jax.tree.map(np.asarray, self.models):
            turned = weight.transpose(0, 2, 1) if weight.ndim == 3 else weight.transpose(0, 4, 3, 1, 2)
            parts += [turned.reshape(self.clients, -1), bias]
        return np.concatenate(parts, axis=1)

    def _for_all(self, leaf: np.ndarray) -> Any:
        return jax.device_put(np.broadcast_to(leaf, (self.clients, *leaf.shape)), self._shared)

    def _batches(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of samples, and the share of each in the loss of its batch; batches are filled up with none."""
        rows = np.zeros((self.clients, self.steps, self.size), np.int32)
        shares = np.zeros(rows.shape, self.dtype)
        for client in range(self.clients):
            for step, batch in enumerate(self.draw(client, self.done)):
                rows[client, step, : len(batch)] = batch
                shares[client, step, : len(batch)] = 1 / len(batch)
        return rows, shares

    def _epochs(self, client: int, round: int) -> Sequence[np.ndarray]:
        held, batches = self.client_rows[client], list[np.ndarray]()
        while len(batches) < self.steps:
            order = np.random.default_rng((client, round, len(batches))).permutation(held)
            batches += [order[at : at + self.size] for at in range(0, len(order), self.size)]
        return batches[: self.steps]


def neighbours(training: Training, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Whom each client listens to, itself included, and with what weight; filled up with no weight."""
    matrix = training.network.matrix(0)
    degrees = np.diff(matrix.indptr)
    filled = np.arange(degrees.max()) < degrees[:, None]
    others, weights = np.zeros(filled.shape, np.int32), np.zeros(filled.shape, dtype)
    others[filled], weights[filled] = matrix.indices, matrix.data
    return others, weights


def local_steps(
    method: str, layers: Sequence[nn.Module], lr: float, factor: float,
    start: Tree, dual: Tree, rows: Any, shares: Any, samples: Any,
) -> tuple[Tree, Tree]:  # fmt: skip
    """The local steps of one client: what it sends, and its new dual if it has one."""

    def loss(weights: Tree, inputs: Any, targets: Any, shares: Any) -> Any:
        outputs = forward(layers, weights, inputs.astype(shares.dtype) * factor)
        logs = jax.nn.log_softmax(outputs)
        return -(jnp.take_along_axis(logs, targets[:, None], 1)[:, 0] * shares).sum()

    anchor = jax.tree.map(lambda d, x: d + x / PENALTY, dual, start) if method == "dfedadmm" else ()

    def step(y: Tree, batch: Any) -> tuple[Tree, None]:
        some, share = batch
        gradient = jax.grad(lambda at: loss(at, samples[0][some], samples[1][some], share))
        g = gradient(y)
        if method == "dfedsam":
            norm = jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(g)))
            g = gradient(SUM(y, scaled(g, RHO / (norm + 1e-12))))
        if method == "dfedadmm":
            return jax.tree.map(lambda y, g, a: y - lr * (g - a + y / PENALTY), y, g, anchor), None
        return jax.tree.map(lambda y, g: y - lr * g, y, g), None

    y, _ = lax.scan(step, start, (rows, shares))
    if method == "dfedadmm":
        sent = SUM(y, scaled(dual, -PENALTY))
        return sent, jax.tree.map(lambda a, y: a - y / PENALTY, anchor, y)
    return y, dual


def one_round(local: Callable[..., tuple[Tree, Tree]], way: Way, mesh: Any) -> Callable[..., tuple[Tree, Tree]]:
    """A compiled round."""

    def round(models: Tree, duals: Tree, rows: Any, shares: Any, graph: Any, samples: Any) -> tuple[Tree, Tree]:
        each = (models, duals, rows, shares)
        if way.each == "vmap":
            sent, duals = jax.vmap(lambda *client: local(*client, samples))(*each)
        else:
            sent, duals = lax.map(lambda client: local(*client, samples), each)
        others, weights = graph

        def mixed(leaf: Any) -> Any:
            if way.devices > 1:
                leaf = lax.all_gather(leaf, "clients", tiled=True)
            own = weights.reshape(*weights.shape, *(1,) * (leaf.ndim - 1))
            return sum(own[:, k] * leaf[others[:, k]] for k in range(others.shape[1]))

        return jax.tree.map(mixed, sent), duals

    if way.devices > 1:
        own, all_ = PartitionSpec("clients"), PartitionSpec()
        round = jax.shard_map(  # type: ignore[assignment]
            round, mesh=mesh, in_specs=(own, own, own, own, own, all_), out_specs=own, check_vma=False
        )
    return jax.jit(round, donate_argnums=(0, 1))


def ways(clients: int) -> list[Way]:
    """All ways to run so many clients here."""
    devices = [number for number in sorted({1, len(jax.devices())}) if clients % number == 0]
    return [Way(each, number) for number in devices for each in ("map", "vmap")]


def seconds_of_round(loop: JaxLoop, at_least: float = 0.3) -> float:
    """The median over some rounds, after one that compiles."""
    loop.round()
    rounds, ends = list[float](), time.perf_counter() + at_least
    while not rounds or time.perf_counter() < ends:
        started = time.perf_counter()
        loop.round()
        rounds.append(time.perf_counter() - started)
    return statistics.median(rounds)


def fastest_loop(method: str, training: Training) -> JaxLoop:
    """The loop in the fastest way that there was time to try, warm."""
    best: tuple[float, JaxLoop] | None = None
    ends = time.perf_counter() + TRYING
    for way in ways(len(training.batches.client_rows)):
        loop = JaxLoop(method, training, way)
        seconds = seconds_of_round(loop)
        print(f"{way}: {seconds:.4f} s a round", file=sys.stderr)
        if best is None or seconds < best[0]:
            best = seconds, loop
        if time.perf_counter() > ends:
            break
    assert best is not None
    return best[1]


def difference(method: str, training: Training, way: Way, expected: torch.Tensor, rounds: int) -> float:
    """The largest difference from the engine's models after some rounds of the same batches."""

    def same_batches(client: int, round: int) -> Sequence[np.ndarray]:
        return [np.asarray(rows) for rows in training.batches.indices(client, round)]

    loop = JaxLoop(method, training, way, same_batches)
    for _ in range(rounds):
        loop.round()
    assert not np.allclose(loop.vectors(), training.model.initial.numpy(), atol=1e-4), "nothing was learned"
    return float(np.abs(loop.vectors() - expected.numpy()).max())


def differences(name: str, rounds: int = 2, **changes: Any) -> dict[str, float]:
    """The largest difference from the engine's numbers in every way, of a workload or a smaller form of it."""
    from benchmarks.workloads import find
    from gossamer import simulate
    from gossamer.experiment import prepare

    workload = find(name)
    experiment = workload.experiment(rounds=rounds, **changes)
    training = prepare(experiment).training
    if training.model.initial.dtype == torch.float64:
        jax.config.update("jax_enable_x64", True)
    vectors = simulate(experiment, workers=1).vectors
    found = ways(len(training.batches.client_rows))
    return {str(way): difference(workload.method, training, way, vectors, rounds) for way in found}


if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")  # read when JAX is first used
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        for told, largest in differences(name).items():
            print(f"{name}, {told}: {largest:.1e}")
