"""Causes that make steps slow: waits for data, a slow rank, the network or a pipeline, and compute below its best."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

import numpy as np

from trainworks.observe.diagnosis.layout_prices import PricedLayout
from trainworks.observe.diagnosis.lost_time import LostTime
from trainworks.observe.diagnosis.run_facts import Cause, NcclTransport, RunFacts, SlowRank
from trainworks.record.metric_columns import Floats
from trainworks.units import format_bytes, format_duration

_MOSTLY = 2 / 3
"""Share of the extra time above which a single rank is to blame."""


def lost_to_data(facts: RunFacts) -> LostTime | None:
    """Time that all ranks waited for their batches; that of a single rank counts as its slowness."""
    lost_s = facts.shares.data_s
    if not facts.rows or lost_s <= 0:
        return None
    planned = facts.planned.data_s if facts.planned else None
    return LostTime(
        name="data",
        title="The ranks wait for data",
        lost_s=lost_s,
        evidence=(_data_evidence(facts), *_planned(planned, facts.median_of("data_s"))),
        action="Feed the ranks faster",
        remedy="Prepare the data once, so that a step does no work per sample, keep it on a local disk, and read "
        "larger files. Measure the disk with the command below.",
        setting="trainworks bench storage",
        saves_s=max(0.0, lost_s - (planned or 0.0) * len(facts.rows)),
    )


def _data_evidence(facts: RunFacts) -> str:
    slowest = float(np.quantile(facts.rows["data_s"], 0.95, method="weibull"))
    return (
        f"a step waits {format_duration(facts.median_of('data_s'))} for its batch (median), "
        f"one step in twenty at least {format_duration(slowest)}"
    )


def _planned(planned_s: float | None, measured_s: float) -> tuple[str, ...]:
    if planned_s is None:
        return ()
    return (f"planned {format_duration(planned_s)} a step, measured {format_duration(measured_s)}",)


def lost_to_slow_ranks(facts: RunFacts) -> LostTime | None:
    """Time that ranks waited for the slowest one, and its own extra work."""
    ranks = facts.slow_ranks
    if not ranks:
        return None
    extra_s = sum(one.extra_s for one in ranks)
    first = ranks[0]
    is_one = first.extra_s >= _MOSTLY * extra_s
    title = f"Rank {first.rank} is slower than the others" if is_one else "The slowest rank changes from time to time"
    lost_s = facts.shares.slow_ranks_s
    action, remedy = _slow_rank_remedy(first, facts)
    if not is_one:
        action, remedy = "Keep other programs off the nodes, and pin ranks to cores", ""
    return LostTime(
        name="straggler",
        title=title,
        lost_s=lost_s,
        evidence=tuple(_slow_rank(one, facts) for one in ranks[:3]),
        action=action,
        remedy=remedy,
        setting="trainworks health" if is_one else None,
        saves_s=lost_s,
    )


def _slow_rank(one: SlowRank, facts: RunFacts) -> str:
    node = one.rank // facts.resolved.processes.processes_per_node
    text = (
        f"rank {one.rank} on node {node} was the slowest in {one.num_steps:,} steps, by "
        f"{format_duration(one.extra_s / one.num_steps)} a step"
    )
    data = one.extra_data_s / one.extra_s
    return f"{text}; {data:.0%} of that it waited for data" if data >= 0.05 else text


def _slow_rank_remedy(one: SlowRank, facts: RunFacts) -> tuple[str, str]:
    """What to do about a slow rank, and how."""
    if one.extra_data_s >= _MOSTLY * one.extra_s:
        return f"Check the disk and the mounts of the node of rank {one.rank}", "Its data arrives late."
    if facts.plan and facts.plan.layout.pp > 1:
        action = f"Give the pipeline stage of rank {one.rank} fewer layers with `layout.stage_layers`"
        return action, "Or check its node."
    return f"Check the node of rank {one.rank}", (
        "Look for throttled clocks, failing memory and other programs; if it stays slow, drain it and resume the run "
        "elsewhere."
    )


def lost_to_bubble(facts: RunFacts) -> LostTime | None:
    """Idle time of the pipeline stages: the planned bubble over the steps, at most what the ranks waited."""
    terms, plan = facts.planned_terms, facts.plan
    if terms is None or plan is None or plan.layout.pp == 1 or not facts.rows:
        return None
    share = terms.bubble_s / terms.total_s
    lost_s = min(facts.shares.communication_s, share * facts.steps_s)
    if lost_s <= 0:
        return None
    better = _bubble_remedy(facts)
    return LostTime(
        name="bubble",
        title="Pipeline stages idle while the pipeline fills and drains",
        lost_s=lost_s,
        evidence=(
            f"{plan.layout.pp} stages and {plan.layout.grad_accum_steps} micro-batches a step: planned bubble "
            f"{share:.0%} of a step",
        ),
        action=_written(better) or "Use more micro-batches per step",
        remedy="Or interleave the stages, or use fewer of them.",
        setting=better.setting if better else None,
        saves_s=_priced(better, facts, lost_s),
    )


def _bubble_remedy(facts: RunFacts) -> PricedLayout | None:
    if facts.prices is None:
        return None
    size = facts.prices.layout.micro_batch
    changes: list[dict[str, object]] = [{"micro_batch": each} for each in range(1, size) if size % each == 0]
    return facts.prices.best_change([*changes, {"zero_bubble": True}, {"interleave": 2}])


def _written(better: PricedLayout | None) -> str | None:
    """The action of a better layout."""
    return f"Write `{better.setting}`" if better else None


def _priced(better: PricedLayout | None, facts: RunFacts, lost_s: float) -> float | None:
    """The gain of the best layout: 0 where the planner finds none, None where it has no prices."""
    if facts.prices is None:
        return None
    return better.saves_s(facts.steps_s, of_s=lost_s) if better else 0.0


def bubble_s(facts: RunFacts) -> float:
    """Part of the communication that waits in the pipeline."""
    found = lost_to_bubble(facts)
    return found.lost_s if found else 0.0


def lost_to_network(facts: RunFacts) -> LostTime | None:
    """Time that communication takes beyond the plan while NCCL leaves an adapter unused.

    Without a plan all exposed communication counts, as an upper limit.
    """
    evidence = _network_evidence(facts.nccl)
    exposed_s = facts.shares.communication_s - bubble_s(facts)
    if not evidence or exposed_s <= 0 or facts.resolved.processes.nodes == 1:
        return None
    planned = facts.planned.communication_s * len(facts.rows) if facts.planned else 0.0
    lost_s = max(0.0, exposed_s - planned)
    return LostTime(
        name="network",
        title="NCCL does not use the network as it could",
        lost_s=lost_s,
        evidence=evidence,
        action=_network_remedy(facts.nccl),
        setting="trainworks health",
        saves_s=lost_s if facts.planned else None,
    )


def _network_evidence(nccl: NcclTransport) -> tuple[str, ...]:
    said = []
    if nccl.is_on_sockets:
        said.append(f"NCCL uses network {nccl.network}: traffic between nodes goes through kernel TCP")
    if nccl.found_no_adapter:
        said.append("NCCL found no InfiniBand or RoCE adapter (`NET/IB : No device found`)")
    if nccl.unused:
        said.append(f"no channel uses {', '.join(nccl.unused)}, of {len(nccl.adapters)} adapters")
    if nccl.without_gpu_direct:
        said.append("no channel uses GPUDirect RDMA: data is copied through host memory")
    return (*said, *(f"the environment sets {variable}" for variable in nccl.disabled))


def _network_remedy(nccl: NcclTransport) -> str:
    if nccl.disabled:
        return f"Remove {', '.join(nccl.disabled)} from the environment"
    if nccl.is_on_sockets or nccl.found_no_adapter:
        return "Give the ranks their adapters (load the drivers, pass /dev/infiniband into containers, set NCCL_IB_HCA)"
    if nccl.unused:
        return "Name all adapters in NCCL_IB_HCA, and place one beside each accelerator"
    return "Load nvidia_peermem, or use DMA-BUF, and switch off ACS on the PCI bridges"


def lost_to_communication(facts: RunFacts) -> LostTime | None:
    """Exposed communication that no slow rank, pipeline or unused adapter explains."""
    network = lost_to_network(facts)
    lost_s = facts.shares.communication_s - bubble_s(facts) - (network.lost_s if network else 0.0)
    if not facts.rows or lost_s <= 0 or facts.resolved.processes.world_size == 1:
        return None
    better = _communication_remedy(facts)
    planned = facts.planned.communication_s if facts.planned else None
    saves_s = _priced(better, facts, lost_s)
    if better is None and planned is not None:  # the layout is the best one: what can be mended is beyond its plan
        saves_s = max(0.0, lost_s - planned * float(facts.rows.num_steps.sum()))
    return LostTime(
        name="communication",
        title="Communication is not hidden behind compute",
        lost_s=lost_s,
        evidence=(
            f"a step waits {format_duration(facts.median_of('communication_s'))} for other ranks (median) "
            f"and computes {format_duration(facts.median_of('compute_s'))}",
            *_planned(planned, facts.median_of("communication_s")),
        ),
        action=_written(better) or "Use a faster network, or a larger global batch if the optimization permits it",
        remedy="" if better else "A larger batch exchanges less per token.",
        setting=better.setting if better else None,
        saves_s=saves_s,
    )


def _communication_remedy(facts: RunFacts) -> PricedLayout | None:
    if facts.prices is None:
        return None
    found = [facts.prices.best_layout(), facts.prices.best_change([{"gradient_compression": "bf16"}])]
    return min((one for one in found if one), key=lambda one: one.step_ratio, default=None)


_LARGER_BATCH_SAVES = 0.1
"""Least predicted saving for which another global batch, which changes the training, is worth considering."""
_WINDOWS = 24
"""Parts of a run whose medians are compared."""
_FEWEST_STEPS = 8
"""Steps of a window at least."""
_FEWEST_WINDOWS = 4
_SLOWER = 1.15
"""Ratio above which a window of steps is slow."""
_BEYOND_PLAN = 1.1
"""Ratio of measured to planned compute above which compute is slow."""


def lost_to_small_batches(facts: RunFacts) -> LostTime | None:
    """Time that larger matrix products, or fewer updates of the weights, would save, as the planner predicts."""
    if facts.prices is None or not facts.rows:
        return None
    return _small_micro_batch(facts) or _small_global_batch(facts)


def _small_micro_batch(facts: RunFacts) -> LostTime | None:
    assert facts.prices is not None
    better = facts.prices.larger_micro_batch()
    if better is None or better.compute_ratio >= 1:
        return None
    layout = facts.prices.layout
    lost_s = (1 - better.compute_ratio) * facts.expected_compute_s
    return LostTime(
        name="small_batches",
        title="The micro-batch is too small for fast matrix products",
        lost_s=lost_s,
        evidence=(
            f"{layout.grad_accum_steps} micro-batches of {_sequences(layout.micro_batch)} make a step",
            f"predicted compute with micro-batches of {better.layout.micro_batch}: {better.compute_ratio:.0%} of now",
        ),
        action=f"Write `{better.setting}`",
        remedy="The global batch stays the same.",
        setting=better.setting,
        saves_s=better.saves_s(facts.steps_s, of_s=lost_s),
    )


def _small_global_batch(facts: RunFacts) -> LostTime | None:
    assert facts.prices is not None
    compute_ratio, optimizer_ratio = facts.prices.larger_batch_ratios()
    compute_s, optimizer_s = facts.expected_compute_s, facts.ledger.optimizer_s
    lost_s = max(0.0, 1 - compute_ratio) * compute_s + (1 - optimizer_ratio) * optimizer_s
    if lost_s < _LARGER_BATCH_SAVES * facts.steps_s or facts.resolved.run_file.workload is None:
        return None
    batch = facts.resolved.run_file.workload.global_batch
    return LostTime(
        name="small_batches",
        title="Steps are too small: the weights are updated too often for the work between two updates",
        lost_s=lost_s,
        evidence=(
            f"a step of {_sequences(batch)} computes {format_duration(facts.median_of('compute_s'))} "
            f"and updates the weights in {format_duration(facts.median_of('optimizer_s'))}",
            f"predicted compute per token with {4 * batch:,} sequences a step: {compute_ratio:.0%} of now",
        ),
        action=f"Write `workload: {{global_batch: {4 * batch}}}` if the optimization permits it",
        remedy="Set a learning rate to match.",
        setting=f"workload: {{global_batch: {4 * batch}}}",
        saves_s=lost_s,
    )


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count:,} sequences"


def lost_to_recomputation(facts: RunFacts) -> LostTime | None:
    """Time that the backward pass computes activations again: the planned share of the measured compute."""
    terms, plan = facts.planned_terms, facts.plan
    if terms is None or plan is None or plan.layout.recompute == "none" or not facts.rows:
        return None
    lost_s = terms.recompute_s / (terms.groups.compute_s - terms.bubble_s) * facts.expected_compute_s
    if lost_s <= 0:
        return None
    lighter = [{"recompute": each} for each in ("none", "selective") if each != plan.layout.recompute]
    better = facts.prices.best_change(lighter) if facts.prices else None
    return LostTime(
        name="recompute",
        title="The backward pass computes activations again",
        lost_s=lost_s,
        evidence=(f"recompute is `{plan.layout.recompute}`; planned {format_duration(terms.recompute_s)} a step",),
        action=_written(better) or "Keep the activations if the memory holds them",
        remedy="They fit." if better else _memory_remedy(facts),
        setting=better.setting if better else None,
        saves_s=_priced(better, facts, lost_s),
    )


def _memory_remedy(facts: RunFacts) -> str:
    if facts.prices is None:
        return ""
    limit = format_bytes(facts.prices.limit_bytes)
    return f"Without recomputation a rank needs more than its {limit}, or is not faster."


def lost_to_throttling(facts: RunFacts) -> LostTime | None:
    """Time that the same compute took longer in some parts of the run than in the fastest quarter of it."""
    slow_s, ratio, first, last = _slow_windows(facts.usual_compute_s)
    if slow_s <= 0:
        return None
    begin, end = facts.steady["step"][[first, last]]
    return LostTime(
        name="throttling",
        title="Compute slowed down during the run",
        lost_s=min(slow_s, facts.shares.compute_s),
        evidence=(f"steps {begin:,.0f} to {end:,.0f} computed {ratio:.2f} times as long as the fastest part",),
        action="Look for throttled clocks, and for other programs on the nodes at that time",
        remedy="Heat and power limits lower clocks.",
        setting="trainworks health",
        saves_s=min(slow_s, facts.shares.compute_s),
    )


def _slow_windows(values: Floats) -> tuple[float, float, int, int]:
    """Seconds beyond the base in slow windows, their ratio to it, and the first and last slow step.

    The base is the median of the window at the first quartile.
    """
    count = min(_WINDOWS, len(values) // _FEWEST_STEPS)
    if count < _FEWEST_WINDOWS:
        return 0.0, 1.0, 0, 0
    bounds = [index * len(values) // count for index in range(count + 1)]
    windows = [(begin, end, float(np.median(values[begin:end]))) for begin, end in pairwise(bounds)]
    base = sorted(seconds for _, _, seconds in windows)[count // 4]
    slow = [window for window in windows if window[2] > _SLOWER * base > 0]
    if not slow:
        return 0.0, 1.0, 0, 0
    lost_s = sum((seconds - base) * (end - begin) for begin, end, seconds in slow)
    return lost_s, median(seconds for _, _, seconds in slow) / base, slow[0][0], slow[-1][1] - 1


def lost_to_slow_compute(facts: RunFacts) -> LostTime | None:
    """Time that compute took beyond the plan in all parts of the run, slow ranks and slow parts left out."""
    terms, groups = facts.planned_terms, facts.planned
    if groups is None or not facts.rows:
        return None
    planned_s = groups.compute_s - (terms.bubble_s if terms else 0.0)
    throttled = lost_to_throttling(facts)
    taken_s = facts.shares.compute_s - (throttled.lost_s if throttled else 0.0)
    num_steps = int(facts.rows.num_steps.sum())
    lost_s = taken_s - planned_s * num_steps
    if taken_s < _BEYOND_PLAN * planned_s * num_steps or not planned_s:
        return None
    return LostTime(
        name="slow_compute",
        title="Compute is slower than planned",
        lost_s=lost_s,
        evidence=(
            f"forward and backward: planned {format_duration(planned_s)} a step, "
            f"measured {format_duration(taken_s / num_steps)}",
        ),
        action="Measure the machine again",
        remedy="If it has become slower, look for other programs and low clocks; if not, look at what the program does "
        "in a step that the plan does not know, such as checks that were left on: profile some steps.",
        setting="trainworks bench compute",
        saves_s=lost_s,
    )


SLOW_STEP_CAUSES: tuple[Cause, ...] = (
    lost_to_data,
    lost_to_slow_ranks,
    lost_to_network,
    lost_to_communication,
    lost_to_bubble,
    lost_to_small_batches,
    lost_to_recomputation,
    lost_to_throttling,
    lost_to_slow_compute,
)
"""Causes that make steps slow; of two that cost the same, the first is listed first."""
