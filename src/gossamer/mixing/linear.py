"""Mixing: every client's messages, stacked as rows, times a sparse matrix taken from the graph."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gossamer.graphs import Network
from gossamer.methods import Message, Method, Operator, mixes, travelling

Losses = np.ndarray | None


def operator_matrix(network: Network, operator: Operator, step: int, losses: Losses = None) -> sparse.csr_array:
    """The matrix that an operator multiplies the stacked messages with at one gossip step."""
    weights = network.matrix(step, losses)
    if operator in ("average", "push"):
        # These differ in what the weights must satisfy, which is checked before a run.
        return weights
    others = sparse.csr_array(weights - sparse.diags_array(weights.diagonal()))
    others.eliminate_zeros()
    if operator == "sum":
        others.data = np.ones_like(others.data)
    return others


def mix(
    network: Network, operators: dict[str, Operator], messages: Message, step: int, losses: Losses = None
) -> Message:
    """What every client receives, by name: [clients, ...] in, [clients, ...] out."""
    matrices: dict[Operator, Tensor] = {}
    mixed = {}
    for key, (name, operator) in mixes(operators, messages).items():
        rows = messages[name]
        if operator == "server":
            called = network.participants(step)
            mixed[key] = rows[torch.as_tensor(called, device=rows.device)].mean(0).expand_as(rows)
            continue
        if operator not in matrices:
            matrix = operator_matrix(network, operator, step, losses)
            matrices[operator] = as_torch(matrix, rows.dtype, rows.device)
        flat = rows.reshape(rows.shape[0], -1)
        mixed[key] = (matrices[operator] @ flat).view_as(rows)
    return mixed


def as_torch(matrix: sparse.csr_array, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same sparse matrix for torch."""
    with warnings.catch_warnings():
        # torch calls its CSR layout "in beta state" once per process.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
            dtype=dtype,
            check_invariants=False,
            device=device,
        )


@dataclass
class Traffic:
    """Bytes sent in a round, by each client and by the server, counted from the tensors that travel."""

    clients: np.ndarray
    server: int

    def add(self, network: Network, method: Method | None, messages: Message, step: int, losses: Losses) -> None:
        """Count one gossip step. A method that packs its messages is charged for what it packs them into."""
        sends = network.sends(step, losses)
        first = {name: rows[0] for name, rows in messages.items()}
        if method is not None:
            first = travelling(method, first)
        # Every client's message has the same schema, so one of them tells the size of all.
        one = sum(tensor.numel() * tensor.element_size() for tensor in first.values())
        self.clients += sends.astype(np.int64) * one
        self.server += network.server_sends(step) * one
