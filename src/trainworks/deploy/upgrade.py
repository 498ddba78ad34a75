"""Upgrade what the nodes run to what their stack says: which hosts change in which order, and how they go back.

Source: Slurm's upgrade guide, https://slurm.schedmd.com/upgrades.html (compatibility window, order of the daemons).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from trainworks.catalog.software import releases, version_key
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.layers import OperatingSystem
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.deploy.delivered import SLURM_ROLES
from trainworks.deploy.hardware import gpu_of
from trainworks.deploy.playbook import Playbook, PlaybookRun
from trainworks.deploy.rollout import Batch, batches
from trainworks.errors import UsageError
from trainworks.files import write_atomic
from trainworks.results import Result

_OLDER = ((20, 2), (20, 11))
"""Major releases of Slurm that the catalogue has no row of, between those that it has."""
_FIRST_OF_THREE = (24, 11)
"""The first release of Slurm that reads what the three releases before it wrote; older ones read two."""
_FAMILIES = {"Slurm": ("slurm", "libslurm"), "driver": ("nvidia", "libnvidia", "cuda-drivers")}
"""How the names of a part's packages begin."""
Facts = Mapping[str, Mapping[str, str]]
"""What a host said to the probe of `verification`."""


@dataclass(frozen=True, slots=True)
class UpgradeStep:
    """Hosts that change together: what they have of each part, and what they get."""

    batch: Batch
    parts: Mapping[str, tuple[str, str]]
    """Found and wanted, by part: Slurm, driver, kernel."""

    @property
    def way_back(self) -> str:
        """What a step that fails goes back to."""
        if "kernel" in self.parts:
            return "none: choose the older kernel at the console"
        return "packages of before" + ", copy of database and state" * (not self.batch.computes)


@dataclass(frozen=True, slots=True)
class UpgradePlan(Result):
    """Steps of an upgrade in their order; none where every host has what the stack says."""

    cluster: str
    steps: tuple[UpgradeStep, ...]


def plan_upgrade(
    stack: Stack, facts: Mapping[str, Facts], size: int | None, unfinished: Collection[str] = ()
) -> UpgradePlan:
    """Steps from what the hosts run to a stack.

    The host of slurmdbd goes first, then those of slurmctld, the other servers, and the compute nodes, rack by rack or
    `size` at a time: each daemon understands older ones, and none a newer one. Controllers go together: an old backup
    would take over from the one that stops, and write into the state that they share. `unfinished` hosts are in the
    plan although their packages may be there, since a daemon or a kernel may be the old one.

    Raises:
        UsageError: a host did not answer, or Slurm or the kernel cannot go from one release to the other.
    """
    roles = {name: frozenset(group.roles) for group in stack.nodes for name in group.names}
    if missing := [name for name in roles if not facts.get(name)]:
        raise UsageError(f"{', '.join(missing)} did not answer", hint="start it: an upgrade begins with all hosts")
    changes = {name: dict(_changes(stack, name, roles[name], facts[name], name in unfinished)) for name in roles}
    controllers = {name for name in roles if "controller" in roles[name]}
    first = {name for name in roles if "database" in roles[name]}
    first |= controllers if first & controllers else set()
    servers = [first, controllers - first]
    computing = [batch for batch in batches(stack, size) if batch.computes]
    others = {name for batch in computing for name in batch.hosts} | first | controllers
    servers += [{name} for name in roles if name not in others]
    order = [Batch(tuple(name for name in roles if name in hosts), computes=False) for hosts in servers if hosts]
    order += computing
    steps: list[UpgradeStep] = []
    for batch in order:
        hosts = tuple(name for name in batch.hosts if changes[name])
        parts = {part: change for name in hosts for part, change in changes[name].items()}
        steps += [UpgradeStep(replace(batch, hosts=hosts), parts)] if hosts else []
    return UpgradePlan(stack.name, tuple(steps))


def _changes(
    stack: Stack, host: str, roles: frozenset[str], facts: Facts, every: bool
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Parts of a host that differ, or all, with what is there and what is wanted."""
    found = {"Slurm": facts["slurm"][""].rpartition(" ")[2]}
    found |= {"driver": facts.get("driver", {}).get("nvidia", ""), "kernel": facts.get("kernel", {}).get("", "")}
    for part, release in _wanted(stack, [group for group in stack.nodes if host in group.names]).items():
        concerned = roles & SLURM_ROLES if part == "Slurm" else "compute" in roles
        fits = f"{found[part]}.".startswith(f"{release}.") or (part == "kernel" and found[part].startswith(release))
        if not concerned or (fits and not every):
            continue
        if not found[part]:
            raise UsageError(f"{host} has no {part} yet", hint="run `trainworks deploy apply` first")
        if part == "Slurm":
            check_slurm(found[part], release, host)
        elif part == "kernel":
            _check_kernel(found[part], release, host)
        yield part, (found[part], release)


def _wanted(stack: Stack, groups: Iterable[NodeGroup]) -> dict[str, str]:
    """Release of each part that is upgraded; of the driver all that the groups have. AMD's is not upgraded."""
    drivers = dict.fromkeys(gpu.driver for group in groups if (gpu := gpu_of(stack, group)) and gpu.driver)
    kernel = stack.fabric.kernel if stack.fabric else None
    slurm = stack.slurm.release if stack.slurm else ""
    wanted = {"Slurm": slurm, "driver": ", ".join(drivers), "kernel": kernel or ""}
    return {part: release for part, release in wanted.items() if release}


def check_slurm(old: str, new: str, host: str) -> None:
    """Refuse a change of Slurm's release that loses jobs and the database.

    Raises:
        UsageError: `new` is older, or too far from `old`.

    >>> check_slurm("24.05.3", "25.11", "login1")
    """
    before, after = version_key(old)[:2], version_key(new)[:2]
    if after < before:
        message = f"{host} has Slurm {old}, which has converted the database and the jobs: {new} cannot read them"
        raise UsageError(message, hint="an older release needs a dump of its time: `trainworks deploy restore`")
    known = sorted({*_OLDER, *(version_key(each.name) for each in releases("Slurm"))})
    newer = [each for each in known if each > before]
    reached = [each for place, each in enumerate(newer) if place < (3 if each >= _FIRST_OF_THREE else 2)]
    if after > before and after not in reached:
        message = f"Slurm {new} does not read the jobs and the database of {old}, which {host} has"
        first = ".".join(f"{number:02}" for number in reached[-1]) if reached else old
        raise UsageError(message, hint=f'upgrade to {first} first: `slurm: {{release: "{first}"}}`')


def _check_kernel(old: str, new: str, host: str) -> None:
    """Refuse a kernel that names no package, and an older one, which the boot loader would not choose."""
    if not re.search(r"-.*[A-Za-z]", new):
        message = f"{host} runs the kernel {old}, and `{new}` names no package"
        raise UsageError(message, hint='write what `uname -r` is to print: `fabric: {kernel: "6.8.0-60-generic"}`')
    if version_key(new) < version_key(old):
        message = f"{host} runs the kernel {old}, which is newer than {new}, and the boot loader takes the newest"
        raise UsageError(message, hint="choose the older kernel at the console of the node")


@dataclass(frozen=True, slots=True)
class UpgradeRecord:
    """What the hosts of an upgrade had before, and which of its steps were taken: after a kill, it begins there."""

    name: str
    """Name of the copies of database and state."""
    wanted: Mapping[str, str]
    packages: Mapping[str, Mapping[str, str]]
    """Versions of the packages before, by host and name."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """`started`, `done` or `back` of each host."""

    @property
    def unfinished(self) -> list[str]:
        """Hosts whose step was started, and did not end."""
        return [host for host, state in self.steps.items() if state == "started"]

    @classmethod
    def read(cls, project: Path, stack: Stack, facts: Mapping[str, Facts], name: str) -> UpgradeRecord:
        """The record in a project; a new one with this name where none has a step that did not end.

        Raises:
            UsageError: a step of an upgrade to other releases did not end.
        """
        path = project / "upgrade.json"
        found = cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
        if found is None or not found.unfinished:
            packages = {host: dict(each.get("package", {})) for host, each in facts.items()}
            return cls(name, _wanted(stack, stack.nodes), packages)
        if found.wanted != _wanted(stack, stack.nodes):
            message = (
                f"an upgrade to {' '.join(map(' '.join, found.wanted.items()))} has not ended on {found.unfinished[0]}"
            )
            raise UsageError(message, place=str(path), hint="finish it with the stack file that began it")
        return found

    def playbook(self, step: UpgradeStep, system: OperatingSystem, *, back: bool, wait_s: int) -> Playbook:
        """The playbook of a step, or of its way back with exactly the packages of before."""
        starts = tuple(start for part in step.parts for start in _FAMILIES.get(part, ()))
        own = {host: self.packages.get(host, {}) for host in step.batch.hosts}
        packages = {
            host: [system.pinned(name, version) for name, version in each.items() if name.startswith(starts)]
            for host, each in own.items()
        }
        slurm = {host: [each[name] for name in each if name.startswith("slurm")] for host, each in own.items()}
        pins = {host: versions[0] for host, versions in slurm.items() if back and versions}
        values = {"parts": [*step.parts], "back": back, "name": self.name, "wait_s": wait_s}
        return Playbook("upgrade.yaml", variables={"upgrade": {**values, "packages": packages, "pins": pins}})

    def run(self, plan: UpgradePlan, project: Path, roll: Callable[[UpgradeStep, bool], PlaybookRun]) -> PlaybookRun:
        """Take the steps one after the other; the first that fails goes back, and ends the upgrade.

        `roll` takes a step, or its way back where its second argument is True. The project has each state at once.
        """
        runs: list[PlaybookRun] = []
        states, stopped = dict(self.steps), ""
        for step in plan.steps:
            states |= dict.fromkeys(step.batch.hosts, "started")
            replace(self, steps=states)._write(project)
            state, stopped = _take(step, runs, roll)
            states |= dict.fromkeys(step.batch.hosts, state)
            replace(self, steps=states)._write(project)
            if stopped:
                break
        results = tuple(result for run in runs for result in run.results)
        return PlaybookRun(results, tuple(host for run in runs for host in run.hosts), stopped)

    def _write(self, project: Path) -> None:
        write_atomic(project / "upgrade.json", json.dumps(asdict(self), indent=2) + "\n")


def _take(
    step: UpgradeStep, runs: list[PlaybookRun], roll: Callable[[UpgradeStep, bool], PlaybookRun]
) -> tuple[str, str]:
    """Take a step; the state of its hosts, and why it failed, if it did."""
    done, names = roll(step, False), ",".join(step.batch.hosts)
    runs.append(done)
    if not done.failed:
        return "done", ""
    if not done.hosts:  # their jobs did not end, and nothing was changed
        return "back", done.stopped
    if "kernel" in step.parts:
        return "started", f"{done.stopped}; way back of {names}: {step.way_back}"
    back = roll(step, True)
    runs.append(back)
    if back.failed:
        return "started", f"{done.stopped}; {names} could not go back: {back.stopped}"
    return "back", f"{done.stopped}; {names} went back to {step.way_back}"
