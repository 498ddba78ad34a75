"""Electricity that the accelerators of a run draw, by what they do in it.

    E = P (c n t_c + w n t_w + i (T - n (t_c + t_w)))

Symbols:
    P    power limit of all accelerators, W     c, w, i   shares of it while they compute, wait and are idle
    n    steps                                  t_c       products of a step: forward, backward, recomputation, head
    T    time from the launch to the last step  t_w       the rest of a step: communication, bubble, optimizer, host

Waiting kernels of collectives keep the clocks high, so waiting is not idle. Start and checkpoints count as idle.
"""

from __future__ import annotations

from dataclasses import replace

from trainworks.plan.assumptions import assumed
from trainworks.plan.trace import Traced, fact, with_changed
from trainworks.record.resolved import Plan, StepTimeTerms

_SHARES = [f"accelerator power while {doing}" for doing in ("computing", "waiting", "idle")]
_PLAN = "the plan"


def run_energy(plan: Plan, power_limit_w: float) -> Traced:
    """Energy of the accelerators for the whole run, J.

    The range has all three shares at their low or at their high ends.

    Args:
        plan: of the run.
        power_limit_w: of all accelerators together.
    """
    step_time, groups = plan.step_time, plan.step_time.groups
    bubble_s = step_time.bubble_s if isinstance(step_time, StepTimeTerms) else 0.0
    computing = fact("computing", groups.compute_s - bubble_s, "s", source=_PLAN)
    waiting = fact("waiting", step_time.total_s - computing.value, "s", source=_PLAN)
    steps = fact("steps", plan.num_steps, "", source=_PLAN)
    rest = fact("rest", max(0.0, plan.run_time_s - plan.num_steps * step_time.total_s), "s", source=_PLAN)
    limit = fact("power limit", power_limit_w, "W", source="the driver")
    c, w, i = (assumed(name) for name in _SHARES)
    energy = (limit * (c * steps * computing + w * steps * waiting + i * rest)).named("energy", "J", c=c, w=w, i=i)
    ends = [{share.name: end for share, end in zip((c, w, i), each, strict=True)} for each in _ends(c, w, i)]
    low, high = (with_changed(energy, changed).value for changed in ends)
    return replace(energy, low=low, high=high)


def _ends(*shares: Traced) -> tuple[list[float], list[float]]:
    """The low ends of these numbers, and the high ones."""
    return [share.low or share.value for share in shares], [share.high or share.value for share in shares]
