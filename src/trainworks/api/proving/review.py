"""Review files of a training cluster: scripts, configuration, training code and texts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainworks.config.manifests.reading import ManifestSource
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source
from trainworks.errors import UsageError
from trainworks.review.check import check_launch, check_paths, find_options
from trainworks.review.finding import ReviewReport
from trainworks.review.readers.shell import has_branches
from trainworks.review.registry import RULES, rule_named, selected_rules
from trainworks.review.rule import ReviewRule


def review(
    *paths: Path | str, select: Sequence[str] = (), ignore: Sequence[str] = (), fix: bool = False
) -> ReviewReport:
    """Find what fails, hangs, slows down or cannot be true in files and folders.

    Args:
        paths: files and folders; of a folder, the files whose kind is known by their names.
        select: ids of rules or their starts, such as `TW2`; those of pyproject.toml when left out, else all.
        ignore: likewise, added to those of pyproject.toml.
        fix: write safe corrections into the files.

    Raises:
        UsageError: a path does not exist, no rule has such an id, or the section in pyproject.toml is not valid.
        EnvironmentProblem: a file cannot be read.

    >>> [finding.place for finding in review("examples").findings if finding.severity == "error"]
    []
    """
    files = [Path(path) for path in paths]
    start = files[0] if files and files[0].is_dir() else files[0].parent if files else Path()
    options = find_options(start)
    rules = selected_rules(select or options.select, [*options.ignore, *ignore])
    return check_paths(files, rules, options, fix=fix)


def review_launch(run_file: RunFile, source: Source | None) -> ReviewReport:
    """Review what a run starts: its run file, batch script or command, and the scripts that these name.

    The rules are those of pyproject.toml in this folder or above it, else all. Findings are sorted by severity. Without
    a `source` the run is a command.
    """
    folder = Path()
    with suppress(OSError, ValueError):  # a path that cannot be is an error of the run, and not of its review
        Path(run_file.workdir or "").resolve(strict=True)
        folder = Path(run_file.workdir or "")
    rules = tuple(RULES.values())
    with suppress(UsageError):  # `review` reports what is wrong in pyproject.toml; a run starts all the same
        options = find_options(Path())
        rules = selected_rules(options.select, options.ignore)
    name, text = _reviewed(run_file, source)
    report = check_launch(text, rules, name=name, folder=folder)
    order = ("error", "warning", "note")
    return ReviewReport(sorted(report.findings, key=lambda each: order.index(each.severity)), report.files)


def _reviewed(run_file: RunFile, source: Source | None) -> tuple[str, str]:
    """Name and text that a review reads: of a manifest the command, because its pods are not those of the run."""
    if source is None or isinstance(source, ManifestSource):
        return "command.sh", run_file.run or ""
    return source.name, source.text


def refuse_to_start(report: ReviewReport, run_file: RunFile, source: Source | None) -> None:
    """Refuse a run that certainly ends, or hangs, before its first step.

    Only a finding in the run file, the batch script or the command itself is certain, and only where that shell code
    has no branch.

    Raises:
        UsageError: the first such finding, with its place and its correction.
    """
    name, _ = _reviewed(run_file, source)
    certain = not has_branches(run_file.run or "")
    for finding in report.findings:
        if certain and finding.file == name and RULES[finding.rule].stops:
            raise UsageError(
                f"the run would end before its first step ({finding.rule}): {finding.message}",
                place=finding.place,
                hint=f"{finding.fix} `--no-review` starts the run in spite of it",
            )


def explained_rules(id_: str) -> tuple[ReviewRule, ...]:
    """The rule with an id, or every rule for `all`.

    Raises:
        ArgumentError: no rule has it.
    """
    return tuple(RULES.values()) if id_ == "all" else (rule_named(id_),)
