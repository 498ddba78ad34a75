"""The health of a node: every check, and the versions and clocks that a fleet should have in common."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from trainworks.measure.health import fabric_checks, gpu_checks, history_checks, host_checks
from trainworks.measure.health.check import CheckResult, HealthCheck, HealthVerdict
from trainworks.measure.health.node import NodeView, NotApplicable, listed
from trainworks.results import Result
from trainworks.units import format_gib

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
    seconds: float

    def with_verdict(self, verdict: HealthVerdict) -> list[CheckResult]:
        """The checks with that verdict."""
        return [result for result in self.results if result.verdict == verdict]

    @property
    def failed(self) -> list[CheckResult]:
        """The checks for which the node should get no job."""
        return self.with_verdict("failed")


def check_node(node: NodeView) -> NodeHealth:
    """Run every check on a node."""
    start_s = time.perf_counter()
    with suppress(OSError):  # reported by its check
        node.asked  # noqa: B018, file servers answer while the other checks run
    results = tuple(each.result(node) for each in HEALTH_CHECKS)
    return NodeHealth(node.name, node.expected.text, results, node_facts(node), time.perf_counter() - start_s)


def node_facts(node: NodeView) -> dict[str, str]:
    """What a fleet should have in common, without what the node does not have."""
    gpus = node.driver.gpus
    facts = {
        "kernel": node.text("/proc/sys/kernel/osrelease"),
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
