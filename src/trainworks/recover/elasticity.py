"""Decides by price whether a job continues on fewer nodes while one is missing. Pure: durations in, an answer out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingNode:
    """A job that misses nodes."""

    nodes: int
    """Nodes of the whole job."""
    fewer: int
    """Nodes that are left."""
    step_s: float
    """Predicted step time with all nodes."""
    fewer_step_s: float
    """Predicted step time with those that are left."""
    steps_left: int
    """Steps from the newest checkpoint to the end."""
    repair_s: float
    """Expected time until all nodes are there again."""
    restart_s: float
    """Time from the start of the ranks to their first step."""


@dataclass(frozen=True, slots=True)
class Price:
    """What one way to the end of a job costs."""

    seconds: float
    """Until the last step."""
    node_seconds: float
    """Time for which nodes are held: the price of the job per price of a node."""


def price_of_waiting(job: MissingNode) -> Price:
    """The nodes that are left are held until all are there; then the job restarts.

    seconds = repair + restart + steps * step
    """
    training_s = job.restart_s + job.steps_left * job.step_s
    return Price(job.repair_s + training_s, job.fewer * job.repair_s + job.nodes * training_s)


def price_of_going_on(job: MissingNode) -> Price:
    """The job restarts on the nodes that are left, trains until all are there, and restarts once more.

    done = (repair - restart) / fewer_step;  seconds = repair + restart + (steps - done) * step

    A job that ends before needs only its own steps: restart + steps * fewer_step.
    """
    done = max(0.0, job.repair_s - job.restart_s) / job.fewer_step_s
    if done >= job.steps_left:
        seconds = job.restart_s + job.steps_left * job.fewer_step_s
        return Price(seconds, job.fewer * seconds)
    small_s = max(job.repair_s, job.restart_s)
    large_s = job.restart_s + (job.steps_left - done) * job.step_s
    return Price(small_s + large_s, job.fewer * small_s + job.nodes * large_s)


def going_on_pays(job: MissingNode) -> bool:
    """True if the job ends sooner by continuing on fewer nodes, and costs no more; ties wait."""
    waiting, going_on = price_of_waiting(job), price_of_going_on(job)
    return going_on.seconds < waiting.seconds and going_on.node_seconds <= waiting.node_seconds
