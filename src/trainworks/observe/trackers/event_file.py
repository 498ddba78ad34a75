"""TensorBoard's event files: protobuf messages in TFRecord framing, without TensorFlow, torch or protobuf.

A record is `length: uint64 | masked CRC-32C of length: uint32 | message | masked CRC-32C of message: uint32`, all
little-endian, and a mask is `rotate_right(crc, 15) + 0xa282ead8` (tensorflow/core/lib/hash/crc32c.h). The messages are
those of tensorboard/compat/proto/{event,summary,tensor}.proto and plugins/hparams/plugin_data.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

_POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), reflected."""
_MASK_DELTA = 0xA282EAD8
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_DT_FLOAT, _DT_STRING = 1, 7
_SESSION_START = 1


def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return tuple(table)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C of the data (RFC 3720, appendix B.4).

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def record(message: bytes) -> bytes:
    """A message in its frame."""
    length = struct.pack("<Q", len(message))
    return length + _masked(length) + message + _masked(message)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def first_event(t: float) -> bytes:
    """The event that begins every file."""
    return _event(t, 0, _field(3, b"brain.Event:2"))


def scalars(t: float, step: int, values: Mapping[str, float]) -> bytes:
    """An event with the values of one step."""
    return _event(t, step, _summary(_field(1, tag.encode()) + _float(2, value) for tag, value in values.items()))


def restart(t: float, step: int) -> bytes:
    """An event from which TensorBoard drops all earlier points of this step and later ones."""
    return _event(t, step, _field(7, _varint(1, _SESSION_START)))


def text(t: float, step: int, tag: str, markdown: str) -> bytes:
    """An event with a text, which TensorBoard renders as Markdown."""
    tensor = _varint(1, _DT_STRING) + _field(2, b"") + _field(8, markdown.encode())
    return _event(t, step, _summary([_field(1, tag.encode()) + _field(8, tensor) + _field(9, _plugin("text"))]))


def hyperparameters(t: float, parameters: Mapping[str, str | float]) -> bytes:
    """The start of a session of the HParams dashboard, which compares runs by their parameters."""
    entries = b"".join(_field(1, _field(1, name.encode()) + _field(2, _value(v))) for name, v in parameters.items())
    return _hparams(t, "_hparams_/session_start_info", _field(3, entries + _double(5, t)))


def session_end(t: float, *, succeeded: bool) -> bytes:
    """The end of a session of the HParams dashboard."""
    return _hparams(t, "_hparams_/session_end_info", _field(4, _varint(1, 1 if succeeded else 2) + _double(2, t)))


def _hparams(t: float, tag: str, data: bytes) -> bytes:
    empty = _varint(1, _DT_FLOAT) + _field(2, _field(2, b""))
    content = _field(1, tag.encode()) + _field(8, empty) + _field(9, _plugin("hparams", data))
    return _event(t, 0, _summary([content]))


def _value(value: str | float) -> bytes:
    """`google.protobuf.Value` of a number or a text."""
    return _field(3, value.encode()) if isinstance(value, str) else _double(2, float(value))


def _plugin(name: str, content: bytes = b"") -> bytes:
    return _field(1, _field(1, name.encode()) + (_field(2, content) if content else b""))


def _summary(values: Iterable[bytes]) -> bytes:
    return _field(5, b"".join(_field(1, value) for value in values))


def _event(t: float, step: int, what: bytes) -> bytes:
    return record(_double(1, t) + _varint(2, step) + what)


def _field(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _number(len(content)) + content


def _double(number: int, value: float) -> bytes:
    return _key(number, _DOUBLE) + struct.pack("<d", value)


def _float(number: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond 3.4e38
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _key(number, _FLOAT) + packed


def _varint(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _number(value)


def _key(number: int, kind: int) -> bytes:
    return _number(number << 3 | kind)


def _number(value: int) -> bytes:
    """A base-128 varint, least significant group first."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
