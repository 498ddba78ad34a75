"""Profiled steps: the request, and the summary of a trace."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from trainworks.config.spec import Spec
from trainworks.files import write_atomic
from trainworks.record.run_dir import RunDir


class ProfileRequest(Spec):
    """Steps to record, and on which ranks: the content of profile.json."""

    first_step: int
    last_step: int
    """Last step, included."""
    ranks: tuple[int, ...] = (0,)


class OperatorTime(Spec):
    """One operator (on a CPU) or kernel (on an accelerator) over all its calls."""

    name: str
    calls: int
    self_s: float
    """Time without that of its callees."""


class ProfileSummary(Spec):
    """Summary of a rank's trace. The four times add up to `window_s`.

    Each moment counts once: compute and optimizer take precedence over the communication that they hide.
    """

    rank: int
    first_step: int
    last_step: int
    window_s: float
    compute_s: float
    optimizer_s: float
    communication_s: float
    """Exposed communication."""
    idle_s: float
    """Time without any of these: Python, waiting for data, launches."""
    operators: tuple[OperatorTime, ...]
    """Operators with the most time of their own."""

    def shares(self) -> dict[str, float]:
        """Share of each category in the window, 0-1."""
        names = ("compute", "communication", "optimizer", "idle")
        return {name: getattr(self, f"{name}_s") / self.window_s if self.window_s > 0 else 0.0 for name in names}


def write_request(run_dir: RunDir, request: ProfileRequest) -> None:
    """Request a profile; the ranks check for it once per logging interval."""
    write_atomic(run_dir.profile_request_file, request.model_dump_json(indent=2) + "\n")


def trace_file(folder: Path, rank: int) -> Path:
    """The chrome trace of one rank, for Perfetto or chrome://tracing."""
    return folder / f"rank-{rank}.trace.json.gz"


def summary_file(folder: Path, rank: int) -> Path:
    """The summary of one rank."""
    return folder / f"rank-{rank}.json"


def read_summaries(folder: Path) -> list[ProfileSummary]:
    """The summaries of all profiled ranks, by rank; unreadable ones are skipped."""
    found = []
    for path in folder.glob("rank-*.json"):
        with suppress(OSError, ValidationError):
            found.append(ProfileSummary.model_validate_json(path.read_bytes()))
    return sorted(found, key=lambda summary: summary.rank)
