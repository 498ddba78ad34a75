"""Update the catalogue from a file or an address: check all rows, show what changes, install, and go back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from trainworks.api.catalog import today
from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.lint import lint
from trainworks.catalog.row_files import UPDATED, RowFile, own_path, parse_row_file, settings_folder, updates, use_files
from trainworks.catalog.rows import OWN_KINDS, RowChange, all_rows, read_rows, read_source, row_changes
from trainworks.config.source import Source, read_text
from trainworks.errors import EnvironmentProblem, TrainworksError, UsageError
from trainworks.files import write_atomic
from trainworks.host.network import download

MOST_BYTES = 4_000_000
"""Largest size of a file with rows; ours are 300 kB together."""


@dataclass(frozen=True, slots=True)
class CatalogUpdate:
    """Rows from a file or an address, which are checked and not yet installed."""

    origin: str
    content: str
    """Text of the file to install."""
    changes: tuple[RowChange, ...]


def read_update(origin: str) -> CatalogUpdate:
    """Read rows from a file or an `https` address, and check them as ours are checked.

    Raises:
        UsageError: another protocol, a missing file, or a bad row, which refuses the whole file; with its line.
        EnvironmentProblem: the address does not answer, or has too much.
    """
    found = parse_row_file(Source(origin, _text(origin)), OWN_KINDS)
    if not any(found.rows.values()):
        raise UsageError("the file has no rows", place=origin, hint=f"its keys are kinds: {', '.join(OWN_KINDS)}")
    own = own_path()
    files = [] if own is None else [parse_row_file(read_source(own), OWN_KINDS)]
    before = all_rows()
    try:
        use_files((found, *files))
        after = all_rows()
        _check(found)
    finally:
        use_files(None)
    written = {UPDATED: {"from": origin, "date": today().isoformat()}, **found.source.parse()}
    content = yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=120)
    return CatalogUpdate(origin, content, tuple(row_changes(before, after)))


def install_update(update: CatalogUpdate) -> Path:
    """Write an update beside the user's rows, where it takes the place of an earlier one; all of it, or nothing.

    Raises:
        EnvironmentProblem: the user has no home, or the folder cannot be written.
    """
    folder = settings_folder()
    if folder is None:
        raise EnvironmentProblem("this user has no folder of settings", hint="set HOME or XDG_CONFIG_HOME")
    number = int(updates()[-1].stem) + 1 if updates() else 1
    path = folder / "catalog-updates" / f"{number:04}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, update.content)
    use_files(None)
    return path


def undo_update() -> tuple[Path, Path | None]:
    """Remove the last update; the file that was removed, and the earlier one that counts again, if there is one.

    Raises:
        UsageError: the catalogue was not updated.
    """
    installed = updates()
    if not installed:
        hint = "`trainworks catalog update FILE` reads one"
        raise UsageError("the catalogue has no update to go back from", hint=hint)
    installed[-1].unlink()
    use_files(None)
    return installed[-1], installed[-2] if len(installed) > 1 else None


def _text(origin: str) -> str:
    if "://" not in origin:
        path = Path(origin)
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise UsageError(f"`{origin}` has more than {MOST_BYTES:,} bytes", hint="name a smaller file")
        return read_text(path, "catalogue")
    if not origin.startswith("https://"):
        raise UsageError(f"`{origin}` has no `https://`", hint="download it yourself, and name the file")
    try:
        return download(origin, most_bytes=MOST_BYTES).decode()
    except UnicodeDecodeError:
        raise UsageError(f"`{origin}` cannot be read as UTF-8") from None


def _check(found: RowFile) -> None:
    """Refuse rows that contradict themselves or ours, unless they explain it."""
    try:
        findings = lint(load_catalog())
    except TrainworksError:
        raise
    except ValueError as error:
        raise UsageError(str(error), place=found.source.name) from None
    for each in findings:
        row = read_rows(each.kind)[each.row]
        if each.explained is None and row.place.startswith(f"{found.source.name}:"):
            message = f"`{each.row}` breaks the rule {each.rule}: {each.value}, and the limit is {each.limit}"
            hint = f"{each.meaning}; if it is right, say why: `explained: {{{each.rule}: ...}}`"
            raise UsageError(message, place=row.place, hint=hint)
