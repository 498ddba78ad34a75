"""Uncertainty of step times and learning from measurements: one hierarchical Gaussian model of logarithms.

A predicted step time T is a function of the physical rates in `RATES`. It is homogeneous of degree one in their
slowdowns, so that p_g = dT / d theta_g adds up to T (Euler), and near a prediction

    log T(theta) = log sum_g p_g exp(theta_g)          theta_g   logarithm of the slowdown of rate g
    log y        = log T(theta) + phi + e              y         measured seconds

    theta_g ~ N(0, sigma_g^2)    of one kind of cluster, shared by everything that runs there
    phi     ~ N(0, tau^2)        of one software on it: what the rates cannot explain
    e       ~ noise t_4          of one layout, of one run

Measured times of a kind of cluster give the posterior of (theta, phi). A row moves a rate in proportion to the rate's
share of its time: a long sequence teaches attention, a pipeline over many nodes the network. Student's t keeps a
disturbed run, or a layout that the formulas miss, from spoiling the other predictions. It is found by reweighting
(Lange, Little and Taylor 1989) inside Gauss-Newton steps.

    80 % interval = T exp(-+ 1.2816 sd),  sd^2 = s' P s + noise^2,  s = p / T and 1 for phi

A program differs from what the rates explain by a factor whose variance between sources depends on what it does:

    tau^2(job) = tau_0^2 + sum over kinds k of x_k(job) u_k^2

tau_0 is that of all sources, u_k what a kind adds. `benchmarks/fit_planner.py --leave-out` estimates both from the
errors on sources that a fit left out. With the mean m_s of a source's logarithms of predicted over measured seconds,
shares s of its time by rate, prior P of the rates, and noise nu of its n_s rows,

    q_s = m_s^2 - s' P s - nu^2 / n_s        tau_0^2 = mean of q_s over all sources
    u_k^2 = max(0, (4 tau_0^2 + sum of q_s over the n_k sources of k) / (4 + n_k) - tau_0^2)

The four sources that a kind is given in advance keep a kind of few sources near the others (moderated variances, Smyth
2004). All are then lowered, so that 80 % of the rows of left-out sources and kinds are inside of their intervals.
Only 8 bits, PyTorch's own parallelism, clusters of 512 accelerators and parts without an NVLink switch add anything
that these data can tell; generations, networks and long sequences do not. A kind of model or part that no source has
is given as much as the kind that adds most.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from trainworks.plan.coefficients import AS_EXPECTED, COEFFICIENTS, Coefficients, LinkFactors, Slowdowns
from trainworks.plan.job import AnyJob, StepTimes
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.programs import mixture_spread
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.record.step_time import LAYOUT_DEVIATION, ExpectedStep

RATES = tuple(field.name for field in fields(Slowdowns) if field.name != "links")
"""Physical rates whose slowdown is learned."""
Z80 = NormalDist().inv_cdf(0.9)
"""Half the width of the 80 % interval of a normal distribution, in standard deviations."""
SOFTWARE = 0.045
"""tau_0, of natural logarithms. Set to: sources of step times that a fit left out, by the formulas above."""
KINDS = {
    "8 bits": 0.069,
    "PyTorch": 0.079,
    "many accelerators": 0.1,
    "no NVLink switch": 0.1,
    "not compared": 0.1,
}
"""u_k by kind. Set to: the same sources."""
_MANY = 512
LARGEST_WORLD = 6144
LONGEST = 131072
_PER_DOUBLING = 0.05
"""Standard deviation for each doubling beyond the largest compared run or the longest compared sequence. Assumed."""
_ARCHITECTURES = ("Volta", "Ampere", "Hopper", "Blackwell", "Blackwell Ultra", "CDNA2", "CDNA3")
_FREEDOM = 4.0
"""Degrees of freedom of the noise. Assumed: few, so that an outlier is forgiven."""
_ITERATIONS = 12
_STEP = 0.02
"""Relative step of the difference quotient."""
_NODES, _WEIGHTS = hermegauss(24)
_PHI = np.frompyfunc(lambda z: 0.5 * math.erfc(-z / math.sqrt(2.0)), 1, 1)
"""Normal distribution function."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Standard deviations before any measurement, of natural logarithms."""

    rates: tuple[float, ...]
    """One for each of `RATES`."""
    software: float
    """Between two programs on the same hardware."""
    noise: float
    """Between the layouts of one program, once its rates are known."""
    program_logs: tuple[float, ...] = ()
    """Logarithms of the step time under each program of the job; empty where one is known."""
    links: LinkFactors = AS_EXPECTED
    """What collectives measured; the deviations of the rates of links are of what that leaves."""


PRIOR = Prior(rates=(0.07, 0.18, 0.11, 0.31, 0.27, 0.27), software=SOFTWARE, noise=0.053)
"""Dense models. Set to: the residuals of published sources, half of which no coefficient was fitted to, of which these
are likely values."""
CALIBRATED_PRIOR = Prior(rates=(0.08, 0.2, 0.2, 0.5, 0.4, 0.4), software=0.12, noise=0.08)
"""Plans from a calibration, whose products are measured: what is left are small collectives and the software. Set to:
runs of the worker (docs/reference/local-accuracy.md)."""
COMMAND_PRIOR = replace(CALIBRATED_PRIOR, software=0.3)
"""Plans of commands from a calibration: another program computes the same products with other kernels. Assumed: four of
five take 0.65 to 1.55 of what the worker would."""
EXPERTS_PRIOR = Prior(rates=PRIOR.rates, software=SOFTWARE, noise=0.22)
"""Prior of models with routed experts. Set to: rows of one source, which differ by 22 % from its mean, and releases by
up to 80 %."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured time beside the prediction without any learning."""

    parts_s: Array
    """p, predicted seconds by rate, shape [R]."""
    seconds: float
    """y, measured."""
    software: Hashable | None
    """What identifies the program; None for a benchmark, which tells of the hardware alone."""
    spread: float = 0.0
    """Standard deviation of log(y) as a measurement: above zero for a disturbed or a short run."""
    noise: float | None = None
    """Standard deviation in place of the prior's noise, which is that of layouts; None for a step."""


@dataclass(frozen=True, slots=True)
class Belief:
    """Posterior of the slowdowns for one software on one kind of cluster."""

    mean: Array
    """Means of theta and phi, shape [R + 1]."""
    covariance: Array
    """Shape [R + 1, R + 1]."""
    noise: float
    program_logs: tuple[float, ...] = ()
    """Those of the prior."""
    links: LinkFactors = AS_EXPECTED
    """Those of the prior."""

    @classmethod
    def of(cls, prior: Prior) -> Belief:
        """The belief before any measurement."""
        deviations = np.array([*prior.rates, prior.software])
        return cls(np.zeros(len(deviations)), np.diag(deviations**2), prior.noise, prior.program_logs, prior.links)

    def as_prior(self, prior: Prior) -> Prior:
        """What a plan at these factors leaves open, as the prior of further measurements; without correlations."""
        spreads = np.sqrt(np.diag(self.covariance)).tolist()
        return replace(prior, rates=tuple(spreads[:-1]), software=spreads[-1], links=self.links)

    @property
    def factors(self) -> Array:
        """Factors on the seconds that the rates take, shape [R]; the software's is in all of them."""
        factors: Array = np.exp(self.mean[:-1] + self.mean[-1])
        return factors

    @property
    def slowdowns(self) -> Slowdowns:
        """The same factors by rate, and those of the links."""
        return replace(Slowdowns(*self.factors.tolist()), links=self.links)


def prior_of(job: AnyJob, layouts: Layouts | None = None) -> Prior:
    """Prior for a model with or without routed experts; `software`, tau, is wider for a job unlike what was fitted.

    Args:
        job: a job of several programs differs between them, too.
        layouts: of the job, whose first one says by how much; by default plain data parallelism with sharded weights.
    """
    prior = EXPERTS_PRIOR if getattr(job.shape, "experts", 0) else PRIOR
    world, link = job.cluster.num_accelerators, job.cluster.accelerator.scale_up
    parts = {
        "8 bits": job.precision in ("fp8", "fp4"),
        "PyTorch": _share_of_torch(job),
        "many accelerators": min(1.0, max(0.0, math.log2(2 * world / _MANY))),
        # Switches, or a mesh of their own links, join all accelerators of a node.
        "no NVLink switch": link == "none" or "bridge" in link,
        "not compared": bool(not_compared(job)),
    }
    beyond = [math.log2(max(1.0, ratio)) for ratio in (world / LARGEST_WORLD, job.sequence_length / LONGEST)]
    kinds = sum(share * KINDS[kind] ** 2 for kind, share in parts.items())
    logs, spread = _program_logs(job, layouts), 0.0
    if len(logs):
        spread = float(mixture_spread(logs, [share for _, share in getattr(job, "programs", ())])[0])
    tau = math.sqrt(prior.software**2 + kinds + spread**2 + sum((_PER_DOUBLING * each) ** 2 for each in beyond))
    return replace(prior, software=tau, program_logs=tuple(logs.ravel().tolist()))


def _program_logs(job: AnyJob, layouts: Layouts | None) -> Array:
    """Logarithms of the step time under each program of the job, shape [programs, 1]; see `prior_of`."""
    world, by_program = job.cluster.num_accelerators, getattr(job, "by_program", ())
    at = Layouts.of(global_batch=world, dp=world, dp_shard=world, zero=3) if layouts is None else layouts
    return np.log([each.step_times(at.take(slice(1))).total_s for each in by_program])


def _share_of_torch(job: AnyJob) -> float:
    """Share of PyTorch's own parallelism among the programs that may train the job."""
    programs = getattr(job, "programs", ()) or ((getattr(job, "software", None), 1.0),)
    return sum(share for software, share in programs if software and software.framework == "torch")


def not_compared(job: AnyJob) -> list[str]:
    """Parts of the job that no compared run has."""
    accelerator = job.cluster.accelerator
    known = accelerator.architecture in _ARCHITECTURES
    found = [] if known else [f"no run on {accelerator.name} was ever compared"]
    if isinstance(job.shape, ConvNetShape):
        found.append("no convolutional network was ever compared")
    elif job.shape.diffusion is not None:
        found.append("no diffusion transformer is among the runs that the planner was fitted to")
    elif not job.shape.causal:
        found.append("no encoder was ever compared")
    return found


def parts_s(job: AnyJob, layouts: Layouts, coefficients: Coefficients = COEFFICIENTS) -> Array:
    """Predicted seconds by rate, shape [R, n]; see `times_by_rate`."""
    return times_by_rate(job, layouts, coefficients)[1]


def times_by_rate(job: AnyJob, layouts: Layouts, coefficients: Coefficients = COEFFICIENTS) -> tuple[StepTimes, Array]:
    """Step times, and their seconds by rate, shape [R, n], which add up to them.

    p_g = dT / d theta_g by a difference quotient: hidden communication has no part. What no rate carries is divided in
    proportion.
    """
    tried = len(RATES) + 1  # as predicted, then with one rate after the other slower: one call prices all
    factors = 1 + _STEP * np.eye(tried)[:, 1:].repeat(len(layouts), axis=0)
    slower: dict[str, Any] = {name: getattr(job.slowdowns, name) * factors[:, at] for at, name in enumerate(RATES)}
    repeated = Layouts.concatenate([layouts] * tried)
    times = replace(job, slowdowns=replace(job.slowdowns, **slower)).step_times(repeated, coefficients)
    whole, *others = times.total_s.reshape(tried, len(layouts))
    by_rate = np.maximum(0.0, np.stack(others) - whole) / _STEP
    return times.take(slice(len(layouts))), by_rate * (whole / by_rate.sum(axis=0))


def believe(observations: Sequence[Observation], *, software: Hashable, prior: Prior = PRIOR) -> Belief:
    """Posterior after all of these measurements, in any order.

    Args:
        observations: of one kind of cluster; those of another software teach its rates.
        software: of the job to be predicted.
        prior: of the job to be predicted.
    """
    if not observations:
        return Belief.of(prior)
    programs = [software, *dict.fromkeys(one.software for one in observations if one.software not in (None, software))]
    spreads = np.array([*prior.rates, *(prior.software for _ in programs)])
    covariance = np.diag(spreads**2)
    parts = np.stack([one.parts_s for one in observations])
    measured = np.log([one.seconds for one in observations])
    runs = np.array([[float(one.software == program) for program in programs] for one in observations])
    noise = np.array([(one.noise or prior.noise) ** 2 + one.spread**2 for one in observations])
    mean, weights = np.zeros(len(spreads)), np.ones(len(observations))
    for _ in range(_ITERATIONS):
        slowed = parts * np.exp(mean[: len(RATES)])
        total = slowed.sum(axis=1)
        slopes = np.hstack([slowed / total[:, None], runs])
        missed = measured - np.log(total) - runs @ mean[len(RATES) :] + slopes @ mean
        gain = np.linalg.solve(slopes @ covariance @ slopes.T + np.diag(noise * weights), slopes @ covariance).T
        mean = gain @ missed
        surprise = (missed - slopes @ mean) ** 2 / noise
        weights = (_FREEDOM + surprise) / (_FREEDOM + 1)
    after = covariance - gain @ slopes @ covariance
    own = [*range(len(RATES) + 1)]
    return Belief(mean[own], after[np.ix_(own, own)], prior.noise, prior.program_logs, prior.links)


def interval_s(parts: Array, belief: Belief) -> tuple[Array, Array]:
    """Ends of the 80 % interval of step times.

    Args:
        parts: seconds by rate at the belief's rates, shape [R, n].
        belief: of the cluster.
    """
    seconds = parts.sum(axis=0)
    slopes = np.vstack([parts / seconds, np.ones(len(seconds))])
    variance = np.einsum("gn,gh,hn->n", slopes, belief.covariance, slopes) + belief.noise**2
    spread = np.exp(Z80 * np.sqrt(variance))
    return seconds / spread, seconds * spread


def selection_bias(seconds: Array, *, own: float = LAYOUT_DEVIATION) -> float:
    """Expected logarithm of true over predicted seconds of the layout that a search predicts fastest.

    A search picks the layout whose own error is luckiest (the winner's curse). Errors of rates and software, which the
    layouts of a job share, have no part in it. With errors e_i ~ N(0, d^2) that a layout has for itself and predicted
    logarithms m_i, the layout i wins where every other one has m_j + e_j > m_i + e_i:

        bias = - sum_i integral of e N(e; 0, d^2) product_{j != i} Phi((m_j - m_i - e) / d) de

    It is 0 for one layout and 1.54 d for ten equal ones; layouts that are slower by several d do not count. The true
    times are taken to be spread like the predicted ones, which leaves a fifth to a third of the optimism. The width of
    the interval stays.

    Args:
        seconds: predicted, of the best layout of each family, shape [n].
        own: d.
    """
    logs = np.log(seconds)
    errors = own * _NODES
    gaps = (logs[None, :, None] - logs[:, None, None] - errors) / own
    slower = _PHI(gaps).astype(np.float64)
    at = np.arange(len(logs))
    slower[at, at] = 1.0
    wins = slower.prod(axis=1) * _WEIGHTS / _WEIGHTS.sum()
    return max(0.0, -float((wins * errors).sum()))


def expected_step(parts: Array, belief: Belief, *, learned_from: int = 0) -> ExpectedStep:
    """A predicted step with its 80 % interval.

    Args:
        parts: seconds by rate before learning, shape [R].
        belief: what was learned.
        learned_from: finished runs that it was learned from.
    """
    low, high = interval_s((parts * belief.factors)[:, None], belief)
    by_rate_s = dict(zip(RATES, parts.tolist(), strict=True))
    return ExpectedStep(low_s=float(low[0]), high_s=float(high[0]), by_rate_s=by_rate_s, learned_from=learned_from)
