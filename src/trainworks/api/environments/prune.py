"""Delete environments of this machine that no run has used for long."""

from __future__ import annotations

from trainworks.agent.environments.cache import CachedEnvironment, prune
from trainworks.errors import ArgumentError, QuantityError
from trainworks.host.clock import SystemClock
from trainworks.units import parse_duration


def prune_environments(unused_for: str | float = "30d") -> list[CachedEnvironment]:
    """Delete the environments of runs in this machine's cache that were not used for a time; one in use stays.

    An environment that a run needs again is built again.

    Args:
        unused_for: shortest time since the last use: `30d`, or seconds.

    Returns:
        Those that were deleted, and those that are in use and would have been, by their last use.

    Raises:
        ArgumentError: it is not a time.

    Examples:
        >>> prune_environments("3650d")
        []
    """
    try:
        seconds = parse_duration(unused_for) if isinstance(unused_for, str) else unused_for
    except QuantityError as error:
        raise ArgumentError(error.message, argument="unused_for", hint=error.hint) from None
    return prune(seconds, SystemClock().now())
