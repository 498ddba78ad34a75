"""What a sweep leaves: its definition, and a line per change of a trial.

runs/sweeps/NAME/
  sweep.json     definition; written once
  trials.jsonl   one line per change of a trial, its settings first; the last line of a trial counts
  sweep.html     table and plots
  .lock          locked by the process that runs the sweep
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from trainworks.config.spec import Spec
from trainworks.errors import EnvironmentProblem
from trainworks.files import append_text, write_atomic
from trainworks.record.events.log import read_lines_from
from trainworks.results import Result

TrialState = Literal["proposed", "submitted", "succeeded", "pruned", "failed"]


class SweepDefinition(Spec):
    """What a sweep does; a sweep that is continued must be the same."""

    format_version: int = 1
    name: str
    run_file: dict[str, Any]
    """The run file when the sweep began."""
    space: dict[str, Any]
    """Dimension by key."""
    search: Literal["grid", "random", "optuna"]
    num_trials: int
    seed: int
    objective: Literal["loss", "held-out loss", "held-out accuracy"]
    pruning: Literal["median", "asha"] | None


class SweepTrial(Spec):
    """One trial of a sweep."""

    number: int
    settings: dict[str, Any]
    run_name: str
    """Name of its run before the number that makes it unique; written before the run is made."""
    run: str | None = None
    """Run id."""
    state: TrialState = "proposed"
    value: float | None = None
    """Objective; None until it has ended, and for one that failed."""
    steps: int = 0
    """Steps that it has trained."""
    message: str | None = None
    """Why it failed."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left to do."""
        return self.state in ("succeeded", "pruned", "failed")


@dataclass(frozen=True, slots=True)
class SweepResult(Result):
    """A sweep and its trials so far."""

    definition: SweepDefinition
    trials: tuple[SweepTrial, ...]
    curves: Mapping[int, Sequence[tuple[int, float]]]
    """Steps and costs of each trial by its number; an accuracy counts as its negative."""
    path: Path

    def ranked(self) -> list[SweepTrial]:
        """The trials that have a value, the best first."""
        sign = -1.0 if self.definition.objective == "held-out accuracy" else 1.0
        valued = [trial for trial in self.trials if trial.value is not None]
        return sorted(valued, key=lambda trial: sign * (trial.value or 0.0))

    @property
    def best(self) -> SweepTrial | None:
        """The trial with the best value among those that trained to their end."""
        return next((trial for trial in self.ranked() if trial.state == "succeeded"), None)


class SweepDir:
    """Paths and files of one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def lock_file(self) -> Path:
        """Locked by the process that runs the sweep."""
        return self.path / ".lock"

    @property
    def page(self) -> Path:
        """Table and plots."""
        return self.path / "sweep.html"

    def write_definition(self, definition: SweepDefinition) -> None:
        """Write the definition, atomically."""
        write_atomic(self.path / "sweep.json", definition.model_dump_json(indent=2) + "\n")

    def read_definition(self) -> SweepDefinition | None:
        """The definition; None for a sweep that has not begun.

        Raises:
            EnvironmentProblem: another version wrote it.
        """
        file = self.path / "sweep.json"
        try:
            return SweepDefinition.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise EnvironmentProblem(
                f"`{file}` was written by another version", hint="give the sweep another `--name`"
            ) from None

    def append(self, trial: SweepTrial) -> None:
        """Append the present state of a trial."""
        append_text(self.path / "trials.jsonl", json.dumps(trial.model_dump()) + "\n")

    def read_trials(self) -> list[SweepTrial]:
        """The last state of every trial, in the order of their numbers; torn lines are skipped."""
        rows, _ = read_lines_from(self.path / "trials.jsonl", 0)
        found = {row["number"]: SweepTrial.model_validate(row) for row in rows}
        return [found[number] for number in sorted(found)]


def sweep_dir(runs: Path, name: str) -> SweepDir:
    """The folder of a sweep beside the runs."""
    return SweepDir(runs / "sweeps" / name)
