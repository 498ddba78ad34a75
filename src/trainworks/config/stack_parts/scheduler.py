"""`slurm` of the stack file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from trainworks.config.autoscale import Command, Name, NodeList
from trainworks.config.quantities import DurationS
from trainworks.config.slurm.sbatch_amounts import parse_slurm_time
from trainworks.config.spec import FieldError, Spec
from trainworks.config.stack_parts.words import AccountName, Folder, Version
from trainworks.errors import QuantityError


def _slurm_time(text: str) -> str:
    try:
        parse_slurm_time(text)
    except QuantityError as error:
        raise FieldError(error.message, hint=error.hint) from None
    return text


SlurmTime = Annotated[str, StringConstraints(pattern=r"^[0-9:-]+$|^UNLIMITED$"), AfterValidator(_slurm_time)]


class Partition(Spec):
    """A partition of Slurm: a queue over all compute nodes, or over some."""

    name: Name
    default: bool = False
    max_time: SlurmTime = "UNLIMITED"
    """Longest time of a job in Slurm's form: `2-00:00:00`."""
    priority: Annotated[int, Field(ge=1, le=65533)] = 1
    """Jobs of a partition with a higher priority go first."""
    nodes: tuple[NodeList, ...] = ()
    """Groups of `nodes` or single hosts: `[gpu, cpu01]`; all compute nodes when left out."""
    default_time: SlurmTime | None = None
    """Time of a job that asks for none; by default the longest."""
    max_nodes: Annotated[int, Field(ge=1)] | None = None
    """Most nodes of a job."""
    accounts: tuple[AccountName, ...] = ()
    """Accounts whose jobs it takes, with those below them; all when left out."""
    qos: tuple[AccountName, ...] = ()
    """QOS of the jobs that it takes; all when left out."""
    tier: Annotated[int, Field(ge=1, le=65533)] = 1
    """Rank among partitions over the same nodes: Slurm looks at the one of the highest tier first."""
    preempt: Literal["requeue", "cancel"] | None = None
    """What happens to running jobs of this partition where a higher tier needs their nodes; they keep them when left
    out."""
    grace: Annotated[DurationS, Field(ge=0, le=65533)] = 0.0
    """Time from the signal to the end of a job that is preempted, to save a checkpoint."""

    @model_validator(mode="after")
    def _default_within_the_limit(self) -> Partition:
        limit = parse_slurm_time(self.max_time)
        asked = parse_slurm_time(self.default_time) if self.default_time is not None else limit
        if limit is not None and (asked is None or asked > limit):
            message = f"`default_time` {self.default_time} of `{self.name}` is over its `max_time`"
            raise FieldError(message, hint="write a shorter one")
        if self.grace and self.preempt is None:
            raise FieldError(f"`grace` of `{self.name}` is for jobs that are preempted", hint="add `preempt: requeue`")
        return self


class QualityOfService(Spec):
    """A QOS of Slurm: limits and a priority that a job asks for with `--qos`."""

    name: AccountName
    """Lower case, as Slurm keeps it."""
    priority: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Jobs of a QOS with a higher priority go first."""
    preempts: tuple[AccountName, ...] = ()
    """Jobs of these QOS are requeued where this one needs their nodes."""
    max_time: SlurmTime | None = None
    """Longest time of a job."""
    max_gpus_per_user: Annotated[int, Field(ge=1)] | None = None
    max_jobs_per_user: Annotated[int, Field(ge=1)] | None = None


class SlurmAccount(Spec):
    """An account of Slurm: a team whose jobs are counted together."""

    name: AccountName
    parent: AccountName = "root"
    """Account above it."""
    share: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Share of the cluster, in proportion to the others of its parent."""
    max_gpus: Annotated[int, Field(ge=1)] | None = None
    """Most GPUs that all running jobs of the account hold together."""
    accelerator_hours_per_month: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Hours times GPUs that all jobs of the account hold in a calendar month, after which Slurm ends those that run and
    starts none until the next month; not on Kubernetes, whose queues have no limit of hours."""
    qos: tuple[AccountName, ...] = ()
    """QOS that its jobs may ask for, beside `normal`; the first one is the default."""


class SlurmPower(Spec):
    """Power saving: Slurm stops idle compute nodes, and starts them when a job needs them."""

    start: Command
    """Starts the node `$NODE`, in bash, as SlurmUser: `ipmitool -I lanplus -H $NODE-bmc ... chassis power on`."""
    stop: Command
    """Stops the node `$NODE`."""
    down_after: Annotated[DurationS, Field(ge=60)] = 1800.0
    """Time without a job after which a node stops."""
    keep: Annotated[int, Field(ge=0)] = 0
    """Number of idle nodes that stay up."""
    start_timeout: DurationS = 600.0
    """Longest time until a node is up; one that takes longer becomes DOWN."""
    stop_timeout: DurationS = 120.0


class SlurmScheduler(Spec):
    """Slurm, and where its packages come from."""

    release: Version
    """Major release, `25.11`."""
    packages: Literal["distribution", "schedmd"] = "schedmd"
    """Packages of the operating system, or packages of SchedMD's names that you built into your own repository."""
    accounting: bool = True
    """Run slurmdbd and MariaDB on the node with the role `database`."""
    state: Folder = "/var/spool/slurmctld"
    """Folder of what slurmctld knows; that of several controllers is below one of `mounts`."""
    partitions: Annotated[tuple[Partition, ...], Field(min_length=1)] = (Partition(name="train", default=True),)
    qos: tuple[QualityOfService, ...] = ()
    accounts: tuple[SlurmAccount, ...] = ()
    """Accounts with limits; those that only `users` name have none."""
    node_timeout: Annotated[DurationS, Field(ge=60, le=65533)] = 300.0
    """Time without an answer after which Slurm takes a node for lost, and its jobs continue elsewhere."""
    power: SlurmPower | None = None
    adopt: bool = False
    """pam_slurm_adopt: users log in on a compute node while a job of theirs is there, and their processes belong to it;
    root and `admin` always do."""
    pmix: Version | None = None
    """Release of PMIx that Slurm was built with, for MPI jobs: `srun --mpi=pmix` becomes the default."""
    pyxis: Version | None = None
    """Release of Slurm that pyxis, NVIDIA's plugin for containers, was built for; the nodes need it and enroot."""

    @model_validator(mode="after")
    def _limits_have_a_database(self) -> SlurmScheduler:
        if not self.accounting and (self.qos or self.accounts):
            raise FieldError("`qos` and `accounts` are kept by slurmdbd", hint="remove `accounting: false`")
        known = {"normal", *(each.name for each in self.qos)}
        wanted = [name for qos in self.qos for name in qos.preempts]
        wanted += [name for account in self.accounts for name in account.qos]
        wanted += [name for partition in self.partitions for name in partition.qos]
        if missing := [name for name in wanted if name not in known]:
            raise FieldError(f"no QOS `{missing[0]}`", hint="add it to `slurm.qos`")
        above = ["root"]
        for account in self.accounts:
            if account.parent not in above:
                raise FieldError(
                    f"no account `{account.parent}` above `{account.name}`", hint="put the parent first in the list"
                )
            above.append(account.name)
        return self

    @model_validator(mode="after")
    def _one_way_to_preempt(self) -> SlurmScheduler:
        preempted = [each for each in self.partitions if each.preempt is not None]
        if preempted and any(qos.preempts for qos in self.qos):
            raise FieldError(
                "Slurm preempts by partition or by QOS", hint="remove `preempt` of partitions, or `preempts` of QOS"
            )
        highest = max(each.tier for each in self.partitions)
        if lonely := [each.name for each in preempted if each.tier == highest]:
            message = f"no partition has a higher `tier` than `{lonely[0]}`, and none would preempt its jobs"
            raise FieldError(message, hint="give the one that does a higher `tier`")
        return self
