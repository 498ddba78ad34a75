"""Configuration of Slurm for a stack; each line that is not obvious has its reason above it.

Source: slurm.conf(5), gres.conf(5), cgroup.conf(5), topology.conf(5) and slurmdbd.conf(5) of Slurm 22.05 to 26.05;
sacctmgr(1) of Slurm 22.05.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping

from trainworks.config.autoscale import Autoscale, CloudNode, SlurmAutoscale
from trainworks.config.slurm.sbatch_amounts import parse_slurm_time
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.config.stack_parts.scheduler import Partition, QualityOfService, SlurmAccount
from trainworks.config.stack_parts.users import StackUser
from trainworks.deploy import racks
from trainworks.deploy.directory import has_local_homes
from trainworks.deploy.fabric.network import leaves_of
from trainworks.deploy.hardware import gpu_of, gres_devices, gres_of, hardware_of, is_of_amd
from trainworks.deploy.slurm_hooks import NodeCheck, epilog, health_check, prolog, slurm_conf_lines, task_prolog
from trainworks.deploy.slurm_power import power_lines, resume_program, suspend_program
from trainworks.deploy.templating import render

_FOLDER = "/etc/slurm"
_SCRATCH_FREE_GB = 50
_GPU_WEIGHT = 100
"""`Weight` of nodes with GPUs beside others."""
_USUAL_WINDOW, _LONGEST_WINDOW = 1440, 43200
"""Minutes of `bf_window`."""
_USUAL_RESOLUTION_S = 60
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60


def slurm_files(stack: Stack) -> dict[str, str]:
    """Files of /etc/slurm on every node, by name."""
    scratch = sorted({each.at for _, each in stack.scratches})
    files = {
        "slurm.conf": _slurm_conf(stack),
        "cgroup.conf": render("slurm/cgroup.conf"),
        **racks.topology_files(stack, leaves_of(stack)),
    }
    if scratch:
        files["task_prolog.sh"] = task_prolog(*scratch)
    if stack.scheduler.power is not None:
        autoscale = _autoscale(stack)
        files |= {"resume.sh": resume_program(autoscale), "suspend.sh": suspend_program(autoscale)}
    if stack.scheduler.pyxis is not None:
        files["plugstack.conf"] = render("slurm/plugstack.conf")
    gres = _gres(stack)
    return files | ({"gres.conf": gres} if gres else {})


def node_scripts(stack: Stack, group: NodeGroup) -> dict[str, str]:
    """Scripts of /etc/slurm on the nodes of a group, by name: they check what these nodes have."""
    check, own = _node_check(stack, group), stack.scratch_of(group)
    scratch = own.at if own is not None else None
    return {
        "prolog.sh": prolog(check, scratch=scratch, makes_homes=has_local_homes(stack)),
        "epilog.sh": epilog(check, scratch=scratch),
        "health_check.sh": health_check(check),
    }


def check_script(stack: Stack, group: NodeGroup) -> str:
    """Script that checks a node of a group where no Slurm does: it prints what is wrong, and fails."""
    return render("slurm/check_script.sh", check=_node_check(stack, group))


def slurmdbd_template(stack: Stack) -> str:
    """slurmdbd.conf as a template of Ansible, which fills in the password."""
    (host,) = stack.hosts("database")
    return render("slurm/slurmdbd.conf", host=host)


def _slurm_conf(stack: Stack) -> str:
    (database,) = stack.hosts("database") or ("",)
    return render(
        "slurm/slurm.conf",
        stack=stack,
        controllers=stack.hosts("controller"),
        database=database,
        folder=_FOLDER,
        hooks=slurm_conf_lines(_FOLDER, contain=True),
        memory_share_mb=_memory_share_mb(stack.groups("compute")),
        has_gpus=bool(_gres(stack)),
        has_imex=racks.has_imex(stack),
        topology="" if racks.has_topologies(stack) else "block" if racks.has_blocks(stack) else "tree",
        backfill=_backfill(stack),
        power_lines=power_lines(_autoscale(stack), stack.scheduler.release) if stack.scheduler.power else [],
        nodes=[(group, hardware_of(group)) for group in stack.groups("compute")],
        weights=_weights(stack),
        partitions=[_partition(stack, each) for each in stack.scheduler.partitions],
        gres_of=gres_of,
    )


def _weights(stack: Stack) -> Mapping[str, int]:
    """Weight of each group, by its hosts: jobs without GPUs get nodes without some first. Empty where all are alike."""
    found = {
        group.hosts: group.weight or (1 if hardware_of(group).accelerators is None else _GPU_WEIGHT)
        for group in stack.groups("compute")
    }
    return found if len(set(found.values())) > 1 else {}


def _memory_share_mb(groups: Iterable[NodeGroup]) -> int:
    """MiB of memory per CPU as Slurm counts them, on the nodes that have the least."""
    return min(_memory_mb(each) // _cpus(each) for each in groups)


def _memory_mb(group: NodeGroup) -> int:
    """MiB of memory of a node that jobs get."""
    return (hardware_of(group).memory - (group.reserved_memory or 0)) // 2**20


def _cpus(group: NodeGroup) -> int:
    """CPUs of a node that jobs get, as Slurm counts them."""
    node = hardware_of(group)
    return (node.sockets * node.cores_per_socket - group.reserved_cores) * node.threads_per_core


def _partition(stack: Stack, partition: Partition) -> Mapping[str, object]:
    """What the line of a partition has to say: its nodes, its accounts, and what a job gets for each CPU and GPU.

    Accounts are those of the stack file with those below them: releases of Slurm before 24.05 compare names alone.
    """
    groups, accounts = stack.nodes_of(partition.nodes), list(partition.accounts)
    for account in stack.scheduler.accounts:  # parents come first
        accounts += [account.name] if account.parent in accounts and account.name not in accounts else []
    gpus = [(each, found.count) for each, _ in groups if (found := hardware_of(each).accelerators) is not None]
    gpus = gpus if len(gpus) == len(groups) else []
    hosts = [name for group, names in groups for name in (group.names if names == group.hosts else [names])]
    in_racks = racks.has_topologies(stack) and racks.is_of_racks(stack, hosts)
    return {
        "asked": partition,
        "topology": racks.RACKS if in_racks else "",
        "nodes": ",".join(names for _, names in groups) if partition.nodes else "ALL",
        "accounts": accounts,
        "memory_share_mb": _memory_share_mb(each for each, _ in groups),
        "cpus_per_gpu": min((_cpus(each) // count for each, count in gpus), default=0),
        "gpu_share_mb": min((_memory_mb(each) // count for each, count in gpus), default=0),
    }


def _backfill(stack: Stack) -> str | None:
    """Parameters for limits above a day, the time that backfill looks ahead by default; None without one.

    Source: slurm.conf(5), SchedulerParameters: `bf_window` is at least the highest limit, 30 days at most, and
    `bf_resolution` grows with it, so that it manages as many steps of time as by default.
    """
    limits = [parse_slurm_time(each.max_time) or math.inf for each in stack.scheduler.partitions]
    minutes = min(math.ceil(max(limits) / 60), _LONGEST_WINDOW) if max(limits) < math.inf else _LONGEST_WINDOW
    if minutes <= _USUAL_WINDOW:
        return None
    return f"bf_window={minutes},bf_resolution={math.ceil(_USUAL_RESOLUTION_S * minutes / _USUAL_WINDOW)}"


def _autoscale(stack: Stack) -> Autoscale:
    """Power saving of the compute nodes in the words of `slurm_power`, whose programs it uses."""
    power = stack.scheduler.power
    assert power is not None
    first = hardware_of(next(stack.groups("compute")))
    node = CloudNode(cores=first.sockets * first.cores_per_socket * first.threads_per_core, memory=first.memory)
    nodes = ",".join(group.hosts for group in stack.groups("compute"))
    slurm = SlurmAutoscale(nodes=nodes, node=node, start=power.start, stop=power.stop, folder=_FOLDER)
    return Autoscale(keep=power.keep, start_timeout=power.start_timeout, stop_timeout=power.stop_timeout, slurm=slurm)


def _gres(stack: Stack) -> str:
    lines: list[str] = []
    for group in stack.groups("compute"):
        hardware, gpu = hardware_of(group), gpu_of(stack, group)
        if hardware.accelerators is None:
            continue
        detect = gpu.detect if gpu is not None else "files"
        if detect != "files":
            lines.append(_DETECTED[detect])
            lines.append(f"NodeName={group.hosts} AutoDetect={detect}")
            continue
        lines.append(_NEAR_CORES if hardware.gpu_cores else _BY_FILES)
        lines += [_RENDER_NODES] * is_of_amd(hardware.accelerators)
        found = gres_devices(hardware.accelerators, hardware.gpu_cores)
        lines += [f"NodeName={group.hosts} {line}" for line in found]
    # a reason that was given for the group before is not repeated
    seen = [line for index, line in enumerate(lines) if not line.startswith("#") or line not in lines[:index]]
    return "\n".join(seen) + "\n" if seen else ""


_BY_FILES = (
    "# device files, which every build of slurmd can; cores near a GPU are not known: write `detect` or `gpu_cores`"
)
_NEAR_CORES = "# device files, and the cores near each GPU, of which a job with a few GPUs gets its own first"
_RENDER_NODES = "# render nodes of AMD; `amd_gpu_env`: with CUDA_VISIBLE_DEVICES in a job, too, ROCm would choose twice"
_DETECTED = {
    "nvml": "# NVML knows devices, links and cores of each GPU; slurmd must be built with it",
    "rsmi": "# RSMI knows devices, links and cores of each GPU of AMD; slurmd must be built with it",
}


def _node_check(stack: Stack, group: NodeGroup) -> NodeCheck:
    """What a compute node must have before it gets a job; the server of a file system has its folder unmounted."""
    found, scratch = hardware_of(group).accelerators, stack.scratch_of(group)
    shared = tuple(mount.at for mount in stack.mounts if mount.server not in group.names)
    return NodeCheck(
        accelerators=found.count if found else 0,
        vendor="amd" if found and is_of_amd(found) else "nvidia",
        mounted=shared + ((scratch.at,) if scratch else ()),
        free_gb={scratch.at: _SCRATCH_FREE_GB} if scratch else None,
    )


def accounts_script(stack: Stack) -> str:
    """A script that brings QOS, accounts and users to what a stack says, and prints what it changed.

    A second run changes nothing. It removes no QOS, account or user that the stack does not name: their history of
    usage is attached to them. The parents of accounts come before them.
    """
    lines = [line for qos in stack.scheduler.qos for line in _qos(qos)]
    lines += [line for each in stack.accounts for line in _account(stack.name, each)]
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
