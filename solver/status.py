"""Details of a gRPC status in the form that every client library of gRPC can read.

A ``google.rpc.Status`` with a ``google.rpc.BadRequest`` inside, in the trailing metadata ``grpc-status-details-bin``
(googleapis, ``google/rpc/status.proto`` and ``error_details.proto``). The two messages are so small that they are
written here byte by byte, which saves a dependency.
"""

from __future__ import annotations

DETAILS = "grpc-status-details-bin"
"""Key of the trailing metadata."""


def bad_field(code: int, message: str, field: str, description: str) -> bytes:
    """A status that names the field of the request that is at fault.

    Parameters
    ----------
    code, message
        Those of the gRPC status itself.
    field, description
        Path of the field, and what is wrong with it.
    """
    violation = _bytes(1, field.encode()) + _bytes(2, description.encode())
    detail = _bytes(1, b"type.googleapis.com/google.rpc.BadRequest") + _bytes(2, _bytes(1, violation))
    return b"\x08" + _varint(code) + _bytes(2, message.encode()) + _bytes(3, detail)


def _bytes(number: int, value: bytes) -> bytes:
    """A length-delimited field of the wire format."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes([*result, value])
