"""Exit codes of a rank, and of a node agent."""

from __future__ import annotations

import enum

__all__ = ["ExitCode"]


class ExitCode(enum.IntEnum):
    """Exit codes of a rank; the node agent decides by them."""

    OK = 0
    USER_ERROR = 1
    """The model, the data or the code failed: the same again would fail the same way."""
    ENVIRONMENT = 3
    """The machine is in the way; a person has to act."""
    PEER_LOST = 75
    """Another rank went away; starting again can help."""
