"""`python -m trainworks.agent.enter RUN_DIR NODE COMMAND...`: run a command beside the ranks of one node of a run.

The command gets the environment and the working folder of the node's first rank, and so its accelerators, packages and
rendezvous variables. Ranks of a workload are forks of their agent and have its environment, without such variables. The
command carries the tag of the run: what it leaves behind ends with the job.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

from trainworks.agent.launch import run_mark
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.host import process
from trainworks.jobs.environment import ROLE
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.events.training import AttemptEvent
from trainworks.record.exit_code import ExitCode
from trainworks.record.run_dir import RunDir

_OF_THE_TERMINAL = ("TERM", "COLORTERM", "COLUMNS", "LINES")
_ENTERED = {"TRAINWORKS_ENTERED": "1"}
"""Variable of a command beside the ranks: the ranks may have restarted since, with other ports."""
_NODE_RANK = "SKYPILOT_NODE_RANK"
"""Variable with the index of the node, of every rank of a command."""
_ON_THIS_NODE = ("SLURM_JOB_ID", "SLURMD_NODENAME")
_NOT_FOUND = 127


def first_rank(run_dir: RunDir, node: int) -> psutil.Process:
    """The process of the first rank of a node, which has to run on this machine.

    Raises:
        EnvironmentProblem: no rank of the node runs here.
    """
    here = {name: os.environ[name] for name in _ON_THIS_NODE if name in os.environ}
    mark, resolved = run_mark(run_dir) | here, run_dir.read_resolved()
    if resolved.is_workload:
        first = node * resolved.processes.processes_per_node
        pids = newest_pids(run_dir)[first : first + 1]
        ranks = {one for one in process.processes_with(mark) if one.pid in pids}
    else:
        group = resolved.processes.group_of(node)
        own = {_NODE_RANK: str(node - group.first_node)} | ({} if group.role is None else {ROLE: group.role})
        ranks = set(process.processes_with(mark | own))
    ranks -= set(process.processes_with(mark | _ENTERED))
    if not ranks:
        hint = f"see what it does: trainworks logs {run_dir.run_id}"
        raise EnvironmentProblem(f"no rank of run {run_dir.run_id} runs on node {node} now", hint=hint)
    return min(ranks, key=lambda rank: (rank.create_time(), rank.pid))


def newest_pids(run_dir: RunDir) -> list[int]:
    """Process ids of a workload's ranks in the newest attempt, each as its own node counts them."""
    attempts = of_kind(read_events(run_dir.events_file), AttemptEvent)
    return attempts[-1]["pids"] if attempts else []


def end_entered(run_dir: RunDir) -> None:
    """Kill the commands on this machine that entered a run which has ended."""
    for one in process.processes_with(run_mark(run_dir) | _ENTERED):
        process.kill(one.pid)


def main(run_folder: str, node: str, *command: str) -> int:
    """Become the command; returns only if it cannot be started."""
    run_dir = RunDir(Path(run_folder))
    try:
        rank = first_rank(run_dir, int(node))
        env, folder = rank.environ(), rank.cwd()
    except TrainworksError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    except psutil.Error:
        sys.stderr.write(f"error: the rank of run {run_dir.run_id} on node {node} has just ended\n")
        return ExitCode.ENVIRONMENT
    terminal = {name: os.environ[name] for name in _OF_THE_TERMINAL if name in os.environ}
    try:
        os.chdir(folder)
        process.replace(command, env | terminal | _ENTERED)
    except OSError as error:
        sys.stderr.write(f"error: cannot start `{command[0]}`: {error.strerror}\n")
        return _NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
