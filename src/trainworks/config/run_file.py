"""The run file: `workload`, a model to train, `run`, a command, or `roles`, several; where, how, and what to keep."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from trainworks.config.autoscale import Autoscale
from trainworks.config.backend_names import add_blocks, is_plugin
from trainworks.config.command import (
    EnvironmentValue,
    Framework,
    JobRole,
    Resources,
    RoleName,
    check_keys_of_command,
    check_roles,
    check_secrets,
)
from trainworks.config.data import Data, Evaluation
from trainworks.config.engines import Engine, JobOptions, Kubernetes, Local, SkyPilot, Slurm, Ssh, cluster_from_text
from trainworks.config.environment import RunEnvironment, environment_from_text
from trainworks.config.finetune import Adapter, Chat, Preference, check_samples
from trainworks.config.layout import Layout
from trainworks.config.limits import check_limit, up_to
from trainworks.config.model import Model
from trainworks.config.notify import Notifications, notifications_from_list
from trainworks.config.optimizer import Optimizer
from trainworks.config.quantities import HourPrice, StepWindowField, TrainForField
from trainworks.config.recovery import Checkpoint, Goal, Guard, Recover
from trainworks.config.software import TrainingSoftware, software_from_text
from trainworks.config.spec import CallbackClass, FieldError, PathText, RunName, Spec
from trainworks.config.track import ScriptMetrics, Track, TrackerName, trackers_from_list
from trainworks.errors import UsageError
from trainworks.masking import is_secret
from trainworks.units import Money


class Workload(Spec):
    """A training run of Trainworks."""

    task: Literal["causal-lm", "masked-lm", "image-classification", "diffusion", "module"]
    """Objective: next token, masked tokens, classes of images, noise of latents (a plan alone), or your file's."""
    model: Model
    adapter: Adapter | None = None
    """Train low-rank adapters (LoRA) and leave the weights of the checkpoint as they are."""
    preference: Preference | None = None
    """Train on preferences (DPO, KTO, a reward model) instead of on the next token; `{}` for the defaults, DPO."""
    data: Data = Data()
    """Training data; not used with `task: module`, whose file builds its own dataset."""
    precision: Literal["fp32", "bf16", "fp16", "tf32", "fp8", "fp4"] = "bf16"
    """Arithmetic of forward and backward; weights, sums and optimizer stay in fp32. By default bf16, or fp32 on a
    processor that only emulates bf16. tf32 and fp8 need accelerators with support; fp4 can be planned, not trained."""
    global_batch: Annotated[int, up_to("global_batch")]
    """Sequences, pairs, images or samples per optimizer step, over all ranks."""
    train_for: TrainForField
    optimizer: Optimizer = Optimizer()
    eval: Evaluation | None = None
    """Evaluation on held-out data during training; none by default."""
    callbacks: tuple[CallbackClass, ...] = ()
    """Classes of your own, `package.module:Class`, whose methods every rank calls during training; modules are found
    in the folder that the run was started in, and among installed packages."""
    compile: bool | Literal["auto"] = "auto"
    """Compile blocks with torch.compile; `auto`: on accelerators, if the plan expects it to save more than it takes."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    deterministic: bool = False
    """Make two runs on the same ranks bit-identical on a GPU too. Slower; refuses operations without such a version."""
    sample_prompt: str | None = None
    """Prompt that the trained model continues at the end of the run."""

    @property
    def unit(self) -> Literal["tokens", "images", "samples"]:
        """Unit of the throughput."""
        return "images" if self.task == "image-classification" else "tokens" if "-lm" in self.task else "samples"

    @property
    def has_perplexity(self) -> bool:
        """Whether the loss is a cross-entropy of tokens."""
        return self.unit == "tokens" and self.preference is None

    @property
    def is_fine_tuned(self) -> bool:
        """Whether a checkpoint with an adapter or a reference trains, which replicas and shards alone can do."""
        return self.adapter is not None or self.preference is not None

    @property
    def trains_reward(self) -> bool:
        """Whether the model gives a sequence one number, its reward, in place of logits."""
        return self.preference is not None and not self.preference.has_reference

    @property
    def lacks_weights(self) -> bool:
        """Whether a fine-tuning names no checkpoint to start from: it can be planned, and not run."""
        return self.is_fine_tuned and self.model.weights != "pretrained"

    @property
    def sequences_per_sample(self) -> int:
        """Those that take a gradient: two for a pair of answers."""
        return 1 if self.preference is None or self.data.chat is None else self.data.chat.conversations

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a global batch."""
        return self.global_batch * self.sequences_per_sample * self.data.sequence_length

    @model_validator(mode="after")
    def _can_be_deterministic(self) -> Workload:
        if self.deterministic and self.compile is True:
            raise FieldError(
                "`compile` measures kernels and takes the fastest, which may differ from run to run; "
                "`deterministic` needs `compile: false`"
            )
        return self

    @model_validator(mode="after")
    def _has_held_out_data(self) -> Workload:
        if self.eval is not None:
            self.eval.check_task(self.task, has_pairs=self.preference is not None)
        return self

    @model_validator(mode="after")
    def _module_or_data(self) -> Workload:
        if (self.task == "module") != (self.model.module is not None):
            raise FieldError("`task: module` needs `model.module`, its Python file, and only it uses one")
        if self.task == "module" and self.data != Data():
            raise FieldError(
                "`task: module` does not use `data`: the module builds its own dataset",
                hint="remove `data` and read the data in `build_dataset`",
            )
        if self.unit != "tokens" and self.train_for.unit == "tokens":
            raise FieldError(f"`task: {self.task}` has no tokens to count", hint="give `train_for` in steps or epochs")
        if self.task == "causal-lm" and self.model.architecture == "bert":
            raise FieldError(
                "bert is bidirectional: `task: causal-lm` would leak the target",
                hint="set `task: masked-lm`, or another architecture",
            )
        if self.task == "masked-lm" and self.data.pack:
            raise FieldError("`task: masked-lm` does not support `pack`: it trains on full rows, without padding")
        if self.task != "causal-lm" and self.data.chat is not None:
            raise FieldError(f"`data.chat` needs `task: causal-lm`, not {self.task}")
        if (self.task != "causal-lm" or self.trains_reward) and self.sample_prompt is not None:
            what = "a reward model" if self.trains_reward else self.task
            raise FieldError(f"`sample_prompt` needs `task: causal-lm`; {what} does not generate text")
        return self

    @model_validator(mode="after")
    def _can_be_fine_tuned(self) -> Workload:
        check_samples(self.preference, self.data.chat or Chat())
        if self.is_fine_tuned and (self.task != "causal-lm" or (self.lacks_weights and self.model.hf is not None)):
            key = "preference" if self.adapter is None else "adapter"
            raise FieldError(f"`{key}` needs `task: causal-lm` and a checkpoint", hint="set `weights: pretrained`")
        if self.adapter is not None:
            has_reference = self.preference is not None and self.preference.has_reference
            self.adapter.check(self.precision, lacks_weights=self.lacks_weights, has_reference=has_reference)
        if self.preference is not None and self.precision == "fp8":
            raise FieldError("`preference` does not support `precision: fp8`", hint="set `precision: bf16`")
        return self

    @model_validator(mode="after")
    def _size_of_a_sample(self) -> Workload:
        if self.task in ("module", "diffusion"):
            return self
        if self.task == "image-classification" and set(self.data.sizes) != {"image_size"}:
            raise FieldError("`task: image-classification` needs `data.image_size`, and no other size")
        if self.unit == "tokens" and (self.data.sequence_length < 2 or self.data.sizes):
            raise FieldError("a text task needs `data.sequence_length` of at least 2, and no `image_size` or `frames`")
        return self


class Cluster(Spec):
    """The cluster to run on or plan for.

    `local` is this machine; `slurm`, `slurm:PARTITION`, `kubernetes`, `skypilot`, `{engine: ssh, hosts: [a, b]}` or the
    name of an installed plugin selects a backend, and `stack.yaml` the Slurm of that stack; any other text, such as
    `4x p4d.24xlarge`, describes a cluster to plan for.
    """

    model_config = ConfigDict(json_schema_extra=add_blocks)

    engine: Engine = "local"
    of: str | None = None
    """Description of a cluster: `4 nodes of 8x A100-SXM-80GB over 8x HDR`, `64x H100`, or its stack file, `stack.yaml`.
    With an engine other than `local` the job requests these nodes, their accelerators and, of nodes that the catalogue
    knows, 80 % of cores and memory; `nodes`, `processes_per_node` and `resources` may take a part. The ranks also get
    the variables that NCCL needs on its network."""
    usd_per_accelerator_hour: Annotated[float, Field(gt=0)] | None = None
    """Price of one accelerator per hour; a budget needs it."""
    price: HourPrice | None = None
    """The same in any currency, `¥20/GPU/h` or `2.5 USD`; give one of the two."""
    contract: Literal["on-demand", "reserved", "spot", "own"] = "on-demand"
    """What that price is: a rent, or with `own` what an hour of your own nodes costs, which no offer is compared as."""
    nodes: Annotated[int, up_to("nodes")] = 1
    """Number of node agents, with `of` and an engine by default all described nodes; several on one machine are
    separate failure domains."""
    processes_per_node: Annotated[int, up_to("processes_per_node")] | Literal["auto"] = "auto"
    """Ranks per node; `auto` is one per accelerator, or one on a machine without accelerators."""
    rendezvous_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the rendezvous; 0 selects a free one."""
    local: Local = Local()
    """Options of `engine: local`."""
    slurm: Slurm = Slurm()
    """Options of `engine: slurm`."""
    kubernetes: Kubernetes = Kubernetes()
    """Options of `engine: kubernetes`."""
    skypilot: SkyPilot = SkyPilot()
    """Options of `engine: skypilot`."""
    ssh: Ssh = Ssh()
    """Options of `engine: ssh`."""
    plugins: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options of backends from plugins, by name; `ray: {...}` in `cluster` is short for `plugins: {ray: {...}}`."""
    autoscale: Autoscale | None = None
    """Nodes that start and stop with the jobs, by the backend's own means."""

    @classmethod
    def named(cls, text: str) -> Cluster:
        """The cluster that `cluster: TEXT` of a run file is.

        >>> Cluster.named("slurm:train").slurm.partition, Cluster.named("4x p4d.24xlarge").of
        ('train', '4x p4d.24xlarge')
        """
        return cls.model_validate(cluster_from_text(text))

    @model_validator(mode="before")
    @classmethod
    def _collect_plugin_options(cls, value: Any) -> Any:
        """Move the blocks of plugins, such as `ray: {...}`, into `plugins`."""
        unknown = value.keys() - cls.model_fields.keys() if isinstance(value, dict) else ()
        blocks = {name: value[name] for name in unknown if is_plugin(name)}
        if not blocks:
            return value
        rest = {name: field for name, field in value.items() if name not in blocks}
        return rest | {"plugins": {**rest.get("plugins", {}), **blocks}}

    @model_validator(mode="after")
    def _described_or_local(self) -> Cluster:
        if self.engine == "described" and self.of is None:
            raise FieldError(
                "`cluster.of` is missing: `engine: described` needs a description of the cluster",
                hint="write it like `cluster: 64x H100`",
            )
        if self.of is not None and self.engine == "local":
            raise FieldError(
                "`of` describes a cluster to plan for, `engine: local` is this machine", hint="remove `engine`"
            )
        if self.price is not None and self.usd_per_accelerator_hour is not None:
            raise FieldError("`price` and `usd_per_accelerator_hour` are one price", hint="give one of the two")
        return self

    @property
    def hour_price(self) -> Money | None:
        """Price of an accelerator hour in the currency in which it was given."""
        usd = self.usd_per_accelerator_hour
        return self.price if usd is None else Money(usd, "USD")


class RunFile(Spec):
    """One file, one run."""

    name: RunName
    """Name of the run directory: letters and digits of any script, `.`, `_`, `-`; that of the file for a command."""
    workload: Workload | None = None
    """A model to train; excludes `run` and `roles`."""
    roles: dict[RoleName, JobRole] = Field(default_factory=dict)
    """Groups of nodes by name, each with a command of its own; they start and end together. Excludes `run`."""
    run: str | None = None
    """A shell command; excludes `workload`. Started once per rank; with SkyPilot's `num_nodes` or `resources` once per
    node, in plain bash; with `framework: mpi` and `slurm` once."""
    framework: Framework | None = None
    """Framework whose rendezvous variables the command gets; `torch` by default. `slurm` is for a batch script that
    starts the ranks with its own `srun`."""
    trains: Workload | None = None
    """What `run` trains, with the keys of a `workload`, for its plan: model, length and batch; `layout` and `software`
    say how its program does it."""
    setup: str | None = None
    """A shell command that runs once per node before `run`."""
    envs: dict[str, EnvironmentValue] = Field(default_factory=dict)
    """Environment variables of `setup` and `run`, or of the ranks of a `workload`; null takes the value from the shell
    that starts the run."""
    environment: Annotated[
        RunEnvironment | None,
        BeforeValidator(environment_from_text, json_schema_input_type=RunEnvironment | str | None),
    ] = None
    """Packages of the ranks: a lock file, a conda file or an image; a file name alone is short for `{lock: ...}` or
    `{conda: ...}`. By default those of Trainworks, and for a command those of the shell."""
    workdir: PathText | None = None
    """Working directory of `setup` and `run`; the current one by default."""
    num_nodes: Annotated[int, up_to("num_nodes")] | None = None
    """Number of nodes of a command, with the key of SkyPilot; the same as `cluster.nodes`."""
    resources: Resources | None = None
    """Resources that every node must have, with the keys of SkyPilot."""
    cluster: Annotated[Cluster, BeforeValidator(cluster_from_text, json_schema_input_type=Cluster | str)] = Cluster()
    software: Annotated[
        TrainingSoftware | None,
        BeforeValidator(software_from_text, json_schema_input_type=TrainingSoftware | str | None),
    ] = None
    """The program that a plan for a described cluster is for; a framework alone is short for `{framework: ...}`."""
    layout: Annotated[
        Layout | None,
        BeforeValidator(
            lambda value: None if value == "auto" else value, json_schema_input_type=Layout | Literal["auto"] | None
        ),
    ] = None
    """Degrees of parallelism and options; `auto` by default. A missing degree is 1 on this machine, open elsewhere."""
    job: JobOptions = JobOptions()
    goal: Goal = Goal()
    checkpoint: Checkpoint = Checkpoint()
    recover: Recover = Recover()
    guard: Guard = Guard()
    track: Annotated[
        Track, BeforeValidator(trackers_from_list, json_schema_input_type=Track | TrackerName | list[TrackerName])
    ] = Track()
    """Experiment trackers that a process beside the run feeds from its record."""
    metrics: ScriptMetrics = ScriptMetrics()
    """Metrics of a command, read from what its program prints or logs."""
    notify: Annotated[
        Notifications | None,
        BeforeValidator(notifications_from_list, json_schema_input_type=Notifications | str | list[str] | None),
    ] = None
    """Messages to chats, mail and webhooks."""
    profile: StepWindowField | None = None
    """Steps that rank 0 records with torch.profiler; `trainworks profile` requests them during the run."""

    @model_validator(mode="after")
    def _check_profile(self) -> RunFile:
        length = None if self.workload is None else self.workload.train_for
        if length and self.profile and length.unit == "steps" and self.profile.last > length.amount:
            raise FieldError(f"profile ({self.profile}) is beyond the last step ({length.amount})")
        return self

    @model_validator(mode="after")
    def _secrets_are_variables(self) -> RunFile:
        check_secrets(self)
        return self

    @model_validator(mode="after")
    def _one_kind_of_work(self) -> RunFile:
        if [self.workload is None, self.run is None, not self.roles].count(False) != 1:
            hint = "a task without `run` only sets up nodes; add the command" if self.setup or self.resources else None
            raise FieldError("give exactly one of `workload` (a model), `run` (a command) and `roles`", hint=hint)
        check_keys_of_command(self)
        check_roles(self)
        if self.cluster.slurm.folder is not None and self.cluster.engine == "slurm" and self.workload:
            hint = "submit on the login node, or to a cluster that sees the run directory"
            raise FieldError("`cluster.slurm.folder` needs `run`: checkpoints of a workload are not copied", hint=hint)
        if self.job.keep_code and self.workload:
            raise FieldError("`job.keep_code` needs `run`: the code of a workload is Trainworks' own")
        if self.starts == "once" and self.environment is not None and self.nodes > 1:
            raise FieldError(
                f"`environment` with `framework: {self.framework}` works on one node, got {self.nodes}: its launcher "
                "starts ranks on nodes that may still build",
                hint="set `cluster.nodes: 1`, or activate an environment in the command",
            )
        if self.num_nodes is not None and self.cluster.nodes not in (1, self.num_nodes):
            raise FieldError(f"`num_nodes` ({self.num_nodes}) and `cluster.nodes` ({self.cluster.nodes}) differ")
        return self

    @property
    def written_envs(self) -> dict[str, str]:
        """Variables of `envs` that have a value here; processes inherit the others."""
        return {name: value for name, value in self.envs.items() if value is not None}

    @property
    def written_secrets(self) -> list[str]:
        """Variables of `envs` with a value here that is secret: by their names, or as `secrets` of a SkyPilot task."""
        jobs = [self, *map(self.of_role, self.roles)]
        written = dict.fromkeys(name for job in jobs for name, value in job.envs.items() if value)
        secrets = {name for job in jobs for name in job.cluster.skypilot.secrets}
        return [name for name in written if is_secret(name) or name in secrets]

    @property
    def nodes(self) -> int:
        """Number of nodes of the job."""
        return self.num_nodes or sum(role.nodes for role in self.roles.values()) or self.cluster.nodes

    def of_role(self, name: str) -> RunFile:
        """The run file of one role, as if it were the whole job."""
        role, cluster = self.roles[name], self.cluster
        kubernetes = cluster.kubernetes.model_copy(update={"image": role.image} if role.image else {})
        skypilot = cluster.skypilot.model_copy(update=role.of_skypilot)
        nodes = {"processes_per_node": role.processes_per_node, "kubernetes": kubernetes, "skypilot": skypilot}
        own = {key: getattr(role, key) for key in ("run", "setup", "resources", "framework")}
        own |= {"num_nodes": role.nodes, "envs": self.envs | role.envs, "cluster": cluster.model_copy(update=nodes)}
        return self.model_copy(update=own | {"roles": {}})

    @property
    def starts(self) -> Literal["per_rank", "per_node", "once"]:
        """Unit that `run` starts once for: mpirun and srun start all ranks, a SkyPilot task those of its node."""
        if self.framework in ("mpi", "slurm"):
            return "once"
        of_skypilot = self.cluster.skypilot.model_fields_set & {"file_mounts", "mounts", "secrets", "task"}
        as_skypilot = self.run is not None and (self.num_nodes is not None or self.resources or of_skypilot)
        return "per_node" if as_skypilot and self.cluster.processes_per_node == "auto" else "per_rank"

    @property
    def max_restarts(self) -> int:
        """Automatic restarts: `recover.max_restarts`, else 3 for a workload and 0 for a command."""
        if self.recover.max_restarts is not None:
            return self.recover.max_restarts
        return 3 if self.workload else 0

    @property
    def as_planned(self) -> RunFile:
        """The run file for a planner: what a command trains as its workload, of a program without a name."""
        if self.trains is None:
            return self
        software = self.software or (None if self.trains.is_fine_tuned else TrainingSoftware())
        recover = self.recover.model_copy(update={"max_restarts": self.max_restarts})
        planned = {"workload": self.trains, "run": None, "trains": None}
        return self.model_copy(update={**planned, "software": software, "recover": recover})

    def with_ranks(self, nodes: int | None, processes_per_node: int | None) -> RunFile:
        """Copy of the run file with other numbers of nodes and of ranks per node.

        Raises:
            UsageError: a number is above its limit, or the job has roles.
        """
        wanted = {"nodes": nodes, "processes_per_node": processes_per_node}
        if self.roles and any(wanted.values()):
            raise UsageError("each role has its own number of nodes and ranks", hint="set `roles.NAME.nodes`")
        written = {key: check_limit(key, value) for key, value in wanted.items() if value is not None}
        changes: dict[str, Any] = {"cluster": self.cluster.model_copy(update=written)}
        if nodes is not None and self.num_nodes is not None:
            changes["num_nodes"] = nodes
        return self.model_copy(update=changes)
