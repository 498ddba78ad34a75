"""The checks of a node that a resolved run names; they record their results as events of the run.

`job.health` asks for one before ranks start. Without it the accelerators alone are looked at, after a failure on them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from socket import gethostname

from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.record.events.job import NodeCheckEvent, SubmittedEvent
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

LONGEST_S = 120.0
"""Longest wait for the check of a node: its start on a busy node, and mounts that do not answer."""
KILL_TAKES_S = 5.0
"""Longest wait for the end of a killed check: one that waits for a dead mount does not end."""
_POLL_S = 0.1
NO_ANSWER = f"its check gave no answer within {LONGEST_S:.0f} s"


def check_command(run_dir: RunDir, resolved: ResolvedRun, node: int) -> list[str]:
    """The program that checks a node; exit code 0 if the job may run there."""
    return process.python_module(*resolved.node_check, str(run_dir.path), str(node))


def accelerator_command(run_dir: RunDir, resolved: ResolvedRun, node: int) -> list[str] | None:
    """The program that looks at the accelerators of a node, for faults since the job got its nodes; exit code 0 if it
    blames none. None for a run without accelerators, and where its backend could not leave one out.
    """
    if not resolved.accelerator_check or resolved.processes.device != "cuda":
        return None
    began = [event["t"] for event in of_kind(read_events(run_dir.events_file), SubmittedEvent)]
    since = began[-1] if began else resolved.created_at
    return process.python_module(*resolved.accelerator_check, str(run_dir.path), str(node), str(since))


def is_fit(run_dir: RunDir, resolved: ResolvedRun, node: int) -> bool:
    """Check this machine, whose ranks are about to start again; True for a run without a check.

    A check that gives no answer in time is recorded here as a failed one, a look at the accelerators is not.
    """
    program = accelerator_command(run_dir, resolved, node)
    if resolved.node_check:
        program = check_command(run_dir, resolved, node)
    if program is None:
        return True
    check = process.spawn(program, log=run_dir.node_log(node))
    if (code := check.wait(LONGEST_S)) is None:
        check.signal_group(signal.SIGKILL)
        check.wait(KILL_TAKES_S)
        if not resolved.node_check:
            return True
        hint = f"read node-{node}.log of the run"
        run_dir.note(
            NodeCheckEvent(kind="node_check", node=node, host=gethostname(), message=NO_ANSWER, hint=hint),
        )
    return code == 0


def run_checks(
    run_dir: RunDir, commands: Mapping[int, list[str]], clock: Clock, is_stopping: Callable[[], bool]
) -> list[NodeCheckEvent]:
    """Run a program for each of some nodes at once, which checks it and records what it finds.

    A program that gives no answer within `LONGEST_S` is killed; so are all once `is_stopping`.

    Returns:
        What the nodes that failed recorded, else how their checks ended; nothing if the job is to end.
    """
    seen = len(read_events(run_dir.events_file))
    checks = {node: process.spawn(command, log=run_dir.node_log(node)) for node, command in commands.items()}
    deadline = clock.now() + LONGEST_S
    while running := [check for check in checks.values() if check.exit_code() is None]:
        if clock.now() > deadline or is_stopping():
            for check in running:
                check.signal_group(signal.SIGKILL)
            break
        process.wait_any(running, _POLL_S)
    codes = {node: check.wait(KILL_TAKES_S) for node, check in checks.items()}
    if is_stopping():
        return []
    said = {event["node"]: event for event in of_kind(read_events(run_dir.events_file)[seen:], NodeCheckEvent)}
    found = []
    for node, code in codes.items():
        ended = NO_ANSWER if code in (None, -signal.SIGKILL) else f"exit code {code}"
        hint = f"read node-{node}.log of the run"
        unanswered = NodeCheckEvent(kind="node_check", node=node, message=ended, hint=hint)
        found += [said.get(node) or unanswered] if code != 0 else []
    return found
