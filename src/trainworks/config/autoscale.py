"""Nodes that come when jobs need them, and go when none does: what each engine's own autoscaling is told.

The words that mean the same everywhere stand in the block itself, those of one engine below its name. An engine that
cannot do what a word asks refuses it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from trainworks.config.quantities import DurationS, FieldError, SizeBytes, Spec

__all__ = ["Autoscale", "CloudNode", "KubernetesAutoscale", "SkyPilotAutoscale", "SlurmAutoscale"]

_NAME = r"[A-Za-z][A-Za-z0-9_-]*"
NodeList = Annotated[
    str, StringConstraints(pattern=rf"^{_NAME}(\[[0-9,-]+\])?(,{_NAME}(\[[0-9,-]+\])?)*$", max_length=1024)
]
"""Nodes in Slurm's words: `cloud[1-16]`."""
Name = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$", max_length=63)]
DnsName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
ConfigPath = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/-]*$", max_length=1024)]
"""A path that slurm.conf takes: absolute, without a blank or a comment sign."""


def _one_line(text: str) -> str:
    if not text.strip() or re.search(r"[\n\r\0]", text):
        raise FieldError("a command must be a single line", hint="put the lines into a script and call it")
    return text


Command = Annotated[str, AfterValidator(_one_line)]


class CloudNode(Spec):
    """What every node will have once it is there; Slurm plans with it before it has seen one."""

    cores: Annotated[int, Field(ge=1)]
    memory: SizeBytes
    """That jobs may take: less than the machine has."""
    accelerators: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+:[1-9][0-9]*$")] | None = None
    """Kind and number, as Slurm's jobs ask for them: `h100:8`."""
    features: tuple[Name, ...] = ()


class SlurmAutoscale(Spec):
    """Slurm's power saving, with a command of yours that starts or stops one node."""

    nodes: NodeList
    """Names of the nodes that come and go."""
    node: CloudNode
    partition: Name = "cloud"
    """Of these nodes; made with them."""
    start: Command
    """Starts the node `$NODE`, in bash, as SlurmUser; the last line that it prints, if any, is the node's address. The
    machine has to start slurmd by itself."""
    stop: Command
    """Stops the node `$NODE`, also one that never came up."""
    starts_per_minute: Annotated[int, Field(ge=0)] = 300
    """Most nodes, so that power and quotas bear it; 0 is no limit."""
    stops_per_minute: Annotated[int, Field(ge=0)] = 60
    keep_nodes: NodeList | None = None
    """Nodes by name that never go, beside `keep`."""
    folder: ConfigPath = "/etc/slurm/power"
    """Where the two programs lie on slurmctld's machine."""
    log: ConfigPath = "/var/log/slurm/power.log"
    """What they write down; SlurmUser must be able to."""


class KubernetesAutoscale(Spec):
    """Kueue's ProvisioningRequest: the cluster autoscaler brings all nodes of a job, or none, before it is admitted."""

    provisioning_class: DnsName = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    """`check-capacity.autoscaling.x-k8s.io` waits for room without making any; `queued-provisioning.gke.io` is Google's
    queue."""
    parameters: dict[str, str] = Field(default_factory=dict)
    """That the class wants."""
    retries: Annotated[int, Field(ge=0)] = 3
    """Requests after one that failed, before the job is put aside."""
    retry_after: DurationS = 60.0
    """Before the first of them; twice as long before every other, up to 30 min."""


class SkyPilotAutoscale(Spec):
    """SkyPilot's autostop."""

    then: Literal["stop", "delete"] = "delete"
    """What becomes of the machines: a stopped one keeps its disk, which is paid for."""
    wait_for: Literal["jobs_and_ssh", "jobs", "none"] = "jobs_and_ssh"
    """What keeps them: jobs, and sessions of ssh; with none, they go by the clock."""


class Autoscale(Spec):
    """When nodes come and go. Each engine does it by itself, with what is written here."""

    down_after: DurationS | None = None
    """Time without a job after which a node goes."""
    keep: Annotated[int, Field(ge=0)] = 0
    """Nodes that do not go once they are there, whichever they are."""
    start_timeout: DurationS | None = None
    """Longest time from the wish for a node until it is there; one that takes longer has failed."""
    stop_timeout: DurationS | None = None
    """Longest time that a node takes to go; it cannot come back before."""
    slurm: SlurmAutoscale | None = None
    kubernetes: KubernetesAutoscale | None = None
    skypilot: SkyPilotAutoscale = SkyPilotAutoscale()
