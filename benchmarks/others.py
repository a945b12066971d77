# mypy: disable-error-code="import-not-found", warn_unused_ignores=False
"""Other simulators on the work of W1, each in an environment of its own: the same model, samples, batches, local steps.

    flower    a server averages all 100 clients, since there are no graphs; one client at a time on each core
    gossipy   on the ring, where a client sends to one neighbour at a time and trains when it hears from one
    fluke     its decentralized averaging: on a ring, a client sends to its one successor, and trains if it has heard
              since it last trained; a round is over when as many have trained as there are clients
    pfl       Apple's pfl-research: a server averages all clients in every round

The last three work with one thread, or with all. All train whatever they hold once, which is five steps.
"""

import itertools
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.workloads import NEVER, WORKLOADS
from gossamer.experiment import prepare
from gossamer.system.machine import usable_cores
from gossamer.training import Training

Over = Callable[[], None]


@cache
def work() -> Training:
    """W1, once in each process."""
    return prepare(WORKLOADS["W1"].experiment()).training


def own_samples(client: int) -> tuple[Tensor, Tensor]:
    """The samples of one client, as they are stored."""
    rows, train = torch.as_tensor(work().batches.client_rows[client]), work().dataset.train
    return train.inputs[rows], train.targets[rows]


def scaled_samples(client: int) -> tuple[Tensor, Tensor]:
    """The samples of one client as floats, for those that cannot scale them batch by batch."""
    inputs, targets = own_samples(client)
    return inputs.flatten(1).float() / 255, targets


class StandIn(ModuleType):
    """A module of which everything can be imported, as an empty class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__, self.__path__ = ModuleSpec(name, None), []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stand_in_for_torchvision() -> None:
    """Some import torchvision for data sets and networks that nobody asks for here; it has no build for CPUs alone."""
    for inside in ("", ".datasets", ".datasets.utils", ".models", ".transforms"):
        sys.modules["torchvision" + inside] = StandIn("torchvision" + inside)


def train_locally(client: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """One epoch of a Flower client, which is five steps, from the weights that the server sent."""
    torch.set_num_threads(1)
    module = work().model.module(work().model.initial).train()
    module.load_state_dict(weights)
    optimizer = torch.optim.SGD(module.parameters(), lr=work().lr)
    inputs, targets = own_samples(client)
    for rows in torch.split(torch.randperm(len(targets)), work().batches.batch_size):
        batch = inputs.index_select(0, rows).float().mul_(1 / 255)
        optimizer.zero_grad()
        cross_entropy(module(batch), targets.index_select(0, rows)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module.state_dict()


def flower(over: Over) -> None:
    """FedAvg over all clients in every round; `over` is called after each."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from flwr.app import ArrayRecord, MetricRecord, RecordDict
    from flwr.app import Message as Letter
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    class Paced(FedAvg):  # type: ignore[misc]  # untyped where it is not installed
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            averaged = super().aggregate_train(server_round, replies)
            over()
            return averaged

    client, server = ClientApp(), ServerApp()

    @client.train()  # type: ignore[untyped-decorator]
    def train(letter: Any, context: Any) -> Any:
        after = train_locally(context.node_config["partition-id"], letter.content["arrays"].to_torch_state_dict())
        content = RecordDict({"arrays": ArrayRecord(after), "metrics": MetricRecord({"num-examples": 1})})
        return Letter(content=content, reply_to=letter)

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:  # noqa: ARG001  # Flower passes it
        start = ArrayRecord(work().model.module(work().model.initial).state_dict())
        Paced(fraction_evaluate=0.0).start(grid, start, num_rounds=NEVER)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": usable_cores()}}
    run_simulation(server, client, len(work().batches.client_rows), backend_config=resources)


def gossipy(over: Over) -> None:
    """One message and one local epoch for each client in every round; `over` is called after each."""
    stand_in_for_torchvision()
    from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
    from gossipy.data import DataDispatcher
    from gossipy.data.handler import ClassificationDataHandler
    from gossipy.model import TorchModel
    from gossipy.model.handler import TorchModelHandler
    from gossipy.node import GossipNode
    from gossipy.simul import GossipSimulator, SimulationEventReceiver

    class Net(TorchModel):  # type: ignore[misc]  # untyped where it is not installed
        def __init__(self) -> None:
            super().__init__()
            self.layers = work().model.module(work().model.initial)

        def init_weights(self) -> None: ...

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.layers(inputs)
            return outputs

    class Paced(SimulationEventReceiver):  # type: ignore[misc]
        def update_message(self, failed: bool, msg: Any = None) -> None: ...

        def update_end(self) -> None: ...

        def update_timestep(self, t: int) -> None:
            over()

    clients, train = len(work().batches.client_rows), work().dataset.train
    data = ClassificationDataHandler(train.inputs.flatten(1).float() / 255, train.targets, test_size=0.0)
    dispatcher = DataDispatcher(data, n=clients, eval_on_user=False)
    ring = work().network.matrix(0).toarray()
    ring[range(clients), range(clients)] = 0
    handler = TorchModelHandler(
        Net(), torch.optim.SGD, {"lr": work().lr}, nn.CrossEntropyLoss(), local_epochs=1,
        batch_size=work().batches.batch_size, create_model_mode=CreateModelMode.MERGE_UPDATE,
    )  # fmt: skip
    nodes = GossipNode.generate(dispatcher, StaticP2PNetwork(clients, ring), handler, round_len=1, sync=True)
    simulator = GossipSimulator(nodes, dispatcher, delta=1, protocol=AntiEntropyProtocol.PUSH)
    simulator.init_nodes()
    simulator.add_receiver(Paced())
    simulator.start(NEVER)


def fluke(over: Over) -> None:
    """Its gossip with averaged models; `over` is called whenever as many have trained as there are clients."""
    stand_in_for_torchvision()
    from fluke import DDict
    from fluke.algorithms.decentralized import GossipDFL, Topology
    from fluke.data import FastDataLoader
    from fluke.utils import ClientObserver

    clients = len(work().batches.client_rows)

    class Paced(ClientObserver):  # type: ignore[misc]  # untyped where it is not installed
        trained = 0

        def end_fit(self, *_: Any, **__: Any) -> None:
            self.trained += 1
            if self.trained % clients == 0:
                over()

    class Split:
        """What fluke asks a splitter of data for."""

        def assign(self, _clients: int, batch_size: int) -> Any:
            settings = {"num_labels": 10, "batch_size": batch_size, "shuffle": True}
            held = [scaled_samples(client) for client in range(clients)]
            return ([FastDataLoader(*samples, **settings) for samples in held], [None] * clients), None

    client = DDict(
        batch_size=work().batches.batch_size, local_epochs=1, loss=nn.CrossEntropyLoss, policy="aggregate",
        optimizer=DDict(name=torch.optim.SGD, lr=work().lr), scheduler=DDict(step_size=NEVER, gamma=1.0),
    )  # fmt: skip
    settings = DDict(client=client, model=work().model.module(work().model.initial))
    federation = GossipDFL(clients, Split(), settings, topology=Topology.ring(clients))
    federation.set_callbacks([Paced()])
    federation.run(NEVER)


def pfl(over: Over) -> None:
    """FedAvg over all clients in every round; `over` is called after each."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    clients = len(work().batches.client_rows)
    held = [scaled_samples(client) for client in range(clients)]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = work().model.module(work().model.initial).train()

        def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
            return cross_entropy(self.layers(inputs), targets)

        def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
            return {}

    class Paced(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> Any:
            over()
            return False, Metrics()

    def shuffled(client: int) -> Any:
        order = torch.randperm(len(held[client][1]))
        return Dataset([values.index_select(0, order) for values in held[client]])

    module, everyone = Net(), itertools.cycle(range(clients))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    data = FederatedDataset(shuffled, lambda: next(everyone))
    steps = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=work().lr, local_batch_size=work().batches.batch_size
    )
    # It evaluates where the number of a round, the first being 0, is a multiple.
    rounds = NNAlgorithmParams(NEVER, NEVER, clients, None)
    FederatedAveraging().run(
        rounds, SimulatedBackend(data, None), model, steps, NNEvalHyperParams(None), callbacks=[Paced()]
    )


RUNS: dict[str, Callable[[Over], None]] = {"flower": flower, "gossipy": gossipy, "fluke": fluke, "pfl": pfl}
