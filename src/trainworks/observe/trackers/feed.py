"""Feed a tracker from the record of a run: parameters, tags with its lineage, metrics named as charts group them.

A later process continues where an earlier one stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import Field, ValidationError

from trainworks.config.spec import Spec
from trainworks.files import write_atomic
from trainworks.jobs.state import JobState
from trainworks.observe.following import hide_secrets, secrets_of
from trainworks.observe.trackers.tracker import MetricPoint, TrackedRun, Tracker
from trainworks.record.events.log import Event, read_events_from, read_lines_from
from trainworks.record.manifest import checksum, complete_checkpoints
from trainworks.record.metrics import EvaluationResult, MetricsRow, named_figures
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.usage import NodeUsage


def tracked_run(run_dir: RunDir, resolved: ResolvedRun) -> TrackedRun:
    """The run as trackers name it; the key is a hash of its folder and of its creation, which no restart changes."""
    folder = run_dir.path.resolve()
    return TrackedRun(
        name=run_dir.run_id,
        experiment=resolved.run_file.name,
        key=hashlib.sha256(f"{folder}:{resolved.created_at}".encode()).hexdigest()[:20],
        folder=folder,
        created_at=resolved.created_at,
    )


def parameters_of(resolved: ResolvedRun) -> dict[str, str | float]:
    """Choices and predictions by dotted names; environment variables are left out, because they may be secret."""
    run_file, plan = resolved.run_file, resolved.plan
    tree: dict[str, object] = {"processes": resolved.processes.model_dump(mode="json", exclude={"nccl_environment"})}
    if run_file.workload is not None:
        tree |= run_file.workload.model_dump(mode="json", exclude_none=True)
    else:
        secrets = secrets_of(run_file, os.environ)
        run = None if run_file.run is None else hide_secrets(run_file.run, secrets)
        trains = run_file.trains and run_file.trains.model_dump(mode="json", exclude_unset=True)
        tree |= {"run": run, "framework": run_file.framework, "trains": trains}
        tree |= {"roles": {name: {"run": hide_secrets(role.run, secrets)} for name, role in run_file.roles.items()}}
    if plan is not None:
        tree |= {"layout": plan.layout.model_dump(mode="json", exclude_none=True), "plan": _predictions(plan)}
    tree["accelerator"] = next((one.name for one in resolved.host.accelerators), resolved.host.processor)
    return dict(_flat(tree))


def _predictions(plan: Plan) -> dict[str, float]:
    return {
        "num_steps": plan.num_steps,
        "num_parameters": plan.model.num_parameters,
        "tokens_per_step": plan.tokens_per_step,
        "step_s": plan.step_time.total_s,
        "run_time_s": plan.run_time_s,
        "memory_bytes": plan.memory.total_bytes,
    }


def _flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str | float]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        elif isinstance(value, bool | list | tuple):
            yield path + name, json.dumps(value)
        elif value is not None:
            yield path + name, value


def tags_of(resolved: ResolvedRun, events: Iterable[Event]) -> dict[str, str]:
    """Lineage of a run: data, code, plan and software, and what a restart may have changed."""
    processes, plan = resolved.processes, resolved.plan
    found: dict[str, object] = {
        "run": resolved.run_id,
        "version": resolved.trainworks,
        "commit": resolved.commit,
        "nodes": processes.nodes,
        "world_size": processes.world_size,
        "layout": plan.layout.describe() if plan else None,
        "plan": hashlib.sha256(plan.model_dump_json().encode()).hexdigest()[:16] if plan else None,
    }
    for event in events:
        if event["kind"] == "data_ready":
            found["data"] = event["fingerprint"]
        elif event["kind"] == "attempt":
            found["attempts"] = event["attempt"]
    return {f"trainworks.{name}": str(value) for name, value in found.items() if value is not None}


_LARGEST_EXPONENT = 700.0
"""About the largest whose exponential is a float."""


def point_of(row: MetricsRow, resolved: ResolvedRun) -> MetricPoint:
    """The metrics of one optimizer step; MFU where the peak of the accelerator is known."""
    workload = resolved.run_file.as_planned.workload
    unit = workload.unit if workload else "samples"
    training_s = row["step_s"] - row.get("evaluation_s", 0.0) - row.get("callback_s", 0.0)
    rate = row.get("tokens", 0) / training_s if training_s > 0 else 0.0
    named = {"loss": "loss", "accuracy": "accuracy", "grad_norm": "grad_norm", "lr": "learning_rate"}
    values = {f"train/{name}": float(row[key]) for key, name in named.items() if key in row}  # type: ignore[literal-required]
    values |= {f"train/{name}": value for name, value in named_figures(row).items()}
    values |= {f"train/{unit}_per_s": rate} if "tokens" in row else {}
    plan = resolved.plan
    if plan is not None and (mfu := plan.mfu(rate)) is not None:
        values["train/mfu"] = mfu
    values |= {f"time/{name}": float(value) for name, value in row.items() if name.endswith("_s")}  # type: ignore[arg-type]
    if "memory_peak_bytes" in row:
        values["memory/peak_bytes"] = row["memory_peak_bytes"]
    if "overflow" in row:
        values["train/expert_overflow"] = row["overflow"]
    if "evaluation" in row:
        has_perplexity = workload is not None and workload.has_perplexity
        values |= _evaluation_values(row["evaluation"], has_perplexity=has_perplexity)
    if "skipped" in row:
        values["train/skipped"] = 1.0
    return MetricPoint(row["step"], row["t"], values)


def _evaluation_values(found: EvaluationResult, *, has_perplexity: bool) -> dict[str, float]:
    """Held-out loss, perplexity of tokens, and accuracy where the task has one; with several sets those of each."""
    values: dict[str, float] = {f"eval/{name}": found[name] for name in ("loss", "accuracy") if name in found}  # type: ignore[literal-required]
    values |= {f"eval/{name}": value for name, value in named_figures(found).items()}
    losses = {name: value for name, value in values.items() if name.endswith("/loss") and has_perplexity}
    return values | {
        f"{name.removesuffix('loss')}perplexity": math.exp(min(loss, _LARGEST_EXPONENT))
        for name, loss in losses.items()
    }


def system_values(node: int, before: NodeUsage, now: NodeUsage) -> dict[str, float]:
    """Use of a node between two samples of its agent; empty if another agent has begun to count."""
    seconds = now.monotonic_s - before.monotonic_s
    if before.agent_pid != now.agent_pid or seconds <= 0:
        return {}
    rates = {
        "cpu_cores": (before.cpu_s, now.cpu_s),
        "io_bytes_per_s": (before.io_bytes, now.io_bytes),
        "network_bytes_per_s": (before.network_bytes, now.network_bytes),
        "accelerator_share": (before.accelerator_s, now.accelerator_s),
    }
    return {
        f"system/node-{node}/{name}": (last - first) / seconds
        for name, (first, last) in rates.items()
        if first is not None and last is not None
    }


def public_record(resolved: ResolvedRun) -> str:
    """The resolved run as JSON, without the values of environment variables and the recipients of messages."""
    envs = dict.fromkeys(resolved.run_file.envs, "***")
    run_file = resolved.run_file.model_copy(update={"envs": envs, "notify": None})
    text = resolved.model_copy(update={"run_file": run_file}).model_dump_json(indent=2) + "\n"
    return hide_secrets(text, secrets_of(resolved.run_file, os.environ))


_CHUNK_BYTES = 256 * 1024
"""About 700 steps, which are sent and stored as sent together."""
_MOST_NODES = 64
"""Nodes whose use is sent; the time series of larger runs would be too many for a tracker."""

OpenTracker = Callable[[TrackedRun, Mapping[str, str | int]], Tracker]
"""Makes the tracker of a run from what an earlier process stored."""


class Sent(Spec):
    """What a tracker has got: the content of observe/NAME.json."""

    format_version: int = 1
    tracker: dict[str, str | int] = Field(default_factory=dict)
    """The tracker's own names for the run."""
    place: str = ""
    """Where to look at the run."""
    metrics_bytes: int = 0
    """Bytes of metrics.jsonl whose steps were sent."""
    num_points: int = 0
    last_step: int = 0
    parameters: tuple[str, ...] = ()
    tags: dict[str, str] = Field(default_factory=dict)
    artifacts: dict[str, str] = Field(default_factory=dict)
    """CRC-32 of every file when it was sent."""
    registered_step: int | None = None
    """Step of the checkpoint that was registered as a model."""
    ended: str | None = None
    """Final state that was sent; None while there is more to send."""
    problem: str | None = None
    """Why the last attempt to send failed."""
    updated_at: float = 0.0


def read_sent(file: Path) -> Sent:
    """What a tracker has got; nothing if the file is missing or of another version."""
    try:
        return Sent.model_validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return Sent()


class Feed:
    """Sends what is new in the record to one tracker.

    Everything that was sent is stored at once, so a killed process, a tracker that was down and a resumed run lead to
    the same content. `state` of the run is LOST if its supervisor is gone.
    """

    def __init__(self, run_dir: RunDir, name: str, open_tracker: OpenTracker, state: Callable[[], JobState]) -> None:
        self._run_dir = run_dir
        self._file = run_dir.observer_file(name)
        self._file.parent.mkdir(exist_ok=True)
        self._open_tracker = open_tracker
        self._state = state
        self._tracker: Tracker | None = None
        self._events: list[Event] = []
        self._events_bytes = 0
        self._usage: dict[int, NodeUsage] = {}
        self.sent = read_sent(self._file)

    def send(self) -> JobState:
        """Send everything that is new, the end of the run included; returns the state up to which all was sent.

        Raises:
            Exception: of the tracker's library, in its many kinds; what was sent before is stored.
        """
        state = self._state()  # before the record: what was written before a final state is then read below
        if state.is_final and self.sent.ended == state:
            return state
        tracker = self._opened()
        self._send_parameters(tracker)
        self._send_metrics(tracker)
        if state.is_final:
            self._send_end(tracker, state)
        else:
            self._send_usage(tracker)
        return state

    def note(self, problem: str) -> None:
        """Store why the run could not be sent."""
        self._store(problem=problem)

    def close(self) -> None:
        """Release the tracker's connections; the next `send` opens them again."""
        if self._tracker is not None:
            tracker, self._tracker = self._tracker, None
            tracker.close()

    def _opened(self) -> Tracker:
        if self._tracker is None:
            resolved = self._run_dir.read_resolved()
            tracker = self._open_tracker(tracked_run(self._run_dir, resolved), self.sent.tracker)
            tracker.open()
            self._tracker = tracker
            self._store(ended=None)
            record = self._file.with_name("resolved.json")
            write_atomic(record, public_record(resolved), durable=False)
            self._send_files(tracker, [record])
        return self._tracker

    def _send_parameters(self, tracker: Tracker) -> None:
        """Parameters that the tracker lacks; tags when one has changed."""
        resolved = self._run_dir.read_resolved()
        new, self._events_bytes = read_events_from(self._run_dir.events_file, self._events_bytes)
        self._events += [event for event in new if event["kind"] in ("data_ready", "attempt")]
        tags = tags_of(resolved, self._events)
        if tags == self.sent.tags:
            return
        missing = {name: value for name, value in parameters_of(resolved).items() if name not in self.sent.parameters}
        tracker.send_parameters(missing, tags)
        self._store(parameters=(*self.sent.parameters, *missing), tags=tags)

    def _send_metrics(self, tracker: Tracker) -> None:
        resolved = self._run_dir.read_resolved()
        while True:
            before = self.sent.metrics_bytes
            rows, after = read_lines_from(self._run_dir.metrics_file, before, most_bytes=_CHUNK_BYTES)
            if after == before:
                return
            for points in _stretches([point_of(row, resolved) for row in cast(list[MetricsRow], rows)]):
                tracker.send_points(points, repeated=points[0].step <= self.sent.last_step)
                self.sent = self.sent.model_copy(update={"last_step": points[-1].step})
            self._store(metrics_bytes=after, num_points=self.sent.num_points + len(rows))

    def _send_usage(self, tracker: Tracker) -> None:
        """Use of the nodes since the last look, at the step that was sent last."""
        values: dict[str, float] = {}
        for node in range(min(self._run_dir.read_resolved().processes.nodes, _MOST_NODES)):
            now, before = self._run_dir.read_usage(node), self._usage.get(node)
            if now is not None and before is not None and now != before:
                values |= system_values(node, before, now)
            if now is not None:
                self._usage[node] = now
        if values:
            tracker.send_points([MetricPoint(self.sent.last_step, time.time(), values)], repeated=False)
            self._store()

    def _public_copies(self, files: Sequence[Path]) -> list[Path]:
        """Copies of text files of the record, without the secrets of the run's environment."""
        secrets = secrets_of(self._run_dir.read_resolved().run_file, os.environ)
        copies = []
        for path in filter(Path.exists, files):
            copies.append(self._file.with_name(path.name))
            write_atomic(copies[-1], hide_secrets(path.read_text("utf-8", errors="replace"), secrets), durable=False)
        return copies

    def _send_files(self, tracker: Tracker, files: Sequence[Path]) -> None:
        """Files that have changed since they were sent."""
        for path in files:
            if not path.exists():
                continue
            version = str(checksum(path))
            if self.sent.artifacts.get(path.name) != version and tracker.send_artifact(path, path.name):
                self._store(artifacts=self.sent.artifacts | {path.name: version})

    def _send_end(self, tracker: Tracker, state: JobState) -> None:
        self._send_files(tracker, self._public_copies([self._run_dir.events_file, self._run_dir.report_file]))
        checkpoints = complete_checkpoints(self._run_dir) if state is JobState.SUCCEEDED else []
        if checkpoints and checkpoints[-1][0].step != self.sent.registered_step:
            manifest, folder = checkpoints[-1]
            if tracker.register(folder, manifest.step, self.sent.tags):
                self._store(registered_step=manifest.step)
        tracker.finish(state, self._run_dir.read_status().updated_at)
        self._store(ended=state)

    def _store(self, **changes: object) -> None:
        """Store what was sent; a call that succeeded ends a problem."""
        tracker = {"tracker": self._tracker.state, "place": self._tracker.place} if self._tracker else {}
        changes = {"problem": None, "updated_at": time.time()} | tracker | changes
        self.sent = self.sent.model_copy(update=changes)
        write_atomic(self._file, self.sent.model_dump_json(indent=2) + "\n", durable=False)


def _stretches(points: Sequence[MetricPoint]) -> Iterator[list[MetricPoint]]:
    """The points, divided where a restart went back to an earlier step."""
    stretch: list[MetricPoint] = []
    for point in points:
        if stretch and point.step <= stretch[-1].step:
            yield stretch
            stretch = []
        stretch.append(point)
    if stretch:
        yield stretch
