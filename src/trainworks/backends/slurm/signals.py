"""Signals that a batch script passes on to the supervisor of its job."""

from __future__ import annotations

import signal

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that the batch script passes on, as SIGRTMIN+1, SIGRTMIN+2 and so on."""
ENDING = FORWARDED[:3]
"""Forwarded signals that ask the job to end."""
