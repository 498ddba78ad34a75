"""Autoscaling: nodes that start when jobs need them and stop when idle, by each backend's own means.

Keys that mean the same on every backend are in the block itself, those of one backend below its name. A backend
refuses a key that it does not support.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from trainworks.config.command import NodeAccelerators
from trainworks.config.quantities import DurationS, SizeBytes
from trainworks.config.spec import ConfigPath, FieldError, Spec

_NAME = r"[A-Za-z][A-Za-z0-9_-]*"
NodeList = Annotated[
    str, StringConstraints(pattern=rf"^{_NAME}(\[[0-9,-]+\])?(,{_NAME}(\[[0-9,-]+\])?)*$", max_length=1024)
]
"""Nodes in Slurm's words: `cloud[1-16]`."""
Name = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$", max_length=63)]
DnsName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]


def _one_line(text: str) -> str:
    if not text.strip() or re.search(r"[\n\r\0]", text):
        raise FieldError("a command must be a single line", hint="put the lines into a script and call it")
    return text


Command = Annotated[str, AfterValidator(_one_line)]


class CloudNode(Spec):
    """Hardware of a cloud node; Slurm schedules with it before the node exists."""

    cores: Annotated[int, Field(ge=1)]
    memory: SizeBytes
    """Memory that jobs may use: less than the machine has."""
    accelerators: NodeAccelerators | None = None
    """Kind and number, as Slurm jobs request them: `h100:8`."""
    features: tuple[Name, ...] = ()


class SlurmAutoscale(Spec):
    """Slurm power saving, with your command that starts or stops one node."""

    nodes: NodeList
    """Names of the nodes that start and stop."""
    node: CloudNode
    partition: Name = "cloud"
    """Partition of these nodes, created with them."""
    start: Command
    """Starts the node `$NODE`, in bash, as SlurmUser; its last line of output, if any, is the node's address. The
    machine has to start slurmd by itself."""
    stop: Command
    """Stops the node `$NODE`, even if it never came up."""
    starts_per_minute: Annotated[int, Field(ge=0)] = 300
    """Most nodes to start per minute, for the sake of power and quotas; 0 sets no limit."""
    stops_per_minute: Annotated[int, Field(ge=0)] = 60
    keep_nodes: NodeList | None = None
    """Names of nodes that never stop, in addition to `keep`."""
    folder: ConfigPath = "/etc/slurm/power"
    """Folder of the two programs on the machine of slurmctld."""
    log: ConfigPath = "/var/log/slurm/power.log"
    """Log of the two programs; SlurmUser must be able to write it."""


class KubernetesAutoscale(Spec):
    """Kueue's ProvisioningRequest: the cluster autoscaler starts all nodes of a job, or none, before it is admitted."""

    provisioning_class: DnsName = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    """`check-capacity.autoscaling.x-k8s.io` waits for room without making any; `queued-provisioning.gke.io` is Google's
    queue."""
    parameters: dict[str, str] = Field(default_factory=dict)
    """Parameters of the provisioning class."""
    retries: Annotated[int, Field(ge=0)] = 3
    """Requests after a failed one, before the job is set aside."""
    retry_after: DurationS = 60.0
    """Delay before the first retry; it doubles with every further one, up to 30 min."""


class SkyPilotAutoscale(Spec):
    """SkyPilot's autostop."""

    then: Literal["stop", "delete"] = "delete"
    """Fate of idle machines: a stopped one keeps its disk, which still costs money."""
    wait_for: Literal["jobs_and_ssh", "jobs", "none"] = "jobs_and_ssh"
    """Activity that keeps machines up: jobs, or jobs and ssh sessions; with `none`, only the time counts."""


class Autoscale(Spec):
    """Rules for starting and stopping nodes, applied by the backend itself."""

    down_after: DurationS | None = None
    """Time without a job after which a node stops."""
    keep: Annotated[int, Field(ge=0)] = 0
    """Number of nodes that stay up once they are started."""
    start_timeout: DurationS | None = None
    """Longest time from the request for a node until it is up; one that takes longer has failed."""
    stop_timeout: DurationS | None = None
    """Longest time that a node takes to stop; it cannot start again before."""
    slurm: SlurmAutoscale | None = None
    kubernetes: KubernetesAutoscale | None = None
    skypilot: SkyPilotAutoscale = SkyPilotAutoscale()
