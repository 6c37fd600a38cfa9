from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERIFIED: _ClassVar[Verdict]
    REJECTED: _ClassVar[Verdict]
VERDICT_UNSPECIFIED: Verdict
VERIFIED: Verdict
REJECTED: Verdict

class RecordRequest(_message.Message):
    __slots__ = ("namespace", "kind", "name", "uid", "verdict", "reason", "dry_run")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    kind: str
    name: str
    uid: str
    verdict: Verdict
    reason: str
    dry_run: bool
    def __init__(self, namespace: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., reason: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RecordResponse(_message.Message):
    __slots__ = ("recorded", "by", "uid")
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    recorded: bool
    by: str
    uid: str
    def __init__(self, recorded: _Optional[bool] = ..., by: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...
