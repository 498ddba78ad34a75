"""The `environment:` block: the packages that ranks run with. Variables are `envs:`."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import StringConstraints, model_validator

from trainworks.config.spec import FieldError, Image, Spec

_LOCK_ENDINGS = (".txt", ".lock", ".toml")
_CONDA_ENDINGS = (".yaml", ".yml")
_FilePath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class RunEnvironment(Spec):
    """Packages of the ranks, the same on every node: a lock file, a conda environment or a container image.

    A node builds an environment once per content, in its cache folder. The run records the content, and a resume uses
    that record.
    """

    lock: _FilePath | None = None
    """Lock file, relative to the run file: requirements with exact versions, `uv.lock`, or `pylock.toml`. Its hashes
    are checked, and nothing is installed that it does not name."""
    conda: _FilePath | None = None
    """Environment file of conda with exact versions, or the output of `conda list --explicit`."""
    image: Image | None = None
    """Container image, best with its digest: `ghcr.io/me/train@sha256:...`."""
    python: Annotated[str, StringConstraints(pattern=r"^3\.[0-9]{1,2}$")] | None = None
    """Python of a lock file: `"3.12"`; by default the version that Trainworks runs with. A workload takes no other."""

    @model_validator(mode="after")
    def _one_kind(self) -> RunEnvironment:
        named = [name for name in ("lock", "conda", "image") if getattr(self, name) is not None]
        if len(named) != 1:
            raise FieldError(
                f"an environment has exactly one of `lock`, `conda` and `image`, got {' and '.join(named) or 'none'}",
                hint="variables of the ranks are keys of `envs`",
            )
        if self.python is not None and self.lock is None:
            raise FieldError(f"`python` is for `lock`; the {named[0]} brings its own", hint="remove `python`")
        return self

    @property
    def kind(self) -> Literal["lock", "conda", "image"]:
        """The one of the three keys that is set."""
        return "lock" if self.lock else "conda" if self.conda else "image"

    @property
    def file(self) -> str | None:
        """The lock file or conda file."""
        return self.lock or self.conda


def environment_from_text(value: Any) -> Any:
    """Read `environment: requirements.lock` by the ending of the name; refuse variables with a hint.

    Raises:
        FieldError: the name has another ending, or the keys are variables.
    """
    if isinstance(value, str):
        ending = PurePath(value).suffix
        if ending not in _LOCK_ENDINGS + _CONDA_ENDINGS:
            raise FieldError(
                f"`{value[:100]}` does not end like a lock file ({', '.join(_LOCK_ENDINGS)}) or a conda file (.yaml)",
                hint="for a container write `environment: {image: ...}`",
            )
        return {"lock" if ending in _LOCK_ENDINGS else "conda": value}
    if isinstance(value, dict) and (strange := [key for key in value if str(key).isupper()]):
        raise FieldError(
            f"`{strange[0]}` is a variable, and `environment` has packages", hint=f"write `envs: {{{strange[0]}: ...}}`"
        )
    return value
