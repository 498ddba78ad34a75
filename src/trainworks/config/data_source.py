"""Where training data comes from, as it is written: `texts/*.jsonl`, `s3://bucket/data`, `hf://name?split=train`."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated, Any
from urllib.parse import parse_qsl

from pydantic import Field, model_validator

from trainworks.config.quantities import Spec

__all__ = ["HUB", "SCHEMES", "STDLIB", "DataSource", "sources_from"]

STDLIB = "python-stdlib"
HUB = "hf"
SCHEMES = ("hf", "s3", "gs", "gcs", "az", "abfs", "http", "https", "memory", "file")
"""What may stand before `://`: the hub, and stores that fsspec knows."""

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_HUB_OPTIONS = ("split", "column", "config")
_SMALLEST_SHARE = 1e-5


class DataSource(Spec):
    """One source of data."""

    source: str
    """`python-stdlib`; a file, folder or glob; a store (`s3://bucket/folder`); a dataset of the hub (`hf://name`)."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Share of the training samples over the sum of all weights; all sources by their size when no weight is given."""
    column: str | None = None
    """Column or key with the text (JSONL, Parquet, datasets); `text` or `content` when left out."""
    split: str | None = None
    """Split of a dataset; `train` when left out."""
    config: str | None = None
    """Configuration of a dataset of the hub."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _options_of_the_address(cls, value: Any) -> Any:
        """`hf://name?split=train&column=text` says what the keys beside `source` say."""
        if not isinstance(value, dict) or not isinstance(value.get("source"), str):
            return value
        address = _checked_scheme(value["source"])
        if scheme_of(address) != HUB or "?" not in address:
            return value | {"source": address}
        name, _, query = address.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        for option in options:
            if option not in _HUB_OPTIONS:
                raise ValueError(f"unknown option `{option}` in `{address}`\x1f{_near(option, _HUB_OPTIONS)}")
            if value.get(option) is not None:
                raise ValueError(f"`{option}` stands twice: in `{address}` and beside it")
        return value | options | {"source": name}

    @property
    def scheme(self) -> str | None:
        """What stands before `://`; None for this machine's files."""
        return scheme_of(self.source)


def scheme_of(address: str) -> str | None:
    """What stands before `://`."""
    found = _SCHEME.match(address)
    return found[1].lower() if found else None


def _checked_scheme(address: str) -> str:
    scheme = scheme_of(address)
    if scheme is not None and scheme not in SCHEMES:
        raise ValueError(f"`{scheme}://` is no store that is known\x1f{_near(scheme, SCHEMES, '://')}")
    return address


def _near(word: str, known: tuple[str, ...], after: str = "") -> str:
    near = get_close_matches(word, known, n=1)
    return f"did you mean `{near[0]}{after}`?" if near else f"there are {', '.join(name + after for name in known)}"


def sources_from(value: Any) -> Any:
    """What may be written for `source`: one address, a list of sources, or addresses with their weights.

    A list and a mapping become a list of mappings; one address stays text.
    """
    if isinstance(value, dict):
        if "source" in value:
            raise ValueError("one source is written as text\x1fwrite `source: ADDRESS`, and `column` beside it")
        return tuple({"source": address, "weight": weight} for address, weight in value.items())
    if isinstance(value, list | tuple):
        return tuple({"source": item} if isinstance(item, str) else item for item in value)
    if not isinstance(value, str):
        raise ValueError(
            f"`{value}` is no source of data\x1fgive an address, a list of them, or addresses with weights"
        )
    DataSource.model_validate({"source": value})
    return value


def check_weights(sources: tuple[DataSource, ...]) -> None:
    """Weights are given for all sources or for none, and each is enough to be seen.

    Raises:
        ValueError: they are not.
    """
    weights = [source.weight for source in sources]
    missing = [source.source for source in sources if source.weight is None]
    if missing and len(missing) < len(sources):
        raise ValueError(f"`{missing[0]}` has no weight, others have\x1fgive every source a weight, or none of them")
    total = sum(weight for weight in weights if weight is not None)
    for source in sources:
        if source.weight is not None and source.weight < _SMALLEST_SHARE * total:
            raise ValueError(f"weight {source.weight:g} of `{source.source}` is less than 1e-5 of {total:g}, their sum")
