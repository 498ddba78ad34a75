"""Jobs that a job waits for, as `job.depends_on` names them."""

from __future__ import annotations

from dataclasses import dataclass

ANY_END = "afterany:"


@dataclass(frozen=True, slots=True)
class Dependency:
    """One job that must end first."""

    job: str
    """Number or run of the job."""
    needs_success: bool = True

    def __str__(self) -> str:
        return self.job if self.needs_success else f"{ANY_END}{self.job}"


def parse_dependency(text: str) -> Dependency:
    """Read an entry of `job.depends_on`.

    >>> parse_dependency("tokenize-1"), parse_dependency("afterany:12")
    (Dependency(job='tokenize-1', needs_success=True), Dependency(job='12', needs_success=False))
    """
    return Dependency(text.removeprefix(ANY_END), needs_success=not text.startswith(ANY_END))
