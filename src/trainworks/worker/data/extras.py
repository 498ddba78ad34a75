"""Libraries that an extra brings, imported when something needs them."""

from __future__ import annotations

import importlib
from typing import Any

from trainworks.errors import MissingExtraError


def extra(module: str, name: str) -> Any:
    """The module, which the extra `name` brings.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(module.partition(".")[0], name) from None
