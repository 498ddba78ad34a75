"""Check the nodes of an allocation before its ranks start, and before they start again: `job.health`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from trainworks.agent.node_agents import Hosts
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.host.node_check import LONGEST_S, NO_ANSWER, check_command
from trainworks.jobs.state import Cause
from trainworks.record.events import Event, append_event, read_events
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

_POLL_S = 0.1


def check_nodes(
    run_dir: RunDir,
    resolved: ResolvedRun,
    hosts: Hosts,
    clock: Clock,
    is_stopping: Callable[[], bool],
    nodes: Sequence[int] | None = None,
    places: Sequence[int] | None = None,
) -> Event | None:
    """Run the check that the resolved run names on nodes at once, each of which records its result.

    Args:
        run_dir: of the run.
        resolved: the run, with `node_check` if its nodes are to be checked.
        hosts: nodes of the allocation; those on this machine are checked once.
        clock: for the longest wait.
        is_stopping: whether a signal asks for the end of the job.
        nodes: those to check; all when None.
        places: number of every one of `hosts` among all nodes of the job; their own number when None.

    Returns:
        The failure of the job, with the events of its nodes in `nodes`; None if all passed, or without a check.
    """
    if not resolved.node_check:
        return None
    seen = len(read_events(run_dir.events_file))
    numbers = range(len(hosts.addresses)) if nodes is None else nodes
    checks = {node: _start(run_dir, resolved, hosts, node) for node in (numbers[:1] if hosts.are_here else numbers)}
    deadline = clock.now() + LONGEST_S
    while running := [check for check in checks.values() if check.exit_code() is None]:
        if clock.now() > deadline or is_stopping():
            for check in running:
                check.signal_group(signal.SIGKILL)
            break
        process.wait_any(running, _POLL_S)
    if is_stopping():
        return None
    said = {event["node"]: event for event in read_events(run_dir.events_file)[seen:] if event["kind"] == "node_check"}
    unfit = [_result(node, check.wait(), said.get(node)) for node, check in checks.items()]
    return _failure(run_dir, [event for event in unfit if event is not None], places)


def failure_of_agent(run_dir: RunDir, node: int, places: Sequence[int]) -> Event | None:
    """The failure of a job whose agent found its node unfit; None if the last check of the node passed.

    Args:
        run_dir: of the run.
        node: number of the agent.
        places: number of every agent's node among all nodes of the job.
    """
    events = read_events(run_dir.events_file)
    checks = [event for event in events if event["kind"] == "node_check" and event["node"] == node]
    return _failure(run_dir, [event for event in checks[-1:] if event["message"]], places)


def _start(run_dir: RunDir, resolved: ResolvedRun, hosts: Hosts, node: int) -> process.Child:
    return process.spawn(hosts.command(node, check_command(run_dir, resolved, node)), log=run_dir.node_log(node))


def _result(node: int, code: int | None, said: Event | None) -> Event | None:
    """What a failed node recorded, else how its check ended; None for a node that passed."""
    if code == 0:
        return None
    ended = NO_ANSWER if code == -signal.SIGKILL else f"exit code {code}"
    return said or {"node": node, "message": ended, "hint": f"read node-{node}.log of the run"}


def _failure(run_dir: RunDir, unfit: list[Event], places: Sequence[int] | None) -> Event | None:
    if not unfit:
        return None
    texts = [f"{event.get('host') or 'node {}'.format(event['node'])}: {event['message']}" for event in unfit]
    message = f"{len(unfit)} node{'s' * (len(unfit) > 1)} failed the health check: {'; '.join(texts)}"
    failure = {"cause": Cause.NODE_UNHEALTHY, "message": message, "hint": unfit[0]["hint"]}
    numbers = [event["node"] if places is None else places[event["node"]] for event in unfit]
    append_event(run_dir.events_file, "nodes_unhealthy", nodes=numbers, message=message)
    return failure
