"""Whether nodes run what their stack says: what is asked of every node, and the verdict on its answers."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from trainworks.config.stack import Stack
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.deploy.delivered import DeliveredFile, exporters, parts_of_slurm
from trainworks.deploy.file_systems import exports, is_mounted_as, mounted_as, unit_name
from trainworks.deploy.hardware import gpu_of, gres_of, hardware_of
from trainworks.deploy.layers import firewall_of, operating_system
from trainworks.deploy.node_groups import container_runtimes, nccl_settings
from trainworks.deploy.playbook import Answer
from trainworks.deploy.rollout import ASLEEP, CHECK, HEALTH
from trainworks.host.listening import EXPORTER_PORTS
from trainworks.results import Result, ResultVerdict
from trainworks.units import format_counted

Outcome = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """One thing of one host: what it is, and what the stack says."""

    host: str
    check: str
    outcome: Outcome
    found: str
    expected: str


@dataclass(frozen=True, slots=True)
class ClusterVerification(Result):
    """Verdicts on every host of a stack."""

    cluster: str
    verdicts: tuple[NodeVerdict, ...]

    @property
    def verdict(self) -> ResultVerdict:
        """The check to mend first, and how many there are; or that all hosts run what the stack says."""
        hosts = format_counted(len({each.host for each in self.verdicts}), "host")
        for outcome in ("fail", "warn"):
            found = [each for each in self.verdicts if each.outcome == outcome]
            if found:
                first, more = found[0], f"{format_counted(len(found), 'check')} of {len(self.verdicts):,} on {hosts}"
                figure = f"found {first.found}, the stack says {first.expected}"
                action = f"{'Mend' if outcome == 'fail' else 'Look at'} {first.check} of {first.host}"
                return ResultVerdict(action, figure, more, "stop" if outcome == "fail" else "check")
        return ResultVerdict("Give it its jobs", f"{len(self.verdicts):,} checks on {hosts} are as the stack says")

    @property
    def failed(self) -> bool:
        """Whether something is not as the stack says."""
        return any(verdict.outcome == "fail" for verdict in self.verdicts)


_POWER = f"{ASLEEP}!"
"""What Slurm puts behind the state of a node for its power; `!`: it is about to stop it."""
_CLOCK_S = 1.0
"""Largest difference of a clock: munge allows 300 s, and logs of several nodes are read side by side."""
_TARGETS = """python3 -c '
import json, time, urllib.request
for _ in range(10):  # a node that has just started is down until Prometheus looks again
    answer = json.load(urllib.request.urlopen("http://localhost:9090/api/v1/targets", timeout=10))
    targets = answer["data"]["activeTargets"]
    if all(t["health"] == "up" for t in targets): break
    time.sleep(5)
for t in targets: print("target", t["labels"]["job"] + " " + t["labels"]["instance"], t["health"], sep="\\t")
'"""


_COMPARE = """compare() { if [ -e "$2" ]; then
    say file "$1" "$("${@:3}" < "$2" | sha256sum | cut -c 1-64) $(stat --format="%a %U:%G" "$2")"
fi; }"""
_PACKAGES = r"""if command -v dpkg-query > /dev/null; then
    dpkg-query --show --showformat '${db:Status-Abbrev} ${Package} ${Version}\n' {,lib}slurm\* \*nvidia\* cuda-drivers\*
else rpm --query --all --queryformat 'ii %{NAME} %{VERSION}-%{RELEASE}\n' slurm\* \*nvidia\*
fi 2> /dev/null | while read -r state name version; do
    if [[ $state == ?i ]]; then say package "$name" "$version"; fi
done"""
"""Packages of Slurm and of the driver; dpkg also lists some that were removed, or were never installed."""
_BINDS = "sed -n 's/^ *bind path *= *//p' /etc/apptainer/apptainer.conf 2> /dev/null | tr ',\\n' ' '"


def probe(stack: Stack, files: Collection[DeliveredFile]) -> str:
    """Script of bash that prints what a host runs, a line for each fact: key, name and value, with tabs between them.

    `files` are those whose SHA-256, mode and owner it prints, or that of some of their lines.

    It changes nothing, and asks every host the same; a host answers what it can.
    """
    services = sorted({name for host in _hosts(stack) for name in services_of(stack, host)})
    asked = sorted({(each.name, each.path, *each.selects) for each in files})
    lines = [
        'say() { printf \'%s\\t%s\\t%s\\n\' "$1" "$2" "$3"; }',
        'say os "" "$(. /etc/os-release; echo "$ID $VERSION_ID")"',
        'say clock "" "$(chronyc -c tracking 2> /dev/null | cut -d, -f5,14)"',
        f'for each in {" ".join(services)}; do say service $each "$(systemctl is-active $each)"; done',
        'say slurm "" "$(sinfo --version 2> /dev/null || slurmd -V 2> /dev/null)"',
        "decoded=$(munge -n 2> /dev/null | unmunge 2> /dev/null | sed -n 's/^STATUS: *\\([A-Za-z]*\\).*/\\1/p')",
        'say munge "" "$decoded"',
        'say kernel "" "$(uname -r)"',
        _PACKAGES,
        _COMPARE,
        *(f"compare {shlex.join(each)}" for each in asked),
    ]
    lines += [
        f'say mount {shlex.quote(mount.at)} "$(findmnt --noheadings --raw --output SOURCE,FSTYPE '
        f'--mountpoint {shlex.quote(mount.at)} | tail -n 1)"'
        for mount in stack.mounts
    ]
    lines += [f'say bind "" "$({_BINDS})"'] * ("apptainer" in container_runtimes(stack))
    lines += ['say selinux "" "$(getenforce)"'] * operating_system(stack).selinux
    lines += [f'say user {name} "$(id --user {name} 2> /dev/null)"' for name in _users(stack)]
    for at in sorted({shlex.quote(scratch.at) for _, scratch in stack.scratches}):
        lines.append(f'say mount {at} "$(findmnt --noheadings --raw --output SOURCE,FSTYPE --mountpoint {at})"')
    lines += [
        'say driver nvidia "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | sort -u)"',
        'say driver amd "$(cut -d- -f1 /opt/rocm/.info/version 2> /dev/null)"',
        'say iommu "" "$(cat /sys/kernel/iommu_groups/*/type 2> /dev/null | grep --max-count=1 ^DMA)"',
        "say acs '' \"$(lspci -vvv 2> /dev/null | grep -m 1 -o 'ACSCtl:.*SrcValid+' | tr '\\t' ' ')\"",
        "if systemctl -q is-active slurmctld; then scontrol ping 2> /dev/null "
        "| sed -n 's/^Slurmctld(\\([a-z]*\\)[^)]*) at \\([^ ]*\\) is \\([A-Z]*\\).*/controller\\t\\2\\t\\1 \\3/p'; fi",
        "if systemctl -q is-active slurmctld; then sinfo --noheader --Node --format='node\t%N\t%T|%G' | sort -u; fi",
        f"if systemctl -q is-active prometheus; then {_TARGETS}; fi",
        f"if [ -e {CHECK} ] || {{ [ -e /etc/slurm/prolog.sh ] && systemctl -q is-active slurmd; }}; then",
        f'    found=$({HEALTH}) && say health "" passes || say health "" "${{found//$\'\\n\'/; }}"',
        "fi",
    ]
    return "\n".join(lines) + "\n"


def services_of(stack: Stack, host: str) -> list[str]:
    """Services that run on a host, by its roles."""
    roles = _hosts(stack)[host]
    named = operating_system(stack).services
    services = [named.time, *filter(None, [firewall_of(stack)])]
    services += ["sssd"] * (stack.directory is not None)
    scheduling = parts_of_slurm(stack, roles)
    services += [named.munge] * bool(scheduling)
    if "database" in roles and stack.accounting:
        services += [named.mariadb, "slurmdbd"]
    services += ["slurm-backup.timer"] * bool(scheduling & {"controller", "database"})
    services += ["slurmctld"] * ("controller" in scheduling) + ["slurmd"] * ("compute" in scheduling)
    if host in exports(stack):
        services.append(named.nfs_server)
    if stack.monitoring is not None:
        services.append(named.node_exporter)
        services += ["trainworks-exporter"] * (host in exporters(stack))
        services += [named.prometheus, named.alertmanager] * ("monitoring" in roles)
        services += ["grafana-server"] * (stack.monitoring.grafana and "monitoring" in roles)
    services += [unit_name(mount.at) for mount in stack.mounts if mount.server != host]
    gpu = gpu_of(stack, _group(stack, host))
    return services + ["nvidia-persistenced"] * (gpu is not None and gpu.vendor == "nvidia")


def verify(
    stack: Stack, files: Mapping[str, Mapping[str, DeliveredFile]], answers: Mapping[str, Answer]
) -> ClusterVerification:
    """Judge the answers of all hosts to `probe`, by the stack that they are to run, and the files they are to have."""
    facts = {host: facts_of(answer.output) for host, answer in answers.items()}
    states = [state for each in facts.values() for state in each.get("node", {}).items()]
    asleep = frozenset(name for name, state in states if state.partition("|")[0].endswith(tuple(ASLEEP)))
    expected = _Expected(stack, files, asleep)
    verdicts: list[NodeVerdict] = []
    for host, answer in answers.items():
        if (answer.exit_code is None or not facts[host]) and host in asleep:
            found = "stopped by Slurm to save power, and not compared"
            verdicts.append(NodeVerdict(host, "reached", "warn", found, "an answer over ssh"))
            continue
        if answer.exit_code is None or not facts[host]:
            verdicts.append(NodeVerdict(host, "reached", "fail", " ".join(answer.output.split()), "an answer over ssh"))
            continue
        verdicts += expected.of_host(host, facts[host])
    return ClusterVerification(stack.name, tuple(verdicts))


def facts_of(output: str) -> dict[str, dict[str, str]]:
    """Values that a probe printed, by key and name."""
    facts: dict[str, dict[str, str]] = {}
    for line in output.splitlines():
        if line.count("\t") == 2:
            key, name, value = line.split("\t")
            facts.setdefault(key, {})[name] = value.strip()
    return facts


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the stack says about each host."""

    stack: Stack
    files: Mapping[str, Mapping[str, DeliveredFile]]
    asleep: frozenset[str] = frozenset()
    """Nodes that save power, whose exporters do not answer."""

    def of_host(self, host: str, facts: Mapping[str, Mapping[str, str]]) -> Iterator[NodeVerdict]:
        roles = _hosts(self.stack)[host]
        yield from self._system(host, facts)
        yield self._clock(host, facts["clock"][""])
        for name in services_of(self.stack, host):
            yield _verdict(host, f"service {name}", facts["service"][name], "active")
        yield from self._mounts(host, facts.get("mount", {}), roles)
        for name, uid in _users(self.stack).items():
            found, wanted = facts["user"][name], str(uid or "a number of the directory")
            yield _verdict(host, f"user {name}", found, wanted, found == wanted if uid else bool(found))
        yield from self._files(host, facts.get("file", {}))
        if parts_of_slurm(self.stack, roles):
            yield from self._slurm(host, facts)
        if "compute" in roles:
            yield from self._compute(host, facts)
        if "controller" in roles:
            yield from self._nodes(host, facts.get("node", {}))
            several = list(self.stack.hosts("controller"))
            for place, name in enumerate(several if len(several) > 1 else []):
                wanted = "backup UP" if place else "primary UP"
                yield _verdict(host, f"controller {name}", facts.get("controller", {}).get(name, ""), wanted)
        if "monitoring" in roles and self.stack.monitoring is not None:
            yield from self._targets(host, facts.get("target", {}))

    def _system(self, host: str, facts: Mapping[str, Mapping[str, str]]) -> Iterator[NodeVerdict]:
        described = operating_system(self.stack)
        system, found = described.name.lower(), facts["os"][""].lower()
        yield _verdict(host, "operating system", found, system, f"{found}.".startswith(f"{system}."))
        if described.selinux:
            yield _verdict(host, "SELinux", facts["selinux"][""], "Enforcing")

    def _clock(self, host: str, tracking: str) -> NodeVerdict:
        """Offset of chrony, and whether it follows a clock at all."""
        offset, _, leap = tracking.partition(",")
        expected = f"synchronised within {_CLOCK_S:g} s"
        followed = leap == "Normal"
        found = f"{abs(float(offset)):.6f} s off" if followed else leap or "chrony does not answer"
        return _verdict(host, "clock", found, expected, followed and abs(float(offset)) <= _CLOCK_S)

    def _mounts(self, host: str, mounted: Mapping[str, str], roles: frozenset[str]) -> Iterator[NodeVerdict]:
        for mount in self.stack.mounts:
            if mount.server == host:
                continue
            found = mounted.get(mount.at, "")
            outcome: Outcome = "pass" if is_mounted_as(mount, found) else "warn" if found else "fail"
            yield NodeVerdict(host, f"mount {mount.at}", outcome, found or "not mounted", " ".join(mounted_as(mount)))
        scratch = self.stack.scratch_of(_group(self.stack, host)) if "compute" in roles else None
        if scratch is not None:
            at = scratch.at
            yield _verdict(host, f"mount {at}", mounted.get(at, ""), "an xfs file system", bool(mounted.get(at)))

    def _slurm(self, host: str, facts: Mapping[str, Mapping[str, str]]) -> Iterator[NodeVerdict]:
        release, found = self.stack.scheduler.release, facts["slurm"][""]
        version = found.rpartition(" ")[2]
        yield _verdict(host, "Slurm", found, release, f"{version}.".startswith(f"{release}."))
        yield _verdict(host, "munge", facts["munge"][""], "Success")

    def _files(self, host: str, found: Mapping[str, str]) -> Iterator[NodeVerdict]:
        """A verdict for each file that differs, else one for all."""
        files = self.files[host]
        differences = {path: each.difference(found.get(path, "")) for path, each in files.items()}
        wrong = {path: differs for path, differs in differences.items() if differs[0]}
        for path, (has, wanted) in wrong.items():
            yield NodeVerdict(host, path, "fail", has, wanted)
        if files and not wrong:
            yield NodeVerdict(host, "files", "pass", f"{len(files)} as rendered", f"{len(files)} as rendered")

    def _compute(self, host: str, facts: Mapping[str, Mapping[str, str]]) -> Iterator[NodeVerdict]:
        yield _verdict(host, "health", facts.get("health", {}).get("", "was not run"), "passes")
        gpu = gpu_of(self.stack, _group(self.stack, host))
        settings = nccl_settings(gpu)
        if "apptainer" in container_runtimes(self.stack) and settings in self.files[host]:
            found = facts["bind"][""]
            yield _verdict(host, "bind path of Apptainer", found, settings, settings in found.split())
        if gpu is not None:
            found, driver = facts["driver"][gpu.vendor], str(gpu.driver or gpu.rocm)
            yield _verdict(host, "driver", found, driver, f"{found}.".startswith(f"{driver}."))
            # each sends packets between GPUs and adapters over the root of the PCIe tree, at a fraction of their rate
            for check, key, expected in (("IOMMU", "iommu", "off, or `iommu=pt`"), ("ACS of PCIe", "acs", "off")):
                slow = facts[key][""]
                yield NodeVerdict(host, check, "warn" if slow else "pass", slow or expected, expected)
        if self.stack.fabric is not None and self.stack.fabric.kernel:
            found, kernel = facts["kernel"][""], self.stack.fabric.kernel
            yield _verdict(host, "kernel", found, kernel, found.startswith(kernel))

    def _nodes(self, host: str, nodes: Mapping[str, str]) -> Iterator[NodeVerdict]:
        """Every compute node takes jobs, with its GPUs, as the controller sees it."""
        for group in self.stack.groups("compute"):
            accelerators = hardware_of(group).accelerators
            gres = gres_of(accelerators) if accelerators else "(null)"
            for name in group.names:
                state, _, found = nodes.get(name, "unknown to Slurm|").partition("|")
                # one that Slurm stops, or starts, is there for jobs: `idle~`, `idle%`, `mixed#`
                awake = state.rstrip(_POWER) if self.stack.scheduler.power else state
                good = awake in ("idle", "mixed", "allocated", "completing") and found.partition("(S:")[0] == gres
                yield _verdict(host, f"Slurm's node {name}", f"{state} {found}".strip(), f"takes jobs, {gres}", good)

    def _targets(self, host: str, targets: Mapping[str, str]) -> Iterator[NodeVerdict]:
        """Prometheus reaches the exporters of every host."""
        for name in _hosts(self.stack):
            for job in ("node", "trainworks") if name in exporters(self.stack) else ("node",):
                health = targets.get(f"{job} {name}:{EXPORTER_PORTS[job]}", "no target")
                if name in self.asleep and health != "no target":
                    health = "up"
                yield _verdict(host, f"target {job} of {name}", health, "up")


def _verdict(host: str, check: str, found: str, expected: str, good: bool | None = None) -> NodeVerdict:
    is_good = found == expected if good is None else good
    return NodeVerdict(host, check, "pass" if is_good else "fail", found or "nothing", expected)


def _users(stack: Stack) -> dict[str, int | None]:
    """Users that every host knows; the directory has the number of those without one."""
    looked_up = [stack.directory.check] if stack.directory and stack.directory.check else []
    return dict.fromkeys(looked_up) | {user.name: user.uid for user in stack.users}


def _group(stack: Stack, host: str) -> NodeGroup:
    return next(group for group in stack.nodes if host in group.names)


def _hosts(stack: Stack) -> dict[str, frozenset[str]]:
    return {name: frozenset(group.roles) for group in stack.nodes for name in group.names}
