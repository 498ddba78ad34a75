"""Libraries that observers need, each in an extra of its own."""

from __future__ import annotations

from importlib.util import find_spec

from trainworks.errors import MissingExtraError

TRACKER_LIBRARIES = {"mlflow": "mlflow", "wandb": "wandb"}
"""Package of a tracker, and of its extra; TensorBoard's files need none."""


def check_library(package: str | None, extra: str) -> None:
    """Refuse what needs a package that is not installed.

    Raises:
        MissingExtraError: it is not.
    """
    if package is not None and find_spec(package) is None:
        raise MissingExtraError(package, extra)
