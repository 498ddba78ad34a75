"""Requests of a job to the queue, and the options of each backend.

A run file may have options of several backends: `engine:` selects one, and the others are ignored.
"""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from trainworks.config.backend_names import BUILT_IN, ENTRY_POINTS, PUBLISHED, is_plugin
from trainworks.config.command import Place, RentedNodes
from trainworks.config.limits import up_to
from trainworks.config.pod_patch import checked_pod_patch
from trainworks.config.quantities import DurationS, DurationSOrNever, SizeBytes
from trainworks.config.spec import CheckpointCopy, FieldError, Image, Spec
from trainworks.errors import UsageError


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
"""A name for another program: no blank, quote or shell character."""

SshHost = Annotated[
    str,
    StringConstraints(
        pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*(:[1-9][0-9]{0,4})?$", max_length=253
    ),
]
"""A machine as ssh names it, `USER@HOST:PORT`: never an option of ssh, no blank, quote or shell character."""

RemotePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f\x7f\\]*$", max_length=3072)]
"""An absolute path on another machine, quoted for its shell; no control character and, for sbatch, no backslash."""

Command = Annotated[str, StringConstraints(pattern=r"^[^\x00-][^\x00]*$", max_length=4096)]
"""A program on the search path or by its own path; never passed to a shell."""


def _one_option(text: str) -> str:
    if not re.fullmatch(r"--[a-z][a-z-]*(=[^\n\r\0]*)?", text):
        raise FieldError(f"invalid sbatch option `{text}`", hint="write it like `--reservation=maintenance`")
    return text


class Idle(Spec):
    """Conditions under which a running job counts as idle, and the consequence.

    A job is idle while all of these hold, on all of its nodes, in every interval of the time (30 s, or less if the
    time is short): the accelerators compute for less than `accelerator` of the interval, the processes use less than
    `cpu` cores, they read and write less than `io`, the machine receives less than `network`, no process waits for a
    disk, and a workload makes no step. Anything that cannot be measured counts as use, and so does the use of the same
    accelerators and network by other jobs, which the kernel does not count by process. A download that is slower than
    all limits counts as idle.
    """

    report_after: DurationS = 1800.0
    """Time without use after which the job is reported as idle; at the latest when it is stopped."""
    stop_after: DurationSOrNever = "never"
    """Time without use after which the job is stopped, as with `trainworks stop`."""
    accelerator: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Share of the time in which the busiest accelerator of a node computes, below which it counts as unused."""
    cpu: Annotated[float, Field(ge=0)] = 0.05
    """Cores in use by all processes on a node together, below which they count as unused."""
    io: SizeBytes = 10_000
    """Bytes that the processes read and write per second, files and pipes alike, below which they count as idle."""
    network: SizeBytes = 1_000_000
    """Bytes that the machine receives per second on all interfaces but loopback, below which the network is unused."""

    @property
    def first_s(self) -> float:
        """Time without use after which the first action is due."""
        return self.report_after if self.stop_after == "never" else min(self.report_after, self.stop_after)

    @property
    def sample_every_s(self) -> float:
        """Length of an interval: a twentieth of the time, and 30 s at most."""
        return min(30.0, self.first_s / 20)


class JobOptions(Spec):
    """Requests to the queue. A backend that does not support one of them refuses the job before submission."""

    team: Word | None = None
    """Team that the job is billed to, in `trainworks usage`; also the account of Slurm, unless `slurm.account` says,
    and the LocalQueue of Kueue, unless `kubernetes.queue` says."""
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    """Order among waiting jobs: higher priorities start first."""
    preemptible: bool = True
    """Allow a job of higher priority to take the nodes; this job saves a checkpoint first, and is queued again."""
    time_limit: DurationS | None = None
    """Longest time of one attempt. A job with a limit may start before other jobs that it does not delay."""
    grace: DurationS = 120.0
    """Time from the request to end until the kill: at a stop, before the time limit, and at a preemption."""
    min_nodes: Annotated[int, up_to("min_nodes")] | None = None
    """Fewest nodes of a command to start with. A workload starts on all of its nodes; it continues on as few as these
    while others are missing, and takes them back. All nodes by default."""
    exclude: tuple[Word, ...] = ()
    """Nodes that the job must not use."""
    avoid_failing_nodes: bool = False
    """Add nodes whose hardware failed often under earlier jobs (score of 2.5 or more in `trainworks nodes`) to
    `exclude` at submission, if enough others are left. For this machine's queue and Slurm."""
    keep_code: bool = False
    """Run a command in a copy of its working directory as it is at submission: `code` in the run directory, without
    `.git`, files that `.gitignore` or `.trainworksignore` list, and files named like secrets. At most 64 MiB. This
    machine and Slurm read it from the run directory, SkyPilot uploads it, and Kubernetes gets it packed in the job's
    Secret, which has room for just under 1 MiB."""
    depends_on: tuple[Word, ...] = ()
    """Jobs, by number or run, that must succeed first; `afterany:12` waits for the end of job 12, however it ends."""
    hold: bool = False
    """Wait until `trainworks release`."""
    health: bool | Annotated[str, StringConstraints(pattern=r"\S", max_length=4096)] = False
    """Check every node before the ranks start: `true` for the checks of `trainworks health`, with `cluster.of` as what
    the node should have, or a shell command whose exit code other than 0 refuses the node. On Slurm the job then gets
    other nodes; elsewhere it fails."""
    idle: Idle = Idle()
    """Action when the job holds nodes and does not use them."""


class Container(Spec):
    """Container image of every rank."""

    image: Image | None = None
    """`docker://nvcr.io/nvidia/pytorch:26.09-py3`, or a file (`.sqsh`, `.sif`) that all nodes can read. Pyxis needs
    none if `options` has the `--container-name` of a container that is on the nodes."""
    runtime: Literal["pyxis", "apptainer"] = "pyxis"
    """Container runtime: the Slurm plug-in Pyxis with Enroot, or Apptainer."""
    mounts: tuple[Place, ...] = ()
    """`FROM:TO` or one path for both, in addition to the folders of the run."""
    options: tuple[Annotated[str, AfterValidator(_one_option)], ...] = ()
    """More options of the runtime, passed on unchanged: `--container-writable`."""


class LocalContainer(Spec):
    """Container of every rank of a command on this machine, in the network and process namespaces of the machine."""

    image: Image | None = None
    """Image by its name, best with its digest; `environment.image` is the same."""
    runtime: Literal["podman", "docker"] = "podman"
    mounts: tuple[Place, ...] = ()
    """`FROM:TO` or one path for both, in addition to the folders of the run."""
    options: tuple[Annotated[str, AfterValidator(_one_option)], ...] = ()
    """More options of `podman run` or `docker run`, passed on unchanged: `--ulimit=memlock=-1`."""
    runtime_options: tuple[Annotated[str, AfterValidator(_one_option)], ...] = ()
    """Options of the program itself, before `run`: `--cgroup-manager=cgroupfs`."""


class Local(Spec):
    """This machine."""

    container: LocalContainer | None = None


class Slurm(Spec):
    """A Slurm cluster, through its command line."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_&|\[\]()*!,.-]+$")] | None = None
    """Features that every node must have, in Slurm's syntax: `rack1`, `[rack1|rack2]`."""
    switches: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*(@[0-9:-]+)?$")] | None = None
    """Most leaf switches of the job, and the longest wait for them in minutes: `1@60`."""
    reservation: Word | None = None
    login: Word | None = None
    """Machine with sbatch, as ssh names it (`ada@login1`); this machine by default."""
    folder: RemotePath | None = None
    """Folder on the cluster that gets a copy of each run directory, for a `login` that does not see those of this
    machine: `/scratch/ada/runs`. By default the cluster's nodes see the run directory under its path here."""
    python: RemotePath | None = None
    """Python with the same version of Trainworks, on the login node and all nodes; `folder` needs it."""
    container: Container | None = None
    options: tuple[Annotated[str, AfterValidator(_one_option)], ...] = ()
    """More options of sbatch, passed on unchanged: `--mail-type=END`."""

    @model_validator(mode="after")
    def _check_copy(self) -> Slurm:
        if self.folder is not None and (self.login is None or self.python is None):
            missing = "login" if self.login is None else "python"
            raise FieldError(f"`cluster.slurm.folder` needs `{missing}`: the run directory is copied there over ssh")
        if self.python is not None and self.folder is None:
            raise FieldError("`cluster.slurm.python` needs `folder`: a shared run directory goes with a shared Python")
        return self

    @property
    def allows_requeue(self) -> bool:
        """Whether Slurm puts the job back into its queue after a preemption or a lost node.

        It does unless the user forbids it: a preemption costs no restart. After a failure the batch script itself
        refuses to start again if no restart is left.
        """
        return "--no-requeue" not in self.options


def _pod_patch(patch: dict[str, Any]) -> dict[str, Any]:
    try:
        return checked_pod_patch(patch)
    except UsageError as error:
        raise FieldError(error.message, hint=error.hint) from None


class Toleration(Spec):
    """A taint of nodes that the pods of a job tolerate, as Kubernetes writes it."""

    key: Word | None = None
    """Key of the taint; every taint by default."""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; every effect by default."""


class Kubernetes(Spec):
    """A Kubernetes cluster with JobSet, queued by Kueue if a queue is named."""

    context: Word | None = None
    """Context of kubectl's configuration; the current one by default."""
    namespace: Word = "default"
    queue: Word | None = None
    """LocalQueue of Kueue; that of `job.team` by default. Without one the pods start as soon as they fit."""
    queue_priority: Word | None = None
    """WorkloadPriorityClass of Kueue, the order in its queue; by default that of `priority_class`."""
    image: Word | None = None
    """Image with Trainworks and the dependencies of the run."""
    volume: Word | None = None
    """PersistentVolumeClaim of the run directory, mounted by all pods."""
    priority_class: Word | None = None
    service_account: Word | None = None
    node_selector: dict[Word, Word] = Field(default_factory=dict)
    run_as_user: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """User id of the pods, with the group of the same number; it owns new files on the volume. By default the user of
    the image, or 1000 if the namespace enforces the Pod Security standard `restricted`."""
    pull_secrets: tuple[Word, ...] = ()
    """Secrets with the credentials of the image's registry."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of nodes, beside those of accelerators: `{key: dedicated, value: training}`."""
    devices: dict[Word, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """More devices of every node, by resource: `{vpc.amazonaws.com/efa: 32}`, `{rdma/hca: 1}`."""
    shared_memory: SizeBytes | None = None
    """Largest size of `/dev/shm`; the memory of the pod by default."""
    topology: Word | None = None
    """Label of nodes; Kueue places all pods of the job where it has one value: `cloud.provider.com/topology-rack`."""
    keep: DurationS | None = None
    """Time after which Kubernetes deletes the finished job; 14 days by default."""
    patch: Annotated[dict[str, Any], AfterValidator(_pod_patch)] = Field(default_factory=dict)
    """Fields of the pod template, merged into that of the job as `kubectl patch` does: `spec: {hostNetwork: true}`."""


class Ssh(Spec):
    """Machines that ssh reaches, without a scheduler: all of one user, without root, and without a daemon."""

    hosts: tuple[SshHost, ...] = ()
    """The machines: `box1`, `ada@box2:2222`, or a name of ssh's configuration. `hosts: [...]` in `cluster` is short for
    this list."""
    addresses: dict[SshHost, Word] = Field(default_factory=dict)
    """Address at which the ranks of other hosts reach a host, by its name in `hosts`: `{box1: 10.0.0.1}`; by default
    that to which ssh connects."""
    python: RemotePath | None = None
    """Python with the same version of Trainworks, on all hosts; the path of this one by default."""
    config: Place | None = None
    """Configuration file of ssh, as `ssh -F` takes it; `~/.ssh/config` by default."""

    @model_validator(mode="after")
    def _check_hosts(self) -> Ssh:
        if twice := [host for host in self.hosts if self.hosts.count(host) > 1]:
            raise FieldError(f"`cluster.ssh.hosts` names `{twice[0]}` twice")
        if unknown := sorted(self.addresses.keys() - set(self.hosts)):
            raise FieldError(f"`cluster.ssh.addresses` names `{unknown[0]}`, which is not in `hosts`")
        return self


_STORE: dict[str, object] = {"anyOf": [{"type": "string", "examples": ["s3://bucket/prefix"]}, {"type": "object"}]}


class SkyPilot(RentedNodes):
    """Clouds through SkyPilot, which rents the nodes of a job and replaces preempted ones."""

    program: Command = "sky"
    """Command line of SkyPilot, in its own environment: a name on the search path, or a path."""
    store: Annotated[CheckpointCopy, WithJsonSchema(_STORE)] | None = None
    """Object store of the checkpoints and the record of a workload, `s3://bucket/prefix`, with the keys of an entry of
    `checkpoint.copies`: nodes that replace preempted ones continue from there, and the record comes back from there."""
    python: Command = "python3"
    """Python with Trainworks in the `image`."""
    wheel: Place | None = None
    """Wheel of this Trainworks, here or at a URL, to install on the nodes: `dist/trainworks-0.2.0-py3-none-any.whl`."""
    constraints: Place | None = None
    """File with the exact versions of the packages that `wheel` needs, as `pip freeze` writes it."""
    folder: RemotePath | None = None
    """Folder of run directories on the nodes, `~/trainworks-runs` by default. Several nodes need one that all of them
    mount, such as that of a volume of SkyPilot: `{task: {volumes: {/runs: my-volume}}, folder: /runs}`."""
    group: dict[str, Any] = Field(default_factory=dict)
    """More keys of the header of a job group, which a job with roles becomes, handed on unchanged:
    `{termination_delay: 30s}`."""

    @model_validator(mode="after")
    def _check_store(self) -> SkyPilot:
        if self.store is not None and not self.store.is_s3:
            hint = "name a bucket of an S3-compatible store: `s3://bucket/prefix`"
            raise FieldError("`cluster.skypilot.store` is a folder, which ends with the nodes", hint=hint)
        if (self.wheel is None) is not (self.constraints is None):
            hint = "set both; `pip freeze --exclude trainworks > constraints.txt` writes the versions that you have"
            raise FieldError("`cluster.skypilot` needs `wheel` and `constraints` together", hint=hint)
        if key := next((key for key in ("name", "execution", "primary_tasks") if key in self.group), None):
            hint = "remove it: `name` and `decides` of the roles say the same"
            raise FieldError(f"`cluster.skypilot.group.{key}` is not for an option", hint=hint)
        return self


def cluster_from_text(value: Any) -> Any:
    """Read `local`, `slurm:PARTITION` and similar as engines, any other text as a description of a cluster.

    That of a stack file, which has Slurm, is of its Slurm; words describe nodes to plan for alone. With `engine: ssh`,
    `hosts` is short for `ssh: {hosts: ...}`, and a job gets all of them unless it says how many.
    """
    if isinstance(value, dict) and value.get("engine") == "ssh" and isinstance(value.get("hosts"), list | tuple):
        rest = {key: field for key, field in value.items() if key != "hosts"}
        value = {"nodes": len(value["hosts"])} | rest | {"ssh": (rest.get("ssh") or {}) | {"hosts": value["hosts"]}}
    if isinstance(value, dict) and isinstance(value.get("of"), str):
        return {"engine": "slurm" if stack_file_in(value["of"]) else "described"} | value
    if not isinstance(value, str):
        return value
    if stack_file_in(value):
        return {"engine": "slurm", "of": value}
    engine, _, partition = value.partition(":")
    if engine == "slurm" and partition:
        return {"engine": engine, "slurm": {"partition": partition.strip()}}
    known = value in BUILT_IN or (value.isidentifier() and is_plugin(value))
    return {"engine": value} if known and value != "described" else {"engine": "described", "of": value}


def stack_file_in(text: str) -> tuple[str, str | None] | None:
    """Path of a stack file and the group of nodes behind it; None for a text that names no such file.

    >>> stack_file_in("cluster/stack.yaml:gpu"), stack_file_in("16 nodes of DGX H100")
    (('cluster/stack.yaml', 'gpu'), None)
    """
    found = re.fullmatch(r"(?P<path>.+\.ya?ml)(?::(?P<group>.+))?", text)
    return (found["path"], found["group"]) if found else None
