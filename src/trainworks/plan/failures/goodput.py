"""What is to be expected of a run that fails now and then, as formulas.

    M   mean time between failures of the job     T   work between two checkpoints     W   work of the whole run
    C   time that training stands still to save   R   detection, restart, and the write that a failure may undo

    M = 1 / (N / node MTTF + 1 / other MTTF + 1 / life of the capacity)
    T = sqrt(2 C M) (1 + 1/3 sqrt(C / 2M) + C / 18M) - C         for C < 2M, else M; within the bounds of what one does
    wall clock with nodes at hand = M exp(R/M) (exp((T + C)/M) - 1) W/T

The last is exact where failures are independent and recovery can fail, too; C/T + (T/2 + R)/M is its first order. A job
that has no node to go on with waits: with s spares and a = repair / node failures' mean distance, the nodes in repair
are Erlang's loss system of s + 1 places, and the job waits for the share of time in which all are taken. That share
depends on the mean repair time alone, not on its distribution.

Sources: Young, CACM 17(9), 1974; Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
FGCS 22(3), 2006; Erlang, 1917. Left out: stragglers, preemption, elastic jobs; `simulation` has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from trainworks.errors import UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.trace import Traced, computed, derive, fact
from trainworks.units import format_duration

__all__ = ["Expected", "Failures", "expected", "job_mttf", "spares_needed", "waiting_share"]

_LEAST_WORK = 0.02
"""Between two checkpoints, over the stall of one."""
_LARGEST_EXPONENT = 4.0
"""(T + C + R)/M beyond which a job has less than exp(-4), about 2 %, of its time left."""
_SYNCHRONOUS = fact("checkpoint write", 0.0, "s", source="checkpoints are synchronous")
_NO_QUEUE = fact("queue", 0.0, "s", source="none asked for")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often a job fails, and what a failure takes; times in seconds."""

    num_nodes: Traced
    node_mttf: Traced
    """To a failure that takes the node away for repair."""
    save: Traced
    """C: training stands still for each checkpoint."""
    restart: Traced
    repair: Traced
    detection: Traced
    """From a failure until it is noticed."""
    other_mttf: Traced | None = None
    """Of the job: to a failure that leaves all nodes usable."""
    capacity_life: Traced | None = None
    """Mean life of preemptible capacity whose notice is too short to save; its end counts as a failure."""
    write: Traced = _SYNCHRONOUS
    """After the stall, until the checkpoint can be restored."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Means of a run; every number knows its formula."""

    job_mttf: Traced
    interval: Traced
    goodput_with_nodes: Traced
    """Productive share of the time in which no node is waited for."""
    waiting: Traced
    """Share of the time in which the job waits for a node."""
    runtime_goodput: Traced
    run_time: Traced
    ettr: Traced
    failures: Traced


def job_mttf(failures: Failures) -> Traced:
    """Mean time between failures of the whole job: its nodes fail independently of each other."""
    nodes = {"num_nodes": failures.num_nodes, "node_mttf": failures.node_mttf}
    asked = {"other_mttf": failures.other_mttf, "capacity_life": failures.capacity_life}
    others = {name: mttf for name, mttf in asked.items() if mttf is not None}
    if not others:
        return derive("job MTTF", "s", "node_mttf / num_nodes", **nodes)
    rates = " + ".join(["num_nodes / node_mttf", *(f"1 / {name}" for name in others)])
    return derive("job MTTF", "s", f"1 / ({rates})", **nodes, **others)


def _daly_interval(failures: Failures, mttf: Traced, shortest: Traced) -> Traced:
    """Daly's interval between the shortest and the longest that anybody wants, and no shorter than a write takes."""
    best = derive(
        "Daly's interval",
        "s",
        "sqrt(2 * save * mttf) * (1 + sqrt(save / mttf / 2) / 3 + save / mttf / 18) - save"
        " if save < 2 * mttf else mttf",
        save=failures.save,
        mttf=mttf,
    )
    return derive(
        "checkpoint interval",
        "s",
        "max(min(best, longest), write - save, shortest)",
        best=best,
        longest=assumed("longest checkpoint interval"),
        write=failures.write,
        save=failures.save,
        shortest=shortest,
    )


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
    """Mean number of nodes in repair if the job never stood still."""
    return derive(
        "nodes in repair",
        "",
        "num_nodes * repair / node_mttf",
        num_nodes=failures.num_nodes,
        repair=failures.repair,
        node_mttf=failures.node_mttf,
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
) -> Expected:
    """What a run is expected to take, if it is long enough to see many failures.

    Args:
        failures: how often, and what each takes.
        work: time on all nodes without failures or checkpoints.
        spares: nodes beside those of the job.
        shortest: interval below which nobody saves, such as one step.
        interval: asked for; where left out Daly's, within the longest that people accept to lose.
        queue: wait before the first start.

    Raises:
        UsageError: the job fails before it gets from one checkpoint to the next.
    """
    mttf = job_mttf(failures)
    interval = interval or _daly_interval(failures, mttf, shortest)
    with_nodes = _goodput_with_nodes(failures, mttf, interval)
    load = _repair_load(failures)
    by = "Erlang's B(spares + 1, nodes in repair)"
    share = waiting_share(load.value, round(spares.value))
    waiting = computed("waiting for nodes", share, "", by=by, load=load, spares=spares)
    goodput = derive(
        "runtime goodput", "", "goodput_with_nodes * (1 - waiting)", goodput_with_nodes=with_nodes, waiting=waiting
    )
    run_time = derive("run time", "s", "work / runtime_goodput", work=work, runtime_goodput=goodput)
    moving = derive("time with nodes", "s", "run_time * (1 - waiting)", run_time=run_time, waiting=waiting)
    return Expected(
        job_mttf=mttf,
        interval=interval,
        goodput_with_nodes=with_nodes,
        waiting=waiting,
        runtime_goodput=goodput,
        run_time=run_time,
        ettr=derive("ETTR", "", "work / (run_time + queue)", work=work, run_time=run_time, queue=queue),
        failures=derive("failures", "", "time_with_nodes / job_mttf", time_with_nodes=moving, job_mttf=mttf),
    )


def _goodput_with_nodes(failures: Failures, mttf: Traced, interval: Traced) -> Traced:
    recovery = derive(
        "recovery",
        "s",
        "detection + restart + write",
        detection=failures.detection,
        restart=failures.restart,
        write=failures.write,
    )
    _check_saves(failures.save.value, interval.value)
    _check_progress(failures.save.value + interval.value, recovery.value, mttf.value)
    return derive(
        "goodput with nodes at hand",
        "",
        "interval / (mttf * exp(recovery / mttf) * expm1((interval + save) / mttf))",
        interval=interval,
        mttf=mttf,
        recovery=recovery,
        save=failures.save,
    )


def _check_saves(save_s: float, interval_s: float) -> None:
    if interval_s < _LEAST_WORK * save_s:
        every, takes = format_duration(interval_s), format_duration(save_s)
        raise UsageError(
            f"a checkpoint every {every} that takes {takes} leaves no time to work",
            hint="save less often, or faster",
        )


def _check_progress(cycle_s: float, recovery_s: float, mttf_s: float) -> None:
    """Refuse a job of which the formula leaves next to nothing."""
    if (cycle_s + recovery_s) / mttf_s > _LARGEST_EXPONENT:
        raise UsageError(
            f"the job fails every {format_duration(mttf_s)}, and needs {format_duration(recovery_s)} to recover and "
            f"{format_duration(cycle_s)} to the next checkpoint: it hardly gets on",
            hint="use fewer or more reliable nodes, recover faster, or save more often",
        )
