"""Files with rows beside those of Trainworks: the last update of the catalogue, and this user's own rows.

A row of such a file takes the place of ours with the same name, and one of the user's that of the update. The file has
the kinds of the data files as keys, and rows as they have them:

    offers:
      "our 8x H100": {source: quote of ACME, date: 2026-11, provider: ACME, accelerator: H100-SXM-80GB, accelerators: 8,
                      on_demand_usd_h: 18.4}

`source` is a key of the file's own `sources`, one of ours, or any text; such a text needs the `date` of the row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trainworks.errors import UsageError, suggest

VARIABLE = "TRAINWORKS_CATALOG"
"""Names the user's file; `catalog.yaml` in the folder of settings where it is not set."""
UPDATED = "updated"
"""Key of an update with where it came from, and when."""
_MONTH = re.compile(r"20\d\d-(0[1-9]|1[0-2])")
_EXAMPLE = "write `NAME: {source: ..., date: 2026-11, ...}`"

_Function = TypeVar("_Function", bound=Callable[..., Any])
_FORGET: list[Callable[[], None]] = []


def kept_with_rows(function: _Function) -> _Function:
    """`functools.cache` for what is computed from rows: other files make it forget."""
    kept = cache(function)
    _FORGET.append(kept.cache_clear)
    return kept  # type: ignore[return-value]


class LinedText(Protocol):
    """YAML text that knows the line of each field: a `Source`."""

    name: str

    def parse(self) -> Any:
        """The text as plain values."""

    def line(self, field: tuple[str | int, ...]) -> int:
        """Line of a field."""

    def place_in_file(self, field: tuple[str | int, ...]) -> str:
        """File, line and key of a field."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file with rows, each with its line."""

    source: LinedText
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """Rows by kind and name, as written."""
    sources: Mapping[str, Mapping[str, str]]

    def place(self, kind: str, name: str, figure: str = "") -> str:
        """File and line of a row, or of a figure of it."""
        return f"{self.source.name}:{self.source.line((kind, name, figure) if figure else (kind, name))}"

    def sources_of(self, kind: str, name: str, known: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
        """All sources that a row may name: ours, those of the file, and titles that its figures have.

        Raises:
            UsageError: the row has no source, or one without a date.
        """
        row = self.rows[kind][name]
        found: dict[str, Mapping[str, str]] = {**known, **self.sources}
        if not row.get("source"):
            message = f"the row `{name}` has no `source`"
            raise UsageError(message, place=self.place(kind, name), hint="name who published it: `source: ...`")
        written = (row, *(value for value in row.values() if isinstance(value, dict) and "source" in value))
        for titled in written:
            title = str(titled["source"])
            if title not in found:
                date = str(titled.get("date", row.get("date", "")))
                self._check_date(kind, name, date, f"`{title}` is not a known source, and the row has no date")
                found[title] = {"title": title, "date": date[:7], "confidence": "medium"}
            elif "date" in titled:
                self._check_date(kind, name, str(titled["date"]), f"`date` of `{name}` is not a month")
        return found

    def _check_date(self, kind: str, name: str, date: str, message: str) -> None:
        if not _MONTH.match(date):
            hint = "write the month of the figures: `date: 2026-11`"
            raise UsageError(message, place=self.place(kind, name), hint=hint)


def parse_row_file(source: LinedText, kinds: tuple[str, ...]) -> RowFile:
    """The rows in the text of a file, not yet held against their kind.

    Raises:
        RunFileError: the text is not YAML.
        UsageError: an unknown kind, or a row without figures; with its line.
    """
    content = source.parse() or {}
    if not isinstance(content, dict):
        raise UsageError(
            "rows of a catalogue are a mapping by kind", place=f"{source.name}:1", hint="begin with `offers:`"
        )
    for key, rows in content.items():
        if key not in (*kinds, "sources", UPDATED):
            hint = suggest(str(key), kinds) or f"there are {', '.join(kinds)}"
            raise UsageError(f"no kind `{key}` in the catalogue", place=source.place_in_file((key,)), hint=hint)
        if not isinstance(rows, dict):
            raise UsageError(f"`{key}` has no rows", place=source.place_in_file((key,)), hint=_EXAMPLE)
        for row, figures in rows.items():
            if key != UPDATED and not isinstance(figures, dict):
                raise UsageError(f"`{row}` is not a row", place=source.place_in_file((key, row)), hint=_EXAMPLE)
    titles = {str(key): _source(source, str(key), row) for key, row in content.get("sources", {}).items()}
    rows = {kind: {str(name): row for name, row in content.get(kind, {}).items()} for kind in kinds}
    return RowFile(source, rows, titles)


def _source(source: LinedText, key: str, row: Mapping[str, Any]) -> dict[str, str]:
    title, date = str(row.get("title") or ""), str(row.get("date", ""))
    if not title or not _MONTH.match(date):
        hint = f"write `{key}: {{title: ..., date: 2026-11}}`"
        raise UsageError(
            f"source `{key}` needs `title` and `date`", place=source.place_in_file(("sources", key)), hint=hint
        )
    return {"title": title, "date": date[:7], "confidence": str(row.get("confidence", "medium"))}


def settings_folder() -> Path | None:
    """`$XDG_CONFIG_HOME/trainworks`, else `~/.config/trainworks`; None for a user without a home."""
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        return Path(base or Path.home() / ".config") / "trainworks"
    except RuntimeError:
        return None


def updates() -> list[Path]:
    """Files of all updates of the catalogue, the newest last; that one counts."""
    folder = settings_folder()
    return [] if folder is None else sorted((folder / "catalog-updates").glob("[0-9]*.yaml"))


def own_path() -> Path | None:
    """The user's file: that of the environment, else the one in the folder of settings if it is there."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    folder = settings_folder()
    own = None if folder is None else folder / "catalog.yaml"
    return own if own is not None and own.exists() else None


_chosen: list[tuple[RowFile, ...]] = []


def row_files(kinds: tuple[str, ...], read: Callable[[Path], LinedText]) -> tuple[RowFile, ...]:
    """The last update and the user's own file, as far as they are there; rows of later ones win.

    Raises:
        TrainworksError: one cannot be read, with its place.
    """
    if not _chosen:
        own = own_path()
        paths = [*updates()[-1:], *([] if own is None else [own])]
        _chosen.append(tuple(parse_row_file(read(path), kinds) for path in paths))
    return _chosen[0]


def use_files(files: tuple[RowFile, ...] | None) -> None:
    """Take rows from these files; None for those of this user again, which are read anew."""
    _chosen[:] = [] if files is None else [files]
    for forget in _FORGET:
        forget()
