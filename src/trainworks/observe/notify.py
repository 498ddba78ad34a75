"""Messages about a run: which events deserve one, their texts, their delivery, and an outbox of what is unsent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pydantic import Field

from trainworks.catalog.exchange import exchange_for, usd_of
from trainworks.config.notify import Notifications, Occasion, filled_in, public_name
from trainworks.config.run_file import RunFile
from trainworks.config.spec import Spec
from trainworks.errors import EnvironmentProblem
from trainworks.jobs.state import JobState, parse_cause
from trainworks.observe.following import check_library, hide_secrets
from trainworks.record.events.job import StateEvent
from trainworks.record.events.log import Event
from trainworks.record.exit_code import End
from trainworks.units import HOUR_S, format_duration

_LONGEST_BODY = 1500
"""Characters of a message; WeCom takes 2,048 bytes of text, the least of the common chats."""
_MOST_PENDING = 100
_FEWEST_STEPS = 10
"""Steps before the pace of a run forecasts its end."""
_FINAL: tuple[Occasion, ...] = ("finished", "failed")
"""Occasions that come once per launch, and are never left out."""


class RunMessage(Spec):
    """A message, and the recipients that lack it."""

    occasion: Occasion
    title: str
    body: str
    to: tuple[int, ...] = ()
    """Places of the recipients in `notify.to`."""


class Outbox(Spec):
    """Messages sent and to send: the content of observe/notify.json."""

    format_version: int = 1
    events_bytes: int = 0
    """Bytes of events.jsonl that were read for messages."""
    pending: tuple[RunMessage, ...] = ()
    num_sent: int = 0
    last_at: dict[str, float] = Field(default_factory=dict)
    """Time of the last message of each occasion."""
    left_out: dict[str, int] = Field(default_factory=dict)
    """Messages of each occasion that came too early after the last."""
    launch_at: float | None = None
    """Time of the last submission or resume."""
    failed_at: float | None = None
    """Time of the failure, or of the loss of nodes, that the run is recovering from."""
    failure: str = ""
    resumed_from: int | None = None
    ended: bool = False
    """Whether the end of this launch is reported."""
    danger_told: bool = False
    """Whether this launch was reported to be in danger."""
    problem: str | None = None
    """Why the last delivery failed."""

    def with_message(self, message: RunMessage, options: Notifications, now: float) -> Outbox:
        """The outbox with a new message, unless its occasion is not wanted or was reported a moment ago."""
        occasion = message.occasion
        if occasion not in options.when:
            return self
        last = self.last_at.get(occasion)
        if last is not None and now - last < options.at_most_every and occasion not in _FINAL:
            return self.model_copy(update={"left_out": self.left_out | {occasion: self.left_out.get(occasion, 0) + 1}})
        body = message.body
        if left_out := self.left_out.get(occasion, 0):
            body += f"\n{left_out} earlier {'message was' if left_out == 1 else 'messages were'} left out"
        whole = message.model_copy(update={"body": body[:_LONGEST_BODY], "to": tuple(range(len(options.to)))})
        return self.model_copy(
            update={
                "pending": (*self.pending, whole)[-_MOST_PENDING:],
                "last_at": self.last_at | {occasion: now},
                "left_out": self.left_out | {occasion: 0},
            }
        )


@dataclass(frozen=True, slots=True)
class RunLook:
    """A run as a message describes it."""

    run: str
    state: JobState
    updated_at: float
    """Time of the last change of the state."""
    cause: str
    """Cause and message of that change."""
    step: int
    num_steps: int | None
    loss: float | None
    deadline_at: float | None
    """Latest acceptable time of the last step."""
    eta_s: float | None
    """Time to the last step at the recent pace."""
    anchored_eta_s: float | None
    """Time to it by the anchored step; None without one."""
    failure: str
    """Message, place and hint of a failed run."""
    num_accelerators: int
    held_s: float | None
    """Time for which the run has held its machines, over all of its launches; None without a budget."""

    @property
    def progress(self) -> str:
        """Steps done and the loss; empty for a command."""
        if not self.step:
            return ""
        of = f" of {self.num_steps:,}" if self.num_steps else ""
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        return f"step {self.step:,}{of}{loss}"


def apply_events(box: Outbox, events: Sequence[Event], look: RunLook, options: Notifications) -> Outbox:
    """The outbox after further events of the run, and after its end, which the status has before any event."""
    for event in events:
        box = _apply_event(box, event, look, options)
    if look.state.is_final and not box.ended:
        failed = look.state in (JobState.FAILED, JobState.LOST)
        message = _finished(box, look)
        if failed:
            lines = [look.failure, look.progress]
            message = RunMessage(occasion="failed", title=f"{look.run} failed", body=_text(lines))
        box = box.with_message(message, options, look.updated_at).model_copy(update={"ended": True})
    return box


def _apply_event(box: Outbox, event: Event, look: RunLook, options: Notifications) -> Outbox:
    now = float(event["t"])
    if event["kind"] == "submitted" and not event.get("restarts"):
        return box.model_copy(update={"launch_at": now, "failed_at": None, "ended": False, "danger_told": False})
    if event["kind"] == "attempt":
        return box.model_copy(update={"resumed_from": event.get("resumed_from_step")})
    if event["kind"] == "notice_answered":
        danger = RunMessage(occasion="danger", title=f"{look.run} loses a node", body=_text([event["message"]]))
        return box.with_message(danger, options, now)
    return _apply_state(box, event, look, options) if event["kind"] == "state" else box


def _apply_state(box: Outbox, event: StateEvent, look: RunLook, options: Notifications) -> Outbox:
    now = float(event["t"])
    if event["state"] in ("RECOVERING", "QUEUED", "PREEMPTED"):
        failed_at = now if box.failed_at is None else box.failed_at
        return box.model_copy(update={"failed_at": failed_at, "failure": cause_text(End.of_event(event))})
    if event["state"] == "RUNNING" and box.failed_at is not None:
        return box.with_message(_recovered(box, look, now), options, now).model_copy(update={"failed_at": None})
    return box


def cause_text(end: End) -> str:
    """Cause and message of a state."""
    cause = parse_cause(end.cause)
    return ": ".join(part for part in (cause.words if cause else "", end.message or "") if part)


def _finished(box: Outbox, look: RunLook) -> RunMessage:
    verb = "finished" if look.state is JobState.SUCCEEDED else "was stopped"
    took = [] if box.launch_at is None else [f"after {format_duration(look.updated_at - box.launch_at)}"]
    lines = [look.progress, look.cause, f"trainworks report {look.run}"]
    return RunMessage(occasion="finished", title=" ".join([look.run, verb, *took]), body=_text(lines))


def _recovered(box: Outbox, look: RunLook, now: float) -> RunMessage:
    assert box.failed_at is not None
    lines = [box.failure]
    if box.resumed_from:
        lines.append(f"it continues from the checkpoint of step {box.resumed_from:,}")
    title = f"{look.run} recovered after {format_duration(now - box.failed_at)}"
    return RunMessage(occasion="recovered", title=title, body=_text(lines))


def waiting_message(run: str, waits_s: float, reason: str | None) -> RunMessage:
    """A run that waits too long in the queue."""
    lines = [reason or "its queue gives no reason", f"trainworks describe {run}"]
    return RunMessage(occasion="waiting", title=f"{run} has waited for {format_duration(waits_s)}", body=_text(lines))


def danger_message(run_file: RunFile, look: RunLook, now: float) -> RunMessage | None:
    """A run that will miss its deadline or budget; None while it meets them, and before ten steps.

    The forecast of the end is now plus the remaining steps at the pace of the recent ones. The cost is the time
    for which all launches have held the accelerators, plus that remaining time, times accelerators, times
    `cluster.usd_per_accelerator_hour`.
    """
    if look.eta_s is None or look.step < _FEWEST_STEPS or look.state is not JobState.RUNNING:
        return None
    goal, price = run_file.goal, usd_of(run_file.cluster.hour_price)
    end_at = now + look.eta_s
    lines, missed = [look.progress], []
    if look.deadline_at is not None and end_at > look.deadline_at:
        missed.append("deadline")
        lines.append(f"at the recent pace the last step comes {format_duration(end_at - look.deadline_at)} too late")
        if look.anchored_eta_s is not None:
            spare_s = look.deadline_at - now - look.anchored_eta_s
            when = "before the deadline" if spare_s >= 0 else "too late"
            lines.append(f"at the pace of its first quiet steps it would come {format_duration(abs(spare_s))} {when}")
    if goal.budget is not None and price is not None and look.held_s is not None:
        usd = price * look.num_accelerators * (look.held_s + look.eta_s) / HOUR_S
        exchange, budget_usd = exchange_for(goal.budget), usd_of(goal.budget)
        if usd > budget_usd:
            missed.append("budget")
            cost, budget = exchange.format(usd), exchange.format(budget_usd)
            lines.append(f"it costs {cost} at the recent pace, and the budget is {budget}")
    if not missed:
        return None
    return RunMessage(occasion="danger", title=f"{look.run} will miss its {' and '.join(missed)}", body=_text(lines))


def _text(lines: Sequence[str]) -> str:
    return "\n".join(line for line in lines if line)


Deliver = Callable[[str, RunMessage], None]
"""Delivers a message to one URL, or raises."""


def deliveries(box: Outbox, options: Notifications, deliver: Deliver) -> Iterator[Outbox]:
    """Deliver all pending messages, oldest first; the outbox after each of them.

    Raises:
        EnvironmentProblem: at the end, if a recipient did not take a message; it stays in the outbox.
    """
    problems: dict[str, str] = {}
    for message in box.pending:
        left = []
        for place in message.to:
            try:
                deliver(options.to[place], message)
            except EnvironmentProblem as problem:
                problems[public_name(options.to[place])] = problem.message
                left.append(place)
        rest = tuple(one for one in box.pending if one is not message)
        kept = (message.model_copy(update={"to": tuple(left)}),) if left else ()
        box = box.model_copy(update={"pending": (*rest, *kept), "num_sent": box.num_sent + len(message.to) - len(left)})
        yield box
    if problems:
        raise EnvironmentProblem("; ".join(problems.values()))


_TYPES: dict[Occasion, str] = {"finished": "success", "failed": "failure", "recovered": "info"}
"""Apprise's type of an occasion, which chats show as a colour; the others are warnings."""


class _Reasons(logging.Handler):
    """Collects why apprise could not deliver, which it only logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def apprise_delivery(options: Notifications, environment: Mapping[str, str], secrets: Iterable[str]) -> Deliver:
    """A function that delivers a message to one URL of the options.

    Neither the message nor an error contains a secret, or the value of a variable that a URL names. `environment` has
    the variables of the URLs.

    Raises:
        MissingExtraError: apprise is not installed.
    """
    check_library("apprise", "notify")
    apprise: Any = import_module("apprise")
    secrets = {*secrets, *(environment.get(name, "") for name in options.variables)}

    def deliver(url: str, message: RunMessage) -> None:
        service, reasons = apprise.Apprise(), _Reasons()
        logger = logging.getLogger("apprise")
        logger.addHandler(reasons)
        logger.propagate = False
        try:
            taken = service.add(filled_in(url, environment)) and service.notify(
                title=hide_secrets(message.title, secrets),
                body=hide_secrets(message.body, secrets),
                notify_type=_TYPES.get(message.occasion, "warning"),
                body_format="text",
            )
        finally:
            logger.removeHandler(reasons)
        if not taken:
            why = hide_secrets("; ".join(reasons.texts), secrets) or "apprise does not know its form"
            raise EnvironmentProblem(f"`{public_name(url)}` did not take the message: {why[:500]}")

    return deliver
