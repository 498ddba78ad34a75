"""What every scheduler does: render, which is pure, then act, which is one call."""

from __future__ import annotations

import abc
from dataclasses import dataclass

from trainworks.jobs.request import JobRequest
from trainworks.record.run_dir import RunDir

__all__ = ["Rendered", "Scheduler"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """What would be submitted; `--dry-run` prints its text."""

    request: JobRequest
    text: str


class Scheduler(abc.ABC):
    """Starts and stops jobs.

    A subclass is final. It promises:
    1. `render` touches nothing: no file, no process, no network.
    2. `submit` returns when the job exists for sure, or raises an EnvironmentProblem and leaves nothing behind.
    3. A submitted job writes its states to the run directory until it has a final one.
    4. `stop` asks for a clean end and returns at once; the record shows when the job has ended.
    """

    @abc.abstractmethod
    def render(self, request: JobRequest, run_dir: RunDir) -> Rendered:
        """What `submit` would start."""

    @abc.abstractmethod
    def submit(self, rendered: Rendered, run_dir: RunDir, *, attached: bool) -> None:
        """Start the job.

        Args:
            rendered: by this scheduler.
            run_dir: of the run, with its resolved.json.
            attached: end the job if this process ends; otherwise the job survives it.
        """

    @abc.abstractmethod
    def stop(self, run_dir: RunDir, reason: str) -> bool:
        """Ask for a clean end: a workload saves a checkpoint first. Asking twice ends it at once.

        Returns:
            Whether there was somebody to ask; a job that is only just being submitted has nobody yet.
        """
