"""What is handed over, and the rules that every target shares: what is refused and what is noted."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from trainworks.config.data import Evaluation
from trainworks.config.layout import ResolvedLayout
from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Checkpoint
from trainworks.config.run_file import Cluster, RunFile, Workload
from trainworks.errors import UsageError
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.plan.step_time import TrainingJob
from trainworks.record.model_shape import ModelShape

_PLANNED = {"name", "workload", "cluster", "layout", "software", "goal", "checkpoint"}
"""Blocks of a run file that the plan answers, or that every target treats itself."""
_TRAINED = {"task", "model", "data", "precision", "global_batch", "train_for", "optimizer", "compile", "seed"}
"""Keys of a workload that every target writes or notes itself."""


@dataclass(frozen=True, slots=True)
class HandedJob:
    """A planned training run, as the targets need it."""

    run_file: RunFile
    workload: Workload
    plan: ClusterPlan
    shape: ModelShape
    layout: ResolvedLayout
    """The proposed layout."""

    @classmethod
    def of(cls, run_file: RunFile, plan: ClusterPlan) -> HandedJob:
        """The proposed layout of a plan, with the stages of the run file's layout, which a plan does not choose.

        Raises:
            UsageError: the model is a convolutional network.
        """
        if isinstance(plan.job.shape, ConvNetShape) or run_file.workload is None:
            raise UsageError("only a transformer can be handed over, and the model is a convolutional network")
        stages = run_file.layout.stage_layers if run_file.layout else None
        layout = plan.best[0].layout.model_copy(update={"stage_layers": stages})
        return cls(run_file, run_file.workload, plan, plan.job.shape, layout)

    @property
    def job(self) -> TrainingJob:
        """The job of the plan, whose model is a transformer."""
        assert isinstance(self.plan.job, TrainingJob)
        return self.plan.job

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the workload."""
        return self.workload.optimizer

    @property
    def warmup_steps(self) -> int:
        """Steps of the linear warm-up; 0 without one."""
        return self.optimizer.warmup.amount if self.optimizer.warmup else 0

    @property
    def is_compiled(self) -> bool:
        """Whether the run file asks for compiled blocks."""
        software = self.run_file.software
        return self.workload.compile is True or bool(software and software.compiled)


@dataclass(frozen=True, slots=True)
class Handover:
    """A configuration of another program."""

    target: str
    text: str
    """The configuration; with the notes as comments where the format has comments."""
    notes: tuple[str, ...]
    """What the run file says and the configuration does not."""
    has_comments: bool = True
    """Whether `text` contains the notes."""


def refuse(program: str, reason: str, hint: str) -> NoReturn:
    """Refuse to hand over.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"{program} cannot run this plan: {reason}", hint=hint)


_PLAN, _REMOVE = "plan with `layout: {{{}}}`", "remove `layout.{}`"


def check_common(program: str, job: HandedJob, *, precisions: Collection[str], optimizers: Collection[str]) -> None:
    """Refuse what no configuration key of a program can express.

    Raises:
        UsageError: the precision, the optimizer, fine-tuning, zero bubble, offloading, an expert capacity or
            compression has no counterpart.
    """
    workload, layout = job.workload, job.layout
    if workload.is_fine_tuned:
        refuse(program, "adapters and preferences are trained by Trainworks", "remove `adapter` and `preference`")
    if workload.precision not in precisions:
        refuse(program, f"`precision: {workload.precision}`", f"set `precision` to {' or '.join(precisions)}")
    if workload.optimizer.name not in optimizers:
        name = workload.optimizer.name
        refuse(program, f"it has no optimizer like `{name}`", f"set `optimizer.name` to {' or '.join(optimizers)}")
    if workload.optimizer.groups:
        refuse(program, "it takes one learning rate from this file", "remove `optimizer.groups`")
    for is_set, reason, hint in (
        (layout.zero_bubble, "it has no schedule like `zero_bubble`", _PLAN.format("zero_bubble: false")),
        (
            layout.offload_activations,
            "it does not offload activations like this",
            _PLAN.format("offload_activations: false"),
        ),
        (layout.fp8_all_gather, "its all-gather has settings of its own", _REMOVE.format("fp8_all_gather")),
        (
            layout.expert_capacity is not None,
            "it has no room that a rank's experts share",
            _REMOVE.format("expert_capacity"),
        ),
        (layout.gradient_compression == "powersgd", "it has no PowerSGD", _REMOVE.format("gradient_compression")),
    ):
        if is_set:
            refuse(program, reason, hint)


def check_language_model(program: str, job: HandedJob) -> None:
    """Refuse other tasks than causal language modelling, and hybrids.

    Raises:
        UsageError: it is another task, or a hybrid.
    """
    if getattr(job.shape, "state_space", None) is not None:
        refuse(program, "it has no name here for Mamba-2 layers", "take the model's options from Megatron Bridge")
    if job.workload.task != "causal-lm":
        refuse(program, f"`task: {job.workload.task}`", "hand over a workload with `task: causal-lm`")


def common_notes(job: HandedJob, *, family: str, written: Iterable[str] = ()) -> list[str]:
    """Everything in the run file that a configuration leaves out, by key.

    Args:
        job: the planned run.
        family: `Software.framework` of the program that gets the configuration.
        written: keys of the workload, such as `eval`, that the target writes beside the usual ones.
    """
    run_file, workload = job.run_file, job.workload
    keys = [name for name in RunFile.model_fields if name not in _PLANNED and _is_set(run_file, name)]
    known = _TRAINED | set(written)
    keys += [f"workload.{name}" for name in Workload.model_fields if name not in known and _is_set(workload, name)]
    usual = {"every", "keep"}
    keys += [
        f"checkpoint.{key}" for key in Checkpoint.model_fields if key not in usual and _is_set(run_file.checkpoint, key)
    ]
    if workload.eval is not None:
        own = ("metrics", "generate", "metric_of")
        keys += [f"workload.eval.{key}" for key in own if _is_set(workload.eval, key)]
    keys += [f"cluster.{key}" for key in ("autoscale", "plugins") if _is_set(run_file.cluster, key)]
    notes = [f"`{key}` is not handed over" for key in keys]
    if job.job.software.framework != family:
        notes.append("layout and step time were planned for another kind of program: name this one in `software`")
    if workload.eval is not None and len(workload.eval.sources) > 1:
        notes.append("`eval.data` has several sets: give the program the one that counts")
    if workload.model.weights == "pretrained":
        notes.append("`model.weights: pretrained`: convert and load the checkpoint with the program's own tools")
    return notes


def _is_set(block: RunFile | Workload | Evaluation | Checkpoint | Cluster, name: str) -> bool:
    field: Any = type(block).model_fields[name]
    return bool(getattr(block, name) != field.get_default(call_default_factory=True))


def schedule_note(job: HandedJob, instead: str) -> str:
    """The note on a schedule that a program does not have."""
    return f"`optimizer.schedule: {job.optimizer.schedule}` has no counterpart: {instead}"


def comments(notes: Iterable[str]) -> list[str]:
    """Notes as comment lines of a shell or Python file."""
    return [f"# note: {' '.join(note.split())}" for note in notes]


def title(job: HandedJob) -> str:
    """Comment line with the run, the cluster and the layout."""
    name = " ".join(job.job.cluster.name.split())
    return f"# {job.run_file.name} on {name}: {job.plan.best[0].layout.describe()}"
