"""The resolved run: all automatic choices and predictions, written before the first step."""

from __future__ import annotations

from abc import ABC, abstractmethod

from trainworks.config.layout import ANY_LAYOUT, ModelSupport, ResolvedLayout
from trainworks.config.run_file import RunFile, Workload
from trainworks.config.spec import Spec
from trainworks.errors import UsageError
from trainworks.record.calibration import Calibration
from trainworks.record.environment import HostFacts
from trainworks.record.memory import MemoryTerms
from trainworks.record.model_shape import ModelShape
from trainworks.record.processes import Processes
from trainworks.record.run_environment import ResolvedEnvironment
from trainworks.record.step_time import TIE, ExpectedStep, StepTimeGroups, StepTimeTerms
from trainworks.record.usage import QUIET_SHARE
from trainworks.results import Result, ResultVerdict
from trainworks.units import Money, format_duration


class KeptCode(Spec):
    """Files of a working directory that were copied at submission."""

    digest: str
    """SHA-256 of the archive of the files: equal for equal paths, contents and executable bits."""
    num_files: int
    num_bytes: int
    left_out: tuple[str, ...] = ()
    """Files named like secrets, which were not copied."""
    commit: str | None = None
    """Git commit of the working directory, with `-dirty` if tracked files differed from it; None outside of a
    repository."""


class PlannedLayout(Spec):
    """A layout that was compared with others, best first."""

    layout: ResolvedLayout
    step_s: float
    """Predicted."""
    memory_bytes: int
    """Predicted memory of the fullest rank."""
    measured_s: float | None = None
    """Median step of a few, where the layout was tuned (`--tune`)."""


class PlannedEvaluation(Spec):
    """Evaluations of a run, and what they cost."""

    every_steps: int
    count: int
    batches: int
    """Global batches of each, of all held-out sets; at most so many, where the held-out data is not counted yet."""
    batch_s: float
    """Predicted time of one batch: forward alone."""
    generation_s: float = 0.0
    """Predicted time of the texts that the model writes at each."""

    @property
    def evaluation_s(self) -> float:
        """Predicted time of one evaluation."""
        return self.batches * self.batch_s + self.generation_s

    @property
    def total_s(self) -> float:
        """Predicted time of all of them."""
        return self.count * self.evaluation_s


class CompileChoice(Spec):
    """What the plan decided where the run file says `compile: auto`, with the two times that it compared."""

    compiled: bool
    obstacle: str = ""
    """Why blocks stay eager, where no times were compared."""
    eager_step_s: float = 0.0
    compiled_step_s: float = 0.0
    """Predicted step of the best layout of each kind."""
    saved_s: float = 0.0
    """Predicted over all steps; negative where compiled blocks are slower."""
    compile_s: float = 0.0
    """Expected time to compile."""
    source: str = ""
    """Where the time to compile is from."""

    def describe(self) -> str:
        """The decision and its reason in one sentence."""
        if self.obstacle:
            return f"eager: {self.obstacle}"
        what, steps = ("compiled", "saves") if self.compiled else ("eager", "would save")
        times = f"{format_duration(self.eager_step_s)} to {format_duration(self.compiled_step_s)} a step"
        saved, taken = format_duration(max(0.0, self.saved_s)), format_duration(self.compile_s)
        return f"{what}: compiling {steps} {saved} ({times}) and takes {taken} ({self.source})"


class Plan(Spec):
    """The prediction that the run has to answer for."""

    model: ModelShape
    support: ModelSupport = ANY_LAYOUT
    layout: ResolvedLayout
    num_steps: int
    samples_left_out: int = 0
    """Samples at the end of the last epoch that do not fill a global batch."""
    tokens_per_step: int
    model_flops_per_token: float
    peak_flops_per_s: float | None
    """Dense peak per rank at the run's precision; None for an unknown device."""
    peak_source: str
    """Source of the peak, to interpret an MFU."""
    step_time: StepTimeTerms | StepTimeGroups
    of_command: bool = False
    """Whether a program trains that the plan has no kernels of. Its record has the whole step as compute, and the plan
    is of a step as it counts them, without checkpoints."""
    expected: ExpectedStep | None = None
    """None in records of older versions."""
    memory: MemoryTerms
    attention: str = ""
    """Kernel of the decoder's attention; empty for other models, and in records of older versions."""
    compile_choice: CompileChoice | None = None
    """None where the run file decides, and on processors, where `compile: auto` is eager."""
    compared: tuple[PlannedLayout, ...] = ()
    """The best layouts of the search in its order; empty where the model is measured or the layout was not searched."""
    checkpoint_bytes: int
    checkpoint_every_steps: int | None
    checkpoint_every_s: float | None
    mttf_s: float | None = None
    """Mean time between failures of the job's nodes; None in records of older versions."""
    log_every_steps: int
    evaluation: PlannedEvaluation | None = None
    """None for a run that does not evaluate."""
    run_time_s: float
    """Predicted time from launch to the last step."""

    @property
    def groups(self) -> StepTimeGroups:
        """The step time in the groups that the record measures."""
        if self.of_command:
            return StepTimeGroups(compute_s=self.step_time.total_s, communication_s=0.0, optimizer_s=0.0, data_s=0.0)
        return self.step_time.groups

    @property
    def tokens_per_s(self) -> float:
        """Predicted throughput of the whole job."""
        return self.tokens_per_step / self.step_time.total_s

    def mfu(self, tokens_per_s: float) -> float | None:
        """Model FLOPs utilization at a throughput of the whole job, 0-1; None without a known peak.

        mfu = model_flops_per_token * tokens_per_s / (world_size * peak_flops_per_s)
        """
        if not self.peak_flops_per_s:
            return None
        return self.model_flops_per_token * tokens_per_s / (self.layout.world_size * self.peak_flops_per_s)


class Forecast(Spec):
    """The plan of a job before it was submitted, by the catalogue's rates for the nodes that it asks for."""

    cluster: str
    """Description of the nodes: `4 nodes of 8x H100-SXM-80GB`."""
    layout: ResolvedLayout
    step_s: float
    low_s: float
    high_s: float
    """Ends of the 80 % interval."""
    memory_bytes: int
    """Memory of the fullest rank."""
    train_s: float | None
    """All steps; None where their number is known once the data is prepared."""
    finish_s: tuple[float, float, float] | None = None
    """Times after which a tenth, half and nine tenths of such runs are done, with their failures and checkpoints; None
    with `train_s`, where the run fails too often to finish, and in records of earlier versions."""
    usd: float | None
    """Price of the accelerators until half of such runs are done; None where it is not known."""
    usd_per_accelerator_hour: float | None = None
    """The price of an hour behind it; None where it is not known, and in records of earlier versions."""


class FewerNodes(Spec):
    """The same run on fewer of its nodes: it continues on them while others are missing."""

    processes: Processes
    plan: Plan


class RunPlan(Result, ABC):
    """The figures that every plan of a run has, of a described cluster and of this machine."""

    __slots__ = ()

    @property
    @abstractmethod
    def layout(self) -> ResolvedLayout:
        """The proposed parallel layout."""

    @property
    @abstractmethod
    def step_time_s(self) -> float:
        """Predicted duration of an optimizer step."""

    @property
    @abstractmethod
    def step_interval_s(self) -> tuple[float, float] | None:
        """Ends of its 80 % interval; None in records of older versions."""

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """Optimizer steps of the run."""

    @property
    @abstractmethod
    def run_time_s(self) -> float:
        """Predicted duration of the run, without failures."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Predicted peak memory of the fullest rank."""

    @property
    @abstractmethod
    def tokens_per_s(self) -> float:
        """Predicted throughput of all ranks together, in what the workload counts: tokens, images or samples."""


class ResolvedRun(RunPlan, Spec):
    """The complete definition of a run, written before it starts and rewritten by a resume with other ranks."""

    format_version: int = 1
    run_id: str
    created_at: float
    """Seconds since the epoch."""
    trainworks: str
    """Version of Trainworks."""
    run_file: RunFile
    command: tuple[str, ...] | None = None
    """Argument vector of a job that runs a command."""
    working_folder: str
    commit: str | None = None
    """Git commit of the working folder, with `-dirty` if files differ from it; None outside of a repository."""
    code: KeptCode | None = None
    """The copy of the code that `job.keep_code` made; `working_folder` is then this copy."""
    environment: ResolvedEnvironment | None = None
    """Packages of the ranks; None for those of Trainworks, or of the shell of a command."""
    processes: Processes
    host: HostFacts
    forecast: Forecast | None = None
    """None for a run on this machine, and where the accelerators of the nodes are not known."""
    plan: Plan | None = None
    """The plan of a workload, or of what a command trains; None where the run file does not name that."""
    fewer: tuple[FewerNodes, ...] = ()
    """Plans for fewer nodes, down to `job.min_nodes`; numbers of nodes without a layout are left out."""
    calibration: Calibration | None = None
    planner: tuple[str, ...] = ()
    """Module and arguments to run on the first node, if the workload is planned on the nodes of its job."""
    node_check: tuple[str, ...] = ()
    """Module and arguments to run on every node before the ranks start, if `job.health` asks for it."""
    accelerator_check: tuple[str, ...] = ()
    """Module and arguments to run on a node after a failure on its accelerators, if its backend can leave one out: take
    it out of service alone, or give the job other nodes."""
    observers: tuple[tuple[str, str], ...] = ()
    """Module and name of each process that reports the run, to a tracker or by messages; see `track` and `notify`."""

    @property
    def verdict(self) -> ResultVerdict | None:
        """Start with the planned layout, or change the steps or the deadline; None for a command without a plan."""
        plan, deadline = self.plan, self.run_file.goal.deadline
        if plan is None:
            return None
        if deadline is not None and plan.run_time_s > deadline:
            missed = f"{format_duration(plan.run_time_s)} predicted, {format_duration(deadline)} is the deadline"
            return ResultVerdict("Train for fewer steps, or move the deadline", missed, signal="stop")
        action = "Start it" if plan.of_command else f"Start it with {plan.layout.describe()}"
        figure = f"{format_duration(plan.step_time.total_s)} a step, {format_duration(plan.run_time_s)} in all"
        if self.calibration is not None and (share := self.calibration.others_share or 0.0) > QUIET_SHARE:
            busy = f"other programs used {share:.0%} of the cores meanwhile: `--recalibrate` on a quiet machine"
            return ResultVerdict(action, figure, busy, "check")
        return ResultVerdict(action, figure, self._near(plan))

    @property
    def _planned(self) -> Plan:
        if self.plan is None:
            hint = "name what the command trains in `trains`"
            raise UsageError(f"run {self.run_id} has no plan: it runs a command", hint=hint)
        return self.plan

    @property
    def layout(self) -> ResolvedLayout:
        """The planned layout; a command without a plan raises a UsageError here and below."""
        return self._planned.layout

    @property
    def step_time_s(self) -> float:
        """Predicted duration of an optimizer step."""
        return self._planned.step_time.total_s

    @property
    def step_interval_s(self) -> tuple[float, float] | None:
        """Ends of its 80 % interval; None in records of older versions."""
        expected = self._planned.expected
        return None if expected is None else (expected.low_s, expected.high_s)

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the run."""
        return self._planned.num_steps

    @property
    def run_time_s(self) -> float:
        """Predicted time from launch to the last step."""
        return self._planned.run_time_s

    @property
    def memory_bytes(self) -> int:
        """Predicted peak memory of the fullest rank."""
        return self._planned.memory.total_bytes

    @property
    def tokens_per_s(self) -> float:
        """Predicted throughput of all ranks together."""
        return self._planned.tokens_per_s

    def _near(self, plan: Plan) -> str:
        """The next layout, where the plan is not sure of its distance and no step of it was timed; else empty."""
        chosen = plan.layout.describe()  # what it leaves out, such as the size of buckets, is no other layout
        others = [each for each in plan.compared if each.layout.describe() != chosen]
        near = min(others, key=lambda each: each.step_s, default=None)
        if near is None or near.measured_s is not None or near.step_s > TIE * plan.step_time.total_s:
            return ""
        return f"{near.layout.describe()} may be as fast, `--tune` times both"

    def in_place_of(self, before: ResolvedRun) -> ResolvedRun:
        """This plan for the run of an earlier one, whose origin, checks of nodes and observers stay."""
        checks = ("node_check", "accelerator_check")
        kept = ("created_at", "working_folder", "commit", "code", "environment", "observers", *checks)
        return self.model_copy(update={name: getattr(before, name) for name in kept})

    @property
    def leading_role(self) -> str | None:
        """The role whose metrics are those of the run: the first that decides and that no other waits for.

        None without roles.
        """
        roles = self.run_file.roles
        needed = {name for role in roles.values() for name in role.depends_on}
        deciding = [name for name, role in roles.items() if role.decides]
        return next((name for name in deciding if name not in needed), next(iter(deciding), None))

    def on_node(self, node: int) -> ResolvedRun:
        """The run as a node sees it: of a job with roles, that of its role alone."""
        group = self.processes.group_of(node)
        if group.role is None:
            return self
        return self.model_copy(update={"run_file": self.run_file.of_role(group.role), "processes": group.processes})

    def fewer_nodes(self, nodes: int) -> FewerNodes | None:
        """The plan for fewer nodes; None if there is none."""
        return next((each for each in self.fewer if each.processes.nodes == nodes), None)

    def on_nodes(self, nodes: int) -> ResolvedRun:
        """This run on some of its nodes, as it was planned for their number."""
        if nodes == self.processes.nodes:
            return self
        fewer = self.fewer_nodes(nodes)
        assert fewer is not None, f"no plan for {nodes} nodes"
        return self.model_copy(update={"processes": fewer.processes, "plan": fewer.plan})

    @property
    def power_limit_w(self) -> float | None:
        """Power limit of the accelerators of all ranks, from those of the first node; None where it is not known."""
        limits = [each.power_limit_w for each in self.host.accelerators if each.power_limit_w is not None]
        if self.processes.device != "cuda" or not limits:
            return None
        return self.processes.world_size * sum(limits) / len(limits)

    @property
    def hour_price(self) -> Money | None:
        """Price of an hour of all accelerators; None without a price in the run file, or for ranks on CPUs alone."""
        price, processes = self.run_file.cluster.hour_price, self.processes
        if price is None or (processes.device == "cpu" and not processes.accelerators_per_node):
            return None
        return Money(price.amount * processes.num_accelerators, price.currency)

    @property
    def workload(self) -> Workload | None:
        """The workload with what the plan decided of it: `compile: auto` as true or false."""
        workload, choice = self.run_file.workload, self.plan.compile_choice if self.plan else None
        if workload is None or choice is None:
            return workload
        return workload.model_copy(update={"compile": choice.compiled})

    @property
    def is_workload(self) -> bool:
        """True for a workload, False for a command."""
        return self.run_file.workload is not None

    @property
    def longest_pause_s(self) -> float:
        """Predicted time between two looks of a workload at its stop file: a logging interval, and an evaluation."""
        if self.plan is None or not self.is_workload:
            return 0.0
        evaluation_s = self.plan.evaluation.evaluation_s if self.plan.evaluation else 0.0
        return self.plan.log_every_steps * self.plan.step_time.total_s + evaluation_s

    @property
    def planned_others_share(self) -> float:
        """Largest share of a node's cores for other programs with which the plan still holds.

        A little more than while the ranks were calibrated, or what the ranks leave free: a core for each thread on a
        CPU, for each rank that works on an accelerator.
        """
        ranks = self.processes
        cores = ranks.processes_per_node * (ranks.threads_per_process if ranks.device == "cpu" else 1)
        calibrated = (self.calibration.others_share if self.calibration else None) or 0.0
        return max(calibrated + QUIET_SHARE, 1 - cores / self.host.num_cores)
