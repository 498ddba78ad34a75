"""Uncertainty of step times and learning from measurements: one small Gaussian model for both.

The logarithm of a step time is known up to a factor on each group of its terms and a noise that two identical runs
show. With shares s of the groups in the predicted time, factors theta ~ N(mu, P):

    log T = log sum_g exp(theta_g) T_g,    sd(log T)^2 = s' P s + noise^2
    80 % interval = T exp(-+ 1.2816 sd)

A measured time y of the same cluster is an iterated Kalman update of (mu, P) with log y - log T(mu): the other
predictions of that cluster move and their intervals shrink. Other clusters have their own belief.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainworks.plan.layouts import Array
from trainworks.plan.step_time import StepTimes

__all__ = [
    "GROUPS",
    "PRIOR",
    "Z80",
    "Belief",
    "calibrated_s",
    "group_factors",
    "interval_s",
    "learn",
    "learn_group",
    "prior_of",
]

GROUPS: dict[str, tuple[str, ...]] = {
    "kernels": ("forward_s", "backward_s", "recompute_s", "head_s", "bubble_s"),
    "scale-up": ("tp_s", "cp_s", "ep_s", "offload_s"),
    "scale-out": ("dp_s", "pp_s"),
    "fixed": ("optimizer_s", "host_s", "straggle_s"),
}
"""Terms of a step that err together."""
Z80 = 1.2815515655446004
"""Half the width of the 80 % interval of a normal distribution, in standard deviations."""
_NOISE = 0.08
"""Standard deviation of one layout around its group factors: 4 to 6 % between days and software releases, and
unmodelled effects of that layout."""
_SURPRISE = 2.0
"""Standard deviations beyond which a measurement counts less: a disturbed run teaches little."""
_ITERATIONS = 4


@dataclass(frozen=True, slots=True)
class Belief:
    """Distribution of the groups' factors on one cluster."""

    mean: Array
    """Logarithm of each group's factor, shape [G]."""
    covariance: Array
    """Shape [G, G]."""
    noise: float = _NOISE


PRIOR = Belief(mean=np.zeros(4), covariance=np.diag(np.array([0.085, 0.35, 0.45, 0.40]) ** 2))
"""Before any measurement; standard deviations from the residuals of the published runs, source by source."""
EXPERTS_PRIOR = replace(PRIOR, noise=0.2)
"""Prior of models with routed experts: their kernels changed by up to 80 % between releases of the same software."""


def prior_of(*, experts: bool) -> Belief:
    """Prior for a model with or without routed experts."""
    return EXPERTS_PRIOR if experts else PRIOR


def _grouped(times: StepTimes) -> Array:
    """Seconds by group, shape [G, n]."""
    return np.stack([np.sum([getattr(times, name) for name in names], axis=0) for names in GROUPS.values()])


def calibrated_s(times: StepTimes, belief: Belief = PRIOR) -> Array:
    """Predicted seconds with the belief's factors, shape [n]."""
    total: Array = (np.exp(belief.mean)[:, None] * _grouped(times)).sum(axis=0)
    return total


def group_factors(belief: Belief) -> dict[str, float]:
    """Factor of the belief on each term of `StepTimes`."""
    factors = np.exp(belief.mean)
    return {name: float(factor) for factor, names in zip(factors, GROUPS.values(), strict=True) for name in names}


def interval_s(times: StepTimes, belief: Belief = PRIOR, *, widen: float = 1.0) -> tuple[Array, Array]:
    """Ends of the 80 % interval around `calibrated_s`.

    Args:
        times: of n layouts.
        belief: of the cluster they would run on.
        widen: factor on the standard deviation, above 1 outside of what was ever measured.
    """
    parts = np.exp(belief.mean)[:, None] * _grouped(times)
    total = parts.sum(axis=0)
    shares = parts / total
    variance = np.einsum("gn,gh,hn->n", shares, belief.covariance, shares) + belief.noise**2
    spread = np.exp(Z80 * widen * np.sqrt(variance))
    return total / spread, total * spread


def learn(times: StepTimes, measured_s: Sequence[float], belief: Belief = PRIOR) -> Belief:
    """Belief after measuring these steps on the cluster in turn.

    A measurement more than two standard deviations off counts as proportionally noisier than the others.

    Args:
        times: predictions of the n layouts that ran, without any belief.
        measured_s: what they took, length n.
        belief: before.
    """
    for column, seconds in zip(_grouped(times).T, measured_s, strict=True):
        belief = _updated(belief, column, float(np.log(seconds)))
    return belief


def _updated(belief: Belief, column: Array, log_seconds: float) -> Belief:
    """One iterated Kalman update: the shares are taken anew where the last iteration ended."""
    mean = belief.mean
    for _ in range(_ITERATIONS):
        parts = np.exp(mean) * column
        shares = parts / parts.sum()
        covariances = belief.covariance @ shares
        variance = shares @ covariances + belief.noise**2
        innovation = log_seconds - np.log(parts.sum()) - shares @ (belief.mean - mean)
        surprise = max(1.0, innovation**2 / variance / _SURPRISE**2)
        gain = covariances / (shares @ covariances + surprise * belief.noise**2)
        mean = belief.mean + gain * innovation
    return Belief(mean, belief.covariance - np.outer(gain, covariances), belief.noise)


def learn_group(belief: Belief, group: str, factor: float, *, noise: float = 0.08) -> Belief:
    """The belief after a benchmark took `factor` times as long as predicted, for one group of terms alone.

    Args:
        belief: before.
        group: one of `GROUPS`.
        factor: measured over predicted seconds.
        noise: standard deviation of log(factor) as a measurement of the group: a benchmark is not a training run.
    """
    index = list(GROUPS).index(group)
    covariances = belief.covariance[:, index]
    gain = covariances / (covariances[index] + noise**2)
    innovation = np.log(factor) - belief.mean[index]
    return Belief(belief.mean + gain * innovation, belief.covariance - np.outer(gain, covariances), belief.noise)
