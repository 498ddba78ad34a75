"""What every part of a report shares: its JSON, and text that is safe to print."""

from __future__ import annotations

import unicodedata

from pydantic import ConfigDict

from trainworks.config.spec import Frozen

KEPT_CONTROLS = "\n\t"


class ReportPart(Frozen):
    """Base of the report's models: a number that is not finite becomes a JSON string, and reads back."""

    model_config = ConfigDict(ser_json_inf_nan="strings")


def printable(value: object) -> str:
    r"""Text that a terminal, a page and a JSON file can take: no control characters, no lone surrogates.

    Newlines and tabs stay. None becomes the empty string.

    >>> printable("a\x1b[31mb"), printable(None)
    ('a[31mb', '')
    """
    text = "" if value is None else str(value)
    kept = (char for char in text if char in KEPT_CONTROLS or unicodedata.category(char) not in ("Cc", "Cs"))
    return "".join(kept)
