"""Configuration of Slurm for a stack; each line that is not obvious has its reason above it.

Source: slurm.conf(5), gres.conf(5), cgroup.conf(5), topology.conf(5) and slurmdbd.conf(5) of Slurm 22.05 to 26.05;
sacctmgr(1) of Slurm 22.05.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from trainworks.config.autoscale import Autoscale, CloudNode, SlurmAutoscale
from trainworks.config.slurm.sbatch_amounts import parse_slurm_time
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.scheduler import QualityOfService, SlurmAccount, StackUser
from trainworks.deploy import racks
from trainworks.deploy.fabric.network import leaves_of
from trainworks.deploy.hardware import gres_devices, gres_of, hardware_of
from trainworks.deploy.slurm_hooks import NodeCheck, epilog, health_check, prolog, slurm_conf_lines, task_prolog
from trainworks.deploy.slurm_power import power_lines, resume_program, suspend_program
from trainworks.deploy.templating import render

_FOLDER = "/etc/slurm"
_SCRATCH_FREE_GB = 50
_USUAL_WINDOW, _LONGEST_WINDOW = 1440, 43200
"""Minutes of `bf_window`."""
_USUAL_RESOLUTION_S = 60
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60


def slurm_files(stack: Stack) -> dict[str, str]:
    """Files of /etc/slurm on every node, by name."""
    check, scratch = _node_check(stack), stack.scratch.at if stack.scratch else None
    lines = racks.topology_lines(stack) if racks.has_blocks(stack) else _switches(stack)
    files = {
        "slurm.conf": _slurm_conf(stack),
        "cgroup.conf": render("slurm/cgroup.conf"),
        "topology.conf": "\n".join(lines) + "\n",
        "prolog.sh": prolog(check, scratch=scratch),
        "epilog.sh": epilog(check, scratch=scratch),
        "health_check.sh": health_check(check),
    }
    if scratch is not None:
        files["task_prolog.sh"] = task_prolog(scratch)
    if stack.slurm.power is not None:
        autoscale = _autoscale(stack)
        files |= {"resume.sh": resume_program(autoscale), "suspend.sh": suspend_program(autoscale)}
    if stack.slurm.pyxis is not None:
        files["plugstack.conf"] = render("slurm/plugstack.conf")
    gres = _gres(stack)
    return files | ({"gres.conf": gres} if gres else {})


def _switches(stack: Stack) -> list[str]:
    """Lines of topology.conf with the sets of leaf switches."""
    switches = leaves_of(stack)
    lines = ["# a set of leaf switches that whole nodes are attached to is one switch here"]
    lines += [f"SwitchName=leaf{number} Nodes={','.join(nodes)}" for number, nodes in enumerate(switches, start=1)]
    return lines + ([f"SwitchName=spine Switches=leaf[1-{len(switches)}]"] if len(switches) > 1 else [])


def slurmdbd_template(stack: Stack) -> str:
    """slurmdbd.conf as a template of Ansible, which fills in the password."""
    (host,) = stack.hosts("database")
    return render("slurm/slurmdbd.conf", host=host)


def _slurm_conf(stack: Stack) -> str:
    ((controller, address),) = stack.hosts("controller").items()
    (database,) = stack.hosts("database") or ("",)
    return render(
        "slurm/slurm.conf",
        stack=stack,
        controller=controller,
        address=address,
        database=database,
        folder=_FOLDER,
        hooks=slurm_conf_lines(_FOLDER, contain=stack.slurm.adopt),
        memory_share_mb=_memory_share_mb(stack),
        has_gpus=bool(_gres(stack)),
        has_blocks=racks.has_blocks(stack),
        backfill=_backfill(stack),
        power_lines=power_lines(_autoscale(stack)) if stack.slurm.power else [],
        nodes=[(group, hardware_of(group)) for group in stack.groups("compute")],
        gres_of=gres_of,
    )


def _memory_share_mb(stack: Stack) -> int:
    """MiB of memory per CPU as Slurm counts them, on the nodes that have the least."""
    return min(
        each.memory // 2**20 // (each.sockets * each.cores_per_socket * each.threads_per_core)
        for each in map(hardware_of, stack.groups("compute"))
    )


def _backfill(stack: Stack) -> str | None:
    """Parameters for limits above a day, the time that backfill looks ahead by default; None without one.

    Source: slurm.conf(5), SchedulerParameters: `bf_window` is at least the highest limit, 30 days at most, and
    `bf_resolution` grows with it, so that it manages as many steps of time as by default.
    """
    limits = [parse_slurm_time(each.max_time) or math.inf for each in stack.slurm.partitions]
    minutes = min(math.ceil(max(limits) / 60), _LONGEST_WINDOW) if max(limits) < math.inf else _LONGEST_WINDOW
    if minutes <= _USUAL_WINDOW:
        return None
    return f"bf_window={minutes},bf_resolution={math.ceil(_USUAL_RESOLUTION_S * minutes / _USUAL_WINDOW)}"


def _autoscale(stack: Stack) -> Autoscale:
    """Power saving of the compute nodes in the words of `slurm_power`, whose programs it uses."""
    power = stack.slurm.power
    assert power is not None
    first = hardware_of(next(stack.groups("compute")))
    node = CloudNode(cores=first.sockets * first.cores_per_socket * first.threads_per_core, memory=first.memory)
    nodes = ",".join(group.hosts for group in stack.groups("compute"))
    slurm = SlurmAutoscale(nodes=nodes, node=node, start=power.start, stop=power.stop, folder=_FOLDER)
    return Autoscale(keep=power.keep, start_timeout=power.start_timeout, stop_timeout=power.stop_timeout, slurm=slurm)


def _gres(stack: Stack) -> str:
    groups = [(group.hosts, hardware_of(group)) for group in stack.groups("compute")]
    by_driver = stack.gpu is not None and stack.gpu.detect == "nvml"
    lines = [
        f"NodeName={hosts} {'AutoDetect=nvml' if by_driver else gres_devices(hardware.accelerators)}"
        for hosts, hardware in groups
        if hardware.accelerators is not None
    ]
    if not lines:
        return ""
    if by_driver:
        reason = "# NVML knows devices, links and cores of each GPU; slurmd must be built with it"
    else:
        reason = "# device files, which every build of slurmd can; one built with NVML finds the cores of each GPU, too"
    return "\n".join([reason, *lines]) + "\n"


def _node_check(stack: Stack) -> NodeCheck:
    """What a compute node must have before it gets a job; the number of GPUs, where all nodes have the same."""
    found = [hardware_of(group).accelerators for group in stack.groups("compute")]
    counts = {each.count if each else 0 for each in found}
    return NodeCheck(
        accelerators=counts.pop() if len(counts) == 1 else 0,
        mounted=tuple(mount.at for mount in stack.mounts) + ((stack.scratch.at,) if stack.scratch else ()),
        free_gb={stack.scratch.at: _SCRATCH_FREE_GB} if stack.scratch else None,
    )


def accounts_script(stack: Stack) -> str:
    """A script that brings QOS, accounts and users to what a stack says, and prints what it changed.

    A second run changes nothing. It removes no QOS, account or user that the stack does not name: their history of
    usage is attached to them. The parents of accounts come before them.
    """
    slurm = stack.slurm
    named = {account.name for account in slurm.accounts}
    plain = [SlurmAccount(name=user.account) for user in stack.users if user.account not in named]
    lines = [line for qos in slurm.qos for line in _qos(qos)]
    lines += [line for each in (*slurm.accounts, *dict.fromkeys(plain)) for line in _account(stack.name, each)]
    lines += [line for user in stack.users for line in _user(stack.name, user)]
    return render("slurm/accounts.sh", cluster=stack.name, lines=lines)


def _qos(qos: QualityOfService) -> Iterator[str]:
    gpus = f"gres/gpu={qos.max_gpus_per_user}" if qos.max_gpus_per_user else ""
    wall, jobs = slurm_time(qos.max_time), str(qos.max_jobs_per_user or "")
    show, change = f"qos where name={qos.name}", f"modify qos {qos.name} set"
    yield _ensure(f"{show} format=Name", qos.name, f"add qos {qos.name}")
    yield _ensure(f"{show} format=Priority", str(qos.priority), f"{change} Priority={qos.priority}")
    # -1 takes a limit away
    yield _ensure(f"{show} format=MaxWall", wall, f"{change} MaxWall={wall or -1}")
    yield _ensure(f"{show} format=MaxTRESPU", gpus, f"{change} MaxTRESPerUser={gpus or 'gres/gpu=-1'}")
    yield _ensure(f"{show} format=MaxJobsPU", jobs, f"{change} MaxJobsPerUser={jobs or -1}")
    yield _ensure(f"{show} format=Preempt", _sorted(qos.preempts), f"{change} Preempt={','.join(qos.preempts)}")


def _account(cluster: str, account: SlurmAccount) -> Iterator[str]:
    gpus = f"gres/gpu={account.max_gpus}" if account.max_gpus else ""
    hours = account.accelerator_hours_per_month
    minutes = "" if hours is None else f"gres/gpu={max(1, round(hours * 60))}"
    qos = ("normal", *account.qos)
    default = account.qos[0] if account.qos else "normal"
    place = f"name={account.name} cluster={cluster}"
    show = f"association where account={account.name} cluster={cluster} user="
    change = f"modify account where {place} set"
    parent, share = account.parent, account.share
    yield _ensure(
        f"{show} format=Account", account.name, f"add account {account.name} cluster={cluster} parent={parent}"
    )
    yield _ensure(f"{show} format=ParentName", parent, f"{change} Parent={parent}")
    yield _ensure(f"{show} format=Share", str(share), f"{change} Fairshare={share}")
    yield _ensure(f"{show} format=GrpTRES", gpus, f"{change} GrpTRES={gpus or 'gres/gpu=-1'}")
    yield _ensure(f"{show} format=GrpTRESMins", minutes, f"{change} GrpTRESMins={minutes or 'gres/gpu=-1'}")
    yield _ensure(f"{show} format=QOS", _sorted(qos), f"{change} QosLevel={','.join(qos)}")
    yield _ensure(f"{show} format=DefaultQOS", default, f"{change} DefaultQOS={default}")


def _user(cluster: str, user: StackUser) -> Iterator[str]:
    show = f"association where user={user.name} account={user.account} cluster={cluster}"
    yield _ensure(f"{show} format=User", user.name, f"add user {user.name} account={user.account} cluster={cluster}")
    if user.administers:
        there = f"$(fields account withcoord where name={user.account} format=Coordinators)"
        names = f"account={user.account} names={user.name}"
        yield f'[[ ",{there}," == *,{user.name},* ]] || change add coordinator {names}'


def _ensure(show: str, wanted: str, command: str) -> str:
    return f"ensure {shlex.quote(show)} {shlex.quote(wanted)} {shlex.quote(command)}"


def _sorted(names: tuple[str, ...]) -> str:
    return ",".join(sorted(names))


def slurm_time(text: str | None) -> str:
    """A time as sacctmgr prints it; empty without a limit.

    >>> slurm_time("30:00"), slurm_time("7-00:00:00"), slurm_time("UNLIMITED")
    ('00:30:00', '7-00:00:00', '')
    """
    seconds = parse_slurm_time(text) if text is not None else None
    if seconds is None:
        return ""
    days, rest = divmod(int(seconds), _DAY_S)
    hours, rest = divmod(rest, _HOUR_S)
    clock = f"{hours:02}:{rest // _MINUTE_S:02}:{rest % _MINUTE_S:02}"
    return f"{days}-{clock}" if days else clock
