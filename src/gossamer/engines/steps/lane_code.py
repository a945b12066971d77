"""The C++ of a round of a small model up to its message, written from recorded graphs; its vectors are of clients.

The graphs are those of one client: how a round begins, a step, and how it is finished. Every tensor of a graph is an
array of vectors, one for each of its numbers, with a client in each lane (`lanes.h`). Views are other indices into the
same array. Pointwise operations are written into the loop of the operation that uses them; where that is fed by a
product, into the place where an entry of the product is stored: a layer's activation, or the update of a model by its
gradient, takes no pass over memory of its own.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from gossamer.engines.steps.traced import StepGraph

if TYPE_CHECKING:
    from torch.fx import GraphModule

#: `torch.fx.Node`, whose arguments may be anything.
Node: TypeAlias = Any

#: The most vectors that a step may take: more would not stay in a cache.
MOST_VECTORS = 1 << 15
#: The most numbers among which a label may choose: all are looked at.
MOST_CLASSES = 256

#: Operations that only look at the same memory in another way.
VIEWS = {
    "view", "_unsafe_view", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand", "split_with_sizes", "split",
    "slice", "select", "alias", "detach", "getitem",
}  # fmt: skip
#: Pointwise operations as C++ of their arguments; numbers among these become vectors, too.
POINTWISE = {
    "neg": "-{0}",
    "reciprocal": "all(1) / {0}",
    "relu": "pick({0} <= all(0), all(0), {0})",
    "threshold_backward": "pick({1} <= {2}, all(0), {0})",
    "exp": "exp_({0})",
    "log": "log_({0})",
    "sqrt": "sqrt_({0})",
    "rsqrt": "all(1) / sqrt_({0})",
    "abs": "abs_({0})",
    "tanh": "tanh_({0})",
    "tanh_backward": "{0} * (all(1) - {1} * {1})",
    "sigmoid": "sigmoid_({0})",
    "sigmoid_backward": "{0} * (all(1) - {1}) * {1}",
    "silu": "{0} * sigmoid_({0})",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "maximum": "larger({0}, {1})",
    "minimum": "smaller({0}, {1})",
    "clamp_min": "larger({0}, {1})",
    "clamp_max": "smaller({0}, {1})",
    "where": "pick({0} != all(0), {1}, {2})",
    "eq": "truth({0} == {1})",
    "ne": "truth({0} != {1})",
    "lt": "truth({0} < {1})",
    "le": "truth({0} <= {1})",
    "gt": "truth({0} > {1})",
    "ge": "truth({0} >= {1})",
    "logical_not": "truth({0} == all(0))",
    "logical_and": "truth(({0} != all(0)) & ({1} != all(0)))",
    "sign": "truth({0} > all(0)) - truth({0} < all(0))",
    "clone": "{0}",
    "_to_copy": "{0}",
}
#: Operations that give the same number everywhere.
CONSTANTS = {"ones_like": 1.0, "zeros_like": 0.0, "new_zeros": 0.0, "new_ones": 1.0, "zeros": 0.0, "ones": 1.0}
IN_PLACE = {"mul_": "mul", "add_": "add", "sub_": "sub", "div_": "div", "neg_": "neg"}
#: Of a vector of numbers of one sample (scores of classes), where each result depends on all of them.
SOFTMAX = {"_log_softmax", "_softmax", "_log_softmax_backward_data", "_softmax_backward_data"}
REDUCTIONS = {"sum", "mean", "amax", "linalg_vector_norm"}
OTHERS = {"mm", "addmm", "cat", "gather", "scatter_add", *SOFTMAX, *REDUCTIONS}


#: The inputs of a step, in their order.
KINDS = ("state", "local", "sample", "weights", "given")
#: 16 clients at a time, or as many as there are lanes.
LANES_LOOP = (
    "for (int64_t first = 0; first < clients; first += LANES) {",
    "    int here = clients - first < LANES ? clients - first : LANES;",
    "    int64_t client[LANES], place[LANES];  // lanes without a client do the work of the last one once more",
    "    for (int l = 0; l < LANES; l++) client[l] = first + (l < here ? l : here - 1);",
    "    for (int l = 0; l < LANES; l++) place[l] = places[client[l]];",
)


class NotInLanes(ValueError):
    """A step cannot be run with clients in the lanes of vectors; the message says why."""


@dataclass(frozen=True)
class RoundGraphs:
    """What one client does in a round. All graphs take its state first, and what the round gives it and the learning
    rate last; `step` and `finish` take the local state after its state, `step` then a mini-batch."""

    #: Gives the local state.
    begin: StepGraph
    #: Gives the local state after the step, and the loss before it.
    step: StepGraph
    #: Gives the new state and the message.
    finish: StepGraph
    state: Sequence[str]
    #: How many tensors the inputs and targets of a mini-batch are.
    samples: int
    #: The names of the state that `finish` gives first; its other results are the message.
    kept: Sequence[str]


@dataclass
class Array:
    """Where the vectors of a tensor are: their array, and how indices of the tensor become indices into it."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def flat(self) -> bool:
        """Whether it is all of an array, in order."""
        pairs = zip(self.shape, self.stride, _strides(self.shape), strict=True)
        return self.offset == 0 and all(n == 1 or stride == wanted for n, stride, wanted in pairs)

    def at(self, index: Sequence[str]) -> str:
        """An entry; what has fewer dimensions, or only one entry in some, is repeated."""
        skipped = len(index) - len(self.shape)
        terms = [
            f"({i}) * {stride}" if stride != 1 else f"({i})"
            for i, n, stride in zip(index[skipped:], self.shape, self.stride, strict=True)
            if n != 1 and stride != 0
        ]
        return f"{self.name}[{' + '.join([*terms, str(self.offset)] if self.offset or not terms else terms)}]"


def lane_code(graphs: RoundGraphs, dtype: torch.dtype) -> str:
    """The C++ of a round, to be compiled after `lanes.h`. Raises `NotInLanes` for graphs that it does not know."""
    return _Round(graphs, dtype).code()


class _Round:
    """The function around the operations: what is loaded, the steps, and what is saved."""

    def __init__(self, graphs: RoundGraphs, dtype: torch.dtype) -> None:
        self._graphs, self._dtype = graphs, dtype
        self._sizes: dict[str, int] = {}
        inputs = _inputs(graphs.step.module)
        numbers = [len(graphs.state), len(graphs.begin.returns), graphs.samples, 1]
        numbers.append(len(inputs) - sum(numbers))
        names = [f"{kind}{place}" for kind, number in zip(KINDS, numbers, strict=True) for place in range(number)]
        nodes = iter(zip(inputs, names, strict=True))
        self._state, self._local, self._samples, (self._weights,), self._given = (
            [_array_of(*next(nodes)) for _ in range(number)] for number in numbers
        )
        around = [*self._state, *self._local, *self._given]
        taken = [*self._state, *self._local, *self._samples, self._weights, *self._given]
        begin, step, finish = graphs.begin.module, graphs.step.module, graphs.finish.module
        self._begin = _Writer("b", begin, [*self._state, *self._given], dtype, self._sizes)
        self._step = _Writer("s", step, taken, dtype, self._sizes, self._samples)
        self._finish = _Writer("f", finish, around, dtype, self._sizes)
        if set(graphs.step.returns) != set(graphs.begin.returns):
            raise NotInLanes("its local state gets or loses tensors")
        #: The number of each part of the state that `finish` keeps as it is, by the number of the result.
        self._unchanged = {
            number: graphs.state.index(name)
            for number, (name, node) in enumerate(zip(graphs.kept, self._finish.results, strict=False))
            if self._finish.given(node) == self._state[graphs.state.index(name)] and node.meta["val"].dtype == dtype
        }

    def code(self) -> str:
        """All of it."""
        for array in (*self._state, *self._local, *self._samples, self._weights, *self._given):
            if array in self._local or self._is_read(array):
                self._sizes[array.name] = array.size
        lines = [*_indented(2, self._load()), *_indented(2, self._write_begin())]
        lines += [
            "        for (int64_t step = 0; step < steps; step++) {",
            *_indented(3, self._write_step()),
            "        }",
        ]
        lines += _indented(2, self._write_finish())
        ends = list(accumulate(self._sizes.values(), initial=0))
        if ends[-1] > MOST_VECTORS:
            raise NotInLanes(f"it takes {ends[-1]:,} numbers of each client, more than stay in a cache")
        arrays = [f"V* const {name} = memory + {start};" for name, start in zip(self._sizes, ends, strict=False)]
        head = [
            'extern "C" int64_t bytes_of_memory() { return sizeof(V) * ' + str(ends[-1]) + "; }",
            "",
            'extern "C" void run(void* const* in, void* const* out, const int64_t* places, const int64_t* rows,',
            "                    const uint8_t* takes, int64_t steps, int64_t clients, V* memory) {",
        ]
        return "\n".join([*head, *_indented(1, arrays), *_indented(1, LANES_LOOP), *lines, "    }", "}", ""])

    def _is_read(self, array: Array) -> bool:
        """Whether an input is needed as vectors: not a part of the state that stays, or only starts the local state."""
        if any(writer.reads(array) for writer in (self._begin, self._step, self._finish)):
            return True
        changed = [node for number, node in enumerate(self._finish.results) if number not in self._unchanged]
        if any(self._finish.given(node) == array for node in changed):
            return True
        return array not in self._state and any(self._begin.given(node) == array for node in self._begin.results)

    def _load(self) -> list[str]:
        """What stays the same in all steps."""
        *each, rate = self._given
        first = len(self._state) + len(self._samples) + 1
        inputs = [(array, number, "place") for number, array in enumerate(self._state)]
        inputs += [(array, number, "client") for number, array in enumerate(each, first)]
        lines = [
            _loading(array, number, self._step.ctype(array), f"{row}[l] * {array.size}")
            for array, number, row in inputs
            if self._is_read(array)
        ]
        return [*lines, *([f"{rate.name}[0] = all(*(const REAL*)in[{first + len(each)}]);"] * self._is_read(rate))]

    def _write_begin(self) -> list[str]:
        """The local state before the first step."""
        pairs = list(zip(self._local, self._begin.results, strict=True))
        for local, node in pairs:
            _check_type(node, (self._dtype, torch.bool))
            self._begin.store(node, local)
        lines = self._begin.write()
        for local, node in pairs:
            source = self._begin.array(node)
            if source in self._state and not self._is_read(source):
                place = self._state.index(source)
                lines.append(_loading(local, place, self._step.ctype(source), f"place[l] * {local.size}"))
            elif source != local:
                lines.append(_copy(local, source))
        return lines

    def _write_step(self) -> list[str]:
        """One step of clients that take it."""
        (width,), first = self._weights.shape, len(self._state)
        lines = [
            "Mask active;",
            "for (int l = 0; l < LANES; l++) active[l] = -(takes[step * clients + client[l]] != 0);",
            "int64_t batch[LANES];  // where the clients' samples are listed",
            f"for (int l = 0; l < LANES; l++) batch[l] = (step * clients + client[l]) * {width};",
        ]
        for number, array in enumerate(self._samples, first):
            each = array.size // width
            sample = Array(f"{array.name} + s * {each}", (each,), (1,))
            if self._is_read(array):
                loading = _loading(sample, number, self._step.ctype(array), f"rows[batch[l] + s] * {each}")
                lines.append(f"for (int s = 0; s < {width}; s++) {loading}")
        if self._is_read(self._weights):
            lines.append(_loading(self._weights, first + len(self._samples), "REAL", "batch[l]"))
        *after, loss = self._step.results
        local = dict(zip(self._graphs.begin.returns, self._local, strict=True))
        pairs = [(local[name], node) for name, node in zip(self._graphs.step.returns, after, strict=True)]
        for array, node in pairs:
            if tuple(node.meta["val"].shape) != array.shape:
                raise NotInLanes("a tensor of its local state changes its shape")
            self._step.store(node, array, masked=True)
        lines += self._step.write()
        lines += _masked_copies([(array, self._step.array(node)) for array, node in pairs])
        losses, entry = len(self._finish.results), self._step.array(loss).at([])
        to = f"((REAL*)out[{losses}])[step * clients + client[l]]"
        return [*lines, f"for (int l = 0; l < here; l++) {to} = active[l] ? {entry}[l] : 0;"]

    def _write_finish(self) -> list[str]:
        """The new state and the message, and the sum of the message's numbers."""
        lines, sums = self._finish.write(), []
        for number, node in enumerate(self._finish.results):
            if number in self._unchanged:
                source = self._state[self._unchanged[number]]
                lines.append(
                    f"keep<{self._step.ctype(source)}, {source.size}>(out[{number}], in[{self._unchanged[number]}], "
                    "place, here);"
                )
                continue
            _check_type(node, (self._dtype,))
            array = self._finish.array(node)
            if not array.flat:
                laid = Array(f"out{number}", array.shape, _strides(array.shape))
                self._sizes[laid.name] = laid.size
                lines.append(_copy(laid, array))
                array = laid
            to = f"to[l] = (REAL*)out[{number}] + place[l] * {array.size};"
            lines.append(
                f"if (out[{number}]) {{ REAL* to[LANES]; for (int l = 0; l < LANES; l++) {to} "
                f"save<{array.size}>(to, {array.name}, here); }}"
            )
            if number >= len(self._graphs.kept) and array.size:
                sums.append(f"sum_of<{array.size}>([=](int i) {{ return {array.name}[i]; }})")
        to = f"((REAL*)out[{len(self._finish.results) + 1}])[client[l]]"
        lines.append(f"V total = {' + '.join(sums) or 'all(0)'};")
        return [*lines, f"for (int l = 0; l < here; l++) {to} = total[l];"]


class _Writer:
    """Writes the operations of one graph, whose inputs are in these arrays. Its own are added to `sizes`."""

    def __init__(
        self,
        prefix: str,
        module: "GraphModule",
        given: Sequence[Array],
        dtype: torch.dtype,
        sizes: dict[str, int],
        samples: Sequence[Array] = (),
    ) -> None:
        self._prefix = prefix
        self._nodes: list[Node] = list(module.graph.nodes)
        self._place = {node: place for place, node in enumerate(self._nodes)}
        self._dtype = dtype
        self._inputs = _inputs(module)
        self._given = dict(zip(self._inputs, given, strict=True))
        self._samples = [node for node, array in self._given.items() if array in samples]
        self._arrays: dict[Node, Array] = dict(self._given)
        #: Where results are stored, and whether only for clients that take the step.
        self._stores: dict[Node, tuple[Array, bool]] = {}
        self._sizes = sizes
        self._lines: list[str] = []
        self.results: list[Node] = list(self._nodes[-1].args[0])

    def reads(self, array: Array) -> bool:
        """Whether an operation reads an input."""
        return any(other == array and any(user.op != "output" for user in node.users)
                   for node, other in self._given.items())  # fmt: skip

    def given(self, node: Node) -> Array | None:
        """The array of a result that is an input."""
        return self._given.get(node)

    def ctype(self, array: Array) -> str:
        """The C++ type of an input as it is stored."""
        return _ctype(next(node for node, other in self._given.items() if other == array))

    def store(self, node: Node, array: Array, masked: bool = False) -> None:
        """Store a result there, if it is an operation's; `masked`: only for clients that take the step."""
        if node not in self._given:
            self._stores.setdefault(node, (array, masked))

    def write(self) -> list[str]:
        """The operations."""
        self._check()
        self._defer()
        for node in self._nodes:
            if node.op == "call_function" and self._root(node) is node:
                self._write(node)
        return self._lines

    def array(self, node: Node) -> Array:
        """Where a tensor is."""
        if node not in self._arrays:
            base = self._arrays[self._base(node)]
            self._arrays[node] = _array_of(node, base.name)
        return self._arrays[node]

    # What is known, and what is written where

    def _check(self) -> None:
        """Refuse operations and types that are not known."""
        for node in self._nodes:
            if node.op == "get_attr":
                raise NotInLanes("it uses a tensor of its own besides the client's")
            if node.op != "call_function":
                continue
            name = _operation(node)
            if name not in {*VIEWS, *POINTWISE, *CONSTANTS, *IN_PLACE, *OTHERS, *SPECIAL}:
                raise NotInLanes(f"it does not know the operation {name}")
            value = node.meta["val"]
            if name not in VIEWS and value.dtype not in (self._dtype, torch.bool):
                raise NotInLanes(f"{name} gives {_dtype_name(value)}, not {_dtype_name(self._dtype)}")
            if name in IN_PLACE and (len(_tensors(node)[0].users) > 1 or _is_view(_tensors(node)[0])):
                raise NotInLanes("it changes a tensor in place that is used again")
        for node in self._inputs:
            if not node.users:
                continue
            value = node.meta["val"]
            # Samples are rounded to the model's type when they are loaded; nothing else can be done with another type.
            suits = (torch.float32, torch.float64) if node in self._samples else (self._dtype,)
            if value.dtype.is_complex or (value.dtype.is_floating_point and value.dtype not in suits):
                raise NotInLanes(f"it takes {_dtype_name(value)}, not {_dtype_name(self._dtype)}")
            if not value.is_contiguous():
                raise NotInLanes("its tensors are not contiguous")

    def _defer(self) -> None:
        """Find the operations that are written as part of the one that uses them."""
        self._user: dict[Node, Node] = {}
        fed: set[Node] = set()
        for node in reversed(self._nodes):
            if node.op != "call_function" or len(node.users) != 1:
                continue
            (user,) = node.users
            if _is_pointwise(node) and _takes_any(user) and _same_shape(node, user):
                self._user[node] = user
        for node in self._nodes:
            name = _operation(node)
            if name == "cat" and node.meta["val"].dim() == 1 and len(node.users) == 1:
                (user,) = node.users
                if _is_pointwise(user) and _same_shape(node, user) and self._root(user) not in fed:
                    self._user[node] = user
                    fed.add(self._root(user))
        for node in self._nodes:
            if _operation(node) not in ("mm", "addmm") or not node.meta["val"].is_contiguous():
                continue
            last, user = node, _only_user(node)
            while user is not None and _is_view(user):
                last, user = user, _only_user(user)
            if user is None:
                continue
            if _operation(user) == "cat" and user.meta["val"].dim() == 1 and _array_of(last, "").flat:
                self._user[node] = user
            elif last is node and _is_pointwise(user) and _same_shape(node, user):
                root = self._root(user)
                if _is_pointwise(root) and root not in fed:
                    self._user[node] = user
                    fed.add(root)

    def _root(self, node: Node) -> Node:
        """The operation that a deferred one is written with."""
        while node in self._user:
            node = self._user[node]
        return node

    def _base(self, node: Node) -> Node:
        """The operation or input whose array a tensor is in."""
        while _is_view(node):
            node = _tensors(node)[0]
        return node

    # Arrays

    def _new_array(self, node: Node) -> Array:
        array = _array_of(node, f"{self._prefix}{self._place[node]}")
        self._sizes[array.name] = 1 + sum((n - 1) * s for n, s in zip(array.shape, array.stride, strict=True))
        return array

    def _array_for(self, node: Node) -> tuple[Array, bool]:
        """Where a result is stored, and whether only for clients that take the step: it may be the local state itself.

        That, and the array of an operand that nothing else reads, is used again if all reads of it come before.
        """
        if node in self._stores and _array_of(node, "").flat:
            array, masked = self._stores[node]
            old = next((other for other, given in self._given.items() if given == array), None)
            if old is None or self._may_overwrite(old, node):
                return array, masked
        for leaf in self._leaves(node):
            kept = leaf in self._inputs and leaf not in self._samples
            if not kept and not _is_view(leaf) and _same_layout(leaf, node) and self._may_overwrite(leaf, node):
                return self._arrays[leaf], False
        return self._new_array(node), False

    def _may_overwrite(self, old: Node, node: Node) -> bool:
        """Whether a result may take the place of a tensor: all reads of that come before, or at the same index."""
        if not (_is_pointwise(node) or _operation(node) == "cat") or not _same_layout(old, node):
            return False
        if any(self._base(result) is old for result in self.results):
            return False
        direct = [leaf for leaf in self._leaves(node) if leaf is old]
        for reader in self._nodes:
            if reader.op == "placeholder" or _is_view(reader):
                continue
            for operand in _tensors(reader):
                if self._base(operand) is not old:
                    continue
                root = self._root(reader)
                at_same_index = root is node and operand is old and direct and _is_pointwise(reader)
                if self._place[root] >= self._place[node] and not at_same_index:
                    return False
        return True

    def _leaves(self, node: Node) -> Iterator[Node]:
        """The tensors that a written operation reads pointwise."""
        for operand in _tensors(node) if _is_pointwise(node) else ():
            if operand in self._user:
                yield from self._leaves(operand)
            else:
                yield operand

    # Operations

    def _write(self, node: Node) -> None:
        name = _operation(node)
        if name in VIEWS:
            return
        if _is_pointwise(node) or name == "cat":
            self._write_pointwise(node)
        elif name in ("mm", "addmm"):
            array = self._arrays[node] = self._new_array(node)
            self._lines.append(self._product(node, lambda i, j: f"{array.at([i, j])} = {self._summed(node, j)};"))
        elif name in REDUCTIONS:
            self._write_reduction(node, name)
        elif name in SOFTMAX:
            self._write_softmax(node, name)
        else:
            self._write_indexed(node, name)

    def _write_pointwise(self, node: Node) -> None:
        array, masked = self._array_for(node)

        def stored(index: Sequence[str], **given: str) -> str:
            entry, value = array.at(index), self._expression(node, index, given)
            return f"{entry} = pick(active, {value}, {entry});" if masked else f"{entry} = {value};"

        inside = [other for other in self._user if self._root(other) is node]
        joined = next((other for other in (node, *inside) if _operation(other) == "cat"), None)
        if joined is not None:
            self._write_pieces(joined, stored)
        elif fed := [other for other in inside if _operation(other) in ("mm", "addmm")]:
            product = fed[0]
            self._lines.append(
                self._product(product, lambda i, j: stored([i, j], **{product.name: self._summed(product, j)}))
            )
        else:
            self._lines.append(_loops(array.shape, stored))
        self._arrays[node] = array

    def _write_pieces(self, joined: Node, stored: Callable[..., str]) -> None:
        """What is made of tensors behind each other, one after the other."""
        axis = joined.args[1] if len(joined.args) > 1 else 0
        shape = joined.meta["val"].shape
        start = 0
        for piece in joined.args[0]:
            source = self._base(piece)
            if source in self._user:
                self._lines.append(self._product(source, self._at_place(source, joined, start, stored)))
            else:
                array, first = self.array(piece), start

                def one(index: Sequence[str], array: Array = array, first: int = first) -> str:
                    to = [f"{first} + {i}" if place == axis % len(shape) else i for place, i in enumerate(index)]
                    return stored(to, **{joined.name: array.at(index)})

                self._lines.append(_loops(array.shape, one))
            start += piece.meta["val"].shape[axis]

    def _at_place(
        self, product: Node, joined: Node, start: int, stored: Callable[..., str]
    ) -> Callable[[str, str], str]:
        """Stores an entry of a product in its place behind other tensors."""
        width = product.meta["val"].shape[1]
        return lambda i, j: stored([f"{start} + ({i}) * {width} + {j}"], **{joined.name: self._summed(product, j)})

    def _product(self, node: Node, store: Callable[[str, str], str]) -> str:
        a, b = (self.array(operand) for operand in _tensors(node)[-2:])
        (m, k), n = a.shape, b.shape[1]
        matrices = (f"Matrix<{x.stride[0]}, {x.stride[1]}>{{{x.name} + {x.offset}}}" for x in (a, b))
        return f"product<{m}, {n}, {k}>({', '.join(matrices)}, [=](int i, int j, V sum) {{ {store('i', 'j')} }});"

    def _summed(self, node: Node, column: str) -> str:
        """An entry of a product, with its bias."""
        if _operation(node) == "mm":
            return "sum"
        if any(node.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
            raise NotInLanes("it adds multiples of products")
        return f"(sum + {self.array(_tensors(node)[0]).at(['i', column])})"

    def _expression(self, node: Any, index: Sequence[str], given: dict[str, str]) -> str:
        """The C++ of one entry of a tensor; of those that are there already, by their names in `given`."""
        if not hasattr(node, "op"):
            return _number(node)
        if node.name in given:
            return given[node.name]
        if node in self._arrays or not _is_pointwise(node):
            return self.array(node).at(index)
        name = IN_PLACE.get(_operation(node), _operation(node))
        arguments = [self._expression(value, index, given) for value in _values(node)]
        if name in CONSTANTS:
            return f"all({CONSTANTS[name]!r})"
        text = SPECIAL[name](node, *arguments) if name in SPECIAL else POINTWISE[name].format(*arguments)
        return f"({text})"

    def _write_reduction(self, node: Node, name: str) -> None:
        operand = _tensors(node)[0]
        shape = tuple(operand.meta["val"].shape)
        axes = _axes(node, name, len(shape))
        array = self._arrays[node] = self._new_array(node)
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        count = math.prod(shape[axis] for axis in axes)

        def one(index: Sequence[str]) -> str:
            place, rest = dict(zip(kept, index, strict=True)), count
            for axis in axes:
                rest //= shape[axis]
                whole = f"i / {rest}" if rest > 1 else "i"
                place[axis] = f"({whole}) % {shape[axis]}" if len(axes) > 1 else whole
            term = self._expression(operand, [place[axis] for axis in range(len(shape))], {})
            to = [place[a] if a in kept else "0" for a in range(len(shape))] if len(array.shape) > len(kept) else index
            over = f"<{count}>([=](int i) {{ return {f'square({term})' if name == 'linalg_vector_norm' else term}; }})"
            value = {
                "sum": f"sum_of{over}",
                "mean": f"sum_of{over} * all({1 / max(count, 1)!r})",
                "amax": f"largest_of{over}",
                "linalg_vector_norm": f"sqrt_(sum_of{over})",
            }[name]
            return f"{array.at(to)} = {value};"

        self._lines.append(_loops(tuple(shape[axis] for axis in kept), one))

    def _write_softmax(self, node: Node, name: str) -> None:
        """Scores of classes: results depend on all of a sample's scores."""
        arrays = [self.array(operand) for operand in _tensors(node)]
        shape, backward = arrays[0].shape, name.endswith("_data")
        axis = int(node.args[2 if backward else 1]) % len(shape)
        classes, array = shape[axis], self._new_array(node)
        self._arrays[node] = array

        def one(index: Sequence[str]) -> str:
            place = [*index[:axis], "c", *index[axis:]]
            x, to = arrays[0].at(place), array.at(place)
            each = f"for (int c = 0; c < {classes}; c++)"
            over = f"<{classes}>([=](int c) {{ return"
            if name == "_log_softmax":
                return (
                    f"V most = largest_of{over} {x}; }}); V total = log_(sum_of{over} exp_({x} - most); }})); "
                    f"{each} {to} = {x} - most - total;"
                )
            if name == "_softmax":
                return (
                    f"V most = largest_of{over} {x}; }}); {each} {to} = exp_({x} - most); "
                    f"V total = sum_of{over} {to}; }}); {each} {to} /= total;"
                )
            y = arrays[1].at(place)
            if name == "_log_softmax_backward_data":
                return f"V total = sum_of{over} {x}; }}); {each} {to} = {x} - exp_({y}) * total;"
            return f"V total = sum_of{over} {x} * {y}; }}); {each} {to} = {y} * ({x} - total);"

        self._lines.append(_loops(shape[:axis] + shape[axis + 1 :], one))

    def _write_indexed(self, node: Node, name: str) -> None:
        """Numbers at places that differ between clients (the score of a sample's label): all places are looked at."""
        operands = [self.array(operand) for operand in _tensors(node)]
        axis = int(node.args[1]) % max(1, len(operands[0].shape))
        classes, index_shape = operands[0].shape[axis], operands[1].shape
        if classes > MOST_CLASSES:
            raise NotInLanes(f"it chooses among {classes} numbers")
        array = self._arrays[node] = self._new_array(node)
        each = f"for (int c = 0; c < {classes}; c++)"

        def gathered(index: Sequence[str]) -> str:
            place = [*index[:axis], "c", *index[axis + 1 :]]
            found = f"found = pick(label == all(c), {operands[0].at(place)}, found);"
            return f"V label = {operands[1].at(index)}, found = all(0); {each} {found} {array.at(index)} = found;"

        def added(index: Sequence[str]) -> str:
            place = [*index[:axis], "c", *index[axis + 1 :]]
            more = f"{array.at(place)} += pick(label == all(c), more, all(0));"
            return f"V label = {operands[1].at(index)}, more = {operands[2].at(index)}; {each} {more}"

        if name == "gather":
            self._lines.append(_loops(index_shape, gathered))
        else:
            self._lines.append(_loops(array.shape, lambda index: f"{array.at(index)} = {operands[0].at(index)};"))
            self._lines.append(_loops(index_shape, added))


def _masked_copies(pairs: Sequence[tuple[Array, Array]]) -> Iterator[str]:
    """Copies of tensors to others, for clients that take a step; one that is still to be copied is not overwritten."""
    waiting = [(to, of) for to, of in pairs if to.name != of.name or not of.flat]
    while waiting:
        read = {of.name for _, of in waiting}
        free = next((pair for pair in waiting if pair[0].name not in read), None)
        if free is None:
            raise NotInLanes("it exchanges tensors of the local state")
        waiting.remove(free)
        yield _copy(*free, masked=True)


def _copy(to: Array, of: Array, masked: bool = False) -> str:
    def one(index: Sequence[str]) -> str:
        value = f"pick(active, {of.at(index)}, {to.at(index)})" if masked else of.at(index)
        return f"{to.at(index)} = {value};"

    return _loops(to.shape, one)


def _indented(levels: int, lines: Iterable[str]) -> list[str]:
    return ["    " * levels + line for line in lines]


def _inputs(module: "GraphModule") -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _check_type(node: Node, types: Sequence[torch.dtype]) -> None:
    value = node.meta["val"]
    if value.dtype not in types:
        raise NotInLanes(f"it keeps or sends {_dtype_name(value)}, not {_dtype_name(types[0])}")


def _alpha(sign: str) -> Callable[..., str]:
    def of(node: Node, a: str, b: str) -> str:
        factor = node.kwargs.get("alpha", 1)
        return f"{a} {sign} {b}" if factor == 1 else f"{a} {sign} {_number(factor)} * {b}"

    return of


def _scaled(form: str) -> Callable[..., str]:
    def of(node: Node, a: str, b: str, c: str) -> str:
        value = node.kwargs.get("value", 1)
        return form.format(a, b if value == 1 else f"{_number(value)} * {b}", c)

    return of


def _power(node: Node, a: str, b: str) -> str:  # noqa: ARG001  # every rule is given all arguments
    exponent = node.args[1]
    if exponent not in (1, 2, 3):
        raise NotInLanes(f"it does not know the power {exponent}")
    return " * ".join([a] * int(exponent))


def _clamp(node: Node, a: str, *bounds: str) -> str:  # noqa: ARG001  # as above
    given = dict(zip(("min", "max"), node.args[1:], strict=False)) | dict(node.kwargs)
    if given.get("min") is not None:
        a = f"larger({a}, {_number(given['min'])})"
    return a if given.get("max") is None else f"smaller({a}, {_number(given['max'])})"


#: Pointwise operations whose form depends on more than their tensors.
SPECIAL: dict[str, Callable[..., str]] = {
    "add": _alpha("+"),
    "sub": _alpha("-"),
    "rsub": lambda node, a, b: _alpha("-")(node, b, a),
    "addcmul": _scaled("{0} + {1} * {2}"),
    "addcdiv": _scaled("{0} + {1} / {2}"),
    "pow": _power,
    "clamp": _clamp,
    "full_like": lambda node, a, value: value,
    "full": lambda node, value: value,
    "scalar_tensor": lambda node, value: value,
}


def _operation(node: Node) -> str:
    if node.op != "call_function":
        return ""
    schema = getattr(node.target, "_schema", None)
    name = node.target.__name__ if schema is None else schema.name
    return str(name).removeprefix("aten::")


def _tensors(node: Node) -> list[Node]:
    """The tensors that an operation takes."""
    return node.all_input_nodes if _operation(node) != "output" else []


def _values(node: Node) -> list[Any]:
    """The arguments of a pointwise operation: tensors and numbers, without sizes and types."""
    if _operation(node) in CONSTANTS:
        return []
    if _operation(node) in ("full", "full_like"):
        return [node.args[1]]
    return [value for value in node.args if hasattr(value, "op") or isinstance(value, int | float)]


def _is_view(node: Node) -> bool:
    return _operation(node) in VIEWS


def _is_pointwise(node: Node) -> bool:
    name = _operation(node)
    return name in POINTWISE or name in SPECIAL or name in IN_PLACE or name in CONSTANTS


def _takes_any(node: Node) -> bool:
    """Whether an operation can take an operand as an expression."""
    return _is_pointwise(node) or _operation(node) in REDUCTIONS


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _same_shape(node: Node, user: Node) -> bool:
    if _operation(user) in REDUCTIONS:
        return True
    value = user.meta.get("val")
    return isinstance(value, Tensor) and node.meta["val"].shape == value.shape


def _same_layout(one: Node, other: Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return bool(a.shape == b.shape and a.stride() == b.stride() and _array_of(one, "").flat)


def _array_of(node: Node, name: str) -> Array:
    value = node.meta["val"]
    return Array(name, tuple(value.shape), value.stride(), _offset(node))


def _offset(node: Node) -> int:
    """Where a view starts in the array of the tensor that it is a view of: the tracer does not keep that."""
    name = _operation(node)
    if name not in VIEWS:
        return 0
    (source, *given) = node.args
    if name == "getitem":
        number, pieces = int(given[0]), source
        (source, sizes, *given) = pieces.args
        axis, before = given[0] if given else 0, number * sizes if isinstance(sizes, int) else sum(sizes[:number])
    elif name in ("select", "slice"):
        axis, start = given[0] if given else 0, given[1] if len(given) > 1 else None
        start = start or 0
        before = start if start >= 0 else source.meta["val"].shape[axis] + start
        before = min(before, source.meta["val"].shape[axis])
    else:
        axis, before = 0, 0
    stride = source.meta["val"].stride()
    return _offset(source) + (int(before) * stride[axis] if before else 0)


def _axes(node: Node, name: str, dimensions: int) -> list[int]:
    """The dimensions that a reduction sums over."""
    given = list(node.args[1:])
    if name == "linalg_vector_norm" and given and given.pop(0) != 2:
        raise NotInLanes("it does not know this norm")
    axes = given[0] if given and isinstance(given[0], list | tuple) else node.kwargs.get("dim")
    if node.kwargs.get("dtype") is not None:
        raise NotInLanes("it sums in another type")
    return sorted(axis % dimensions for axis in axes) if axes else list(range(dimensions))


def _number(value: Any) -> str:
    if value == math.inf or value == -math.inf:
        return f"all({'-' if value < 0 else ''}INFINITY)"
    return f"all({float(value)!r})"


def _loops(shape: Sequence[int], body: Callable[[Sequence[str]], str]) -> str:
    """A body for every index of a shape."""
    index = [f"x{axis}" for axis in range(len(shape))]
    loops = [f"for (int {i} = 0; {i} < {n}; {i}++)" for i, n in zip(index, shape, strict=True)]
    return f"{' '.join(loops)} {{ {body(index)} }}".strip()


def _loading(array: Array, number: int, ctype: str, start: str) -> str:
    """C++ that loads the numbers of each lane's client."""
    return (
        f"{{ const {ctype}* from[LANES]; for (int l = 0; l < LANES; l++) "
        f"from[l] = (const {ctype}*)in[{number}] + {start}; load<{ctype}, {array.size}>({array.name}, from); }}"
    )


def _ctype(node: Node) -> str:
    """The C++ type of an input as it is stored."""
    dtype = node.meta["val"].dtype
    if dtype.is_floating_point:
        return {torch.float32: "float", torch.float64: "double"}[dtype]
    return f"{'u' if dtype in (torch.uint8, torch.bool) else ''}int{8 * dtype.itemsize}_t"


def _dtype_name(value: Tensor | torch.dtype) -> str:
    return str(value.dtype if isinstance(value, Tensor) else value).removeprefix("torch.")
