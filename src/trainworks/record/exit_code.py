"""Exit codes of ranks and node agents, which tell the parent process what to do."""

from __future__ import annotations

import enum
import signal


class ExitCode(enum.IntEnum):
    """Exit codes of a rank, read by the node agent, and of an agent, read by the supervisor."""

    OK = 0
    USER_ERROR = 1
    """The model, the data or the code failed."""
    ENVIRONMENT = 3
    """The machine cannot run the job; a person has to act."""
    HARDWARE_FAULT = 74
    """An accelerator or the storage failed; starting again can help."""
    HANG = 76
    """A hung rank was ended, with the ranks that waited for it; starting again can help."""
    PEER_LOST = 75
    """Another rank was lost; starting again can help."""
    NODE_UNHEALTHY = 77
    """The node failed its check before its ranks started again; another node can help."""
    SUPERSEDED = 78
    """A later start has taken the run over; nothing was written about this end."""


LINK_LOST = -int(signal.SIGHUP)
"""Exit code of a process that stands for an agent, after it has lost the connection to the agent's node."""


def as_exit_code(code: int) -> int:
    """Exit code as a shell reports it: 128 + signal for a process that a signal ended (a negative code)."""
    return 128 - code if code < 0 else code
