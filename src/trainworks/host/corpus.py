"""Local files of a data source."""

from __future__ import annotations

import importlib.util
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainworks.config.data import STDLIB, Data, DataSource, Evaluation
from trainworks.errors import MissingExtraError, UsageError, suggest

_DRIVERS = {
    "s3": ("s3fs", "s3"),
    "hf": ("datasets", "hf"),
    "http": ("aiohttp", "s3"),
    "https": ("aiohttp", "s3"),
}
"""Package that opens a scheme, and the extra that installs it."""


def anchored_data(data: Data) -> Data:
    """The same data with absolute paths."""
    if isinstance(data.source, str):
        return data.model_copy(update={"source": anchored_source(data.source)})
    parts = (part.model_copy(update={"source": anchored_source(part.source)}) for part in data.source)
    return data.model_copy(update={"source": tuple(parts)})


def anchored_evaluation(evaluation: Evaluation | None) -> Evaluation | None:
    """The same evaluation with absolute paths of its data."""
    if evaluation is None or evaluation.data is None:
        return evaluation
    sets = {
        name: source.model_copy(update={"source": anchored_source(source.source)})
        for name, source in evaluation.sources.items()
    }
    return evaluation.model_copy(update={"data": sets.get("", sets)})


def anchored_source(source: str) -> str:
    """The source with an absolute path."""
    if source in ("", STDLIB) or "://" in source:
        return source
    return str(Path(source).expanduser().absolute())


def check_sources(sources: Sequence[DataSource]) -> None:
    """Check that sources can be read, without network access.

    Raises:
        UsageError: a source has no files.
        MissingExtraError: the library that opens a store is not installed.
    """
    for source in sources:
        if source.scheme is None:
            source_files(source.source)
        elif source.scheme in _DRIVERS:
            package, extra = _DRIVERS[source.scheme]
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(package, extra)


def source_files(source: DataSource | str) -> list[Path]:
    """Sorted files of a local source: `python-stdlib`, a file, a folder (all files below) or a glob.

    Raises:
        UsageError: it has no files.
    """
    address = source if isinstance(source, str) else source.source
    if address == STDLIB:
        library = Path(sysconfig.get_path("stdlib"))
        return sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    files = sorted(file for file in _named(Path(anchored_source(address))) if file.is_file())
    if not files:
        raise UsageError(f"data source `{address}` names no files", hint=_hint(Path(anchored_source(address))))
    return files


def _named(path: Path) -> Iterator[Path]:
    if path.is_dir():
        return path.rglob("*")
    if any(character in str(path) for character in "*?["):
        return Path(path.anchor).glob(str(path.relative_to(path.anchor)))
    return iter([path])


def _hint(path: Path) -> str:
    if path.parent.is_dir():
        folder = str(path.parent).replace("{", "{{").replace("}", "}}")
        if hint := suggest(path.name, [beside.name for beside in path.parent.iterdir()], form=f"{folder}/{{}}"):
            return hint
    return "give `python-stdlib`, a file, a folder, a glob, `s3://bucket/folder` or `hf://name`"
