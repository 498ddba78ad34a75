"""One line of the store of finished runs."""

from __future__ import annotations

from pydantic import Field

from trainworks.config.spec import Spec


class FinishedRun(Spec):
    """The prediction and the measurement of one run."""

    format_version: int = 1
    run: str
    """Absolute path of the run directory."""
    finished_at: float
    """Seconds since the epoch."""
    machine: str
    """Kind of machine; see `machine_of`."""
    software: str
    """Program that trained; see `software_of`."""
    model: str
    layout: str
    by_rate_s: dict[str, float]
    """Predicted step time by physical rate, before learning."""
    planned_s: float = Field(gt=0)
    """Predicted step time, with what was learned until then."""
    low_s: float
    high_s: float
    """Ends of the predicted 80 % interval."""
    learned_from: int
    """Finished runs that the plan had learned from."""
    measured_s: float = Field(gt=0)
    """Median step time, without the first steps."""
    spread: float
    """Robust standard deviation of log(step time) within the run: large where other programs disturbed it."""
    num_steps: int
    """Steps of the median."""

    compile_s: float | None = None
    """Time that compiling took; None without, and in lines of earlier versions."""
    terms_s: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """Planned and measured time of a step by term: medians, and what they leave of the step as `other`. Empty in lines
    of earlier versions."""

    @property
    def error(self) -> float:
        """Planned / measured - 1."""
        return self.planned_s / self.measured_s - 1

    @property
    def largest_term(self) -> str | None:
        """Term that has most of the error; None without terms."""
        differences = {name: abs(planned - measured) for name, (planned, measured) in self.terms_s.items()}
        return max(differences, key=differences.__getitem__, default=None)

    @property
    def is_inside(self) -> bool:
        """Whether the measured time is inside the predicted interval."""
        return self.low_s <= self.measured_s <= self.high_s
