"""The health of a node: every check, and what the nodes of a fleet should have in common; the odd ones among them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainworks.errors import UsageError
from trainworks.measure.health import fabric_checks, gpu_checks, history_checks, host_checks
from trainworks.measure.health.check import CheckResult, HealthCheck, HealthVerdict
from trainworks.measure.health.history_checks import history
from trainworks.measure.health.node import NodeView, NotApplicable, listed
from trainworks.results import Result
from trainworks.units import format_gib

GPU_CHECKS = (
    *(each for each in vars(gpu_checks).values() if isinstance(each, HealthCheck)),
    *(fabric_checks.nvlink_state, fabric_checks.fabric_manager, fabric_checks.fabric_state),
    *(history_checks.xid, history_checks.nvswitch_errors),
)
"""Checks of GPUs, and of what connects them inside their node."""
HEALTH_CHECKS = tuple(
    each
    for module in (gpu_checks, fabric_checks, host_checks, history_checks)
    for each in vars(module).values()
    if isinstance(each, HealthCheck)
)
"""All checks: GPUs, fabric, host, kernel log, earlier jobs."""


@dataclass(frozen=True, slots=True)
class NodeHealth(Result):
    """Verdicts and facts of one node."""

    node: str
    expected: str
    """What the node should have; empty if nothing was said."""
    results: tuple[CheckResult, ...]
    facts: Mapping[str, str]
    """Versions, clocks and counts that the nodes of a fleet share."""
    num_gpus: int
    """GPUs that the driver counts."""
    seconds: float

    def with_verdict(self, verdict: HealthVerdict) -> list[CheckResult]:
        """The checks with that verdict."""
        return [result for result in self.results if result.verdict == verdict]

    @property
    def failed(self) -> list[CheckResult]:
        """The checks for which the node should get no job."""
        return self.with_verdict("failed")

    @property
    def broken_gpus(self) -> dict[int, str]:
        """Complaints about GPUs that are at fault alone, by index, if that is all that failed; else empty.

        Several GPUs are at fault alone if they are at most half of those of the node: a power supply or a baseboard
        fails with most of them.
        """
        found: dict[int, list[str]] = {}
        for result in self.failed:
            if not result.faulty:
                return {}
            for index, problem in result.faulty.items():
                found.setdefault(index, []).append(f"{result.check}: {problem}")
        if len(found) > max(1, self.num_gpus // 2):
            return {}
        return {index: "; ".join(complaints) for index, complaints in sorted(found.items())}


def check_node(node: NodeView, checks: Sequence[HealthCheck] = HEALTH_CHECKS) -> NodeHealth:
    """Run checks on a node, all by default."""
    start_s = time.perf_counter()
    if checks is HEALTH_CHECKS:
        with suppress(OSError):  # reported by its check
            node.asked  # noqa: B018, file servers answer while the other checks run
    results = tuple(each.result(node) for each in checks)
    num_gpus, took_s = len(node.driver.gpus) + len(node.driver.lost), time.perf_counter() - start_s
    return NodeHealth(node.name, node.expected.text, results, node_facts(node), num_gpus, took_s)


def node_facts(node: NodeView) -> dict[str, str]:
    """What a fleet should have in common, without what the node does not have."""
    gpus = node.driver.gpus
    facts = {
        "kernel": node.text("/proc/sys/kernel/osrelease"),
        "BIOS": node.text("/sys/class/dmi/id/bios_version"),
        "hyper-threading": node.text("/sys/devices/system/cpu/smt/control"),
        "NUMA nodes": node.text("/sys/devices/system/node/online"),
        "processors": node.text("/sys/devices/system/cpu/online"),
        "memory": format_gib(node.memory.get("MemTotal", 0) * 1024).partition(".")[0],
        "driver": node.driver.version,
        "GPUs": _counted([gpu.name for gpu in gpus]),
        "VBIOS": _counted([gpu.vbios for gpu in gpus if gpu.vbios]),
        "GPU clock": _counted([f"{gpu.max_clock_mhz} MHz" for gpu in gpus if gpu.max_clock_mhz]),
        "power limit": _counted([f"{gpu.power_limit_mw / 1e3:.0f} W" for gpu in gpus if gpu.power_limit_mw]),
        "NIC ports": "",
        "NIC firmware": "",
    }
    with suppress(NotApplicable):
        facts["NIC ports"] = _counted([f"{port.gbit_per_s:g} Gb/s" for port in node.ports])
        facts["NIC firmware"] = _counted([port.firmware for port in node.ports])
    return {name: value for name, value in facts.items() if value}


def _counted(values: list[str]) -> str:
    """The values with their numbers: `8x 28.39.1002`."""
    return listed([f"{values.count(value)}x {value}" for value in dict.fromkeys(values)])


_HINT = "write it with `trainworks health --json > NODE.json` on each node"


@dataclass(frozen=True, slots=True)
class FleetNode:
    """What one node reported."""

    name: str
    failed: tuple[str, ...]
    """Complaints of the checks that failed."""
    facts: Mapping[str, str]
    history: str = ""
    """Complaint about its failures under earlier jobs; empty without one."""


@dataclass(frozen=True, slots=True)
class OddOneOut:
    """A fact in which nodes differ from most others."""

    fact: str
    usual: str
    """Value of more than half of the nodes; empty if no value is."""
    value: str
    """Empty if these nodes do not report the fact."""
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetHealth(Result):
    """The nodes of a fleet side by side."""

    nodes: tuple[FleetNode, ...]
    odd: tuple[OddOneOut, ...]

    @property
    def failing(self) -> list[FleetNode]:
        """Nodes with a check that failed."""
        return [node for node in self.nodes if node.failed]


def read_fleet(files: Sequence[Path]) -> FleetHealth:
    """Read the reports of several nodes, and find the odd ones out.

    Raises:
        UsageError: a file is not the report of a node, or two are of the same node.
    """
    nodes = tuple(_read(path) for path in files)
    if twice := [name for name, count in Counter(node.name for node in nodes).items() if count > 1]:
        raise UsageError(f"two files are of node `{twice[0]}`", place="--nodes", hint="keep the newer one")
    return FleetHealth(nodes, tuple(odd_ones_out({node.name: node.facts for node in nodes})))


def odd_ones_out(nodes: Mapping[str, Mapping[str, str]]) -> list[OddOneOut]:
    """Values of each fact that less than half of the nodes have.

    >>> odd_ones_out({"a": {"driver": "580"}, "b": {"driver": "580"}, "c": {"driver": "570"}})
    [OddOneOut(fact='driver', usual='580', value='570', nodes=('c',))]
    """
    odd = []
    for fact in dict.fromkeys(fact for facts in nodes.values() for fact in facts):
        values = Counter(facts.get(fact, "") for facts in nodes.values())
        value, count = values.most_common(1)[0]
        usual = value if count * 2 > len(nodes) else ""
        for other in sorted(values):
            if len(values) > 1 and (other != value or not usual):
                names = tuple(name for name, facts in nodes.items() if facts.get(fact, "") == other)
                odd.append(OddOneOut(fact, usual, other, names))
    return odd


def _read(path: Path) -> FleetNode:
    try:
        report: Any = json.loads(path.read_text(encoding="utf-8"))
        found = [(each["check"], str(each["problems"][0])) for each in report["checks"] if each["problems"]]
        failed = {each["check"] for each in report["checks"] if each["verdict"] == "failed"}
        return FleetNode(
            str(report["node"]),
            tuple(f"{check}: {problem}" for check, problem in found if check in failed),
            {str(key): str(value) for key, value in report["facts"].items()},
            next((problem for check, problem in found if check == history.name), ""),
        )
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}", place="--nodes", hint=_HINT) from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise UsageError(f"`{path}` is not the report of a node", place="--nodes", hint=_HINT) from None
