"""Review files of a training cluster: scripts, configuration, training code and texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainworks.review.check import check_paths
from trainworks.review.finding import ReviewReport
from trainworks.review.options import find_options
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


def explained_rules(id_: str) -> tuple[ReviewRule, ...]:
    """The rule with an id, or every rule for `all`.

    Raises:
        ArgumentError: no rule has it.
    """
    return tuple(RULES.values()) if id_ == "all" else (rule_named(id_),)
