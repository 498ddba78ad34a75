"""Check a stack file, and render the configuration of its cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainworks.api.notices import silent
from trainworks.api.observing.monitor import grafana_files, render_monitoring
from trainworks.catalog.explaining import explaining_names
from trainworks.config.source import Source, read_text
from trainworks.config.stack import Stack, load_stack
from trainworks.deploy.delivered import AppliedHosts, delivered_files
from trainworks.deploy.fabric.network import check_design
from trainworks.deploy.hardware import check_names
from trainworks.deploy.playbook import (
    SITE,
    Answer,
    Playbook,
    PlaybookRun,
    TaskResult,
    hosts_of,
    run_command,
    run_playbook,
)
from trainworks.deploy.project import exporter_options, project_files
from trainworks.deploy.rollout import BatchStep, Rollout, batches
from trainworks.deploy.verification import ClusterVerification, probe, verify
from trainworks.errors import ArgumentError, RunFileError, UsageError
from trainworks.files import write_atomic
from trainworks.observe.monitoring.prometheus import MonitoringSetup, target_files
from trainworks.review.check import check_text
from trainworks.review.finding import ReviewReport
from trainworks.review.registry import selected_rules

_RULES = ("TW73", "TW74")
_TOKEN_FILE = "exporter.token"  # noqa: S105, a file beside prometheus.yml, which the role writes


def check_stack(path: Path | str) -> ReviewReport:
    """Judge whether the releases of a stack file fit together, and are supported.

    The rules are those of `review` for stack files, over the facts of `trainworks catalog list software`. Findings are
    in the order of the file.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: a key or a value of it is not valid.

    >>> [finding.rule for finding in check_stack("examples/cluster/stack.yaml").findings]
    []
    """
    _, source = read_stack(Path(path))
    return ReviewReport(check_text(source.text, selected_rules(_RULES, ()), name=source.name), 1)


def render_stack(path: Path | str) -> dict[str, str]:
    """Render the Ansible project that brings a stack onto its cluster; nothing is written, and nothing is reached.

    Returns:
        Text of every file by its path in the project.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: a key, a value or a name of it is not valid, or a finding of `check_stack` is an error.

    >>> "roles/scheduler/files/slurm.conf" in render_stack("examples/cluster/stack.yaml")
    True
    """
    stack, source = read_stack(Path(path))
    wrong = [
        UsageError(f"the stack cannot be installed ({each.rule}): {each.message}", place=each.place, hint=each.fix)
        for each in check_stack(path).findings
        if each.severity == "error"
    ]
    if wrong:
        raise RunFileError([*wrong])
    try:
        return project_files(stack, _monitoring(stack), _locks(stack, Path(path).parent))
    except ArgumentError as error:
        raise source.blame(error) from None


def _monitoring(stack: Stack) -> dict[str, str]:
    if stack.monitoring is None:
        return {}
    # the token travels unencrypted, between the nodes of one cluster
    setup = MonitoringSetup(page=stack.monitoring.page, ticket=stack.monitoring.ticket, token_file=_TOKEN_FILE)
    files = render_monitoring(setup, notify=silent)
    groups = {name: group.roles for group in stack.nodes for name in group.names}
    every = target_files(groups)
    own = target_files(name for name, roles in groups.items() if exporter_options(roles))
    files |= {
        "node.targets.json": every["node.targets.json"],
        "trainworks.targets.json": own["trainworks.targets.json"],
    }
    return files | (grafana_files() if stack.monitoring.grafana else {})


def apply_stack(
    path: Path | str,
    into: Path,
    *,
    limit: str | None = None,
    dry_run: bool = False,
    batch: int | None = None,
    wait_s: int = 3600,
    on_result: Callable[[TaskResult], None] = lambda result: None,
    on_step: Callable[[BatchStep], None] = lambda step: None,
) -> PlaybookRun:
    """Render a stack to a folder, and bring its nodes to what it says, over ssh, batch by batch.

    Servers change first and together. Compute nodes follow rack by rack: their jobs end before, their health is checked
    after, and the first node that fails ends the apply. A second call changes nothing on nodes that are as the stack
    says, and drains none of them.

    Args:
        path: of the stack file.
        into: folder of the project; it is kept, since it has the secrets of the cluster.
        limit: hosts, as a pattern of Ansible; all when None.
        dry_run: report what would change, on all hosts at once, and change nothing on the nodes.
        batch: compute nodes at a time; those under one set of leaf switches when None.
        wait_s: longest time to wait for the jobs of a batch.
        on_result: called with each result that changed or failed, as it comes.
        on_step: called with each step of a batch, as it comes.

    Raises:
        UsageError: as `render_stack`, or `limit` names no host.
        RunFileError: as `render_stack`.
        EnvironmentProblem: Ansible is not installed, or it reached no host.
    """
    stack, _ = read_stack(Path(path))
    write_project(path, into)
    if dry_run:
        return run_playbook(into, limit=limit, dry_run=True, on_result=on_result)
    (controller,) = stack.hosts("controller")
    rollout = Rollout(controller, AnsibleNodes(into, on_result), on_step, wait_s)
    done = rollout.run(batches(stack, batch, None if limit is None else hosts_of(into, limit)))
    if not done.failed:
        AppliedHosts.read(into).write(into, stack, new={host.host for host in done.hosts})
    return done


def verify_stack(path: Path | str, into: Path, *, limit: str | None = None) -> ClusterVerification:
    """Compare what the nodes really run with a stack; nothing is changed on them.

    Args:
        path: of the stack file.
        into: folder of the project, as for `apply_stack`.
        limit: hosts, as a pattern of Ansible; all when None.

    Raises:
        UsageError: as `render_stack`, or `limit` names no host.
        RunFileError: as `render_stack`.
        EnvironmentProblem: Ansible is not installed, or it reached no host.
    """
    stack, _ = read_stack(Path(path))
    files = write_project(path, into)
    hosts = [name for group in stack.nodes for name in group.names] if limit is None else hosts_of(into, limit)
    delivered = delivered_files(stack, files, secrets_of(into))
    paths = sorted({path for each in delivered.values() for path in each})
    return verify(stack, delivered, run_command(into, hosts, probe(stack, paths)))


def secrets_of(into: Path) -> dict[str, bytes]:
    """Each secret of a project, by its name; empty before the first apply."""
    folder = into / "secrets"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


@dataclass(frozen=True, slots=True)
class AnsibleNodes:
    """Nodes that Ansible reaches over ssh."""

    project: Path
    on_result: Callable[[TaskResult], None]
    playbook: Playbook = SITE

    def apply(self, hosts: Collection[str], *, dry_run: bool) -> PlaybookRun:
        """Run the playbook on these hosts."""
        report = (lambda result: None) if dry_run else self.on_result
        return run_playbook(self.project, self.playbook, limit=",".join(hosts), dry_run=dry_run, on_result=report)

    def command(self, hosts: Collection[str], command: str) -> Mapping[str, Answer]:
        """Run a command of bash as root on these hosts."""
        return run_command(self.project, hosts, command)


def write_project(path: Path | str, into: Path) -> dict[str, str]:
    """Render a stack to a folder; the files by path."""
    files = render_stack(path)
    for name, text in files.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(into / name, text)
        (into / name).chmod(0o755 if name.endswith(".sh") else 0o644)
    return files


def _locks(stack: Stack, folder: Path) -> dict[str, str]:
    """Text of the lock files of images, which lie beside the stack file."""
    found: dict[str, str] = {}
    for index, recipe in enumerate(stack.images):
        try:
            found[recipe.lock] = read_text(folder / recipe.lock, "lock file")
        except UsageError as error:
            raise ArgumentError(error.message, argument=f"images.{index}.lock", hint=error.hint) from None
    return found


def read_stack(path: Path) -> tuple[Stack, Source]:
    """A stack file whose names the catalogue has."""
    with explaining_names():
        stack, source = load_stack(path)
    try:
        check_names(stack)
        check_design(stack)
    except ArgumentError as error:
        raise source.blame(error) from None
    return stack, source
