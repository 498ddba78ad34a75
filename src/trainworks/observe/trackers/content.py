"""What trackers get of a run: parameters, tags with its lineage, and metrics under names that charts group."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainworks.observe.following import hidden, secrets_of
from trainworks.observe.trackers.tracker import MetricPoint, TrackedRun
from trainworks.record.events import Event
from trainworks.record.metrics import EvaluationResult, MetricsRow
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.usage import NodeUsage

_HIDDEN = "***"


def tracked_run(run_dir: RunDir, resolved: ResolvedRun) -> TrackedRun:
    """The run as trackers name it; the key is a hash of its folder and of its creation, which no restart changes."""
    folder = run_dir.path.resolve()
    identity = f"{folder}:{resolved.created_at}"
    return TrackedRun(
        name=run_dir.run_id,
        experiment=resolved.run_file.name,
        key=hashlib.sha256(identity.encode()).hexdigest()[:20],
        folder=folder,
        created_at=resolved.created_at,
    )


def parameters_of(resolved: ResolvedRun) -> dict[str, str | float]:
    """Choices and predictions by dotted names; environment variables are left out, because they may be secret."""
    run_file, plan = resolved.run_file, resolved.plan
    tree: dict[str, Any] = {"processes": resolved.processes.model_dump(mode="json", exclude={"nccl_environment"})}
    if run_file.workload is not None:
        tree |= run_file.workload.model_dump(mode="json", exclude_none=True)
    else:
        run = None if run_file.run is None else hidden(run_file.run, secrets_of(run_file, os.environ))
        tree |= {"run": run, "framework": run_file.framework}
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
    found: dict[str, Any] = {
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
    workload = resolved.run_file.workload
    unit = workload.unit if workload else "samples"
    training_s = row["step_s"] - row.get("evaluation_s", 0.0) - row.get("callback_s", 0.0)
    rate = row["tokens"] / training_s if training_s > 0 else 0.0
    values = {
        "train/loss": row["loss"],
        "train/grad_norm": row["grad_norm"],
        "train/learning_rate": row["lr"],
        f"train/{unit}_per_s": rate,
    }
    plan = resolved.plan
    if plan is not None and (mfu := plan.mfu(rate)) is not None:
        values["train/mfu"] = mfu
    values |= {f"time/{name}": float(value) for name, value in row.items() if name.endswith("_s")}  # type: ignore[arg-type]
    if "memory_peak_bytes" in row:
        values["memory/peak_bytes"] = row["memory_peak_bytes"]
    if "evaluation" in row:
        has_perplexity = workload is not None and workload.has_perplexity
        values |= _evaluation_values(row["evaluation"], has_perplexity=has_perplexity)
    if "skipped" in row:
        values["train/skipped"] = 1.0
    return MetricPoint(row["step"], row["t"], values)


def _evaluation_values(found: EvaluationResult, *, has_perplexity: bool) -> dict[str, float]:
    """Held-out loss, perplexity of tokens, and accuracy where the task has one."""
    values = {"eval/loss": found["loss"]}
    if has_perplexity:
        values["eval/perplexity"] = math.exp(min(found["loss"], _LARGEST_EXPONENT))
    if "accuracy" in found:
        values["eval/accuracy"] = found["accuracy"]
    return values


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
    envs = dict.fromkeys(resolved.run_file.envs, _HIDDEN)
    run_file = resolved.run_file.model_copy(update={"envs": envs, "notify": None})
    text = resolved.model_copy(update={"run_file": run_file}).model_dump_json(indent=2) + "\n"
    return hidden(text, secrets_of(resolved.run_file, os.environ))
