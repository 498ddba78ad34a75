"""Framework, resources and environment of a command, with the keys of a SkyPilot task file, and roles: several."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
    model_serializer,
)

from trainworks.config.limits import check_limit, up_to
from trainworks.config.spec import FieldError, Image, Spec
from trainworks.errors import suggest

Framework = Literal["torch", "jax", "tensorflow", "mpi", "deepspeed", "slurm"]

Place = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9/][A-Za-z0-9._@/:+=-]*$", max_length=4096)]
"""A path or an image: no blank, comma, quote or shell character."""

InstanceType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._$:-]*$", max_length=253)]
"""An instance type of a cloud; Oracle's have a `$` for cores and memory. Never passed to a shell."""

Infra = Annotated[str, StringConstraints(pattern=r"^(\*|[A-Za-z][A-Za-z0-9-]*)(/[A-Za-z0-9*][A-Za-z0-9._@:/*-]*)?$")]
"""A place as SkyPilot names it: a cloud, `CLOUD/REGION`, `CLOUD/REGION/ZONE`, `k8s/CONTEXT`."""


class AcceleratorRequest(Spec):
    """Kind and number of accelerators of one node: `A100:8`."""

    name: str
    count: int
    """Whole accelerators of the job; 1 if SkyPilot may share one."""
    share: float | None = None
    """Part of one accelerator, `T4:0.5`, which two jobs of one SkyPilot cluster can share; elsewhere it is a whole."""

    @property
    def kind(self) -> str | None:
        """Name of the accelerator; None for `gpu`, which means any."""
        return None if self.name.lower() == "gpu" else self.name

    def __str__(self) -> str:
        return f"{self.name}:{self.share or self.count:g}"

    @model_serializer
    def _to_text(self) -> str:
        return str(self)


class AnyOf(tuple[AcceleratorRequest, ...]):
    """Alternatives of which any will do, such as the cheapest; in a plain tuple the first that exists is taken."""


def _requests(value: Any) -> tuple[AcceleratorRequest, ...]:
    """Parse one or several alternatives: `A100:8`, `[A100:8, V100:8]` in this order, any of `{A100: 8, V100: 8}`."""
    if isinstance(value, AnyOf):
        return value
    if isinstance(value, dict):
        texts = [str(name) if count is None else f"{name}:{count}" for name, count in value.items()]
    else:
        texts = [str(item) for item in (value if isinstance(value, list | tuple) else [value])]
    if not texts:
        raise FieldError("`accelerators` is empty", hint="write it like `A100:8`")
    found = map(parse_request, texts)
    return AnyOf(found) if isinstance(value, dict) else tuple(found)


def _to_requests(requests: tuple[AcceleratorRequest, ...]) -> list[str] | dict[str, None]:
    texts = [str(request) for request in requests]
    return dict.fromkeys(texts) if isinstance(requests, AnyOf) else texts


_MIG = re.compile(
    r"(?:^|[^a-z0-9])(?:mig[^a-z0-9])?"
    r"(?P<profile>(?:\d+c\.)?\d+g[._]\d+gb(?:[+.-](?:me|gfx)(?:\.all)?)*)(?![a-z0-9])",
    re.IGNORECASE,
)


def split_mig(name: str) -> tuple[str, str | None]:
    """Model and MIG profile that the name of an accelerator has; the profile, a part of one, in Kubernetes' spelling.

    >>> split_mig("A100-SXM4-40GB-MIG-1g.5gb+me"), split_mig("3g_40gb"), split_mig("H100")
    (('A100-SXM4-40GB', '1g.5gb.me'), ('', '3g.40gb'), ('H100', None))

    Source: NVIDIA's MIG user guide, `GI_SLICESg.MEMORYgb+ATTRIBUTE`, with `CI_SLICESc.` before a compute instance; its
    device plugin, which names the resource `nvidia.com/mig-PROFILE` with `.` for `+`.
    """
    if (found := _MIG.search(name)) is None:
        return name, None
    return name[: found.start()], found["profile"].lower().replace("_", ".").replace("+", ".")


def parse_request(text: str) -> AcceleratorRequest:
    """Accelerators of one node: `A100:8`, `A100` for one, or `1g.10gb:2` for two parts by MIG.

    Raises:
        FieldError: the text names none, or no whole number.
    """
    name, _, count = text.strip().partition(":")
    count = count.strip()
    if not re.fullmatch(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise FieldError(f"`{text}` does not name an accelerator", hint="write it like `A100:8`")
    if re.fullmatch(r"0?\.\d*[1-9]\d*", count):
        return AcceleratorRequest(name=name, count=1, share=float(count))
    if not re.fullmatch(r"[1-9][0-9]*(\.0+)?", count or "1"):
        raise FieldError(
            f"`{text}` does not give a whole number of accelerators", hint=f"use whole accelerators: `{name}:1`"
        )
    return AcceleratorRequest(name=name, count=int(float(count or "1")))


def _whole(value: object) -> AcceleratorRequest:
    if isinstance(value, str) and ":" not in value:
        raise FieldError(f"`{value}` has no number", hint=f"count what a node has: `{value}:8`")
    found = value if isinstance(value, AcceleratorRequest) else parse_request(str(value))
    if found.share is not None:
        raise FieldError(f"`{found}` is a part of an accelerator", hint=f"count what a node has: `{found.name}:8`")
    check_limit("accelerators per node", found.count)
    return found


NodeAccelerators = Annotated[
    AcceleratorRequest, BeforeValidator(_whole), WithJsonSchema({"type": "string", "examples": ["h100:8"]})
]
"""Accelerators that a node has."""


class AtLeast(float):
    """A lower limit, `4+`. A plain number is the exact amount to SkyPilot, and a lower limit to the other backends."""


def amount_text(amount: float) -> str:
    """An amount as a run file has it.

    >>> amount_text(4.0), amount_text(AtLeast(0.5))
    ('4', '0.5+')
    """
    number = f"{amount:.9f}".rstrip("0").rstrip(".")
    return f"{number}+" if isinstance(amount, AtLeast) else number


def _amount(unit: str, example: str) -> PlainValidator:
    """A validator of `4` and `4+`; with a unit, of `32`, `32+`, `32GB` and `32GB+`."""

    def parse(value: Any) -> float:
        if isinstance(value, AtLeast):
            return value
        found = re.fullmatch(rf"(\d+(?:\.\d+)?)(?:\s*{unit})?(\+)?", str(value).strip())
        if found is None or float(found[1]) <= 0:
            raise FieldError(f"`{value}` is not a number above 0", hint=f"write it like `{example}`")
        return AtLeast(found[1]) if found[2] else float(found[1])

    return PlainValidator(parse)


def _amount_as_written(amount: float) -> float | str:
    return amount_text(amount) if isinstance(amount, AtLeast) else amount


AcceleratorsField = Annotated[
    tuple[AcceleratorRequest, ...],
    PlainValidator(_requests),
    PlainSerializer(_to_requests),
    WithJsonSchema({"type": "string", "examples": ["A100:8", "H100"]}),
]
CoresField = Annotated[
    float,
    _amount("", "4+"),
    PlainSerializer(_amount_as_written),
    WithJsonSchema({"type": ["string", "number"], "examples": ["4+", "16"]}),
]
MemoryField = Annotated[
    float,
    _amount("GB", "32+"),
    PlainSerializer(_amount_as_written),
    WithJsonSchema({"type": ["string", "number"], "examples": ["32+", "64GB"]}),
]


def _environment_value(value: Any) -> Any:
    """Convert a number to text, as SkyPilot does."""
    return str(value) if isinstance(value, int | float) else value


EnvironmentValue = Annotated[
    str | None,
    BeforeValidator(_environment_value),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"], "examples": ["hello"]}),
]
"""Text; null takes the value from the shell that starts the run."""


class Resources(Spec):
    """Resources that every node must have, with SkyPilot's keys; refused if this machine has less."""

    accelerators: AcceleratorsField | None = None
    """Accelerators of a node: `A100:8`, `gpu:8` for any kind, `1g.10gb:2` for parts by MIG; of several,
    `[A100:8, V100:8]` in this order, any of `{A100: 8, V100: 8}`. Of alternatives the kind of this machine counts."""
    cpus: CoresField | None = None
    """Cores of a node, at least; `4` is exact for SkyPilot, and `4+` a lower limit."""
    memory: MemoryField | None = None
    """Memory of a node in GB, at least; `32` is exact for SkyPilot, and `32+` a lower limit."""

    @property
    def memory_bytes(self) -> int | None:
        """Memory of a node; None without a request."""
        return round(self.memory * 1e9) if self.memory else None


_OF_THE_PROGRAM = ("callbacks", "deterministic", "eval", "sample_prompt", "seed")
"""Keys of a workload that change no plan of a step."""


def check_keys_of_command(run_file: Any) -> None:
    """Refuse keys of a `RunFile` that only a command, or only a workload, can have.

    Raises:
        FieldError: the first of them.
    """
    metrics, recover, guard, trains = run_file.metrics, run_file.recover, run_file.guard, run_file.trains
    if run_file.workload is not None and (metrics != type(metrics)() or trains is not None):
        key = "metrics" if trains is None else "trains"
        raise FieldError(f"`{key}` needs `run`: a workload measures itself, and says what it trains")
    of_commands = ("setup", "framework", "workdir", "num_nodes")
    if run_file.workload and (own := next((each for each in of_commands if getattr(run_file, each) is not None), None)):
        raise FieldError(f"`{own}` needs `run`")
    if trains is not None:
        check_trained(trains.task, trains.train_for.unit, trains)
    refused = {
        "`metrics.samples_per_step` needs `trains`": trains is None and bool(metrics.samples_per_step),
        "`layout` needs `workload`, or `trains` beside `run`": run_file.layout is not None and trains is None,
        "`software` needs `workload`, or `trains` beside `run`": run_file.software is not None and trains is None,
        "`recover.hang_timeout` needs `workload`: a command has no heartbeat": recover.hang_timeout != "auto",
        "`recover.start_timeout` needs `workload`": recover.start_timeout != type(recover)().start_timeout,
        "`checkpoint.memory_every` needs `workload`": run_file.checkpoint.memory_every is not None,
        "`profile` needs `workload`: the steps of a command are not known": run_file.profile is not None,
        "`guard` needs `workload`: the loss of a command is not known": guard != type(guard)(),
    }
    if run_file.workload is None and (message := next((each for each, is_set in refused.items() if is_set), None)):
        raise FieldError(message)


def check_secrets(run_file: Any) -> None:
    """Refuse secrets of SkyPilot that are not among the variables of a `RunFile`, or of a role of it.

    Raises:
        FieldError: the first of them.
    """
    envs, roles = run_file.envs.keys(), run_file.roles
    every = envs | {key for role in roles.values() for key in role.envs}
    places = {"cluster.skypilot": (run_file.cluster.skypilot, every)}
    own = {name: role for name, role in roles.items() if role.skypilot is not None}
    places |= {f"roles.{name}.skypilot": (role.skypilot, envs | role.envs.keys()) for name, role in own.items()}
    for place, (options, variables) in places.items():
        if missing := [name for name in options.secrets if name not in variables]:
            raise FieldError(
                f"`{missing[0]}` in `{place}.secrets` is not among the variables of `envs`",
                hint=f"add `{missing[0]}: null` to `envs`, which takes it from your shell",
            )


def check_trained(task: str, unit: str, trains: Spec) -> None:
    """Refuse what the plan of a command cannot take.

    Args:
        task: of `trains`.
        unit: of its length.
        trains: a workload, which other keys may be set of.

    Raises:
        FieldError: nothing gives the model or the steps, or a key is for the program alone.
    """
    if task == "module":
        hint = "name it by `preset`, `hf` or dimensions"
        raise FieldError("`trains` is for a plan, which takes no model of a `task: module`", hint=hint)
    if unit == "epochs":
        hint = "give `trains.train_for` in steps or tokens"
        raise FieldError("the plan of a command does not know how long an epoch is", hint=hint)
    fields = type(trains).model_fields
    if found := [name for name in _OF_THE_PROGRAM if getattr(trains, name) != fields[name].default]:
        message = f"`trains.{found[0]}` has no effect: `trains` is for a plan, and the program trains"
        raise FieldError(message, hint="leave it out, and say it to the program")


RoleName = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,28}[a-z0-9])?$")]
"""Name of a role: lower-case letters, digits and `-`, as Kubernetes takes it."""


class RentedNodes(Spec):
    """Options of SkyPilot for the nodes that it rents."""

    infra: tuple[Infra, ...] = ()
    """Places to run the job: `aws`, `gcp/us-central1`, `k8s/my-context`; by default all that you have access to."""
    ordered: bool = False
    """Take the first place of `infra` with capacity instead of the cheapest."""
    use_spot: bool = False
    """Rent spot nodes, which the cloud may preempt."""
    recovery: Literal["failover", "eager_next_region"] = "eager_next_region"
    """First place to look for new nodes after a preemption: the same region, or the next."""
    max_hourly_cost: Annotated[float, Field(gt=0)] | None = None
    """Highest price of one node, in dollars per hour."""
    instance_type: InstanceType | None = None
    """Instance type of the cloud: `p5.48xlarge`."""
    image: Place | None = None
    """Container (`docker:nvcr.io/nvidia/pytorch:26.09-py3`) or cloud image that the nodes start from. That of a
    workload has Trainworks, unless `wheel` installs it."""
    disk_size: Annotated[int, Field(ge=1)] | None = None
    """Disk size of a node in GB."""
    file_mounts: dict[str, str] = Field(default_factory=dict)
    """Folders of this machine or buckets by their path on the nodes: `/data: s3://my-bucket/data`."""
    secrets: tuple[str, ...] = ()
    """Names in `envs` whose variables are SkyPilot's `secrets`, which it hides; those without a value always are."""
    mounts: dict[str, Any] = Field(default_factory=dict)
    """Buckets with options of their own by their path on the nodes, handed on unchanged:
    `/data: {name: my-bucket, store: s3, mode: MOUNT}`."""
    resources: dict[str, Any] = Field(default_factory=dict)
    """More keys of a task's `resources`, handed on unchanged: `{disk_tier: best}`."""
    task: dict[str, Any] = Field(default_factory=dict)
    """More keys of a task, handed on unchanged: `{volumes: {/data: my-volume}}`."""


class JobRole(Spec):
    """A group of nodes of one job, with a command, resources and a rule of its own."""

    run: str
    """A shell command; started once per node in plain bash, with `processes_per_node` once per rank."""
    setup: str | None = None
    """A shell command that runs once per node before `run`."""
    nodes: Annotated[int, up_to("nodes")] = 1
    """Number of nodes of the role."""
    processes_per_node: Annotated[int, up_to("processes_per_node")] | Literal["auto"] = "auto"
    """Ranks per node; `auto` starts the command once per node."""
    resources: Resources | None = None
    """Resources that every node of the role must have; without `accelerators` it sees none."""
    framework: Framework | None = None
    """Framework whose rendezvous variables the command gets; `torch` by default."""
    envs: dict[str, EnvironmentValue] = Field(default_factory=dict)
    """Environment variables of the role, besides those of all roles."""
    image: Image | None = None
    """Container image of the role on Kubernetes and SkyPilot; by default that of the job."""
    skypilot: RentedNodes | None = None
    """Options of `cluster.skypilot` for this role, in place of those of the job."""
    decides: bool = True
    """Whether the job succeeds only when this role has. A role that does not decide, such as a server, runs until all
    deciding roles have succeeded, and is then ended."""
    may_end: bool = False
    """Whether a role that does not decide may end with success before the job does; by default that is a failure."""
    restarts: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Automatic restarts of this role alone within `recover.restart_window`; after them a failure concerns the whole
    job, with `recover.max_restarts`."""
    depends_on: tuple[RoleName, ...] = ()
    """Roles that must succeed before this one starts; the nodes of all roles are allocated together."""

    @property
    def of_skypilot(self) -> dict[str, object]:
        """Options of SkyPilot that its nodes have in place of those of the job."""
        own: dict[str, object] = {"image": f"docker:{self.image}"} if self.image else {}
        if self.skypilot is not None:
            own |= {key: getattr(self.skypilot, key) for key in self.skypilot.model_fields_set}
        return own


def check_roles(run_file: Any) -> None:
    """Check what the roles of a `RunFile` are together, and that no key of the whole job is what each role has itself.

    Raises:
        FieldError: no role decides, one waits for a role that does not exist, never ends, or waits for it, or a key
            of the whole job is set.
    """
    roles: Mapping[str, JobRole] = run_file.roles
    if not roles:
        return
    beside = [key for key in ("setup", "framework", "num_nodes", "resources", "trains") if getattr(run_file, key)]
    cluster, others = run_file.cluster, {"cluster.of": run_file.cluster.of, "job.min_nodes": run_file.job.min_nodes}
    beside += ["cluster.nodes"] if cluster.nodes != 1 and cluster.engine != "ssh" else []  # which counts its hosts
    beside += ["cluster.processes_per_node"] if cluster.processes_per_node != "auto" else []
    beside += [key for key, value in others.items() if value is not None]
    for key in beside:
        own = key.removeprefix("cluster.").replace("num_nodes", "nodes")
        hint = f"write it as `roles.{next(iter(roles))}.{own}`" if own in JobRole.model_fields else f"remove `{key}`"
        raise FieldError(f"`{key}` is not for a job with `roles`", hint=hint)
    if not any(role.decides for role in roles.values()):
        raise FieldError("no role decides when the job has succeeded", hint="leave `decides` out of one of them")
    for name, role in roles.items():
        _check_role(name, role, roles)
    ready: set[str] = set()
    while free := [name for name in roles if name not in ready and ready.issuperset(roles[name].depends_on)]:
        ready.update(free)
    if waiting := [name for name in roles if name not in ready]:
        raise FieldError(f"roles wait for each other: {', '.join(waiting)}", hint="leave a `depends_on` out")


def _check_role(name: str, role: JobRole, roles: Mapping[str, JobRole]) -> None:
    if role.framework in ("mpi", "slurm"):
        hint = "set `framework: torch`, or submit the command as a job of its own with `run`"
        raise FieldError(f"role `{name}` cannot have `framework: {role.framework}`", hint=hint)
    if role.may_end and role.decides:
        hint = "remove it, or set `decides: false`"
        raise FieldError(f"role `{name}` decides, and `may_end` is for roles that do not", hint=hint)
    for other in role.depends_on:
        if other not in roles:
            known = suggest(other, roles, otherwise=f"the roles are {', '.join(roles)}")
            raise FieldError(f"role `{name}` depends on an unknown role `{other}`", hint=known)
        if not (roles[other].decides or roles[other].may_end):
            message = f"role `{name}` would wait forever: `{other}` runs until the job ends"
            raise FieldError(message, hint=f"leave `decides` out of `{other}`, or start them together")
