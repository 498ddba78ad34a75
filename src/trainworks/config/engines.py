"""What a job asks of the queue, and what each engine wants to be told.

A run file may hold the words of several engines: `engine:` chooses one, and the others are left alone.
"""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from trainworks.config.limits import up_to
from trainworks.config.quantities import DurationS, DurationSOrNever, FieldError, SizeBytes, Spec

__all__ = [
    "BUILT_IN",
    "ENTRY_POINTS",
    "PUBLISHED",
    "Container",
    "Engine",
    "Idle",
    "Job",
    "Kubernetes",
    "SkyPilot",
    "Slurm",
    "is_plugin",
]

BUILT_IN = ("local", "described", "slurm", "kubernetes", "skypilot")
"""Values of `cluster.engine` that need no plugin."""
ENTRY_POINTS = "trainworks.backends"
"""Entry point group in which an installed distribution registers its backend under a name."""
PUBLISHED = {"ray": "trainworks-ray"}
"""Known plugins: name of the backend, and the distribution that provides it."""


def is_plugin(name: object) -> bool:
    """Whether a plugin, installed or published, provides a backend of this name."""
    return name in PUBLISHED or name in entry_points(group=ENTRY_POINTS).names


def _known_engine(name: str) -> str:
    if name not in BUILT_IN and not is_plugin(name):
        installed = entry_points(group=ENTRY_POINTS).names
        expected = ", ".join((*BUILT_IN, *sorted(installed | PUBLISHED.keys())))
        raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
    return name


Engine = Annotated[
    str,
    AfterValidator(_known_engine),
    WithJsonSchema({"anyOf": [{"enum": [*BUILT_IN, *PUBLISHED]}, {"type": "string"}]}),
]
"""Name of a backend."""

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@/:+=,\[\]-]*$", max_length=253)]
"""A name in another program's language: no blank, no quote, nothing that a shell reads."""

Place = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9/][A-Za-z0-9._@/:+=-]*$", max_length=4096)]
"""A path, or an image: no blank, no comma, no quote, nothing that a shell reads."""

Command = Annotated[str, StringConstraints(pattern=r"^[^\x00-][^\x00]*$", max_length=4096)]
"""A program by its name on the path, or by its own path; never read by a shell."""

Infra = Annotated[str, StringConstraints(pattern=r"^(\*|[A-Za-z][A-Za-z0-9-]*)(/[A-Za-z0-9*][A-Za-z0-9._@:/*-]*)?$")]
"""A place in SkyPilot's words: a cloud, `CLOUD/REGION`, `CLOUD/REGION/ZONE`, `k8s/CONTEXT`."""


def _one_option(text: str) -> str:
    """An option of sbatch as one line; its value may hold anything but a line's end."""
    if not re.fullmatch(r"--[a-z][a-z-]*(=[^\n\r\0]*)?", text):
        raise FieldError(f"invalid sbatch option `{text}`", hint="write it like `--reservation=maintenance`")
    return text


class Idle(Spec):
    """When a job that runs counts as idle, and what follows.

    It is idle while every one of these holds, on all of its nodes, in every stretch of the time (30 s, or less where
    the time is short): the accelerators compute for less than `accelerator` of the stretch, the processes use less than
    `cpu` cores, they read and write less than `io`, the machine receives less than `network`, no process waits for a
    disk, and a workload makes no step. What cannot be measured counts as use, and so does what others do with the same
    accelerators and the same network: the kernel does not count these by process. A download that is slower than all
    limits is taken for idle.
    """

    report_after: DurationS = 1800.0
    """Time without use after which the job is called idle; at the latest when it is stopped."""
    stop_after: DurationSOrNever = "never"
    """Time without use after which it is stopped, as `trainworks stop` does it."""
    accelerator: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Share of the time in which the busiest accelerator of a node computes, below which it is not used."""
    cpu: Annotated[float, Field(ge=0)] = 0.05
    """Cores that the processes on a node keep busy together, below which they do nothing."""
    io: SizeBytes = 10_000
    """Bytes that they read and write per second, files and pipes alike, below which they wait for no data."""
    network: SizeBytes = 1_000_000
    """Bytes that the machine receives per second, by all interfaces but loopback, below which nobody downloads."""

    @property
    def first_s(self) -> float:
        """Time without use after which something happens."""
        return self.report_after if self.stop_after == "never" else min(self.report_after, self.stop_after)

    @property
    def sample_every_s(self) -> float:
        """Length of a stretch: a twentieth of the time, and 30 s at most."""
        return min(30.0, self.first_s / 20)


class Job(Spec):
    """What the queue has to know. An engine that lacks one of these says so before anything is submitted."""

    priority: Annotated[int, Field(ge=0, le=100)] = 50
    """Who goes first among those that wait."""
    preemptible: bool = True
    """Whether a job of higher priority may take its place; it saves a checkpoint first, and waits again."""
    time_limit: DurationS | None = None
    """Longest time of one attempt. A job that has one may start before others that it does not delay."""
    grace: DurationS = 120.0
    """From the request to end until the end: at a stop, before the time limit, and when the place is taken."""
    min_nodes: Annotated[int, up_to("min_nodes")] | None = None
    """Fewest nodes to start with; all of them when left out."""
    exclude: tuple[Word, ...] = ()
    """Nodes that it must not get."""
    depends_on: tuple[Word, ...] = ()
    """Jobs, by number or run, that have to succeed first."""
    hold: bool = False
    """Wait until somebody says `trainworks release`."""
    idle: Idle = Idle()
    """What happens when it holds nodes and does not use them."""


class Container(Spec):
    """An image that every rank runs in."""

    image: Place
    """`docker://nvcr.io/nvidia/pytorch:26.09-py3`, or a file (`.sqsh`, `.sif`) that all nodes see."""
    runtime: Literal["pyxis", "apptainer"] = "pyxis"
    """What starts it: Slurm's plug-in Pyxis with Enroot, or Apptainer."""
    mounts: tuple[Place, ...] = ()
    """`FROM:TO` or one path for both, beside the folders of the run."""


class Slurm(Spec):
    """A cluster under Slurm, through its command line."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_&|\[\]()*!,.-]+$")] | None = None
    """Features that every node must have, in Slurm's words: `rack1`, `[rack1|rack2]`."""
    switches: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*(@[0-9:-]+)?$")] | None = None
    """Most leaf switches to be spread over, and how long to wait for that: `1@60`."""
    reservation: Word | None = None
    login: Word | None = None
    """Where sbatch is, as ssh names it (`ada@login1`); this machine when left out."""
    container: Container | None = None
    options: tuple[Annotated[str, AfterValidator(_one_option)], ...] = ()
    """More options of sbatch, as they are: `--mail-type=END`."""


class Kubernetes(Spec):
    """A cluster under Kubernetes with JobSet, queued by Kueue where a queue is named."""

    context: Word | None = None
    """Of kubectl's configuration; its current one when left out."""
    namespace: Word = "default"
    queue: Word | None = None
    """Kueue's LocalQueue; without one the pods start as soon as there is room."""
    image: Word | None = None
    """Image with Trainworks and what the run needs."""
    volume: Word | None = None
    """PersistentVolumeClaim that all pods write to; it holds the run directory."""
    priority_class: Word | None = None
    service_account: Word | None = None
    node_selector: dict[Word, Word] = Field(default_factory=dict)
    run_as_user: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Number of the user that the pods run as, with the group of the same number; it owns the volume's new files.
    When left out it is the image's own, or 1000 where the namespace enforces the Pod Security standard `restricted`."""


class SkyPilot(Spec):
    """Clouds through SkyPilot, which rents the nodes of a job, and others when they are taken away."""

    program: Command = "sky"
    """SkyPilot's command line, in an environment of its own: its name on the path, or its path."""
    infra: tuple[Infra, ...] = ()
    """Where the job may run: `aws`, `gcp/us-central1`, `k8s/my-context`; wherever you have access when left out."""
    ordered: bool = False
    """Take the first place of `infra` that has room; otherwise the cheapest."""
    use_spot: bool = False
    """Rent nodes that the cloud may take away."""
    recovery: Literal["failover", "eager_next_region"] = "eager_next_region"
    """Where to look first for new nodes when they were taken away: in the same region, or in the next."""
    max_hourly_cost: Annotated[float, Field(gt=0)] | None = None
    """Most dollars that one node may cost per hour."""
    instance_type: Word | None = None
    """A cloud's own name of a node: `p5.48xlarge`."""
    image: Place | None = None
    """Container (`docker:nvcr.io/nvidia/pytorch:26.09-py3`), or a cloud's image, that the nodes start from."""
    disk_size: Annotated[int, Field(ge=1)] | None = None
    """Disk of a node in GB."""
    file_mounts: dict[str, str] = Field(default_factory=dict)
    """What the nodes see at a path: a folder from here, or a bucket (`/data: s3://my-bucket/data`)."""
