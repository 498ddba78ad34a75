"""What fails in a job, how often and at what cost; the defaults are those of the published fleet of its kind."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainworks.catalog.catalog import find_row, load_catalog
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Accelerator, Fleet
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.trace import Traced, fact, maximum

_SYNCHRONOUS = fact("checkpoint write", 0.0, "s", source="checkpoints are synchronous")
_NO_NOTICE = fact("notice", 0.0, "s", source="none given")
_NO_WAIT = fact("wait for capacity", 0.0, "s", source="none given")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failure rates of a job, and the cost of each failure; times in seconds."""

    num_nodes: Traced
    node_mttf: Traced
    """Mean time to a failure that takes the node away for repair."""
    save: Traced
    """C: time that training stops for each checkpoint."""
    restart: Traced
    repair: Traced
    detect: Traced
    """Time from a failure until its detection."""
    other_mttf: Traced | None = None
    """Mean time of the job to a failure that leaves all nodes usable."""
    capacity_life: Traced | None = None
    """Mean life of preemptible capacity."""
    notice: Traced = _NO_NOTICE
    """Warning before the capacity is taken; long enough for a checkpoint, no work is lost."""
    capacity_wait: Traced = _NO_WAIT
    """Mean wait for new capacity, without accelerators."""
    write: Traced = _SYNCHRONOUS
    """Time from the stall until the checkpoint can be restored."""

    @property
    def saves_before_preemption(self) -> bool:
        """True if the notice is long enough for a checkpoint."""
        return self.capacity_life is not None and self.notice.value >= self.save.value + self.write.value


def fleet_of(accelerator: Accelerator) -> Fleet | None:
    """Fleet whose failure rate represents accelerators of that architecture; None if none is published."""
    return next(
        (fleet for fleet in load_catalog().fleets.values() if accelerator.architecture in fleet.stands_for), None
    )


def usual_failures(
    accelerator: Accelerator,
    num_nodes: int,
    *,
    save: Traced,
    write: Traced | None = None,
    capacity_life_s: float | None = None,
    notice_s: float | None = None,
    capacity_wait_s: float | None = None,
    node_mttf_s: float | None = None,
    detect_s: float | None = None,
    restart_s: float | None = None,
    repair_s: float | None = None,
) -> Failures:
    """Failures of a job on that many nodes; missing values come from the catalogue.

    Hardware failures take the node away; other failures of the fleet leave it usable. A given rate covers both, in the
    fleet's proportion.

    Args:
        accelerator: of the nodes.
        num_nodes: of the job, without spares.
        save: time that training stops for a checkpoint.
        write: from then until it can be restored; synchronous by default.
        capacity_life_s: mean life of preemptible capacity.
        notice_s: warning before it is taken.
        capacity_wait_s: mean wait for new capacity.
        node_mttf_s: mean time between failures of one node, of all kinds.
        detect_s: from a failure until its detection.
        restart_s: from having all nodes until training resumes.
        repair_s: of a node.
    """
    nodes = fact("nodes", num_nodes, "", source="of the cluster")
    fleet = fleet_of(accelerator)
    every = usual_node_mttf(accelerator, node_mttf_s)
    share = 1.0 if fleet is None or fleet.hardware_share is None else fleet.hardware_share
    hardware, other = _split_by_kind(every, nodes, share, "" if fleet is None else _source(fleet))
    rest = {} if write is None else {"write": write}
    named = {"capacity life": capacity_life_s, "notice": notice_s, "capacity wait": capacity_wait_s}
    for name, value in named.items():
        if value is not None:
            rest[name.replace(" ", "_")] = fact(name, value, "s", source=GIVEN)
    return Failures(
        num_nodes=nodes,
        node_mttf=hardware,
        other_mttf=other,
        save=save,
        detect=assumed("failure detection", detect_s),
        restart=assumed("restart", restart_s),
        repair=assumed("node repair", repair_s),
        **rest,
    )


def usual_node_mttf(accelerator: Accelerator | None, given_s: float | None = None) -> Traced:
    """The given value, else the fleet's with the range of all published ones, else the assumption."""
    fleet = None if accelerator is None else fleet_of(accelerator)
    spread = assumed("node MTTF", given_s)
    if given_s is not None or fleet is None:
        return spread
    return fact("node MTTF", fleet.node_mttf_s, "s", source=_source(fleet), low=spread.low, high=spread.high)


def _source(fleet: Fleet) -> str:
    rate = next(figure for figure in find_row(fleet.name, "fleets").figures if "failures_per_node_s" in figure.facts)
    return f"fleet {fleet.name}: {rate.cited}"


def _split_by_kind(every: Traced, nodes: Traced, share: float, source: str) -> tuple[Traced, Traced | None]:
    """Mean times to a failure of a node's hardware, and to any other of the whole job."""
    if share == 1:
        return every, None
    hardware = fact("hardware share", share, "", source=source)
    hardware_mttf = (every / hardware).named("node hardware MTTF", "s", node_mttf=every)
    return hardware_mttf, (every / (1 - hardware) / nodes).named("other MTTF", "s", node_mttf=every)


def save_times(
    checkpoint: Traced | None,
    num_nodes: int,
    *,
    num_accelerators: int,
    replicas: int = 1,
    step: Traced | None = None,
    save_s: float | None = None,
    write_s: float | None = None,
) -> tuple[Traced, Traced]:
    """Stall and write of a checkpoint copied to host memory during the next step and written in the background.

    Training stops for the stall; the write lasts from its end until the checkpoint can be restored.

        stall    start + max(0, checkpoint * replicas / accelerators / copy rate - step)
        write    checkpoint / nodes / rate of one node

    Args:
        checkpoint: bytes of one replica's state; None if no model is known.
        num_nodes: nodes that write together.
        num_accelerators: accelerators that hold the state.
        replicas: copies of the state among them.
        step: time of the step that hides the copy; by default nothing hides it.
        save_s: replaces the first formula.
        write_s: replaces the second; 0 is a synchronous save.
    """
    stall = None if save_s is None else fact("save stall", save_s, "s", source=GIVEN)
    write = None if write_s is None else fact("checkpoint write", write_s, "s", source=GIVEN)
    if checkpoint is None:
        stall = stall or replace(assumed("checkpoint start"), name="save stall")
        return stall, write or replace(assumed("checkpoint stall"), name="checkpoint write")
    stall = stall or _copy_stall(checkpoint, replicas, num_accelerators, step)
    nodes = fact("nodes", num_nodes, "", source="of the cluster")
    rate_per_node = assumed("checkpoint rate per node")
    write = write or (checkpoint / nodes / rate_per_node).named(
        "checkpoint write", "s", checkpoint=checkpoint, rate_per_node=rate_per_node
    )
    return stall, write


def _copy_stall(checkpoint: Traced, num_replicas: int, num_accelerators: int, step: Traced | None) -> Traced:
    start, copy_rate = assumed("checkpoint start"), assumed("checkpoint copy rate")
    replicas = fact("replicas", num_replicas, "", source="of the layout")
    accelerators = fact("accelerators", num_accelerators, "", source="of the cluster")
    step = step or fact("step time", 0.0, "s", source="not known")
    return (start + maximum(0, checkpoint * replicas / accelerators / copy_rate - step)).named(
        "save stall", "s", start=start, checkpoint=checkpoint, copy_rate=copy_rate, step=step
    )


def planned_failures(
    cluster: ClusterDescription,
    checkpoint: Traced | None,
    *,
    replicas: int = 1,
    step: Traced | None = None,
    save_s: float | None = None,
    write_s: float | None = None,
    **given: float | None,
) -> Failures:
    """Failures of a planned run with its checkpoints: arguments of `save_times` and of `usual_failures`."""
    save, write = save_times(
        checkpoint,
        cluster.num_nodes,
        num_accelerators=cluster.num_accelerators,
        replicas=replicas,
        step=step,
        save_s=save_s,
        write_s=write_s,
    )
    return usual_failures(cluster.accelerator, cluster.num_nodes, save=save, write=write, **given)
