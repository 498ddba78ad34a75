"""Expected goodput of a run with failures, as formulas.

    M   mean time between interruptions of the job    T   work between two checkpoints      W   work of the whole run
    C   time that training stops to save              w   from then until it can be restored
    R   detection and restart; a restart alone after preemption                              q   share of a cause in 1/M

    M = 1 / (N / node MTTF + 1 / other MTTF + 1 / life of the capacity)
    T = the optimal interval of `plan/reliability/checkpoint_interval.py`
    wall clock with nodes at hand = M exp((R + w)/M) (exp((T + C)/M) - 1) W/T

The last is exact where failures are independent and recovery can fail, too; C/T + (T/2 + R + w)/M is its first order.
Where causes recover differently, exp(-R/M) is the mean over them. A preemption whose notice is long enough for a
checkpoint loses no work: it keeps M (1 - exp(-T/M)) / (1 - exp(-(T + C)/M)) in the mean, all that was trained since the
last interruption, and takes C + w to save it. The wait for new capacity counts in ETTR and in the run time. It costs
nothing, and does not count in runtime goodput.

A job without a spare node waits: with s spares and a = repair / mean time between node failures, the nodes in repair
are Erlang's loss system of s + 1 places, and the job waits for the share of time in which all are taken. That share
depends only on the mean repair time, not on its distribution.

Sources: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006; Erlang,
1917. Left out: stragglers, elastic jobs; `simulation` has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

from trainworks.errors import UsageError
from trainworks.plan.reliability.checkpoint_interval import optimal_interval
from trainworks.plan.reliability.defaults import Failures
from trainworks.plan.trace import Traced, computed, exp, expm1, fact, total
from trainworks.units import format_duration

_LEAST_WORK = 0.02
"""Smallest ratio of the work between two checkpoints to the stall of one."""
_LARGEST_EXPONENT = 4.0
"""(T + C + R)/M beyond which a job has less than exp(-4), about 2 %, of its time left."""
_NEVER = fact("preemptions", 0.0, "", source="the capacity is not taken away")
_NO_QUEUE = fact("queue", 0.0, "s", source="none asked for")


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """Expected values of a run."""

    job_mttf: Traced
    interval: Traced
    waiting: Traced
    """Share of the time in which the job waits for a node."""
    runtime_goodput: Traced
    run_time: Traced
    ettr: Traced
    failures: Traced
    """Failures of nodes and of the job; preemptions are counted separately."""
    preemptions: Traced


def job_mttf(failures: Failures) -> Traced:
    """Mean time between failures of the whole job: its nodes fail independently of each other."""
    return _mean_time("job MTTF", failures, other_mttf=failures.other_mttf)


def _mean_time(name: str, failures: Failures, **others: Traced | None) -> Traced:
    """Mean time to the first of the nodes' failures and of other events."""
    num_nodes, node_mttf = failures.num_nodes, failures.node_mttf
    causes = {cause: time for cause, time in others.items() if time is not None}
    if not causes:
        return (node_mttf / num_nodes).named(name, "s", num_nodes=num_nodes, node_mttf=node_mttf)
    rates = total(num_nodes / node_mttf, *(1 / time for time in causes.values()))
    return (1 / rates).named(name, "s", num_nodes=num_nodes, node_mttf=node_mttf, **causes)


def _interruption_mttf(failures: Failures) -> Traced:
    if failures.capacity_life is None:
        return job_mttf(failures)
    life = failures.capacity_life
    return _mean_time("time between interruptions", failures, other_mttf=failures.other_mttf, capacity_life=life)


def job_interval(failures: Failures, shortest: Traced) -> Traced:
    """The checkpoint interval of a job: the optimal one for everything that loses work."""
    mttf = job_mttf(failures) if failures.saves_before_preemption else _interruption_mttf(failures)
    return optimal_interval(stall=failures.save, mttf=mttf, write=failures.write, shortest=shortest)


def save_in_time(failures: Failures, interval: Traced | None) -> Failures:
    """The same failures, where an interval that is shorter than the write makes each save wait for the one before."""
    if interval is None or failures.write.value <= interval.value + failures.save.value:
        return failures
    stall = (failures.write - interval).named("save stall", "s", write=failures.write, interval=interval)
    return replace(failures, save=stall)


def waiting_share(load: float, spares: int) -> float:
    """Erlang's B with one place per spare and one for the node that the job misses.

        B(0) = 1,    B(n) = a B(n-1) / (n + a B(n-1))

    Args:
        load: a, mean nodes in repair if the job never waited; 0 waits never.
        spares: n - 1; without any the share is a / (1 + a).

    >>> round(waiting_share(1.0, 0), 3), round(waiting_share(1.0, 3), 3)
    (0.5, 0.015)
    """
    return next(islice(_blocked(load), spares, None))


def _blocked(load: float) -> Iterator[float]:
    """Erlang's B with 1, 2, 3 ... places."""
    blocked = 1.0
    for places in count(1):
        blocked = load * blocked / (places + load * blocked)
        yield blocked


def _repair_load(failures: Failures) -> Traced:
    """Mean number of nodes in repair if the job never waited."""
    return (failures.num_nodes * failures.repair / failures.node_mttf).named(
        "nodes in repair", "", num_nodes=failures.num_nodes, repair=failures.repair, node_mttf=failures.node_mttf
    )


def spares_needed(failures: Failures, *, limit: Traced) -> Traced:
    """Fewest spares with which the job waits for a node no more than that share of the time.

    Args:
        failures: of the job, or of all jobs of a cluster taken as one.
        limit: largest share of time in which more nodes are in repair than there are spares; above 0.
    """
    load = _repair_load(failures)
    shares = enumerate(_blocked(load.value))
    spares = next(spares for spares, share in shares if share <= limit.value or spares >= failures.num_nodes.value)
    by = "fewest with which Erlang's B(spares + 1, nodes in repair) is at most the limit"
    return computed("spares needed", spares, "", by=by, load=load, limit=limit)


def expected(
    failures: Failures,
    *,
    work: Traced,
    spares: Traced,
    shortest: Traced,
    interval: Traced | None = None,
    queue: Traced = _NO_QUEUE,
) -> ExpectedRun:
    """Expected goodput and duration of a run long enough for many failures and preemptions.

    Args:
        failures: rates and costs of failures.
        work: time on all nodes without failures or checkpoints.
        spares: nodes in addition to those of the job.
        shortest: lower bound of the interval, such as one step.
        interval: time between checkpoints; by default the optimal one.
        queue: wait before the first start.

    Raises:
        UsageError: the job fails before it gets from one checkpoint to the next.
    """
    interval = interval or job_interval(failures, shortest)
    with_nodes = _goodput_with_nodes(failures, interval)
    load = _repair_load(failures)
    by = "Erlang's B(spares + 1, nodes in repair)"
    share = waiting_share(load.value, round(spares.value))
    waiting = computed("waiting for nodes", share, "", by=by, load=load, spares=spares)
    goodput = (with_nodes * (1 - waiting)).named("runtime goodput", "", goodput_with_nodes=with_nodes, waiting=waiting)
    run_time = (work / goodput).named("time held", "s")
    counts = _counts(failures, (run_time * (1 - waiting)).named("time with nodes", "s", held=run_time, waiting=waiting))
    if failures.capacity_life is not None:
        wait = failures.capacity_wait
        run_time = (run_time + counts[1] * wait).named("run time", "s", held=run_time, wait=wait)
    return ExpectedRun(
        job_mttf=job_mttf(failures),
        interval=interval,
        waiting=waiting,
        runtime_goodput=goodput,
        run_time=replace(run_time, name="run time"),
        ettr=(work / (run_time + queue)).named("ETTR", "", run_time=run_time),
        failures=counts[0],
        preemptions=counts[1],
    )


def _goodput_with_nodes(failures: Failures, interval: Traced) -> Traced:
    """Productive share of the time with all nodes."""
    mttf = _interruption_mttf(failures)
    recovery = _recovery(failures)
    if interval.value < _LEAST_WORK * failures.save.value:
        every, takes = format_duration(interval.value), format_duration(failures.save.value)
        raise UsageError(
            f"a checkpoint every {every} that takes {takes} leaves no time to work",
            hint="save less often, or faster",
        )
    _check_progress(failures, failures.save.value + interval.value, recovery.value + failures.write.value)
    name, save, write, life = "goodput with nodes at hand", failures.save, failures.write, failures.capacity_life
    times = {"interval": interval, "save": save, "write": write, "mttf": mttf}
    if life is None:
        share = interval / (mttf * exp((recovery + write) / mttf) * expm1((interval + save) / mttf))
        return share.named(name, "", **times)
    at_once = _undisturbed_share(failures, life)
    if not failures.saves_before_preemption:
        share = interval * at_once * exp(-write / mttf) / (mttf * expm1((interval + save) / mttf))
        return share.named(name, "", at_once=at_once, **times)
    lost = (1 - mttf / life) * interval * exp(-write / mttf) / expm1((interval + save) / mttf)
    saved = mttf / life * mttf * expm1(-interval / mttf) / expm1(-(interval + save) / mttf)
    share = (lost + saved) / (mttf / at_once + mttf / life * (save + write))
    return share.named(name, "", at_once=at_once, life=life, **times)


def _recovery(failures: Failures) -> Traced:
    return (failures.detect + failures.restart).named("recovery", "s", detection=failures.detect)


def _undisturbed_share(failures: Failures, life: Traced) -> Traced:
    """Share of interruptions whose recovery is not interrupted, with preemptible capacity."""
    mttf, recovery = _interruption_mttf(failures), _recovery(failures)
    preempted = mttf / life
    share = (1 - preempted) * exp(-recovery / mttf) + preempted * exp(-failures.restart / mttf)
    return share.named("recoveries without another interruption", "", mttf=mttf, life=life)


def _counts(failures: Failures, duration: Traced) -> tuple[Traced, Traced]:
    """Failures and preemptions in a time with all nodes; nothing happens during a save before a preemption."""
    mttf = job_mttf(failures)
    if failures.capacity_life is None:
        return (duration / mttf).named("failures", "", held=duration, job_mttf=mttf), _NEVER
    exposed = duration
    life, save, write = failures.capacity_life, failures.save, failures.write
    if failures.saves_before_preemption:
        at_once = _undisturbed_share(failures, life)
        exposed = (duration / (1 + at_once * (save + write) / life)).named(
            "time exposed", "s", held=duration, at_once=at_once, save=save, write=write, life=life
        )
    return (
        (exposed / mttf).named("failures", "", exposed=exposed, job_mttf=mttf),
        (exposed / life).named("preemptions", "", exposed=exposed, life=life),
    )


def _check_progress(failures: Failures, cycle_s: float, recovery_s: float) -> None:
    mttf_s = _interruption_mttf(failures).value
    loses_s = job_mttf(failures).value if failures.saves_before_preemption else mttf_s
    if cycle_s / loses_s + recovery_s / mttf_s > _LARGEST_EXPONENT:
        raise UsageError(
            f"the job fails every {format_duration(mttf_s)}, and needs {format_duration(recovery_s)} to recover and "
            f"{format_duration(cycle_s)} to the next checkpoint: it makes little progress",
            hint="use fewer or more reliable nodes, recover faster, or save more often",
        )
