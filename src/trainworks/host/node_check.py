"""The check of a node that a resolved run names, `job.health`; it records its result as an event of the run."""

from __future__ import annotations

import signal
from socket import gethostname

from trainworks.host import process
from trainworks.record.events.job import NodeCheckEvent
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

LONGEST_S = 120.0
"""Longest wait for the check of a node: its start on a busy node, and mounts that do not answer."""
KILL_TAKES_S = 5.0
"""Longest wait for the end of a killed check: one that waits for a dead mount does not end."""
NO_ANSWER = f"its check gave no answer within {LONGEST_S:.0f} s"


def check_command(run_dir: RunDir, resolved: ResolvedRun, node: int) -> list[str]:
    """The program that checks a node; exit code 0 if the job may run there."""
    return process.python_module(*resolved.node_check, str(run_dir.path), str(node))


def is_fit(run_dir: RunDir, resolved: ResolvedRun, node: int) -> bool:
    """Check this machine, whose ranks are about to start again; True for a run without a check.

    A check that gives no answer in time is recorded here as a failed one.
    """
    if not resolved.node_check:
        return True
    check = process.spawn(check_command(run_dir, resolved, node), log=run_dir.node_log(node))
    if (code := check.wait(LONGEST_S)) is None:
        check.signal_group(signal.SIGKILL)
        check.wait(KILL_TAKES_S)
        hint = f"read node-{node}.log of the run"
        run_dir.note(
            NodeCheckEvent(kind="node_check", node=node, host=gethostname(), message=NO_ANSWER, hint=hint),
        )
    return code == 0
