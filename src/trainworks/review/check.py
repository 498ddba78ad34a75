"""Check files: find them, apply the rules, leave out what is ignored, and correct what is safe."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.files import write_atomic
from trainworks.review.files import LARGEST_BYTES, ReviewedFile, kind_of
from trainworks.review.finding import Finding, ReviewReport
from trainworks.review.fix import fixed_text
from trainworks.review.ignore import ignores_file, is_ignored
from trainworks.review.options import ReviewOptions
from trainworks.review.readers.launch import program_of
from trainworks.review.rule import ReviewRule

_SKIPPED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache"})
_MOST_SCRIPTS = 20
"""Scripts of one launch that are read; a launch names a few."""


def check_paths(
    paths: Sequence[Path], rules: Sequence[ReviewRule], options: ReviewOptions, *, fix: bool = False
) -> ReviewReport:
    """Findings of files, and of the files in folders that a rule reads.

    Args:
        paths: files and folders.
        rules: to apply.
        options: what to leave out.
        fix: write safe corrections into the files.

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
            _write(path, corrected[0])
            fixed += corrected[1]
            found = check_text(corrected[0], rules, name=str(path), folder=path.parent)
        findings += found
    return ReviewReport(findings, files, fixed)


def check_text(text: str, rules: Sequence[ReviewRule], *, name: str, folder: Path | None = None) -> list[Finding]:
    """Findings of one text, in the order of their places.

    Args:
        text: contents of the file.
        rules: to apply.
        name: path that findings show; it says what kind of file it is.
        folder: where files that the text names are looked for.
    """
    return check_file(ReviewedFile(name, text, folder=folder), rules)


def check_file(file: ReviewedFile, rules: Sequence[ReviewRule]) -> list[Finding]:
    """Findings of a file, in the order of their places, without those that its comments silence."""
    if file.kind == "python" and file.python is None:
        rules = [rule for rule in rules if rule.reads_any_code]
    found = [
        finding
        for rule in rules
        for finding in rule.findings(file)
        if not is_ignored(finding, file.lines) and not ignores_file(file.text, finding.rule)
    ]
    return sorted(found, key=lambda finding: (finding.line, finding.column, finding.rule))


def check_launch(text: str, rules: Sequence[ReviewRule], *, name: str, folder: Path) -> ReviewReport:
    """Findings of what is about to start, and of the scripts that it names, and that these name.

    Args:
        text: a run file, a batch script, or shell code.
        rules: to apply.
        name: path that findings show.
        folder: working folder of its commands.
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
            yield from (each for each in _walk(path) if not _is_excluded(each, options))
        else:
            raise UsageError(f"`{path}` does not exist", hint="name files or folders to review")


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        found = (Path(parent, name) for name in sorted(names) if kind_of(Path(name)))
        yield from (path for path in found if path.is_file())  # no pipe, which would not end, and no broken link


def _is_excluded(path: Path, options: ReviewOptions) -> bool:
    absolute = path.absolute()
    below = absolute.relative_to(options.folder) if absolute.is_relative_to(options.folder) else path
    return any(fnmatch(str(below), pattern) for pattern in options.exclude)


def _write(path: Path, text: str) -> None:
    """Replace the text of a file; its permissions, and a link to it, stay."""
    target = path.resolve()
    mode = target.stat().st_mode
    write_atomic(target, text.encode("utf-8", errors="surrogateescape"))
    target.chmod(mode)


def _read(path: Path) -> str | None:
    """Text of a file; None for one that is too large or not text.

    Raises:
        EnvironmentProblem: it cannot be read.
    """
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return None
        data = path.read_bytes()
    except OSError as error:
        raise EnvironmentProblem(f"cannot read `{path}`: {error.strerror}") from None
    return None if b"\0" in data else data.decode("utf-8", errors="surrogateescape")
