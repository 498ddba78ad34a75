"""Command that runs another one beside the ranks of a job, on the node where it is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainworks.errors import NotOwnerError, UsageError
from trainworks.host.users import user_name
from trainworks.record.run_dir import RunDir
from trainworks.system import user_id


def entering(run_folder: str, command: Sequence[str], *, node: int, python: str = sys.executable) -> list[str]:
    """Argument vector for the node of this index in the job; see `agent.enter`. `run_folder` is the run directory as
    the node sees it, and `python` has Trainworks there: it starts a command `("-m", MODULE, ...)`.

    Examples:
        >>> entering("/runs/lm-1", ["nvidia-smi"], node=1, python="python")
        ['python', '-P', '-m', 'trainworks.agent.enter', '/runs/lm-1', '1', 'nvidia-smi']
    """
    words = [python, "-P", *command] if command[0] == "-m" else command
    return [python, "-P", "-m", "trainworks.agent.enter", run_folder, str(node), *words]


def entering_here(run_dir: RunDir, command: Sequence[str], node: int) -> list[str]:
    """Argument vector for a job of this user on this machine.

    Raises:
        NotOwnerError: the job belongs to another user.
        UsageError: its ranks run in containers, or it has no such node.
    """
    resolved = run_dir.read_resolved()
    if (owner := run_dir.status_file.stat().st_uid) != user_id():
        raise NotOwnerError(f"cannot run a command in run {run_dir.run_id}: it belongs to {user_name(owner)}")
    if (options := resolved.run_file.cluster.local.container) is not None:
        hint = f"{options.runtime} ps, then: {options.runtime} exec -it NAME bash"
        raise UsageError(f"the ranks of run {run_dir.run_id} run in containers", hint=hint)
    check_node(node, resolved.processes.nodes)
    return entering(str(run_dir.path.resolve()), command, node=node)


def check_node(node: int, nodes: int) -> None:
    """Refuse the index of a node that a job does not have.

    Raises:
        UsageError: it has fewer nodes.
    """
    if node >= nodes:
        raise UsageError(f"the job has {nodes} node(s), and no node {node}", hint="count them from 0")
