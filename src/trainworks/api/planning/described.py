"""The plan of a workload on nodes that are described, or that a job asks a scheduler for.

On its nodes a job is planned again, from measured rates; the report holds both plans against the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from trainworks.api.anchor import continued_adapter, lacking_weights
from trainworks.api.planning.expected_cost import nodes_of_job, price_of
from trainworks.backends.backend import Backend
from trainworks.catalog.age import own_rows_note
from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.exchange import exchange_for, usd_of
from trainworks.config.finetune import Adapter
from trainworks.config.layout import Layout, check_layout
from trainworks.config.quantities import TrainFor
from trainworks.config.recovery import Goal
from trainworks.config.run_file import RunFile, Workload
from trainworks.config.source import Source
from trainworks.errors import EnvironmentProblem, LayoutError, TrainworksError, UsageError
from trainworks.host.folders import data_folder
from trainworks.jobs.described_nodes import described_part
from trainworks.measure.model_config import conv_net, shape_and_note
from trainworks.plan.cluster.layout import check_against
from trainworks.plan.cluster.learning import belief_from
from trainworks.plan.cluster.plan import ClusterPlan, plan_request, recorded_plan
from trainworks.plan.cluster.scaling import PlanRequest
from trainworks.plan.conv_net import ConvJob
from trainworks.plan.cost.renting import accelerator_price
from trainworks.plan.degrees import resolved_of
from trainworks.plan.job import AnyJob
from trainworks.plan.network.traffic import apply_design
from trainworks.plan.parameters import reward_shape
from trainworks.plan.programs import Shown, planned_programs
from trainworks.plan.run.compiling import decided_compile
from trainworks.plan.run.plan import plan_of_command
from trainworks.plan.run.pricing import RunJob, described_job, software_of_workload
from trainworks.plan.run.steps import num_steps
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.plan.shapes.presets import published_shape
from trainworks.plan.sizing.finish import simulated_finish
from trainworks.plan.software import Software, planned_software
from trainworks.plan.space import Fixed
from trainworks.plan.step_time import TrainingJob
from trainworks.record.measured.measurement import ClusterMeasurement
from trainworks.record.measured.measurement_store import read_measurements
from trainworks.record.model_shape import ModelShape
from trainworks.record.resolved import Forecast, Plan
from trainworks.units import HOUR_S


def plan_cluster(
    run_file: RunFile,
    source: Source | None,
    *,
    cluster: ClusterDescription | None = None,
    layout: Layout | None = None,
    fixed: Fixed | None = None,
    learned: Sequence[ClusterMeasurement] = (),
    model: PlannedModel | None = None,
    all_sizes: bool = False,
    advise: bool = True,
    learning: bool = True,
) -> ClusterPlan:
    """Search the layouts of a workload on a described cluster.

    Args:
        run_file: with `cluster.of`, unless `cluster` is given.
        source: text of the run file, for the place of an error.
        cluster: replaces the cluster of the run file.
        layout: replaces the layout of the run file; its errors have no place.
        fixed: decisions of the search beside those of the layout.
        learned: measurements beside the stored ones.
        model: of the workload, where the caller has built it.
        all_sizes: plan for smaller clusters without a goal, too.
        advise: look further, see `PlanRequest.advise`.
        learning: whether stored measurements correct the plan.

    Raises:
        UsageError: something is unknown or does not multiply, with its place.
        EnvironmentProblem: no layout fits; the message counts why.
    """
    run_file = run_file.as_planned
    workload = workload_of(run_file)
    model = model or planned_model(run_file, source)
    cluster = cluster or described_part(run_file, source)
    stored = read_measurements(data_folder("clusters"), cluster) if learning else []
    measurements = [*stored, *learned]
    _check_precision(workload, cluster, source)
    price_usd, price_note = _goal_price(run_file, cluster, source)
    exchange = exchange_for(run_file.goal.budget, run_file.cluster.hour_price)
    written, layout_source = (run_file.layout, source) if layout is None else (layout, None)
    with blaming_layout(layout_source, is_fixed=bool(written or fixed)):
        decided = {**decisions(written, workload, cluster), **(fixed or {})}
        job = model.job(workload, apply_design(cluster), decided)
        belief = belief_from(measurements, job)
        request = PlanRequest(
            job=replace(job, slowdowns=belief.slowdowns),
            global_batch=workload.global_batch,
            steps=model.steps,
            fixed=decided,
            goal=run_file.goal,
            price_usd=price_usd,
            exchange=exchange,
            belief=belief,
            all_sizes=all_sizes,
            advise=advise,
            evaluation=workload.eval,
            selection=written.selection if written else 0.0,
        )
        node = None if cluster.node is None else cluster.node.name
        own = own_rows_note((("accelerators", cluster.accelerator.name), ("nodes", node)))
        notes = [price_note, *exchange.notes, own, weights_note(workload), model.shape_note]
        plan = _plan_of_programs(request, measurements, notes)
        if not isinstance(job, RunJob) or not job.leaves_compile_open:
            return plan
        chosen = decided_compile(job, plan.best[0].layout, steps=model.steps)
        assert chosen.compile_choice is not None
        request = replace(request, job=replace(chosen, slowdowns=belief.slowdowns))
        return plan_request(request, measurements, [*notes, f"`compile: auto` is {chosen.compile_choice.describe()}"])


def _plan_of_programs(
    request: PlanRequest, measurements: Sequence[ClusterMeasurement], notes: Sequence[str | None]
) -> ClusterPlan:
    """The plan; where a pipeline of a decided layout is too large for the likeliest program, of one that keeps less."""
    try:
        return plan_request(request, measurements, notes)
    except EnvironmentProblem:
        job = request.job
        keeps = job.keeps if isinstance(job, TrainingJob) and request.fixed.get("pp", 1) > 1 else None
        if keeps is None or keeps.framework != "megatron":
            raise
        request = replace(request, job=replace(job, keeps=replace(keeps, repeats_gate=True)))
        return plan_request(request, measurements, [*notes, _REPEATS])


_REPEATS = (
    "too large for Megatron-LM: planned for a program whose backward computes the product of a gated MLP again, as "
    "xformers' SwiGLU does; name yours in `software`"
)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The plan of a job by the catalogue, before it is submitted."""

    run_file: RunFile
    """With a number of steps, and without a goal."""
    plan: ClusterPlan
    is_counted: bool
    """Whether the number of steps is known."""

    def forecast(self) -> Forecast:
        """What the record keeps of it."""
        plan, run_file = self.plan, self.run_file
        best, cluster = plan.best[0], plan.job.cluster
        price = price_of(run_file, cluster)
        train_s, finish_s = plan.steps * best.step_time_s if self.is_counted else None, None
        if self.is_counted:
            with suppress(UsageError):  # it fails too often to finish, which has no price
                finish_s = simulated_finish(plan.job, best, plan.work, run_file)
        return Forecast(
            cluster=cluster.name,
            layout=resolved_of(best.layout, run_file.layout),
            step_s=best.step_time_s,
            low_s=best.low_s,
            high_s=best.high_s,
            memory_bytes=best.memory.total_bytes,
            train_s=train_s,
            finish_s=finish_s,
            usd=None if price is None or finish_s is None else price * finish_s[1] / HOUR_S * cluster.num_accelerators,
            usd_per_accelerator_hour=price,
        )

    def of_command(self, command: RunFile) -> Plan:
        """The plan that the record of a command is held against, whose nodes are not measured."""
        return plan_of_command(recorded_plan(self.plan, self.run_file), command)


def job_plan(
    run_file: RunFile, source: Source | None, backend: Backend | None, *, learning: bool = True
) -> JobPlan | None:
    """Plan a language model for the nodes of a scheduler: a workload, or what a command trains.

    Args:
        run_file: of the job.
        source: text of the run file, for the place of an error.
        backend: says what accelerators its nodes have; None to take the word of the run file.
        learning: whether stored measurements of this kind of cluster correct the plan.

    Returns:
        None where no formula has the model, or where the accelerators of the nodes are not known.

    Raises:
        LayoutError: the layout of the run file does not multiply to the accelerators.
        UsageError: it does not fit the model.
        EnvironmentProblem: no layout fits into the memory of these accelerators.
    """
    run_file = run_file.as_planned
    workload = run_file.workload
    if workload is None or workload.task != "causal-lm":
        return None
    cluster = nodes_of_job(run_file, backend)
    if cluster is None or workload.precision not in cluster.accelerator.peak_flops_per_s:
        return None
    check_ranks(run_file, cluster, source)
    is_counted = workload.train_for.unit != "epochs"
    counted = workload if is_counted else workload.model_copy(update={"train_for": TrainFor(amount=1, unit="steps")})
    planned = run_file.model_copy(update={"workload": counted, "goal": Goal()})
    try:
        model = planned_model(planned, source)
    except TrainworksError:  # its config is where the job runs, and is read there
        return None
    plan = plan_cluster(planned, source, cluster=cluster, model=model, advise=False, learning=learning)
    return JobPlan(planned, plan, is_counted)


def workload_of(run_file: RunFile) -> Workload:
    """The workload that a plan is for.

    Raises:
        UsageError: the run file has a command, and does not name what it trains, or it has roles.
    """
    if run_file.roles:
        raise UsageError("a job with `roles` has no plan", hint="plan the role that trains alone, with `trains`")
    if run_file.workload is None:
        hint = "name its model beside `run`: `trains: {task: causal-lm, model: ..., global_batch: ..., train_for: ...}`"
        raise UsageError("nothing says what this command trains, as a plan needs it", hint=hint)
    return run_file.workload


def check_ranks(run_file: RunFile, cluster: ClusterDescription, source: Source | None) -> None:
    """Refuse a written layout that does not multiply to the accelerators of a job, whose ranks take no degree for 1.

    Raises:
        LayoutError: with its line.
    """
    if run_file.workload is None or run_file.layout is None:
        return
    with blaming_layout(source, is_fixed=True):
        check_layout(run_file.layout, world_size=cluster.num_accelerators, global_batch=run_file.workload.global_batch)


@contextmanager
def blaming_layout(source: Source | None, *, is_fixed: bool) -> Iterator[None]:
    """Place errors of the search at the layout in the run file, if it has one."""
    place = source.place(("layout",)) if source and is_fixed else None
    try:
        yield
    except LayoutError as error:
        if not error.field:
            raise UsageError(error.message, place=place, hint=error.hint) from None
        raise source.locate(error) if source else error from None
    except EnvironmentProblem as error:
        error.place = place
        raise


def _check_precision(workload: Workload, cluster: ClusterDescription, source: Source | None) -> None:
    if workload.precision not in cluster.accelerator.peak_flops_per_s:
        raise UsageError(
            f"{cluster.accelerator.name} has no {workload.precision} matrix units",
            place=source.place(("workload", "precision")) if source else None,
            hint=f"it has {', '.join(sorted(cluster.accelerator.peak_flops_per_s))}",
        )


def decisions(layout: Layout | None, workload: Workload, cluster: ClusterDescription) -> dict[str, int]:
    """What a written layout decides of the search on a cluster.

    Raises:
        LayoutError: it does not multiply to the accelerators, or does not divide the batch.
    """
    if layout is None:
        return {}
    return check_against(layout, world_size=cluster.num_accelerators, global_batch=workload.global_batch)


def _goal_price(
    run_file: RunFile, cluster: ClusterDescription, source: Source | None
) -> tuple[float | None, str | None]:
    """Price of an accelerator hour, and a note on its source if a budget needs the price of the catalogue."""
    written = usd_of(run_file.cluster.hour_price)
    if run_file.goal.budget is None or written is not None:
        return written, None
    price = accelerator_price(cluster, load_catalog().offers.values())
    if price is None:
        raise UsageError(
            f"a budget needs the price of an accelerator hour, and no offer of the catalogue has `{cluster.name}`",
            place=source.place(("goal", "budget")) if source else None,
            hint="set `cluster.usd_per_accelerator_hour`, or `cluster.price` in yuan",
        )
    each = exchange_for(run_file.goal.budget).price(price.value)
    note = (
        f"priced at {each} per accelerator hour: {price.name} ({price.inputs['price'].source}); "
        "`cluster.usd_per_accelerator_hour` replaces it"
    )
    return price.value, note


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model and how long it trains."""

    shape: ModelShape | ConvNetShape
    sequence_length: int
    """Tokens, or the patches of an image; 1 for a convolutional network."""
    steps: int
    software: Software
    is_ours: bool = False
    """Whether Trainworks trains it: a fine-tuning, or a language model on a scheduler that the run file names."""
    shape_note: str | None = None
    """The vocabulary that the run file leaves out and the plan takes, or a tower that the plan leaves out."""
    adapter: Adapter | None = None
    """The run file names its settings, or the folder that it continues from has them."""

    def job(self, workload: Workload, cluster: ClusterDescription, fixed: Fixed) -> AnyJob:
        """The model trained on a cluster, in a layout of which `fixed` is decided."""
        if isinstance(self.shape, ConvNetShape):
            return ConvJob(self.shape, workload.precision, cluster, self.software)
        if self.is_ours:
            return described_job(workload.model_copy(update={"adapter": self.adapter}), self.shape, cluster)
        said = {"model": workload.model.preset or "", "program": self.software.name}
        shown = Shown.of(self.shape, workload.precision, cluster.accelerator, fixed, **said)
        job = TrainingJob(self.shape, self.sequence_length, workload.precision, cluster, self.software)
        programs = planned_programs(self.software, shown)
        shows = programs and (shown.is_split or shown.is_sharded)
        return replace(job, programs=programs, keeps=programs[0][0] if shows else None)


def planned_model(run_file: RunFile, source: Source | None) -> PlannedModel:
    """The model of a run file.

    Raises:
        UsageError: the workload is missing, the preset is unknown, the model has too few positions for the sequences,
            the training is counted in epochs, or it cannot continue from its adapter.
        EnvironmentProblem: the model's config cannot be read.
    """
    workload = workload_of(run_file)
    steps = _steps(workload, source)
    adapter = continued_adapter(workload, source)
    if workload.is_fine_tuned and run_file.software is not None:
        raise UsageError(
            "`adapter` and `preference` are planned as Trainworks trains them",
            place=source.place(("software",)) if source else None,
            hint="remove `software`",
        )
    is_said = "compile" in workload.model_fields_set and workload.compile != "auto"
    compiled = workload.compile is True if is_said else None
    software = planned_software(run_file.software, compiled=compiled, precision=workload.precision)
    is_submitted = run_file.cluster.engine not in ("local", "described") and run_file.software is None
    is_ours = workload.is_fine_tuned or (is_submitted and workload.task == "causal-lm")
    if is_ours:
        software = software_of_workload(workload, "cuda")
    if workload.model.preset is None and (network := conv_net(workload)) is not None:
        return PlannedModel(network, 1, steps, software)
    if workload.model.preset is None:
        shape, note = shape_and_note(workload)
        length = shape.max_sequence_length if shape.patch_values else workload.data.sequence_length
        return PlannedModel(shape, length, steps, software, is_ours, note, adapter)
    published, length = published_shape(workload, workload.model.preset, source)
    if workload.trains_reward and isinstance(published, ModelShape):
        published = reward_shape(published)
    return PlannedModel(published, length, steps, software, is_ours, adapter=adapter)


def weights_note(workload: Workload) -> str | None:
    """What a fine-tuning needs before it can run, where its plan does without; None for any other workload."""
    lacking = lacking_weights(workload)
    return None if lacking is None else f"planned without weights: {lacking[0]}; to run it, {lacking[1]}"


def planned_shape(run_file: RunFile, source: Source | None) -> ModelShape | None:
    """The shape of a model that is planned for this machine and not built: a preset, or a fine-tuning without weights.

    None for any other model, and for another machine.

    Raises:
        UsageError: the preset is unknown, or no measurement of this machine gives the step time of such a model.
    """
    workload = run_file.workload
    if workload is None or run_file.cluster.engine != "local":
        return None
    if workload.model.preset is None and not workload.lacks_weights:
        return None
    return measurable_shape(run_file, source)


def measurable_shape(run_file: RunFile, source: Source | None) -> ModelShape:
    """The shape of a model whose step the measured rates of this machine predict.

    Raises:
        UsageError: the model is unknown, or of another kind.
    """
    model = planned_model(run_file.as_planned, source)
    shape, name = model.shape, workload_of(run_file.as_planned).model.title
    if isinstance(shape, ConvNetShape) or not shape.causal or shape.latent is not None:
        raise UsageError(
            f"cannot plan `{name}` for this machine: no calibration gives the step time of a model that is not a "
            "causal language model with plain attention",
            place=source.place(("workload", "model", "preset")) if source else None,
            hint=f'plan it for a described cluster: `--on "8x H100"`{"" if run_file.trains is None else _WITHOUT}',
        )
    return shape


_WITHOUT = "; a command runs without `trains`, too"


def _steps(workload: Workload, source: Source | None) -> int:
    if workload.train_for.unit != "epochs":
        return num_steps(workload, tokens_in_data=None)
    raise UsageError(
        "epochs cannot be planned for a described cluster: their length is only known after preparing the data",
        place=source.place(("workload", "train_for")) if source else None,
        hint="set `train_for: 1B tokens`, or steps",
    )
