"""Check files: find them, apply the rules, leave out what options and comments ignore, and correct what is safe."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from trainworks.errors import EnvironmentProblem, UsageError, suggest
from trainworks.files import write_atomic
from trainworks.review.files import LARGEST_BYTES, ReviewedFile, kind_of
from trainworks.review.finding import Edit, Finding, ReviewReport
from trainworks.review.readers.launch import program_of
from trainworks.review.rule import ReviewRule

_SECTION = "tool.trainworks.review"
_SKIPPED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache"})
_MOST_SCRIPTS = 20
"""Scripts of one launch that are read; a launch names a few."""
_COMMENT = re.compile(r"(?:#|<!--|//)\s*trainworks:\s*ignore(-file)?\b(?:\[([\w\s,]*)\])?")


@dataclass(frozen=True, slots=True)
class ReviewOptions:
    """Options in pyproject.toml: `[tool.trainworks.review]` with `select`, `ignore` and `exclude`."""

    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    exclude: Sequence[str] = ()
    """Patterns of paths below the folder of pyproject.toml: `third_party/*`."""
    folder: Path = Path()


def check_paths(
    paths: Sequence[Path], rules: Sequence[ReviewRule], options: ReviewOptions, *, fix: bool = False
) -> ReviewReport:
    """Findings of files, and of the files in folders that a rule reads; `fix` writes safe corrections into the files.

    Raises:
        UsageError: a path does not exist.
        EnvironmentProblem: a file cannot be read.
    """
    findings: list[Finding] = []
    files = fixed = 0
    for path in dict.fromkeys(_files(paths, options)):
        text = _read(path)
        if text is None:
            continue
        files += 1
        found = check_text(text, rules, name=str(path), folder=path.parent)
        if fix and (corrected := fixed_text(text, found))[1]:
            # permissions of the file, and a link to it, stay
            target = path.resolve()
            mode = target.stat().st_mode
            write_atomic(target, corrected[0].encode("utf-8", errors="surrogateescape"))
            target.chmod(mode)
            fixed += corrected[1]
            found = check_text(corrected[0], rules, name=str(path), folder=path.parent)
        findings += found
    return ReviewReport(findings, files, fixed)


def check_text(text: str, rules: Sequence[ReviewRule], *, name: str, folder: Path | None = None) -> list[Finding]:
    """Findings of one text, in the order of their places.

    `name` is the path that findings show, and says what kind of file it is. Files that the text names are looked for in
    `folder`.
    """
    return check_file(ReviewedFile(name, text, folder=folder), rules)


def check_file(file: ReviewedFile, rules: Sequence[ReviewRule]) -> list[Finding]:
    """Findings of a file, in the order of their places, without those that its comments silence."""
    if file.kind == "python" and not file.names_torch:
        rules = [rule for rule in rules if rule.reads_any_code]
    everywhere = [comment for comment in _COMMENT.finditer(file.text) if comment[1]]  # ignore-file[TW204]
    found = [
        finding
        for rule in rules
        if not any(_names(comment, rule.id) for comment in everywhere)
        for finding in rule.findings(file)
        if not is_ignored(finding, file.lines)
    ]
    return sorted(found, key=lambda finding: (finding.line, finding.column, finding.rule))


def check_launch(text: str, rules: Sequence[ReviewRule], *, name: str, folder: Path) -> ReviewReport:
    """Findings of what is about to start, and of the scripts that it names, and that these name.

    The text is a run file, a batch script, or shell code; `name` is the path that findings show, and `folder` the
    working folder of its commands.
    """
    waiting = [ReviewedFile(name, text, folder=folder)]
    seen: set[Path] = set()
    findings: list[Finding] = []
    for file in waiting:
        findings += check_file(file, rules)
        for path in _programs(file, folder):
            if path.resolve() in seen or len(seen) == _MOST_SCRIPTS:
                continue
            seen.add(path.resolve())
            with suppress(EnvironmentProblem):  # a script that this user may start, and not read
                if (code := _read(path)) is not None:
                    waiting.append(ReviewedFile(str(path), code, folder=folder))
    return ReviewReport(findings, len(waiting))


def _programs(file: ReviewedFile, folder: Path) -> Iterator[Path]:
    """Scripts that the commands of a file start, as far as they exist."""
    for script in file.scripts if file.kind in ("shell", "yaml") else ():
        for command in script.commands:
            program = program_of(command)
            with suppress(OSError, ValueError):  # a name that no file can have
                if program and "$" not in program.text and (path := folder / program.text).is_file():
                    yield path


def _files(paths: Sequence[Path], options: ReviewOptions) -> Iterator[Path]:
    """Files to read: those that are named, and those of a kind that the rules know in folders."""
    for path in paths:
        if path.is_file():
            yield path
        elif path.is_dir():
            for each in _walk(path):
                absolute = each.absolute()
                below = absolute.relative_to(options.folder) if absolute.is_relative_to(options.folder) else each
                if not any(fnmatch(str(below), pattern) for pattern in options.exclude):
                    yield each
        else:
            raise UsageError(f"`{path}` does not exist", hint="name files or folders to review")


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        found = (Path(parent, name) for name in sorted(names) if kind_of(Path(name)))
        yield from (path for path in found if path.is_file())  # no pipe, which would not end, and no broken link


def _read(path: Path) -> str | None:
    """Text of a file; None for one that is too large or not text."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return None
        data = path.read_bytes()
    except OSError as error:
        raise EnvironmentProblem(f"cannot read `{path}`: {error.strerror}") from None
    return None if b"\0" in data else data.decode("utf-8", errors="surrogateescape")


def is_ignored(finding: Finding, lines: Sequence[str]) -> bool:
    """A comment silences the finding: `# trainworks: ignore[TW204]` on its line, or without ids for all of them.

    In Markdown the comment is `<!-- trainworks: ignore[TW801] -->`. On a line of its own it silences the line below,
    which serves lines that continue with a backslash.
    """
    at = finding.line - 1
    near = [lines[at]] if at < len(lines) else []
    if 0 < at <= len(lines) and (above := lines[at - 1].strip()) and _COMMENT.match(above):
        near.append(above)
    found = [comment for line in near for comment in _COMMENT.finditer(line)]
    return any(_names(comment, finding.rule) for comment in found)


def _names(comment: re.Match[str], rule: str) -> bool:
    ids = [id_.strip() for id_ in (comment[2] or "").split(",") if id_.strip()]
    return not ids or rule in ids


def fixed_text(text: str, findings: Sequence[Finding]) -> tuple[str, int]:
    """The corrected text, and the number of findings that were corrected.

    Corrections are applied from the end to the start, so that earlier places stay valid. One that overlaps another is
    left for the next review.
    """
    lines = text.split("\n")
    taken: set[tuple[int, int]] = set()
    edits: list[Edit] = []
    count = 0
    for finding in findings:
        places = {(e.line, at) for e in finding.edits for at in range(e.column, e.column + max(1, e.length))}
        if finding.edits and not places & taken:
            taken |= places
            edits += finding.edits
            count += 1
    for edit in sorted(edits, key=lambda each: (each.line, each.column), reverse=True):
        line, start = lines[edit.line - 1], edit.column - 1
        lines[edit.line - 1] = line[:start] + edit.text + line[start + edit.length :]
    return "\n".join(lines), count


def find_options(start: Path) -> ReviewOptions:
    """Options of the nearest pyproject.toml in a folder or above it that has the section.

    Raises:
        UsageError: the file is not TOML, or a key or value of the section is not valid.
    """
    for folder in (start.absolute(), *start.absolute().parents):
        path = folder / "pyproject.toml"
        if path.is_file() and (section := _section(path)) is not None:
            known = ("select", "ignore", "exclude")
            for key, value in section.items() if isinstance(section, dict) else ():
                place = f"{path}  {_SECTION}.{key}"
                if key not in known:
                    hint = suggest(key, known, otherwise=f"known keys: {', '.join(known)}")
                    raise UsageError(f"unknown key `{key}`", place=place, hint=hint)
                if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                    raise UsageError(
                        f"`{key}` must be a list of texts", place=place, hint=f'write it like `{key} = ["TW2"]`'
                    )
            return ReviewOptions(**section, folder=path.parent) if isinstance(section, dict) else ReviewOptions()
    return ReviewOptions()


def _section(path: Path) -> Any:
    try:
        found: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"invalid TOML: {error}", place=str(path)) from None
    for key in _SECTION.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found
