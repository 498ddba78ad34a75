"""The nodes of a fleet that differ from the others, from the JSON that each node wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainworks.errors import UsageError
from trainworks.measure.health.history_checks import history
from trainworks.results import Result

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
