"""Field types of the run file: parsed from text to base units."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from trainworks.config.limits import check_limit
from trainworks.config.spec import FieldError, Spec
from trainworks.errors import QuantityError, UsageError
from trainworks.units import Money, parse_bytes, parse_counted, parse_duration, parse_share

_MAX_WINDOW_STEPS = 50


def _field(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The parser with errors of its field for a text that it cannot read."""

    def validate(value: Any) -> Any:
        try:
            return parse(value)
        except UsageError as error:
            raise FieldError(error.message, hint=error.hint) from None

    return validate


def _parsed(parse: Callable[[Any], Any]) -> BeforeValidator:
    """A validator that reports a text which cannot be parsed as an error of its field."""
    return BeforeValidator(_field(parse))


def _duration(value: Any) -> float:
    return value if isinstance(value, float) and math.isfinite(value) else parse_duration(value)


DurationS = Annotated[
    float, _parsed(_duration), Field(gt=0), WithJsonSchema({"type": "string", "examples": ["3h", "90s"]})
]
"""Duration as text, `3h` or `90s`; a float is in seconds."""


def _duration_or_auto(value: Any) -> float | str:
    if value == "auto":
        return "auto"
    seconds = _duration(value)
    if seconds <= 0:
        raise QuantityError(f"`{value}` is not a duration above 0", hint="write it like `60s`, or `auto`")
    return seconds


AutoDurationS = Annotated[
    float | Literal["auto"], _parsed(_duration_or_auto), WithJsonSchema({"type": "string", "examples": ["auto", "60s"]})
]
"""Duration as text, `60s`, or `auto`."""


DurationSOrNever = Annotated[
    Annotated[float, Field(gt=0)] | Literal["never"],
    _parsed(lambda value: "never" if value == "never" else _duration(value)),
    WithJsonSchema({"type": "string", "examples": ["2h", "never"]}),
]
"""Duration as text, `2h`, or `never`."""


Share = Annotated[float, _parsed(parse_share), WithJsonSchema({"type": "string", "examples": ["5%", "0.05"]})]
"""Share from 0 to 1 as text, `5%`, or a number."""


SizeBytes = Annotated[
    int,
    _parsed(lambda value: value if isinstance(value, int) and not isinstance(value, bool) else parse_bytes(value)),
    Field(gt=0),
    WithJsonSchema({"type": "string", "examples": ["110 kB", "8 KiB"]}),
]
"""Size as text, `110 kB` or `8 KiB`; an integer is in bytes."""


def _money(parse: Callable[[Any], Money]) -> Callable[[Any], Money]:
    def read(value: Any) -> Money:
        money = value if isinstance(value, Money) else Money(value, "USD") if isinstance(value, float) else parse(value)
        if money.amount <= 0:
            raise QuantityError(f"`{value}` is not an amount above 0", hint="write it like `2000 USD`")
        return money

    return read


_MONEY_AS_TEXT = PlainSerializer(lambda money: money.amount if money.currency == "USD" else str(money))
Budget = Annotated[
    Money,
    PlainValidator(_field(_money(Money.parse))),
    _MONEY_AS_TEXT,
    WithJsonSchema({"type": "string", "examples": ["2000 USD", "1.5M USD", "500万元"]}),
]
"""Amount as text, `2000 USD`, `1.5M USD`, `500万元` or `3.2 CNY`; a float is in dollars."""


HourPrice = Annotated[
    Money,
    PlainValidator(_field(_money(Money.parse_per_hour))),
    _MONEY_AS_TEXT,
    WithJsonSchema({"type": "string", "examples": ["2.5 USD", "¥20/GPU/h"]}),
]
"""Price of an accelerator hour as text, `2.5 USD` or `¥20/GPU/h`; a float is in dollars."""


class _Counted(Spec):
    """A count with a noun in one string: `300 steps`."""

    @model_serializer
    def _to_text(self) -> str:
        return str(self)


class TrainFor(_Counted):
    """Length of training: `300 steps`, `2B tokens` or `3 epochs`."""

    amount: int
    unit: Literal["steps", "tokens", "epochs"]

    def __str__(self) -> str:
        return f"{self.amount} {self.unit}"

    @classmethod
    def parse(cls, value: Any) -> TrainFor:
        """Parse `300 steps`; a TrainFor passes through."""
        if isinstance(value, TrainFor):
            return value
        amount, unit = parse_counted(value, ("steps", "tokens", "epochs"))
        if amount < 1:
            one = unit.removesuffix("s")
            raise QuantityError(f"`{value}` is less than one {one}", hint="write it like `300 steps`")
        check_limit(unit, amount)
        return cls.model_validate({"amount": amount, "unit": unit})


class CheckpointInterval(_Counted):
    """Distance between checkpoints: `auto`, `50 steps` or a duration such as `10m`."""

    steps: int | None = None
    """A fixed number of optimizer steps."""
    seconds: float | None = None
    """A fixed time; ranks agree on the step at the next logging interval."""

    @model_validator(mode="after")
    def _one_or_none(self) -> CheckpointInterval:
        if self.steps is not None and self.seconds is not None:
            raise FieldError("an interval is either steps or a duration, not both")
        return self

    def __str__(self) -> str:
        if self.steps is not None:
            return f"{self.steps} steps"
        return "auto" if self.seconds is None else f"{self.seconds!r} s"

    @classmethod
    def parse(cls, value: Any) -> CheckpointInterval:
        """Parse `auto`, `50 steps` or `10m`; a CheckpointInterval passes through."""
        if isinstance(value, CheckpointInterval):
            return value
        if value == "auto":
            return cls()
        if str(value).strip().endswith(("step", "steps")):
            steps, _ = parse_counted(value, ("steps",))
            if steps < 1:
                raise QuantityError(f"`{value}` is less than one step", hint="write it like `50 steps`")
            check_limit("steps", steps)
            return cls(steps=steps)
        seconds = parse_duration(value)
        if seconds <= 0:
            raise QuantityError(f"`{value}` is not a duration above 0", hint="write it like `10m`")
        return cls(seconds=seconds)


class StepWindow(_Counted):
    """Steps `first` to `last`, both included, counted from 1: `20:25`."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"

    @classmethod
    def parse(cls, value: Any) -> StepWindow:
        """Parse `20:25`, or `20` for that step alone; a StepWindow passes through."""
        if isinstance(value, StepWindow):
            return value
        match = re.fullmatch(r"\s*(\d{1,15})\s*(?::\s*(\d{1,15})\s*)?", str(value))
        if match is None:
            raise QuantityError(f"`{value}` is not a range of steps", hint="write it like `20:25`")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last:
            raise QuantityError(f"`{value}` is not a range of steps counted from 1", hint="write it like `20:25`")
        if last - first >= _MAX_WINDOW_STEPS:
            raise QuantityError(
                f"`{value}` names {last - first + 1:,} steps, more than {_MAX_WINDOW_STEPS}",
                hint="choose a few steps: longer traces are too large to open",
            )
        return cls(first=first, last=last)


def _text_schema(*examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": list(examples)})


TrainForField = Annotated[TrainFor, _parsed(TrainFor.parse), _text_schema("300 steps", "2B tokens", "3 epochs")]
CheckpointIntervalField = Annotated[
    CheckpointInterval, _parsed(CheckpointInterval.parse), _text_schema("auto", "50 steps", "10m")
]
StepWindowField = Annotated[StepWindow, _parsed(StepWindow.parse), _text_schema("20:25")]
