from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LETTER: _ClassVar[Kind]
    MASS: _ClassVar[Kind]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPTED: _ClassVar[Verdict]
    DOUBLED: _ClassVar[Verdict]
    PAST: _ClassVar[Verdict]
    EARLY: _ClassVar[Verdict]
    REFUSED: _ClassVar[Verdict]
LETTER: Kind
MASS: Kind
ACCEPTED: Verdict
DOUBLED: Verdict
PAST: Verdict
EARLY: Verdict
REFUSED: Verdict

class Hello(_message.Message):
    __slots__ = ("version", "network", "process", "round", "finished", "code", "known_process", "heard")
    class CodeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_PROCESS_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    version: str
    network: str
    process: Process
    round: int
    finished: bool
    code: _containers.ScalarMap[str, str]
    known_process: int
    heard: int
    def __init__(self, version: _Optional[str] = ..., network: _Optional[str] = ..., process: _Optional[_Union[Process, _Mapping]] = ..., round: _Optional[int] = ..., finished: _Optional[bool] = ..., code: _Optional[_Mapping[str, str]] = ..., known_process: _Optional[int] = ..., heard: _Optional[int] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("number", "token")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    number: int
    token: int
    def __init__(self, number: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("network", "process", "kind", "step", "base", "tensors", "bytes", "digest", "losses", "version", "code")
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    network: str
    process: Process
    kind: Kind
    step: int
    base: int
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    bytes: int
    digest: bytes
    losses: _containers.RepeatedCompositeFieldContainer[Loss]
    version: str
    code: str
    def __init__(self, network: _Optional[str] = ..., process: _Optional[_Union[Process, _Mapping]] = ..., kind: _Optional[_Union[Kind, str]] = ..., step: _Optional[int] = ..., base: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., bytes: _Optional[int] = ..., digest: _Optional[bytes] = ..., losses: _Optional[_Iterable[_Union[Loss, _Mapping]]] = ..., version: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...

class Loss(_message.Message):
    __slots__ = ("peer", "round", "loss")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    peer: int
    round: int
    loss: float
    def __init__(self, peer: _Optional[int] = ..., round: _Optional[int] = ..., loss: _Optional[float] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: Header
    chunk: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("verdict", "reason", "round", "through")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    reason: str
    round: int
    through: int
    def __init__(self, verdict: _Optional[_Union[Verdict, str]] = ..., reason: _Optional[str] = ..., round: _Optional[int] = ..., through: _Optional[int] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...
