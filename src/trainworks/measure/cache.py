"""On-disk cache of measurements of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from trainworks.config.spec import Spec
from trainworks.files import write_atomic

_Answer = TypeVar("_Answer", bound=Spec)


def remembered(path: Path, kind: type[_Answer], measure: Callable[[], _Answer], *, again: bool) -> _Answer:
    """The answer in a file, or a new one, which is written there; a file that cannot be read counts as none."""
    if not again:
        try:
            return kind.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            pass
    answer = measure()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, answer.model_dump_json(indent=2) + "\n")
    return answer
