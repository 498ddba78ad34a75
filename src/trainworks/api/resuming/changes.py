"""What changes in a run before it is resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from trainworks.api.launching.resolve import resolve
from trainworks.config.load import full_key, with_settings, yaml_value
from trainworks.errors import UsageError
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

CHANGEABLE = (
    "workload.optimizer",
    "workload.train_for",
    "workload.eval.every",
    "workload.eval.patience",
    "workload.eval.min_delta",
    "workload.eval.keep_best",
    "layout",
    "guard",
    "recover",
    "goal",
    "checkpoint.every",
    "checkpoint.keep",
)
"""Keys of a run file that a resumed run may have otherwise: model, data, batch and seed make another run."""


@dataclass(frozen=True, slots=True)
class RunChange:
    """One key of the run file that has another value."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {_text(self.before)} -> {_text(self.after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeChanges:
    """Changes of a run that is resumed."""

    nodes: int | None = None
    nproc: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values by key of the run file; keys of the workload may stand without `workload.`."""

    @property
    def extends(self) -> bool:
        """Whether the run may get more steps."""
        return any(key == "workload.train_for" or key.startswith("workload.eval.") for key in self.by_key())

    def by_key(self) -> dict[str, Any]:
        """Settings by their full keys; text is read as YAML.

        Raises:
            UsageError: a key that a resumed run cannot change, or text that is not YAML.
        """
        found = {}
        for written, value in self.settings.items():
            key = full_key(written)
            if not any(key == known or key.startswith(f"{known}.") for known in CHANGEABLE):
                hint = f"change {', '.join(f'`{name}`' for name in CHANGEABLE)}, or start another run"
                raise UsageError(f"`{written}` cannot change in a resumed run", place=f"--set {written}", hint=hint)
            found[key] = yaml_value(written, value)
        return found


UNCHANGED: Final[ResumeChanges] = ResumeChanges()


def changed_run(run_dir: RunDir, changes: ResumeChanges, *, node_planner: str) -> tuple[ResolvedRun, list[RunChange]]:
    """The resolved run with its changes, planned anew where they need it, and what changed. Nothing is written.

    Other ranks drop a written `layout`, unless another one is set; the number of steps stays, unless `train_for` is
    set. The order of the data depends on neither. `node_planner` is the module that plans a run of another backend on
    its nodes.

    Raises:
        UsageError: a key that cannot change, or fewer steps than the run has trained.
        RunFileError: a value that is not valid.
        TrainworksError: the changed run cannot be planned.
    """
    before = run_dir.read_resolved()
    settings = changes.by_key()
    if not before.is_workload and any(key.startswith(("workload.", "layout", "guard")) for key in settings):
        raise UsageError(f"run {before.run_id} runs a command, which has no workload, layout or guard to change")
    run_file = with_settings(before.run_file, settings)
    has_new_ranks = bool(changes.nodes or changes.nproc)
    if has_new_ranks:
        drops_layout = "layout" not in settings
        run_file = run_file.with_ranks(changes.nodes, changes.nproc)
        run_file = run_file.model_copy(update={"layout": None} if drops_layout else {})
    resolved = before.model_copy(update={"run_file": run_file})
    has_new_layout = has_new_ranks or any(key.partition(".")[0] == "layout" for key in settings)
    if has_new_layout or changes.extends:
        planned = resolve(
            run_file,
            None,
            run_id=before.run_id,
            runs=run_dir.path.parent,
            command=list(before.command) if before.command else None,
            node_planner=node_planner,
            environment=before.environment,
        )
        resolved = _replan(before, planned, keeps_layout=not has_new_layout, has_new_length=changes.extends)
    if changes.extends:
        _check_steps(run_dir, resolved)
    return resolved, _differences(before, resolved)


def _replan(before: ResolvedRun, planned: ResolvedRun, *, keeps_layout: bool, has_new_length: bool) -> ResolvedRun:
    """The run as planned anew; with its plan of before but for the number of steps if the layout stays."""
    if planned.plan is None or before.plan is None:
        return planned.in_place_of(before)
    num_steps = planned.plan.num_steps if has_new_length else before.plan.num_steps
    if keeps_layout:
        plan = before.plan.model_copy(update={"num_steps": num_steps, "evaluation": planned.plan.evaluation})
        return before.model_copy(update={"run_file": planned.run_file, "plan": plan})
    plan = planned.plan.model_copy(update={"num_steps": num_steps})
    return planned.model_copy(update={"plan": plan}).in_place_of(before)


def _check_steps(run_dir: RunDir, resolved: ResolvedRun) -> None:
    """Refuse an end that lies behind; where nodes plan the run later, its steps are not known yet."""
    trained = max((manifest.step for manifest, _ in complete_checkpoints(run_dir)), default=0)
    if resolved.plan is not None and resolved.plan.num_steps <= trained:
        raise UsageError(
            f"run {resolved.run_id} has trained {trained} steps, and `train_for` ends it at {resolved.plan.num_steps}",
            hint=f"set it above {trained} steps: it counts from the first step of the run",
        )


def _differences(before: ResolvedRun, after: ResolvedRun) -> list[RunChange]:
    """What changed; of the layout what was planned, once both runs have a plan."""
    changes = changes_between(before.run_file, after.run_file)
    if before.plan is None or after.plan is None:
        return changes
    steps = before.plan.num_steps, after.plan.num_steps
    return [
        *(change for change in changes if change.key.partition(".")[0] != "layout"),
        *([RunChange("steps", *steps)] if steps[0] != steps[1] else []),
        *changes_between(before.plan.layout, after.plan.layout, "layout."),
    ]


def changes_between(before: BaseModel, after: BaseModel, prefix: str = "") -> list[RunChange]:
    """Every value that differs, by its key, in alphabetical order."""
    old, new = _flat(before.model_dump(mode="json")), _flat(after.model_dump(mode="json"))
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [RunChange(f"{prefix}{name}", old.get(name), new.get(name)) for name in names]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        key: leaf for name, item in value.items() for key, leaf in _flat(item, f"{prefix}.{name}".lstrip(".")).items()
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
