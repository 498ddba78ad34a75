"""How often nodes fail and how long it takes, where nobody says: the published fleet of that kind of accelerator."""

from __future__ import annotations

from dataclasses import replace

from trainworks.catalog.catalog import find_row, load_catalog
from trainworks.catalog.facts import Accelerator, Fleet
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.failures.goodput import Failures
from trainworks.plan.trace import Traced, derive, fact

__all__ = ["fleet_of", "save_stall", "usual_failures", "usual_node_mttf"]


def fleet_of(accelerator: Accelerator) -> Fleet | None:
    """The fleet whose rate stands for accelerators of that architecture; None where none was published."""
    return next(
        (fleet for fleet in load_catalog().fleets.values() if accelerator.architecture in fleet.stands_for), None
    )


def usual_failures(
    accelerator: Accelerator,
    num_nodes: int,
    *,
    save: Traced,
    write_s: float = 0.0,
    capacity_life_s: float | None = None,
    node_mttf_s: float | None = None,
    detection_s: float | None = None,
    restart_s: float | None = None,
    repair_s: float | None = None,
) -> Failures:
    """Failures of a job on that many nodes; what is not given is taken from the catalogue.

    A fleet's failures are of two kinds. Those of hardware take the node away; the others, as far as the fleet counts
    them, are as frequent per node and leave it usable. A rate that is given is that of both, in the fleet's proportion.

    Args:
        accelerator: of the nodes.
        num_nodes: of the job, without spares.
        save: time that training stands still for a checkpoint.
        write_s: from then until it can be restored; 0 for a synchronous one.
        capacity_life_s: mean life of preemptible capacity, if its end loses work.
        node_mttf_s: mean time between failures of one node, of all kinds.
        detection_s: from a failure until it is noticed.
        restart_s: from having all nodes until training goes on.
        repair_s: of a node.
    """
    nodes = fact("nodes", num_nodes, "", source="of the cluster")
    fleet = fleet_of(accelerator)
    every = usual_node_mttf(accelerator, node_mttf_s)
    share = 1.0 if fleet is None or fleet.hardware_share is None else fleet.hardware_share
    own, other = _by_kind(every, nodes, share, "" if fleet is None else _source(fleet))
    rest = {"write": fact("checkpoint write", write_s, "s", source=GIVEN)} if write_s else {}
    life = None if capacity_life_s is None else fact("capacity life", capacity_life_s, "s", source=GIVEN)
    return Failures(
        num_nodes=nodes,
        node_mttf=own,
        other_mttf=other,
        capacity_life=life,
        save=save,
        detection=assumed("failure detection", detection_s),
        restart=assumed("restart", restart_s),
        repair=assumed("node repair", repair_s),
        **rest,
    )


def usual_node_mttf(accelerator: Accelerator, given_s: float | None = None) -> Traced:
    """What was given, else the fleet's with the spread of all that was published, else the assumption."""
    fleet = fleet_of(accelerator)
    spread = assumed("node MTTF", given_s)
    if given_s is not None or fleet is None:
        return spread
    return fact("node MTTF", fleet.node_mttf_s, "s", source=_source(fleet), low=spread.low, high=spread.high)


def _source(fleet: Fleet) -> str:
    rate = next(figure for figure in find_row(fleet.name, "fleets").figures if "failures_per_node_s" in figure.facts)
    return f"fleet {fleet.name}: {rate.cited}"


def _by_kind(every: Traced, nodes: Traced, share: float, source: str) -> tuple[Traced, Traced | None]:
    """Mean times to a failure of a node's hardware, and to any other of the whole job."""
    if share == 1:
        return every, None
    hardware = fact("hardware share", share, "", source=source)
    own = derive("node hardware MTTF", "s", "node_mttf / hardware_share", node_mttf=every, hardware_share=hardware)
    formula = "node_mttf / (1 - hardware_share) / nodes"
    return own, derive("other MTTF", "s", formula, node_mttf=every, hardware_share=hardware, nodes=nodes)


def save_stall(
    checkpoint: Traced | None, num_nodes: int, *, given_s: float | None = None, bytes_per_s: Traced | None = None
) -> Traced:
    """Time that training stands still for one checkpoint: its bytes over what all nodes write together.

    Args:
        checkpoint: bytes of all ranks; None where no model is known.
        num_nodes: that write.
        given_s: takes the place of the formula.
        bytes_per_s: of the storage; the assumed rate of each node times the nodes where left out.
    """
    if given_s is not None:
        return fact("save stall", given_s, "s", source=GIVEN)
    if checkpoint is None:
        return replace(assumed("checkpoint stall"), name="save stall")
    if bytes_per_s is not None:
        return derive("save stall", "s", "checkpoint / write_rate", checkpoint=checkpoint, write_rate=bytes_per_s)
    return derive(
        "save stall",
        "s",
        "checkpoint / nodes / rate_per_node",
        checkpoint=checkpoint,
        nodes=fact("nodes", num_nodes, "", source="of the cluster"),
        rate_per_node=assumed("checkpoint rate per node"),
    )
