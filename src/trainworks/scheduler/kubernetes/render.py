"""A ticket as a JobSet whose pods have Trainworks in their image: each runs the agent of its node.

What the job does stands in its run directory, on the volume that all pods see; the manifest only says where that is.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.errors import UsageError
from trainworks.job.formats.jobset import jobset
from trainworks.job.formats.manifest import RUNS, Pods, header, to_yaml
from trainworks.job.program import Program
from trainworks.job.ticket import Ticket
from trainworks.spec.engines import Kubernetes

__all__ = ["NODE_MODULE", "render", "run_folder"]

NODE_MODULE = "trainworks.scheduler.kubernetes.node"
"""What every pod runs, with the run directory as its argument."""


def render(ticket: Ticket, where: Kubernetes, *, secrets: Sequence[str] = ()) -> str:
    """The manifest of a job.

    Args:
        ticket: of the job.
        where: what the run file says of the cluster.
        secrets: variables without a value, which the Secret of the job holds.

    Raises:
        UsageError: there is no image or no volume, or the job asks for something that a JobSet cannot say.
    """
    if where.volume is None:
        hint = "set `cluster.kubernetes.volume` to a PersistentVolumeClaim that all nodes may write to"
        raise UsageError("the pods have no place for the run directory", hint=hint)
    program = Program(
        command=("python", "-m", NODE_MODULE, run_folder(ticket)),
        envs=dict.fromkeys(secrets),
        image=where.image,
    )
    pods = Pods(ticket=ticket, program=program, where=where)
    return header(pods) + to_yaml(jobset(pods, list(program.argv)))


def run_folder(ticket: Ticket) -> str:
    """The run directory as the pods see it."""
    return f"{RUNS}/{ticket.run_id}"
