"""Exit codes of ranks and node agents: what the process above decides by."""

from __future__ import annotations

import enum

__all__ = ["ExitCode", "as_exit_code"]


class ExitCode(enum.IntEnum):
    """Exit codes of a rank; the node agent decides by them."""

    OK = 0
    USER_ERROR = 1
    """The model, the data or the code failed."""
    ENVIRONMENT = 3
    """The machine is in the way; a person has to act."""
    HARDWARE_FAULT = 74
    """An accelerator or the storage failed; starting again can help."""
    HANG = 76
    """A rank stood still and was ended, with those that waited for it; starting again can help."""
    PEER_LOST = 75
    """Another rank went away; starting again can help."""


def as_exit_code(code: int) -> int:
    """What a shell would say: 128 + the signal of a process that a signal ended (its code is negative)."""
    return 128 - code if code < 0 else code
