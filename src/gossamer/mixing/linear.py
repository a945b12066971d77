"""Mixing: every client's messages, stacked as rows, times a sparse matrix taken from the graph."""

import warnings

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gossamer.graphs import Network
from gossamer.methods import Message, Operator


def operator_matrix(network: Network, operator: Operator, step: int) -> sparse.csr_array:
    """The matrix that an operator multiplies the stacked messages with at one gossip step."""
    weights = network.matrix(step)
    if operator != "sum":
        # average, push and server differ in what the weights must satisfy, which is checked before a run.
        return weights
    adjacency = sparse.csr_array(weights - sparse.diags_array(weights.diagonal()))
    adjacency.eliminate_zeros()
    adjacency.data = np.ones_like(adjacency.data)
    return adjacency


def mix(network: Network, operators: dict[str, Operator], messages: Message, step: int) -> Message:
    """What every client receives for each named message: [clients, ...] in, [clients, ...] out."""
    matrices: dict[Operator, Tensor] = {}
    mixed = {}
    for name, rows in messages.items():
        operator = operators[name]
        if operator not in matrices:
            matrices[operator] = as_torch(operator_matrix(network, operator, step), rows.dtype, rows.device)
        flat = rows.reshape(rows.shape[0], -1)
        mixed[name] = (matrices[operator] @ flat).view_as(rows)
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


def bytes_sent(network: Network, messages: Message, step: int) -> tuple[np.ndarray, int]:
    """Bytes that each client sends at one gossip step, and that the server sends, counted from the real tensors."""
    one = sum(rows[0].numel() * rows.element_size() for rows in messages.values())
    return network.sends(step).astype(np.int64) * one, network.server_sends(step) * one
