"""Belief about a kind of cluster from measurements on it.

Collectives that were timed at several sizes replace the catalogue's latencies, rates and fillings of the links by the
measured curve. With f the logarithms of the `LinkFactors` and T(f) a collective's time by `plan.collectives`,

    log y = log T(f) + e,   f ~ N(0, `_LINK_PRIOR`^2),   e ~ `_CURVE_NOISE` t_4

over all points, by the reweighting of `plan.uncertainty`. What the curves leave open of a link's rate is

    sd^2 = variance of its f + mean of (log y - log T)^2

in place of the prior's deviation, so that curves that contradict one another keep the interval wide. A later benchmark
of the same collective on as many ranks and nodes, or of the same rate, replaces an earlier one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from trainworks.catalog.cluster import ClusterDescription
from trainworks.plan.coefficients import AS_EXPECTED, COEFFICIENTS, LinkFactors, Slowdowns
from trainworks.plan.collectives import LinkRates, collective_s
from trainworks.plan.compute import device_rates, product_s
from trainworks.plan.degrees import fixed_of
from trainworks.plan.job import AnyJob
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.programs import Shown, planned_programs
from trainworks.plan.rates import link_rates
from trainworks.plan.software import planned_software
from trainworks.plan.step_time import TrainingJob
from trainworks.plan.uncertainty import (
    CALIBRATED_PRIOR,
    RATES,
    Belief,
    Observation,
    Prior,
    believe,
    expected_step,
    parts_s,
    prior_of,
)
from trainworks.record.calibration import Calibration
from trainworks.record.measured.measurement import ClusterMeasurement, MeasuredCurve, MeasuredStep
from trainworks.record.measured.past_run import FinishedRun
from trainworks.record.resolved import Plan
from trainworks.record.step_time import scaled

_PROBE_BYTES = 64 * 2**20
_SMALL_BYTES = 1024.0
_LINK_PRIOR = (0.3, 0.2, 0.5, 0.7, 0.5, 0.5)
"""Standard deviations of the logarithms of the `LinkFactors`: links inside a node are known better. Assumed."""
_CURVE_NOISE = 0.1
"""Set to: published curves, which differ from the fit of their cluster by 2 to 9 % on average."""
_RATE_NOISE, _PRODUCT_NOISE, _PORT_NOISE = 0.02, 0.05, 0.1
"""Between a benchmark's median and the rate in training, of one shape of a product, and between what a port carries and
what collectives reach. Assumed."""
_FASTEST = np.log([1e-9, COEFFICIENTS.scale_up_share, 1e-9, 1e-9, COEFFICIENTS.scale_out_share, 1e-9])
"""Least logarithms of the `LinkFactors`: no link carries more than its data sheet says."""
_NAMES = {
    "products": "matrix products",
    "memory": "device memory",
    "scale_up": "links inside a node",
    "scale_out": "links between nodes",
}
_LINKS = ("scale_up", "scale_out")
_FACTORS = tuple(field.name for field in fields(LinkFactors))
_CURVE_ROUNDS, _FREEDOM, _STEP, _SLOW = 30, 4.0, 1e-3, 0.5


@dataclass(frozen=True, slots=True)
class RateInUse:
    """A rate that a benchmark measured, and that plans use in place of the expected one."""

    rate: str
    """The planner's name, as in `plan.uncertainty.RATES`."""
    of_expected: float
    """Measured over expected rate."""
    created_at: float
    """Time of the newest benchmark that measured it, in seconds since the epoch."""
    tool: str
    bytes_per_s: float | None = None
    """What rings reach: of a rank inside a node, of a node between nodes; None where no collective was timed."""
    latency_s: float | None = None
    expected_latency_s: float | None = None
    limits: bool = True
    """Whether the collectives that were timed tell the rate, and not only that others were slower."""

    @property
    def text(self) -> str:
        """The measured beside the expected figures, in one sentence."""
        day = time.strftime("%Y-%m-%d", time.localtime(self.created_at))
        when = f"on {day}{f' by {self.tool}' if self.tool else ''}"
        if self.bytes_per_s is None or self.latency_s is None or self.expected_latency_s is None:
            return f"{_NAMES[self.rate]}: measured {self.of_expected:.2f} of the catalogue's rate {when}"
        of, catalogue = "accelerator" if self.rate == "scale_up" else "node", self.bytes_per_s / self.of_expected / 1e9
        rate = f"measured {self.bytes_per_s / 1e9:.3g} GB/s for each {of} {when} (catalogue: {catalogue:.3g})"
        if not self.limits:
            rate = f"measured {when}, where slower parts hid their {catalogue:.3g} GB/s for each {of}"
        latency = f"{self.latency_s * 1e6:.3g} us (catalogue: {self.expected_latency_s * 1e6:.3g})"
        return f"{_NAMES[self.rate]}: {rate}, latency {latency}"


@dataclass(frozen=True, slots=True)
class LinkFit:
    """The links as curves of collectives measured them."""

    factors: LinkFactors
    left: Mapping[str, float]
    """Standard deviation that the curves leave open, by the rate of the links that they measured."""

    def narrowed(self, prior: Prior) -> Prior:
        """The prior of a job on these links."""
        known = zip(RATES, prior.rates, strict=True)
        rates = tuple(min(spread, self.left.get(rate, spread)) for rate, spread in known)
        return replace(prior, rates=rates, links=self.factors)


@dataclass(frozen=True, slots=True)
class _Timed:
    """A curve as arrays, shape [n] each."""

    curve: MeasuredCurve
    links: LinkRates
    """The links that the catalogue expects."""
    bytes: Array
    seconds: Array

    def predicted_s(self, logs: Array) -> Array:
        """Seconds with these logarithms of the factors."""
        curve, links = self.curve, self.links.corrected(LinkFactors(*np.exp(logs).tolist()))
        # fewer ranks than a node has are spread over it
        spread = max(1.0, links.ranks_per_node * curve.nodes / curve.ranks) if curve.nodes > 1 else 1.0
        ranks, stride = np.full((2, len(self.bytes)), [[float(curve.ranks)], [spread]])
        return collective_s(curve.operation, self.bytes, ranks, stride, links)


def belief_from(measurements: Sequence[ClusterMeasurement], job: AnyJob, layouts: Layouts | None = None) -> Belief:
    """Belief after these measurements of the kind of cluster that a job is planned for.

    Args:
        measurements: in any order.
        job: without any learning.
        layouts: of the job, see `prior_of`.
    """
    latest, fit = _latest(measurements), fit_links(measurements)
    observations = [one for measurement in latest for one in _observations(measurement, fit, job)]
    return believe(observations, software=job.software, prior=fit.narrowed(prior_of(job, layouts)))


def fit_links(measurements: Sequence[ClusterMeasurement]) -> LinkFit:
    """The links by all curves of collectives among these measurements; as expected where none was timed.

    A transfer is the slower of that inside domains and that between them, so that a slow one may be either: of a fit
    from the expected links and of one from slow networks, the likelier counts.
    """
    curves = [(link_rates(one.cluster), curve) for one in _latest(measurements) for curve in _curves(one)]
    timed = [_Timed(curve, links, *np.array(curve.points).T) for links, curve in curves]
    if not timed:
        return LinkFit(AS_EXPECTED, {})
    starts = (np.zeros(len(_FACTORS)), np.where(np.array(_FACTORS) == "scale_out", _SLOW, 0.0))
    _, logs, variance, missed = min((_fit(timed, start) for start in starts), key=lambda found: found[0])
    spreads = zip(_FACTORS, np.sqrt(variance), _LINK_PRIOR, strict=True)
    known = [name for name, spread, prior in spreads if name in RATES and spread < prior / 2]
    left = {name: float(np.sqrt(variance[_FACTORS.index(name)] + missed)) for name in known}
    return LinkFit(LinkFactors(*np.exp(logs).tolist()), left)


def _fit(timed: Sequence[_Timed], logs: Array) -> tuple[float, Array, Array, float]:
    """Loss, logarithms of the factors, their variances, and mean squared error, by Gauss-Newton steps from `logs`."""
    measured = np.log(np.concatenate([each.seconds for each in timed]))
    prior, factors = np.diag(np.square(_LINK_PRIOR)), len(_FACTORS)
    shifts = [np.zeros(factors), *(_STEP * np.eye(factors))]
    for _ in range(_CURVE_ROUNDS):
        at, *moved = (np.log(np.concatenate([each.predicted_s(logs + by) for each in timed])) for by in shifts)
        slopes, missed = (np.stack(moved, axis=1) - at[:, None]) / _STEP, measured - at
        surprise = (missed / _CURVE_NOISE) ** 2
        noise = np.diag(_CURVE_NOISE**2 * (_FREEDOM + surprise) / (_FREEDOM + 1))
        gain = np.linalg.solve(slopes @ prior @ slopes.T + noise, slopes @ prior).T
        step = gain @ (missed + slopes @ logs) - logs
        if np.abs(step).max() < _STEP:
            break
        logs = np.maximum(logs + step / 2, _FASTEST)
    loss = (_FREEDOM + 1) * np.log1p(surprise / _FREEDOM).sum() + np.square(logs / _LINK_PRIOR).sum()
    return float(loss), logs, np.diag(prior - gain @ slopes @ prior), float((missed**2).mean())


def rates_in_use(measurements: Sequence[ClusterMeasurement], cluster: ClusterDescription) -> list[RateInUse]:
    """What benchmarks measured of a cluster's rates, one for each rate, in the order of `RATES`.

    Args:
        measurements: those that its plans learn from.
        cluster: that is planned for.
    """
    latest, fit, links = _latest(measurements), fit_links(measurements), link_rates(cluster)
    expected = {
        "scale_up": (links.scale_up_bytes_per_s, links.start_s, fit.factors.scale_up_latency),
        "scale_out": (links.node_bytes_per_s, links.scale_out_latency_s, fit.factors.scale_out_latency),
    }
    found = []
    for rate in RATES:
        curves = [(one.created_at, each) for one in latest for each in _curves(one)]
        curves = curves if rate in fit.left else [each for each in curves if rate == _LINKS[each[1].nodes > 1]]
        rates = [(one.created_at, each) for one in latest for each in one.rates if each.rate == rate]
        sources = [(at, each.tool) for at, each in curves] or [(at, each.tool) for at, each in rates]
        if not sources:
            continue
        tools = ", ".join(dict.fromkeys(tool.rpartition(" of ")[2] for _, tool in sources if tool))
        share = float(np.exp(np.mean([np.log(each.of_expected) for _, each in rates]))) if not curves else 1.0
        in_use = RateInUse(rate, share, max(at for at, _ in sources), tools)
        if curves:
            share, (bytes_per_s, latency_s, slower) = 1 / getattr(fit.factors, rate), expected[rate]
            figures = {"bytes_per_s": bytes_per_s * share, "latency_s": latency_s * slower}
            known = {"of_expected": share, "expected_latency_s": latency_s, "limits": rate in fit.left}
            in_use = replace(in_use, **figures, **known)
        found.append(in_use)
    return found


def _latest(measurements: Sequence[ClusterMeasurement]) -> list[ClusterMeasurement]:
    """The measurements, oldest first, without the rates and curves that a later benchmark measured again."""
    ordered = sorted(measurements, key=lambda one: one.created_at)
    last: dict[tuple[object, ...], float] = {}
    for one in ordered:
        last |= {each.subject: one.created_at for each in one.rates}
        last |= {each.subject: one.created_at for each in one.curves}

    def kept(one: ClusterMeasurement) -> ClusterMeasurement:
        rates = tuple(each for each in one.rates if last[each.subject] == one.created_at)
        curves = tuple(each for each in one.curves if last[each.subject] == one.created_at)
        return one.model_copy(update={"rates": rates, "curves": curves})

    return [kept(one) for one in ordered]


def _curves(measurement: ClusterMeasurement) -> tuple[MeasuredCurve, ...]:
    """The timed collectives; of a calibration's line, a small and a large all-reduce."""
    line = measurement.benchmark
    if line is None or line.num_ranks < 2:
        return measurement.curves
    ring = 2 * (line.num_ranks - 1) / line.num_ranks / line.all_reduce_bytes_per_s
    points = tuple((size, line.all_reduce_latency_s + size * ring) for size in (_SMALL_BYTES, _PROBE_BYTES))
    return (MeasuredCurve(operation="all_reduce", ranks=line.num_ranks, nodes=1, points=points),)


def _observations(measurement: ClusterMeasurement, fit: LinkFit, planned: AnyJob) -> Iterator[Observation]:
    if measurement.step is not None:
        yield _step(measurement.step, measurement, fit.factors, planned)
    elif measurement.benchmark is not None:
        yield from _products(measurement.benchmark, measurement)
    for rate in measurement.rates:
        if rate.rate not in fit.left:  # what a port carries says less than what collectives reach
            noise = _PORT_NOISE if rate.kind.startswith("link_bandwidth") else _RATE_NOISE
            yield _observe_rate(rate.rate, rate.of_expected, 1.0, noise)


def _step(step: MeasuredStep, measurement: ClusterMeasurement, links: LinkFactors, planned: AnyJob) -> Observation:
    """A measured step; one of the program that is planned, as far as it is said, is of the same mixture."""
    software = planned_software(
        step.software,
        compiled=step.fused_kernels or (None if step.software is None else False),
        precision=step.precision,
    )
    degrees = fixed_of(step.layout)
    job = TrainingJob(step.shape, step.sequence_length, step.precision, measurement.cluster, software)
    if isinstance(planned, TrainingJob) and planned.software == software:
        programs = planned.programs
    else:
        shown = Shown.of(step.shape, step.precision, job.cluster.accelerator, degrees, program=software.name)
        programs = planned_programs(software, shown)
    job = replace(job, programs=programs, slowdowns=Slowdowns(links=links))
    layouts = Layouts.of(global_batch=step.global_batch, **degrees)
    return Observation(parts_s(job, layouts)[:, 0], step.step_time_s, software)


def _products(benchmark: Calibration, measurement: ClusterMeasurement) -> Iterator[Observation]:
    """Short products against products that no long run has heated up."""
    part = measurement.cluster.accelerator
    device = device_rates(part, benchmark.precision, replace(COEFFICIENTS, gemm_share=1.0))
    for gemm in benchmark.gemms:
        predicted_s = float(product_s(gemm.m, gemm.n, gemm.k, device)[()])
        measured_s = 2.0 * gemm.m * gemm.n * gemm.k / gemm.flops_per_s
        yield _observe_rate("products", predicted_s, measured_s, _PRODUCT_NOISE)


def _observe_rate(name: str, predicted_s: float, measured_s: float, noise: float) -> Observation:
    parts = np.array([predicted_s if rate == name else 0.0 for rate in RATES])
    return Observation(parts, measured_s, None, noise=noise)


def with_learning(
    plan: Plan, finished: Sequence[FinishedRun], *, software: str, prior: Prior = CALIBRATED_PRIOR
) -> Plan:
    """The plan of a run on this machine after learning from finished runs on it; the terms keep their shares.

    Args:
        plan: without any learning.
        finished: runs on this kind of machine; those of another software teach what carries over.
        software: of the run.
        prior: of its plan before any run.
    """
    if plan.expected is None:
        return plan
    observations = [
        Observation(_rate_matrix(run.by_rate_s), run.measured_s, run.software, run.spread) for run in finished
    ]
    belief = believe(observations, software=software, prior=prior)
    parts = _rate_matrix(plan.expected.by_rate_s)
    factor = float((parts * belief.factors).sum() / parts.sum())
    step_time = scaled(plan.step_time, factor)
    longer_s = plan.num_steps * (step_time.total_s - plan.step_time.total_s)
    changes = {
        "step_time": step_time,
        "expected": expected_step(parts, belief, learned_from=len(finished)),
        "run_time_s": plan.run_time_s + longer_s,
    }
    return plan.model_copy(update=changes)


def _rate_matrix(seconds: Mapping[str, float]) -> Array:
    return np.array([seconds.get(rate, 0.0) for rate in RATES])
