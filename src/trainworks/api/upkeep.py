"""Keep a cluster that was applied: other nodes, backups, other secrets, other releases."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainworks.api.deploying import AnsibleNodes, read_stack, write_project
from trainworks.config.stack import Stack
from trainworks.deploy.delivered import AppliedHosts
from trainworks.deploy.hardware import system_of
from trainworks.deploy.playbook import SITE, Playbook, PlaybookRun, TaskResult, run_playbook
from trainworks.deploy.rollout import BatchStep, Rollout
from trainworks.deploy.upgrade import UpgradePlan, UpgradeRecord, UpgradeStep, plan_upgrade
from trainworks.deploy.verification import facts_of, probe
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.files import write_atomic
from trainworks.host import process
from trainworks.jobs.formats.manifest import to_yaml

_NAMING_HOSTS = Playbook(tags=("base", "storage", "scheduler", "monitoring"))
"""Parts that name all hosts: /etc/hosts, mounts, slurm.conf, targets of Prometheus."""
_SECRETS = {"munge": ("munge.key", 128), "exporter-token": ("exporter_token", 32), "database": ("slurm_database", 32)}
"""File and length of each secret that can be replaced."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """A stack, the project that it is rendered to, and who is told what happens."""

    path: Path
    into: Path
    wait_s: int = 3600
    """Longest time to wait for the jobs of nodes, and for slurmdbd while it converts its tables."""
    on_result: Callable[[TaskResult], None] = lambda result: None
    on_step: Callable[[BatchStep], None] = lambda step: None
    batch: int | None = None
    """Compute nodes of an upgrade at a time; those of one rack when None."""

    def take(self, step: str, names: Sequence[str]) -> PlaybookRun:
        """Take a step by its name.

        Raises:
            UsageError: it takes one name, or none; or as that step.
        """
        if step in ("add", "remove", "replace"):
            return self.change_nodes(step, names)
        takes_name = step in ("restore", "rotate")
        if len(names) != takes_name:
            raise UsageError(
                f"`{step}` takes {'one' if takes_name else 'no'} name", hint="see trainworks deploy --help"
            )
        if step == "restore":
            return self.restore(Path(names[0]))
        if step == "rotate":
            return self.rotate(names[0])
        return self.upgrade() if step == "upgrade" else self.backup()

    def change_nodes(self, step: str, names: Collection[str]) -> PlaybookRun:
        """`add`, `remove` or `replace` compute nodes, as the stack file says it already beside the last apply.

        Raises:
            UsageError: the stack says another change, or nothing was applied yet.
        """
        stack, _ = read_stack(self.path)
        record = AppliedHosts.read(self.into)
        record.check_change(stack, step, names)
        write_project(self.path, self.into)
        if step == "remove":
            done = self._remove(stack, record, names)
        else:
            done = self._add(stack, record, names, replaces=step == "replace")
        if not done.failed:
            record.write(self.into, stack, new=names, gone=names if step == "remove" else ())
        return done

    def _remove(self, stack: Stack, record: AppliedHosts, names: Collection[str]) -> PlaybookRun:
        """Without jobs first, then without daemons and keys, and then unknown to the others."""
        if problem := self._rollout(stack).drain([*names]):
            return PlaybookRun((), (), problem)
        hosts = {name: {"ansible_host": record.hosts[name].address} for name in names}
        write_atomic(
            self.into / "leaving.yaml", to_yaml({"all": {"vars": {"ansible_user": stack.admin}, "hosts": hosts}})
        )
        left = self._play(Playbook("remove.yaml", inventories=("leaving.yaml",)), names)
        if any(host.failed for host in left.hosts):
            return left
        for host in left.hosts:  # a machine that is gone cannot be cleaned, and the cluster forgets it anyway
            if host.unreachable:
                self.on_step(BatchStep((host.host,), "unreachable", "it may still have munge's key: rotate that"))
        return self._play(_NAMING_HOSTS, _names(stack))

    def _add(self, stack: Stack, record: AppliedHosts, names: Collection[str], *, replaces: bool) -> PlaybookRun:
        """The new machines alone, their health, the other hosts, and only then jobs."""
        rollout, nodes = self._rollout(stack), [*names]
        if replaces:
            known = rollout.states()
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
        stack, _ = read_stack(self.path)
        write_project(self.path, self.into)
        (self.into / "backups").mkdir(mode=0o700, exist_ok=True)
        return self._play(Playbook("backup.yaml"), _names(stack))

    def restore(self, dump: Path) -> PlaybookRun:
        """Put a dump into slurmdbd's database, from here or from its host; what is there is dumped before.

        Raises:
            UsageError: the stack has no database, or there is no such file.
        """
        stack, _ = read_stack(self.path)
        write_project(self.path, self.into)
        if not stack.slurm.accounting:
            raise UsageError("the stack has no database to restore into")
        if not dump.is_file() and not dump.is_absolute():
            raise UsageError(f"no file `{dump}`", hint=f"name a dump: ls {self.into / 'backups'}")
        place = str(dump.absolute() if dump.is_file() else dump)
        return self._play(Playbook("restore.yaml", variables={"dump": place}), _names(stack))

    def rotate(self, name: str) -> PlaybookRun:
        """Draw a new secret, deliver it, and see that the cluster works with it; else the old one comes back.

        The old one lies beside it until then, as FILE.old; a rotation that was interrupted goes on with what it drew.

        Raises:
            UsageError: there is no such secret, no apply has delivered it, or a host does not answer.
        """
        if name not in _SECRETS:
            raise UsageError(f"no secret `{name}`", hint=f"rotate one of {', '.join(_SECRETS)}")
        stack, _ = read_stack(self.path)
        write_project(self.path, self.into)
        file, length = _SECRETS[name]
        current, old = self.into / "secrets" / file, self.into / "secrets" / f"{file}.old"
        if not current.exists():
            raise UsageError(f"no apply has delivered {current}", hint="run `trainworks deploy apply` first")
        answers = AnsibleNodes(self.into, self.on_result).command(_names(stack), "true")
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

        `upgrade.json` of the project records each step: an upgrade that was interrupted goes on where it stopped.

        Raises:
            UsageError: as `plan_upgrade`, or an upgrade to other releases has not ended.
        """
        plan, record = self._planned()
        stack, _ = read_stack(self.path)
        apt = system_of(stack).packages == "apt"

        def roll(step: UpgradeStep, back: bool) -> PlaybookRun:
            playbook = record.playbook(step, apt=apt, back=back, wait_s=self.wait_s)
            return self._rollout(stack, playbook).run([step.batch])

        return record.run(plan, self.into, roll)

    def _planned(self) -> tuple[UpgradePlan, UpgradeRecord]:
        stack, _ = read_stack(self.path)
        write_project(self.path, self.into)
        answers = AnsibleNodes(self.into, self.on_result).command(_names(stack), probe(stack, []))
        facts = {host: facts_of(answer.output) for host, answer in answers.items()}
        record = UpgradeRecord.read(self.into, stack, facts, f"upgrade-{secrets.token_hex(4)}")
        return plan_upgrade(stack, facts, self.batch, record.unfinished), record

    def _rollout(self, stack: Stack, playbook: Playbook = SITE) -> Rollout:
        (controller,) = stack.hosts("controller")
        return Rollout(controller, AnsibleNodes(self.into, self.on_result, playbook), self.on_step, self.wait_s)

    def _play(self, playbook: Playbook, hosts: Collection[str]) -> PlaybookRun:
        return run_playbook(self.into, playbook, limit=",".join(hosts), on_result=self.on_result)


def _names(stack: Stack) -> list[str]:
    return [name for group in stack.nodes for name in group.names]
