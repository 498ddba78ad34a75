"""Repairs: the share is kept, no node is released without its check, every escalation ends, others' nodes are left."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.measure.health.node_health import HEALTH_CHECKS
from trainworks.observe.monitoring.rules import ALERTS
from trainworks.recover.repairs import (
    EFFECTS,
    ENDS,
    FAULTS,
    FIRST,
    LADDER,
    MARK,
    NOT_READY,
    Holder,
    NodeRepair,
    RepairEvent,
    RepairPolicy,
    RepairStep,
    SeenNode,
    command_of,
    first_action,
    next_action,
    next_steps,
    repairs_of,
)

NOW = 1e6
DAY_S = 86400.0
POLICY = RepairPolicy(max_share=0.5)
ALL = RepairPolicy(max_share=0.5, reload="modprobe nvidia")
NAMES = tuple(f"n{number}" for number in range(8))


def repaired(*steps: RepairStep, kind: str = "xid", first: RepairStep = "reset", node: str = "n0") -> NodeRepair:
    """A repair that has come so far; a step each second."""
    begun = RepairEvent(NOW, node, "waits", "its cause", kind, first)
    return repairs_of([begun, *(RepairEvent(NOW + at, node, step) for at, step in enumerate(steps, 1))])[node]


def seen(holder: Holder = "repair", reason: str = "", *, has_jobs: bool = False) -> list[SeenNode]:
    """The node of `repaired`, and another one in service."""
    said = MARK + "its cause" if holder == "repair" else reason
    return [SeenNode("n0", holder, said, has_jobs), SeenNode("n1", "service")]


def follows(repair: NodeRepair, nodes: list[SeenNode]) -> RepairStep | None:
    """Next step of the only repair."""
    return next_steps({"n0": repair}, nodes, POLICY, NOW + 60)["n0"].step


@pytest.mark.parametrize(
    ("steps", "nodes", "step"),
    [
        ([], seen("service"), "drain"),
        ([], seen("fault", "trainworks: xid: ..."), "drain"),
        ([], seen("others", "fan"), "left"),
        (["drain"], seen("service"), "drain"),
        (["drain"], seen("others"), "left"),
        (["drain", "drained"], seen(has_jobs=True), None),
        (["drain", "drained"], seen(), "reset"),
        (["drain", "drained"], seen("service"), "left"),
        (["drain", "drained", "reset"], seen(), "reset"),
        (["drain", "drained", "reset", "check"], seen(), "check"),
        (["drain", "drained", "reset", "check", "failed"], seen(), "reboot"),
        (["drain", "drained", "reboot", "booting"], seen("fault", "Not responding"), "booting"),
        (["drain", "drained", "reboot"], seen("others", "fan"), "left"),
        (["drain", "drained", "reboot", "check", "failed"], seen(), "ticket"),
        (["drain", "drained", "reset", "check", "release"], seen(), "release"),
        (["drain", "drained", "reset", "check", "release"], seen("service"), "back"),
        (["drain", "drained", "reset", "check", "release"], seen("fault"), "back"),
        (["drain", "drained", "reset", "check", "release"], seen("others"), "left"),
    ],
)
def test_each_step_has_its_next(steps: list[RepairStep], nodes: list[SeenNode], step: RepairStep | None) -> None:
    assert follows(repaired(*steps), nodes) == step


@pytest.mark.parametrize("end", sorted(ENDS))
def test_an_ended_repair_has_no_next_step(end: RepairStep) -> None:
    assert next_steps({"n0": repaired(end)}, seen(), POLICY, NOW) == {}


def test_a_node_that_waits_for_room_is_named_with_the_reason() -> None:
    repairs = {"n0": repaired("drain"), "n1": repaired(node="n1")}
    step = next_steps(repairs, seen(), POLICY, NOW)["n1"]
    assert (step.step, step.why) == (None, "1 of 2 nodes are out for repair, and 1 may be (50 %)")


def test_a_share_that_is_less_than_a_node_says_what_to_do() -> None:
    step = next_steps({"n1": repaired(node="n1")}, seen("service"), RepairPolicy(), NOW)["n1"]
    assert (step.step, step.why.rpartition("; ")[2]) == (None, "raise `--max-share`")


def test_nodes_that_a_repair_elsewhere_holds_count() -> None:
    nodes = [SeenNode("n0", "service"), SeenNode("n1", "others", f"{MARK}fan")]
    assert next_steps({"n0": repaired()}, nodes, POLICY, NOW)["n0"].step is None


@pytest.mark.parametrize(("days_ago", "first"), [(6, "reboot"), (8, "reset")])
def test_a_second_failure_of_the_same_kind_escalates_within_the_time(days_ago: float, first: RepairStep) -> None:
    past, then = repaired("reset", "check", "back").events, NOW + 1 + days_ago * DAY_S
    again = repairs_of([*past, RepairEvent(then, "n0", "waits", "its cause", "xid", "reset")])["n0"]
    assert next_action(again, POLICY, then) == first


def test_a_failure_of_another_kind_does_not_escalate() -> None:
    past = repaired("reset", "check", "back").events
    other = repairs_of([*past, RepairEvent(NOW + 9, "n0", "waits", "", "gpu-ecc-errors", "reset")])["n0"]
    assert next_action(other, POLICY, NOW + 9) == "reset"


def test_an_action_without_a_command_is_left_out() -> None:
    driver = repaired(first="reload")
    assert [next_action(driver, policy, NOW) for policy in (ALL, POLICY)] == ["reload", "reboot"]


@pytest.mark.parametrize(
    ("kind", "text", "first"),
    [
        ("xid", "GPU 0 had XID 48: double-bit ECC error", "reset"),
        ("xid", "GPU 0 had XID 48: ...; GPU 1 had XID 79: ...", "reboot"),
        ("xid", "GPU 0 had XID 54: mechanical or power fault", "ticket"),
        ("xid", "Node n0 fails the health check `xid`.", "reset"),
        ("nic-rate", "mlx5_5/1 has 200 Gb/s", "ticket"),
        ("SiteAlert", "", "reboot"),
    ],
)
def test_the_first_action_is_that_of_the_cause(kind: str, text: str, first: RepairStep) -> None:
    assert first_action(kind, text, RepairPolicy(causes={"SiteAlert": "reboot"})) == first


def test_causes_are_checks_alerts_and_reasons_that_exist() -> None:
    known = {check.name for check in HEALTH_CHECKS} | {alert.name for alert in ALERTS}
    known |= {*FAULTS, NOT_READY, "slow", "named"}
    assert set(FIRST) - known == set()


def test_a_slow_node_is_measured_as_well_as_checked() -> None:
    policy = RepairPolicy(check="a", bench="b")
    assert [command_of("check", kind, policy) for kind in ("slow", "xid")] == ["( a ) && ( b )", "a"]


@dataclass
class World:
    """A cluster on which every effect has a drawn result, and on which a human may take a node at any moment."""

    data: st.DataObject
    share: float
    events: list[RepairEvent] = field(default_factory=list)
    holders: dict[str, tuple[Holder, str]] = field(default_factory=dict)
    now: float = NOW

    def note(self, node: str, step: RepairStep, first: RepairStep = "check") -> None:
        self.now += 1
        self.events.append(RepairEvent(self.now, node, step, kind="xid", first=first))

    def do(self, node: str, step: RepairStep, before: RepairStep) -> None:
        """Take a step; a kill may leave an effect without a result on record."""
        if step is not before:
            self.note(node, step)
        if step not in EFFECTS or self.data.draw(st.booleans(), "killed before the effect"):
            return
        self.effect(node, step)
        if not self.data.draw(st.booleans(), "killed after the effect"):
            self.result(node, step)

    def effect(self, node: str, step: RepairStep) -> None:
        holder = self.holders.get(node, ("service", ""))[0]
        if step == "drain":
            assert holder != "others"
            self.holders[node] = ("repair", MARK)
            held = [name for name, (holder, _) in self.holders.items() if holder == "repair"]
            assert len(held) <= self.share * len(NAMES)
        elif step == "release":
            assert holder == "repair"
            assert [event.step for event in self.events if event.node == node][-2:] == ["check", "release"]
            del self.holders[node]
        else:
            assert holder in ("repair", "fault")

    def result(self, node: str, step: RepairStep) -> None:
        results = {
            "drain": ["drained"],
            "release": ["back"],
            "ticket": ["out"],
            "check": ["release", "failed"],
            "reboot": ["booting", "failed"],
            "booting": ["booting", "check", "failed"],
        }.get(step, ["check", "failed"])
        follows = self.data.draw(st.sampled_from(results), f"result of {step} of {node}")
        if follows != step:
            self.note(node, follows)

    def seen(self) -> list[SeenNode]:
        busy = self.data.draw(st.sets(st.sampled_from(NAMES), max_size=2), "with jobs")
        here = {name: self.holders.get(name, ("service", "")) for name in NAMES}
        return [SeenNode(name, holder, reason, name in busy) for name, (holder, reason) in here.items()]

    def turn(self, policy: RepairPolicy) -> None:
        """A fault, a human, or the next steps of all repairs."""
        node, known = self.data.draw(st.sampled_from(NAMES)), repairs_of(self.events)
        match self.data.draw(
            st.sampled_from(["fault", "human takes it", "human returns it", "steps", "steps", "steps"])
        ):
            case "fault" if node not in known or known[node].step in ENDS - {"out"}:
                self.note(node, "waits", self.data.draw(st.sampled_from(LADDER)))
            case "human takes it":
                self.holders[node] = ("others", "fan")
            case "human returns it":
                self.holders.pop(node, None)
            case "steps":
                for name, todo in next_steps(known, self.seen(), policy, self.now).items():
                    if todo.step is not None:
                        self.do(name, todo.step, known[name].step)


@given(st.data(), st.sampled_from([0.0, 0.12, 0.125, 0.25, 0.5, 1.0]), st.sampled_from([1.0, 1e6]))
def test_no_sequence_breaks_a_promise(data: st.DataObject, share: float, escalate_within: float) -> None:
    world = World(data, share)
    for _ in range(data.draw(st.integers(1, 25))):
        world.turn(RepairPolicy(max_share=share, escalate_within=escalate_within))
    for repair in repairs_of(world.events).values():
        tried = [LADDER.index(event.step) for event in repair.events if event.step in LADDER[1:]]
        assert all(weaker < stronger for weaker, stronger in pairwise(tried))


@given(st.sampled_from(LADDER), st.lists(st.sampled_from(["reset", "reload", "reboot"])))
def test_a_node_whose_checks_all_fail_ends_with_a_ticket(first: RepairStep, before: list[RepairStep]) -> None:
    earlier = tuple(RepairEvent(NOW, "n0", step) for step in before)
    repair = NodeRepair(repaired("drain", "drained", first=first).events, earlier)
    actions: list[RepairStep] = []
    while (action := next_action(repair, ALL, NOW)) != "ticket":
        actions.append(action)
        assert len(actions) < len(LADDER)
        tried = [RepairEvent(NOW, "n0", step) for step in (action, "check", "failed")]
        repair = NodeRepair((*repair.events, *tried), earlier)
