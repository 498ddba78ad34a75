"""A health check: a limit, the action if a node exceeds it, and the source of both.

A check is a function of a `NodeView`. It returns a `Reading`, or raises `NotApplicable` if the node lacks what the
check is about, and `Unreadable` if this user cannot read it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

from trainworks.measure.health.node import NodeView, NotApplicable, Unreadable

CheckSeverity = Literal["failed", "warning"]
HealthVerdict = Literal["ok", "warning", "failed", "unknown", "not applicable"]
ASSUMPTION = "assumption of Trainworks"
"""Source of a limit that was read nowhere."""
T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a check saw."""

    figure: str
    problems: Sequence[str] = ()
    """One sentence for each device beyond the limit."""
    severity: CheckSeverity | None = None
    """Replaces the severity of the check."""
    action: str | None = None
    """Replaces the action of the check."""
    faulty: Mapping[int, str] = field(default_factory=dict)
    """Problem of each GPU by index, if faults of these GPUs alone explain all; empty where the node or a link may be at
    fault."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The verdict of one check on one node."""

    check: str
    verdict: HealthVerdict
    figure: str
    limit: str
    action: str
    source: str
    problems: tuple[str, ...] = ()
    faulty: Mapping[int, str] = field(default_factory=dict)
    """Problem of each GPU by index, if faults of these GPUs alone explain all."""

    @property
    def complaint(self) -> str:
        """The check with its first problem, in one line."""
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        return f"{self.check}: {self.problems[0]}{more}"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check and its documentation."""

    name: str
    about: str
    """What a healthy node has."""
    limit: str
    action: str
    """Imperative."""
    source: str
    """Address of the page that the limit was read on."""
    severity: CheckSeverity
    judge: Callable[[NodeView], Reading]

    def result(self, node: NodeView) -> CheckResult:
        """The verdict for a node."""
        try:
            reading = self.judge(node)
        except NotApplicable as error:
            return self._result("not applicable", Reading(str(error)))
        except Unreadable as error:
            return self._result("unknown", Reading(str(error)))
        except (OSError, ValueError) as error:  # a file of the kernel with another content than expected
            return self._result("unknown", Reading(f"cannot be read: {error}"))
        return self._result((reading.severity or self.severity) if reading.problems else "ok", reading)

    def _result(self, verdict: HealthVerdict, reading: Reading) -> CheckResult:
        action = reading.action or self.action
        problems = tuple(reading.problems)
        source, faulty = self.source, dict(reading.faulty)
        return CheckResult(self.name, verdict, reading.figure, self.limit, action, source, problems, faulty)


def check(
    *, limit: str, action: str, source: str, severity: CheckSeverity = "failed"
) -> Callable[[Callable[[NodeView], Reading]], HealthCheck]:
    """Make a check of a function; its name and docstring become those of the check."""

    def build(judge: Callable[[NodeView], Reading]) -> HealthCheck:
        about = inspect.cleandoc(judge.__doc__ or "")
        return HealthCheck(judge.__name__.replace("_", "-"), about, limit, action, source, severity, judge)

    return build


warning_check = partial(check, severity="warning")
"""Make a check of a function, as `check` does; a node beyond the limit gets a warning, and does not fail."""


def measured(devices: Iterable[T], read: Callable[[T], V | None], missing: str) -> list[tuple[T, V]]:
    """Devices with their values, without those that do not have one.

    Raises:
        NotApplicable: none has a value; `missing` says why.
    """
    found = [(device, value) for device in devices if (value := read(device)) is not None]
    if not found:
        raise NotApplicable(missing)
    return found


def beyond(values: Iterable[tuple[T, V]], bad: Callable[[V], object], describe: Callable[[V], str]) -> list[str]:
    """A sentence for each device whose value is bad."""
    return [f"{device} {describe(value)}" for device, value in values if bad(value)]
