"""The plan of a run: on this machine from its measured rates, or before it is submitted from the catalogue."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from trainworks.config.run_file import Workload
from trainworks.plan.cost.energy import run_energy
from trainworks.plan.cost.expected import ExpectedCost
from trainworks.plan.run.adapters import adapter_parameters
from trainworks.plan.shapes.presets import default_vocabulary
from trainworks.record.environment import HostFacts
from trainworks.record.resolved import Forecast, Plan, PlannedEvaluation, ResolvedRun
from trainworks.record.usage import QUIET_SHARE
from trainworks.report.rendering.document import Document, Facts, Row, Section, Table, Text, left
from trainworks.report.rendering.renderer import build_document, model_json, to_json
from trainworks.units import HOUR_S, format_bytes, format_count, format_duration, format_quantity

LAYOUTS = "layouts"
"""Section of the layouts that were compared."""


@build_document.register
def document(resolved: ResolvedRun) -> Document:
    """The plan of a workload, or of what a command trains, and warnings; of a command without a plan what it runs."""
    plan, workload = resolved.plan, resolved.run_file.as_planned.workload
    if plan is None or workload is None:
        return Document(resolved.run_id, "run", [Section("", [Facts.from_mapping(_of_command(resolved))])])
    return Document(
        resolved.run_file.name,
        "plan",
        [
            Section(
                "",
                [
                    Facts.from_mapping(_facts(resolved, plan, workload)),
                    *(Text(f"warning: {warning}", "warning") for warning in _warnings(resolved, plan, workload)),
                ],
            ),
            Section(LAYOUTS, [_compared(plan)] if len(plan.compared) > 1 else []),
        ],
        verdict=resolved.verdict,
    )


def _compared(plan: Plan) -> Table:
    """The best layouts, with what a few steps of some of them took."""
    is_tuned = any(one.measured_s for one in plan.compared)
    rows = [
        Row(
            [
                one.layout.describe(),
                format_duration(one.step_s),
                *([format_duration(one.measured_s) if one.measured_s else ""] if is_tuned else []),
                format_bytes(one.memory_bytes),
            ],
            "bold" if plan.layout.describe() == one.layout.describe() else "",
        )
        for one in plan.compared
    ]
    columns = ["layout", "step", *(["measured"] if is_tuned else []), "memory"]
    return Table(left(*columns), rows)


def _adapter(plan: Plan, workload: Workload) -> dict[str, str]:
    """What trains beside a frozen model; nothing without an adapter."""
    adapter = workload.adapter
    if adapter is None:
        return {}
    trained = format_count(adapter_parameters(plan.model, adapter)) if plan.model.is_described else "the others"
    base = workload.precision if adapter.base == "auto" else adapter.base
    return {"adapter": f"{adapter.title}: {trained} parameters train beside frozen ones ({base})"}


def _experts(plan: Plan) -> str:
    """How many experts there are, and what keeps all in use; empty for a dense model."""
    if not plan.model.experts:
        return ""
    weight = plan.support.balance_loss
    balance = f"a balance loss of weight {weight:g}" if weight else "no balance loss (`model.balance_loss` sets one)"
    return f"{plan.model.experts} per layer, {plan.model.experts_per_token} of them per token, {balance}"


def _preference(workload: Workload) -> str:
    """How answers are compared; empty for a run without preferences."""
    preference = workload.preference
    if preference is None:
        return ""
    if preference.method == "reward":
        return "a reward model: a scalar head on the last token, trained on pairs of answers"
    reference = "a frozen copy" if workload.adapter is None else "the model without its adapter"
    what = "pairs of answers" if preference.method == "dpo" else "single answers with labels"
    return f"{preference.method.upper()} with beta {preference.beta:g} on {what}; the reference is {reference}"


def _energy(plan: Plan, power_limit_w: float | None) -> str:
    """Energy of the accelerators with its range; empty without their power limit."""
    if power_limit_w is None:
        return ""
    energy = run_energy(plan, power_limit_w)
    ends = [format_quantity(end / HOUR_S, "Wh") for end in (energy.low, energy.high) if end is not None]
    return f"{format_quantity(energy.value / HOUR_S, 'Wh')} of the accelerators ({' to '.join(ends)})"


def _facts(resolved: ResolvedRun, plan: Plan, workload: Workload) -> dict[str, str]:
    processes, time, memory = resolved.processes, plan.step_time, plan.memory
    states = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    ranks = f"{processes.world_size} rank(s) on {processes.nodes} node(s), {processes.device}"
    step = format_duration(time.total_s)
    if plan.expected is not None:
        step += f" (80 %: {format_duration(plan.expected.low_s)} to {format_duration(plan.expected.high_s)})"
    terms = {name.removesuffix("_s"): term for name, term in time.model_dump().items() if term >= 0.01 * time.total_s}
    left_out = f"; the last {plan.samples_left_out:,} samples do not fill a batch and are left out"
    every = f"every {format_duration(plan.checkpoint_every_s or 0.0)}"
    ranks = f"{plan.layout.world_size} rank(s) of its program" if plan.of_command else ranks
    if plan.checkpoint_every_steps is not None:
        every = f"every {plan.checkpoint_every_steps:,} steps"
    return {
        "model": f"{workload.model.title}, {format_count(plan.model.num_parameters)} parameters, {workload.precision}",
        "vocabulary": str(default_vocabulary(workload) or ""),
        **_adapter(plan, workload),
        "experts": _experts(plan),
        "preference": _preference(workload),
        "layout": f"{ranks}: {plan.layout.describe()}, accumulation {plan.layout.grad_accum_steps}",
        "attention": plan.attention,
        "compile": plan.compile_choice.describe() if plan.compile_choice else "",
        "training": f"{plan.num_steps:,} steps of {format_count(plan.tokens_per_step)} {workload.unit}"
        f"{left_out if plan.samples_left_out else ''}",
        "step time": f"{step} = {' + '.join(f'{name} {format_duration(term)}' for name, term in terms.items())}",
        "throughput": f"{format_count(plan.tokens_per_s)} {workload.unit}/s",
        "memory": f"{format_bytes(memory.total_bytes)} per rank = program {format_bytes(memory.baseline_bytes)}"
        f" + states {format_bytes(states)} + activations {format_bytes(memory.activations_bytes)}"
        f" + logits {format_bytes(memory.logits_bytes)} + working {format_bytes(memory.working_bytes)}"
        f" + allocator {format_bytes(memory.allocator_bytes)}"
        f" + checkpoint copy {format_bytes(memory.checkpoint_bytes)}",
        "checkpoints": "" if plan.of_command else f"{format_bytes(plan.checkpoint_bytes)} each, {every}",
        "evaluation": evaluation_text(plan.evaluation, plan.run_time_s),
        "run time": f"{format_duration(plan.run_time_s)} predicted",
        "energy": _energy(plan, resolved.power_limit_w),
        "learning": _learning(plan),
        "basis": _basis(plan, resolved.calibration is not None),
    }


def _basis(plan: Plan, is_calibrated: bool) -> str:
    """What the plan rests on where that is not a calibration alone; empty otherwise."""
    if plan.of_command:
        rates = "rates of this machine" if is_calibrated else "rates of the catalogue"
        return f"{rates}, and an interval for the kernels of the program, which are not known"
    return "" if plan.model.is_described else "step time and memory as measured in a few steps of the model itself"


def _learning(plan: Plan) -> str:
    if plan.expected is None or not plan.expected.learned_from:
        return ""
    count = plan.expected.learned_from
    before_s = sum(plan.expected.by_rate_s.values())
    runs = f"{count} run{'s' if count > 1 else ''}"
    return f"learned from {runs} here: {format_duration(before_s)} a step without (`--without-learning`)"


def evaluation_text(each: PlannedEvaluation | None, run_time_s: float) -> str:
    """Number and cost of the evaluations; empty without any."""
    if each is None:
        return ""
    times = f"{each.count:,} times, every {each.every_steps:,} steps, {each.batches:,} batches"
    share = each.total_s / run_time_s
    return f"{times}: {format_duration(each.evaluation_s)} each, {share:.0%} of the run time"


def _warnings(resolved: ResolvedRun, plan: Plan, workload: Workload) -> Iterator[str]:
    if note := emulation_note(workload.precision, resolved.host, resolved.processes.device):
        yield note
    if resolved.calibration is not None and (share := resolved.calibration.others_share or 0.0) > QUIET_SHARE:
        yield (
            f"other programs used {share:.0%} of the cores while this machine was measured: the plan is for that load; "
            "measure again on a quiet machine with `--recalibrate`"
        )
    deadline = resolved.run_file.goal.deadline
    if deadline is not None and plan.run_time_s > deadline:
        time = format_duration(plan.run_time_s)
        yield f"the run is predicted to take {time}, the deadline is {format_duration(deadline)}"


def emulation_note(precision: str, host: HostFacts, device: str) -> str | None:
    """A note on a 16-bit precision that the processor emulates; None otherwise."""
    if device != "cpu" or precision not in ("bf16", "fp16") or precision in host.processor_formats:
        return None
    return f"this processor only emulates {precision}, and fp32 is faster; leave `precision` out, or set it to fp32"


def _of_command(resolved: ResolvedRun) -> dict[str, str]:
    ranks = resolved.processes
    command = resolved.run_file.run if resolved.command is None else shlex.join(resolved.command)
    size = f"{ranks.world_size:,} rank(s) on {ranks.nodes:,} node(s), {ranks.device}"
    return {"command": command or "", "ranks": size, "folder": resolved.working_folder}


@to_json.register
def _(resolved: ResolvedRun) -> Mapping[str, object]:
    return _of_command(resolved) if resolved.plan is None else model_json(resolved.plan)


@build_document.register
def forecast_document(forecast: Forecast) -> Document:
    """Layout, step time with its interval, memory and duration."""
    training = "" if forecast.train_s is None else format_duration(forecast.train_s)
    if forecast.finish_s is not None:
        low, median, high = map(format_duration, forecast.finish_s)
        training += f"; with failures {median} (80 %: {low} to {high})"
    elif training:
        training += "; it fails too often to finish: see `trainworks goodput`"
    facts = {
        "planned for": f"{forecast.cluster}, by the catalogue; on its nodes a workload is planned from measured rates",
        "layout": forecast.layout.describe(),
        "step time": f"{format_duration(forecast.step_s)} (80 %: {format_duration(forecast.low_s)}"
        f" to {format_duration(forecast.high_s)})",
        "memory": f"{format_bytes(forecast.memory_bytes)} per rank",
        "training": training,
    }
    return Document("forecast", "plan", [Section("", [Facts.from_mapping(facts)])])


def cost_text(cost: ExpectedCost) -> str:
    """`90.0 USD to 110 USD (80 %): 8 accelerators at 2.50 USD an hour`; without a plan the most that it can be."""
    jobs = f"{cost.jobs} jobs of " if cost.jobs > 1 else ""
    of = f"{jobs}{cost.accelerators:,} accelerator{'s' if cost.accelerators > 1 else ''}"
    money = cost.exchange.format
    rate = f"at {money(cost.usd_per_accelerator_hour)} an hour"
    if cost.low_usd is not None:
        return f"{money(cost.low_usd)} to {money(cost.high_usd)} (80 %): {of} {rate}"
    once = "each starts once" if cost.jobs > 1 else "it starts once"
    return f"at most {money(cost.high_usd)} if {once}: {of} for {format_duration(cost.high_s)} {rate}"


to_json.register(Forecast, model_json)
