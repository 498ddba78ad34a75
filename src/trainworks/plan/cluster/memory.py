"""Explain the memory of a described cluster's layouts: what does not fit, by how much, and what would."""

from __future__ import annotations

from trainworks.errors import EnvironmentProblem
from trainworks.plan.cluster.scaling import LARGEST_SCALE, PlanRequest, smallest_fit
from trainworks.plan.conv_net import AnyJob
from trainworks.plan.prediction import Prediction, describe_layout, predictions
from trainworks.plan.search import TIGHT_SHARE, Rejection, SearchResult, limit_bytes, search
from trainworks.plan.space import Space
from trainworks.units import format_count, format_gib

__all__ = ["describe_rejection", "does_not_fit", "is_tight", "offloading_note"]

_UNITS = {"meshes": "mesh"}


def is_tight(job: AnyJob, prediction: Prediction) -> bool:
    """Whether a layout that fits is within 3 % of the limit."""
    return prediction.memory.device_bytes > TIGHT_SHARE * limit_bytes(job)


def describe_rejection(rejection: Rejection) -> str:
    """`24.6k layouts`, `1 mesh`."""
    unit = rejection.unit
    return f"{format_count(rejection.count)} {_UNITS.get(unit, unit.rstrip('s')) if rejection.count == 1 else unit}"


def does_not_fit(request: PlanRequest, result: SearchResult) -> EnvironmentProblem:
    """The error of a job that fits in no layout: every reason, and with advice the nearest layout and what to do."""
    job, count = request.job, request.job.cluster.num_accelerators
    capacity = format_gib(job.cluster.accelerator.memory_bytes)
    lines = [f"no layout fits {'1 accelerator' if count == 1 else f'{count:,} accelerators'} of {capacity}"]
    lines += [f"  {describe_rejection(rejection)}: {rejection.reason}" for rejection in result.rejections]
    if not request.advise:
        return EnvironmentProblem("\n".join(lines))
    least = _least_memory(request, result)
    stage = f" on stage {least.memory.stage}" if least.layout.pp > 1 else ""
    nearest = f"nearest: {format_gib(least.memory.device_bytes)}{stage} with {describe_layout(least.layout)}"
    nodes = smallest_fit(request)
    step = (
        f"{nodes:,} nodes of this kind are the fewest on which it fits"
        if nodes
        else f"nor does it fit on up to {LARGEST_SCALE * job.cluster.num_nodes:,} nodes of this kind: "
        f"{'leave more of the layout open, or ' if request.fixed else ''}reduce `sequence_length` or `micro_batch`"
    )
    return EnvironmentProblem("\n".join(lines), hint=f"{nearest}\n      {step}")


def offloading_note(request: PlanRequest, best: Prediction) -> str | None:
    """Memory that would not fit without offloading, where the search chose to offload; None otherwise."""
    parts = {"offload": "activations", "offload_optimizer": "optimizer"}
    used = {"offload": best.layout.offload_activations, "offload_optimizer": best.layout.offload_optimizer}
    unasked = [name for name in parts if used[name] is True and not request.fixed.get(name)]
    if not unasked:
        return None
    job, fixed = request.job, dict(request.fixed) | dict.fromkeys(parts, 0)
    space = Space(job, job.cluster.num_accelerators, request.global_batch, fixed)
    without = _least_memory(request, search(space, keep=1))
    what = " and ".join(f"the {parts[name]}" for name in unasked)
    needed, capacity = (
        format_gib(size) for size in (without.memory.device_bytes, request.job.cluster.accelerator.memory_bytes)
    )
    whose = "this layout does not fit" if request.fixed else "no layout fits"
    return f"{whose} without offloading {what}: {needed} of {capacity}"


def _least_memory(request: PlanRequest, result: SearchResult) -> Prediction:
    """The layout that came nearest to fitting."""
    job, layouts = request.job, result.nearest
    return predictions(
        job,
        layouts,
        job.step_times(layouts),
        job.memories(layouts),
        global_batch=request.global_batch,
        belief=request.belief,
    )[0]
