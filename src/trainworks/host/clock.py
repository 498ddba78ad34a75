"""A clock that tests can replace, so that they do not wait."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import Protocol

_STA_UNSYNC, _STA_NANO = 0x0040, 0x2000


class Clock(Protocol):
    """Wall-clock time and waiting."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The clock of the system."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class KernelClock:
    """How well the kernel's clock follows its time server, as adjtimex(2) says."""

    offset_s: float
    """Difference that is left to correct."""
    max_error_s: float
    synchronized: bool


def read_kernel_clock() -> KernelClock | None:
    """The state of the kernel's clock; None where the kernel does not say."""
    state = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state)) < 0:
        return None
    unit_s = 1e-9 if state.status & _STA_NANO else 1e-6
    return KernelClock(state.offset * unit_s, state.maxerror * 1e-6, not state.status & _STA_UNSYNC)


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), up to the fields that are read; the kernel writes 208 bytes."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 208),
    )
