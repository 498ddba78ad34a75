"""Check a stack file, render the configuration of its cluster, apply it, and keep the cluster after that."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainworks.api.notices import silent
from trainworks.api.observing.monitor import grafana_files, render_monitoring
from trainworks.catalog.explaining import explaining_names
from trainworks.config.source import Source
from trainworks.config.stack import Stack, load_stack
from trainworks.deploy.delivered import AppliedHosts, delivered_files, exporters, secrets_of, secrets_to_rotate
from trainworks.deploy.fabric.network import check_design
from trainworks.deploy.hardware import check_names
from trainworks.deploy.images import read_locks
from trainworks.deploy.layers import operating_system, packages_of, write_project
from trainworks.deploy.node_groups import group_variables
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
from trainworks.deploy.project import project_files
from trainworks.deploy.rollout import BatchStep, Rollout, batches, rollout_of
from trainworks.deploy.upgrade import UpgradePlan, UpgradeRecord, UpgradeStep, plan_upgrade
from trainworks.deploy.verification import ClusterVerification, facts_of, probe, verify
from trainworks.errors import ArgumentError, EnvironmentProblem, RunFileError, UsageError
from trainworks.files import write_atomic
from trainworks.host import process
from trainworks.jobs.formats.manifest import to_yaml
from trainworks.observe.monitoring.prometheus import MonitoringSetup, target_files
from trainworks.review.check import check_text
from trainworks.review.finding import ReviewReport
from trainworks.review.registry import selected_rules

_RULES = ("TW73", "TW74", "TW75")
_NAMING_HOSTS = Playbook(tags=("base", "firewall", "storage", "scheduler", "monitoring"))
"""Parts that name all hosts: /etc/hosts, rules of the firewall, mounts, slurm.conf, targets of Prometheus."""
_WATCHING = Playbook(tags=("monitoring",))
_TOKEN_FILE = "exporter.token"  # noqa: S105, a file beside prometheus.yml, which the role writes


def check_stack(path: Path | str) -> ReviewReport:
    """Judge whether the releases of a stack file fit together, and are supported.

    The rules are those of `review` for stack files, over the facts of `trainworks catalog list software`. Findings are
    in the order of the file.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: a key or a value of it is not valid, or the operating system has no packages for a part of it.

    >>> [finding.rule for finding in check_stack("examples/cluster/stack.yaml").findings]
    []
    """
    stack, source = _read(Path(path))
    findings = check_text(source.text, selected_rules(_RULES, ()), name=source.name)
    if not any(finding.severity == "error" for finding in findings):
        try:
            packages_of(stack)
            for group in stack.groups("compute"):
                group_variables(stack, group)
        except ArgumentError as error:
            raise source.blame(error) from None
    return ReviewReport(findings, 1)


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
    stack, source = _read(Path(path))
    wrong = [
        UsageError(f"the stack cannot be installed ({each.rule}): {each.message}", place=each.place, hint=each.fix)
        for each in check_stack(path).findings
        if each.severity == "error"
    ]
    if wrong:
        raise RunFileError([*wrong])
    try:
        return project_files(stack, _monitoring(stack), read_locks(stack, Path(path).parent))
    except ArgumentError as error:
        raise source.blame(error) from None


def _monitoring(stack: Stack) -> dict[str, str]:
    if (site := stack.monitoring) is None:
        return {}
    # the token travels unencrypted, between the nodes of one cluster
    setup = MonitoringSetup(page=site.page, ticket=site.ticket, token_file=_TOKEN_FILE, queue=stack.slurm is not None)
    files = render_monitoring(setup, notify=silent)
    own = "trainworks.targets.json"
    files |= target_files(_names(stack)) | {own: target_files(exporters(stack))[own]}
    return files | (grafana_files() if site.grafana else {})


def apply_stack(
    path: Path | str,
    into: Path,
    *,
    limit: str | None = None,
    dry_run: bool = False,
    batch: int | None = None,
    wait_s: int = 3600,
    force: bool = False,
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
        force: replace files of the folder that were changed by hand.
        on_result: called with each result that changed or failed, as it comes.
        on_step: called with each step of a batch, as it comes.

    Raises:
        UsageError: as `write_stack`, or `limit` names no host.
        RunFileError: as `render_stack`.
        EnvironmentProblem: Ansible is not installed, or it reached no host.
    """
    stack, _ = _read(Path(path))
    write_stack(path, into, force=force)
    if dry_run:
        return run_playbook(into, limit=limit, dry_run=True, on_result=on_result)
    rollout = rollout_of(stack, _AnsibleNodes(into, on_result), on_step, wait_s)
    done = rollout.run(batches(stack, batch, None if limit is None else hosts_of(into, limit)))
    if not done.failed:
        AppliedHosts.read(into).write(into, stack, new={host.host for host in done.hosts})
    return done


def verify_stack(path: Path | str, into: Path, *, limit: str | None = None, force: bool = False) -> ClusterVerification:
    """Compare what the nodes really run with a stack; nothing is changed on them.

    Args:
        path: of the stack file.
        into: folder of the project, as for `apply_stack`.
        limit: hosts, as a pattern of Ansible; all when None.
        force: replace files of the folder that were changed by hand.

    Raises:
        UsageError: as `write_stack`, or `limit` names no host.
        RunFileError: as `render_stack`.
        EnvironmentProblem: Ansible is not installed, or it reached no host.
    """
    stack, _ = _read(Path(path))
    files = write_stack(path, into, force=force)
    hosts = _names(stack) if limit is None else hosts_of(into, limit)
    delivered = delivered_files(stack, files, secrets_of(into))
    asked = [file for each in delivered.values() for file in each.values()]
    return verify(stack, delivered, run_command(into, hosts, probe(stack, asked)))


@dataclass(frozen=True, slots=True)
class _AnsibleNodes:
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
        return run_command(self.project, hosts, command, self.playbook.inventories)


def write_stack(path: Path | str, into: Path, *, force: bool = False) -> dict[str, str]:
    """Render a stack to a folder; files of an earlier render that are not part of it any more are removed.

    Returns:
        Text of every file by its path in the project.

    Raises:
        UsageError: as `render_stack`, or a file of the folder was changed by hand and `force` is False.
        RunFileError: as `render_stack`.
    """
    files = render_stack(path)
    write_project(files, into, folder=_read(Path(path))[0].own.folder or Path(path).stem + ".d", force=force)
    return files


def _read(path: Path) -> tuple[Stack, Source]:
    """A stack file whose names the catalogue has."""
    with explaining_names():
        stack, source = load_stack(path)
    try:
        check_names(stack)
        check_design(stack)
    except ArgumentError as error:
        raise source.blame(error) from None
    return stack, source


@dataclass(frozen=True, slots=True)
class Upkeep:
    """A stack, the project that holds it, and callbacks for what happens."""

    path: Path
    into: Path
    wait_s: int = 3600
    """Longest time to wait for the jobs of nodes, and for slurmdbd while it converts its tables."""
    on_result: Callable[[TaskResult], None] = lambda result: None
    on_step: Callable[[BatchStep], None] = lambda step: None
    batch: int | None = None
    """Compute nodes of an upgrade at a time; those of one rack when None."""
    force: bool = False
    """Replace files of the project that were changed by hand."""

    def take(self, step: str, names: Sequence[str]) -> PlaybookRun:
        """Take a step by its name; it raises what that step does, or a UsageError for names that it does not take."""
        if step in ("add", "remove", "replace"):
            return self.change_nodes(step, names)
        takes_name = step in ("restore", "rotate")
        if len(names) != takes_name:
            raise UsageError(
                f"`{step}` takes {'one' if takes_name else 'no'} name", hint="see trainworks deploy --help"
            )
        if takes_name:
            return self.restore(Path(names[0])) if step == "restore" else self.rotate(names[0])
        return self.upgrade() if step == "upgrade" else self.backup()

    def change_nodes(self, step: str, names: Collection[str]) -> PlaybookRun:
        """`add`, `remove` or `replace` compute nodes, as the stack file says it already beside the last apply.

        Raises:
            UsageError: the stack says another change, nothing was applied yet, or as `write_stack`.
        """
        stack, _ = _read(self.path)
        record = AppliedHosts.read(self.into)
        record.check_change(stack, step, names)
        write_stack(self.path, self.into, force=self.force)
        if step == "remove":
            done = self._remove(stack, record, names)
        else:
            done = self._add(stack, record, names, replaces=step == "replace")
        if not done.failed:
            record.write(self.into, stack, new=names, gone=names if step == "remove" else ())
        return done

    def _remove(self, stack: Stack, record: AppliedHosts, names: Collection[str]) -> PlaybookRun:
        """Without jobs first, then watched no more, without daemons and keys, and then unknown to the others."""
        hosts = {name: {"ansible_host": record.hosts[name].address} for name in names}
        write_atomic(
            self.into / "leaving.yaml", to_yaml({"all": {"vars": {"ansible_user": stack.admin}, "hosts": hosts}})
        )
        leaving = Playbook("remove.yaml", inventories=("leaving.yaml",))
        if problem := self._rollout(stack, leaving).drain([*names]):
            return PlaybookRun((), (), problem)
        if watching := stack.hosts("monitoring"):  # it would page about a node that is shut down on purpose
            unwatched = self._play(_WATCHING, watching)
            if unwatched.failed:
                return unwatched
        left = self._play(leaving, names)
        if any(host.failed for host in left.hosts):
            return left
        for host in [each for each in left.hosts if each.unreachable]:  # the cluster forgets what cannot be cleaned
            self.on_step(BatchStep((host.host,), "unreachable", "it may still have the cluster's secrets: rotate them"))
        return self._play(_NAMING_HOSTS, _names(stack))

    def _add(self, stack: Stack, record: AppliedHosts, names: Collection[str], *, replaces: bool) -> PlaybookRun:
        """The new machines alone, their health, the other hosts, and only then jobs."""
        rollout, nodes = self._rollout(stack), [*names]
        if replaces:
            known = rollout.states(nodes)
            if problem := rollout.drain([name for name in nodes if name in known]):
                return PlaybookRun((), (), problem)
            rollout.give_up([name for name in nodes if name not in known])
            addresses = {name: at for group in stack.nodes for name, at in group.addresses.items()}
            self._forget_keys({at for name in nodes for at in (record.hosts[name].address, addresses[name])})
        done = self._play(SITE, nodes)
        if done.failed or (problem := rollout.check(nodes)):
            return done if done.failed else PlaybookRun(done.results, done.hosts, problem)
        others = self._play(_NAMING_HOSTS, [name for name in _names(stack) if name not in names])
        problem = "" if others.failed else rollout.joined(nodes) or (rollout.resume(nodes) if replaces else "")
        return PlaybookRun(done.results + others.results, done.hosts + others.hosts, problem)

    def _forget_keys(self, addresses: Collection[str]) -> None:
        """Remove the ssh keys of machines that are gone; a new machine's is taken at the first login."""
        known = self.into / "known_hosts"
        for address in addresses if known.exists() else ():
            done = process.run(["ssh-keygen", "-R", address, "-f", str(known)])
            if done.exit_code != 0:
                raise EnvironmentProblem(f"ssh-keygen: {done.stderr.strip()}", hint=f"remove {address} from {known}")

    def backup(self) -> PlaybookRun:
        """Dump slurmdbd's database, copy the state of slurmctld, and bring both into `backups` of the project."""
        stack, _ = _read(self.path)
        if stack.slurm is None:
            raise UsageError("the stack has no Slurm, whose database and state a backup copies")
        write_stack(self.path, self.into, force=self.force)
        (self.into / "backups").mkdir(mode=0o700, exist_ok=True)
        return self._play(Playbook("backup.yaml"), _names(stack))

    def restore(self, copy: Path) -> PlaybookRun:
        """Put a copy of `backup` back, from here or from its host; what is there is copied before.

        `database-NAME.sql.gz` goes into slurmdbd's database, and `state-NAME.tar.gz` into the state of slurmctld.

        Raises:
            UsageError: the stack has no database or no Slurm, or the file does not exist.
        """
        stack, _ = _read(self.path)
        write_stack(self.path, self.into, force=self.force)
        is_state = copy.name.endswith(".tar.gz")
        if stack.slurm is None or not (is_state or stack.accounting):
            raise UsageError(f"the stack has no {'state of Slurm' if is_state else 'database'} to restore into")
        if not copy.is_file() and not copy.is_absolute():
            raise UsageError(f"no file `{copy}`", hint=f"name a copy: ls {self.into / 'backups'}")
        place = str(copy.absolute() if copy.is_file() else copy)
        playbook = "restore-state.yaml" if is_state else "restore.yaml"
        return self._play(Playbook(playbook, variables={"dump": place}), _names(stack))

    def rotate(self, name: str) -> PlaybookRun:
        """Draw a new secret, deliver it, and see that the cluster works with it; else the old one comes back.

        The old one lies beside it until then, as FILE.old; a call after an interruption delivers what that drew.

        Raises:
            UsageError: the secret has another name, no apply has delivered it, or a host does not answer.
        """
        stack, _ = _read(self.path)
        known = secrets_to_rotate(stack)
        if name not in known:
            raise UsageError(f"no secret `{name}`", hint=f"rotate one of {', '.join(known)}")
        write_stack(self.path, self.into, force=self.force)
        file, length = known[name]
        current, old = self.into / "secrets" / file, self.into / "secrets" / f"{file}.old"
        if not current.exists():
            raise UsageError(f"no apply has delivered {current}", hint="run `trainworks deploy apply` first")
        answers = _AnsibleNodes(self.into, self.on_result).command(_names(stack), "true")
        if silent := [host for host, answer in answers.items() if answer.exit_code is None]:
            message = f"{', '.join(silent)} does not answer, and would keep the old secret"
            raise UsageError(message, hint="start it, or remove it from the cluster")
        if not old.exists():
            write_atomic(old, current.read_bytes(), mode=0o600)
        if current.read_bytes() == old.read_bytes():
            drawn = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))
            write_atomic(current, f"{drawn}\n", mode=0o600)
        rotation = Playbook("rotate.yaml", tags=(name,))
        done = self._play(rotation, _names(stack))
        if done.failed:
            write_atomic(current, old.read_bytes(), mode=0o600)
            back = self._play(rotation, _names(stack))
            problem = "the old secret is back" if not back.failed else f"{current} is the old secret: run apply"
            done = PlaybookRun(done.results + back.results, done.hosts, f"the new secret did not work; {problem}")
        old.unlink()
        return done

    def plan_upgrade(self) -> UpgradePlan:
        """Steps from what the nodes run to what the stack says; nothing is changed.

        Raises:
            UsageError: a host did not answer, or a release cannot follow the one that is there.
        """
        return self._planned()[0]

    def upgrade(self) -> PlaybookRun:
        """Bring Slurm, driver and kernel of the nodes to what the stack says, step by step.

        `upgrade.json` of the project records each step: the next call begins where an interruption stopped one.

        Raises:
            UsageError: as `plan_upgrade`, or an upgrade to other releases has not ended.
        """
        plan, record = self._planned()
        stack, _ = _read(self.path)
        system = operating_system(stack)

        def roll(step: UpgradeStep, back: bool) -> PlaybookRun:
            playbook = record.playbook(step, system, back=back, wait_s=self.wait_s)
            return self._rollout(stack, playbook).run([step.batch])

        return record.run(plan, self.into, roll)

    def _planned(self) -> tuple[UpgradePlan, UpgradeRecord]:
        stack, _ = _read(self.path)
        write_stack(self.path, self.into, force=self.force)
        answers = _AnsibleNodes(self.into, self.on_result).command(_names(stack), probe(stack, []))
        facts = {host: facts_of(answer.output) for host, answer in answers.items()}
        record = UpgradeRecord.read(self.into, stack, facts, f"upgrade-{secrets.token_hex(4)}")
        return plan_upgrade(stack, facts, self.batch, record.unfinished), record

    def _rollout(self, stack: Stack, playbook: Playbook = SITE) -> Rollout:
        return rollout_of(stack, _AnsibleNodes(self.into, self.on_result, playbook), self.on_step, self.wait_s)

    def _play(self, playbook: Playbook, hosts: Collection[str]) -> PlaybookRun:
        return run_playbook(self.into, playbook, limit=",".join(hosts), on_result=self.on_result)


def _names(stack: Stack) -> list[str]:
    return [name for group in stack.nodes for name in group.names]
