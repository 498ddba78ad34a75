"""How a turn of a Slurm job ended that could not say so itself, from what the run directory has."""

from __future__ import annotations

import contextlib

from trainworks.agent.allocation import signs_of_life
from trainworks.backends.slurm.states import cause_of_the_kill
from trainworks.jobs.state import Cause
from trainworks.record.events import read_events
from trainworks.record.run_dir import RunDir


def ending_of_turn(run_dir: RunDir, job: str) -> tuple[Cause, float]:
    """Cause and time of the end of the last turn: as slurmstepd says, else a lost node and the last sign of life.

    Args:
        run_dir: of the run.
        job: its number in Slurm.
    """
    launches = [event for event in read_events(run_dir.events_file) if event["kind"] == "submitted"]
    since = float(launches[-1]["t"]) if launches else 0.0
    return cause_of_the_kill(log_of(run_dir), job, since) or (Cause.NODE_LOST, signs_of_life(run_dir))


def log_of(run_dir: RunDir) -> str:
    """Output of the batch script, in which slurmstepd writes why it ended it."""
    with contextlib.suppress(OSError):
        return run_dir.supervisor_log.read_text(encoding="utf-8", errors="replace")
    return ""
