"""Use cases of nodes: list them, drain one, and let jobs start there again."""

from __future__ import annotations

from trainworks.backends.backend import Backend, NodeStatus
from trainworks.backends.registry import backend_for, clusters_here, local_backend
from trainworks.errors import UsageError

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
    """Start no more jobs on a node, or with one accelerator of it, `NODE:2` or `NODE:UUID`; running jobs continue.

    Raises:
        UsageError: no such node or accelerator, or its cluster cannot take one accelerator out of service.
    """
    _backend_of(node, cluster).drain(node, reason)


def undrain(node: str, *, cluster: str | None = None) -> None:
    """Let jobs start on a node, or with one accelerator of it, again."""
    _backend_of(node, cluster).undrain(node)


def _backend_of(node: str, cluster: str | None) -> Backend:
    backend, (name, separator, _) = backend_on(cluster), node.partition(":")
    if separator and "drain.accelerator" in backend.unsupported:
        message = f"{backend.name} takes no accelerator out of service alone"
        hints = (f"drain the node: trainworks drain {name}", backend.without_accelerator)
        raise UsageError(message, hint="; ".join(filter(None, hints)))
    return backend
