"""Check a stack file, and render the configuration of its cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainworks.api.observing.monitor import render_monitoring
from trainworks.catalog.explaining import explaining_names
from trainworks.config.load import Source
from trainworks.config.stack import Stack, load_stack
from trainworks.deploy.hardware import check_names
from trainworks.deploy.playbook import PlaybookRun, TaskResult, run_playbook
from trainworks.deploy.project import project_files
from trainworks.deploy.proposed_stack import refuse_placeholders
from trainworks.errors import ArgumentError, RunFileError, UsageError
from trainworks.files import write_atomic
from trainworks.observe.monitoring.prometheus import target_files
from trainworks.review.check import check_text
from trainworks.review.finding import ReviewReport
from trainworks.review.registry import selected_rules

_RULES = ("TW73",)


def check_stack(path: Path | str) -> ReviewReport:
    """Judge whether the releases of a stack file fit together, and are supported.

    The rules are those of `review` for stack files, over the facts of `trainworks catalog list software`. Findings are
    in the order of the file.

    Args:
        path: of the stack file.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: a key or a value of it is not valid.

    >>> [finding.rule for finding in check_stack("examples/cluster/stack.yaml").findings]
    []
    """
    _, source = _read(Path(path))
    return ReviewReport(check_text(source.text, selected_rules(_RULES, ()), name=source.name), 1)


def render_stack(path: Path | str) -> dict[str, str]:
    """Render the Ansible project that brings a stack onto its cluster; nothing is written, and nothing is reached.

    Args:
        path: of the stack file.

    Returns:
        Text of every file by its path in the project.

    Raises:
        UsageError: the file does not exist or cannot be read, or a finding of `check_stack` is an error.
        RunFileError: a key, a value or a name of it is not valid, or a proposed value is not filled in.

    >>> "roles/scheduler/files/slurm.conf" in render_stack("examples/cluster/stack.yaml")
    True
    """
    stack, source = _read(Path(path))
    refuse_placeholders(source)
    for finding in check_stack(path).findings:
        if finding.severity == "error":
            message = f"the stack cannot be installed ({finding.rule}): {finding.message}"
            raise UsageError(message, place=finding.place, hint=finding.fix)
    monitoring: dict[str, str] = {}
    if stack.monitoring is not None:
        monitoring = render_monitoring(page=stack.monitoring.page, ticket=stack.monitoring.ticket)
        targets = target_files(name for group in stack.nodes for name in group.names)
        monitoring["node.targets.json"] = targets["node.targets.json"]  # no role installs the exporter of runs
    try:
        return project_files(stack, monitoring)
    except ArgumentError as error:
        raise _placed(error, source) from None


def apply_stack(
    path: Path | str,
    into: Path,
    *,
    limit: str | None = None,
    dry_run: bool = False,
    on_result: Callable[[TaskResult], None] = lambda result: None,
) -> PlaybookRun:
    """Render a stack to a folder, and bring its nodes to what it says, over ssh.

    A second call changes nothing on nodes that are as the stack says.

    Args:
        path: of the stack file.
        into: folder of the project; it is kept, since it has the secrets of the cluster.
        limit: hosts, as a pattern of Ansible; all when None.
        dry_run: report what would change, and change nothing on the nodes.
        on_result: called with each result that changed or failed, as it comes.

    Raises:
        UsageError: as `render_stack`.
        RunFileError: as `render_stack`.
        EnvironmentProblem: Ansible is not installed, or it reached no host.
    """
    for name, text in render_stack(path).items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(into / name, text)
        (into / name).chmod(0o755 if name.endswith(".sh") else 0o644)
    return run_playbook(into, limit=limit, dry_run=dry_run, on_result=on_result)


def _placed(error: ArgumentError, source: Source) -> RunFileError:
    """The error of a name or a part of the stack, at its key."""
    place = source.place(tuple(error.argument.split(".")))
    return RunFileError([UsageError(error.message, place=place, hint=error.hint)])


def _read(path: Path) -> tuple[Stack, Source]:
    """A stack file whose names the catalogue has.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: a key, a value or a name of it is not valid.
    """
    with explaining_names():
        stack, source = load_stack(path)
    try:
        check_names(stack)
    except ArgumentError as error:
        raise _placed(error, source) from None
    return stack, source
