"""Use cases of nodes: list them, drain one, and let jobs start there again."""

from __future__ import annotations

from trainworks.backends.backend import Backend, NodeStatus
from trainworks.backends.registry import backend_for, clusters_here, local_backend

__all__ = ["NodeStatus", "backend_on", "clusters_here", "drain", "nodes", "undrain"]


def backend_on(cluster: str | None) -> Backend:
    """The backend of a cluster: this machine when None, else as `named_cluster` has it.

    Raises:
        UsageError: no such backend.
        RunFileError: a problem in the run file.
    """
    if cluster is None:
        return local_backend()
    from trainworks.api.inputs import named_cluster  # noqa: PLC0415, a list of local jobs does without

    return backend_for(named_cluster(cluster))


def nodes(cluster: str | None = None) -> list[NodeStatus]:
    """Nodes of a cluster, in order of their names, with the history of each on which jobs of the job store have run.

    `cluster` is this machine when None, else a name such as `slurm`, or a run file.
    """
    from trainworks.backends.node_histories import with_history  # noqa: PLC0415 - imports the database

    return with_history(backend_on(cluster))


def drain(node: str, reason: str, *, cluster: str | None = None) -> None:
    """Start no more jobs on a node; running jobs continue."""
    backend_on(cluster).drain(node, reason)


def undrain(node: str, *, cluster: str | None = None) -> None:
    """Let jobs start on a node again."""
    backend_on(cluster).undrain(node)
