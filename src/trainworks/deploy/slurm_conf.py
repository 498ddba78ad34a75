"""Configuration of Slurm for a stack; each line that is not obvious has its reason above it.

Source: slurm.conf(5), gres.conf(5), cgroup.conf(5), topology.conf(5) and slurmdbd.conf(5) of Slurm 22.05 to 26.05.
"""

from __future__ import annotations

import math

from trainworks.config.autoscale import Autoscale, CloudNode, SlurmAutoscale
from trainworks.config.slurm.sbatch_amounts import parse_slurm_time
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.config.stack_parts.scheduler import Partition
from trainworks.deploy import racks
from trainworks.deploy.fabric.network import leaves_of
from trainworks.deploy.hardware import gres_devices, gres_of, hardware_of
from trainworks.deploy.slurm_hooks import NodeCheck, epilog, health_check, prolog, slurm_conf_lines, task_prolog
from trainworks.deploy.slurm_power import power_lines, resume_program, suspend_program

_FOLDER = "/etc/slurm"
_SLOW_KILL_S = 180
_SCRATCH_FREE_GB = 50
_USUAL_WINDOW, _LONGEST_WINDOW = 1440, 43200
"""Minutes of `bf_window`."""
_USUAL_RESOLUTION_S = 60


def slurm_files(stack: Stack) -> dict[str, str]:
    """Files of /etc/slurm on every node, by name."""
    check, scratch = _node_check(stack), stack.scratch.at if stack.scratch else None
    lines = racks.topology_lines(stack) if racks.has_blocks(stack) else _switches(stack)
    files = {
        "slurm.conf": _slurm_conf(stack),
        "cgroup.conf": _CGROUP,
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
        files["plugstack.conf"] = _PLUGSTACK
    gres = _gres(stack)
    return files | ({"gres.conf": gres} if gres else {})


def _switches(stack: Stack) -> list[str]:
    """Lines of topology.conf with the sets of leaf switches."""
    switches = leaves_of(stack)
    lines = ["# a set of leaf switches that whole nodes are attached to is one switch here"]
    lines += [f"SwitchName=leaf{number} Nodes={','.join(nodes)}" for number, nodes in enumerate(switches, start=1)]
    return lines + ([f"SwitchName=spine Switches=leaf[1-{len(switches)}]"] if len(switches) > 1 else [])


_TREE = ["# the nodes of a job under as few leaf switches as possible", "TopologyPlugin=topology/tree"]


def slurmdbd_template(stack: Stack) -> str:
    """slurmdbd.conf as a template of Ansible, which fills in the password."""
    (host,) = stack.hosts("database")
    lines = [
        "AuthType=auth/munge",
        f"DbdHost={host}",
        "SlurmUser=slurm",
        "LogFile=/var/log/slurm/slurmdbd.log",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=slurm",
        "StoragePass={{ slurm_database_password }}",
        "StorageLoc=slurm_acct_db",
        "# jobs and steps grow without a limit; two years of them answer questions about usage",
        "PurgeJobAfter=24months",
        "PurgeStepAfter=24months",
        "PurgeEventAfter=24months",
    ]
    return "\n".join(lines) + "\n"


_CGROUP = """# a rank stays on the cores that its job was given
ConstrainCores=yes
# a job that takes more memory than it asked for ends; without this, the kernel ends any process of the node
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
AllowedSwapSpace=0
# a job sees its own GPUs alone; without this, CUDA_VISIBLE_DEVICES is a mere request
ConstrainDevices=yes
"""


_PLUGSTACK = """# required: without the plugin a job with an image fails, and does not start outside of its image
required spank_pyxis.so
"""


def _slurm_conf(stack: Stack) -> str:
    ((controller, address),) = stack.hosts("controller").items()
    lines = [
        f"ClusterName={stack.name}",
        f"SlurmctldHost={controller}({address})",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        "StateSaveLocation=/var/spool/slurmctld",
        "SlurmdSpoolDir=/var/spool/slurmd",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.log",
        "",
        "# cgroups hold every process of a job, also one that detached from its parent",
        "ProctrackType=proctrack/cgroup",
        "# affinity binds ranks to cores, cgroup hides the devices of other jobs",
        "TaskPlugin=task/affinity,task/cgroup",
        "# a node that was rebooted takes jobs again, unless it was drained",
        "ReturnToService=1",
        "# from the signal of a time limit or a preemption to the end: a workload saves a checkpoint meanwhile",
        "KillWait=60",
        "# a process that waits for a file server or the driver cannot be killed; the default of 60 s drains its node",
        f"UnkillableStepTimeout={_SLOW_KILL_S}",
        "# jobs of a node that failed are queued again",
        "JobRequeue=1",
        "",
        "# jobs share nodes by cores, memory and GPUs; `select/linear` gives whole nodes, and 23.11 removed `cons_res`",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "# of a job that asks for no memory: its share; without this, it gets all of the node, and shares it with none",
        f"DefMemPerCPU={_memory_share_mb(stack)}",
        *(["# without it, slurmctld does not know the GPUs of a node", "GresTypes=gpu"] if _gres(stack) else []),
        *(racks.slurm_conf_lines(stack) if racks.has_blocks(stack) else _TREE),
        "SchedulerType=sched/backfill",
        *_backfill(stack),
        "PriorityType=priority/multifactor",
        "PriorityWeightAge=1000",
        "PriorityWeightFairshare=10000",
        "PriorityWeightPartition=100000",
        *_priorities(stack),
        *_hours(stack),
        *_mpi(stack),
        "",
        *_accounting(stack),
        "# nodes that fail their check are drained, before a job starts and every five minutes while idle",
        *slurm_conf_lines(_FOLDER).splitlines(),
        "# what a job left in memory and on scratch is removed, and a node whose GPUs are still in use is drained",
        f"Epilog={_FOLDER}/epilog.sh",
        *([f"TaskProlog={_FOLDER}/task_prolog.sh"] if stack.scratch else []),
        *_power(stack),
        "",
        *(line for group in stack.groups("compute") for line in _nodes(group)),
        *(_partition(partition) for partition in stack.slurm.partitions),
    ]
    return "\n".join([_HEAD.format(name=stack.name), *lines]) + "\n"


_HEAD = "# Rendered from the stack file of `{name}`: change that, and render again."


def _memory_share_mb(stack: Stack) -> int:
    """MiB of memory per CPU as Slurm counts them, on the nodes that have the least."""
    return min(
        each.memory // 2**20 // (each.sockets * each.cores_per_socket * each.threads_per_core)
        for each in map(hardware_of, stack.groups("compute"))
    )


def _backfill(stack: Stack) -> list[str]:
    """Lines for limits above a day, the time that backfill looks ahead by default; empty without one.

    Source: slurm.conf(5), SchedulerParameters: `bf_window` is at least the highest limit, 30 days at most, and
    `bf_resolution` grows with it, so that it manages as many steps of time as by default.
    """
    limits = [parse_slurm_time(each.max_time) or math.inf for each in stack.slurm.partitions]
    minutes = min(math.ceil(max(limits) / 60), _LONGEST_WINDOW) if max(limits) < math.inf else _LONGEST_WINDOW
    if minutes <= _USUAL_WINDOW:
        return []
    resolution_s = math.ceil(_USUAL_RESOLUTION_S * minutes / _USUAL_WINDOW)
    return [
        "# backfill sees the end of the longest jobs: with its default of a day, small jobs would always go before",
        "# a large one that waits; coarser steps of time keep its work the same",
        f"SchedulerParameters=bf_window={minutes},bf_resolution={resolution_s}",
    ]


def _priorities(stack: Stack) -> list[str]:
    lines = ["PriorityWeightQOS=100000"] if stack.slurm.qos else []
    if any(qos.preempts for qos in stack.slurm.qos):
        lines += [
            "# preempted jobs are queued again; `SUSPEND` would leave them in the memory of the GPUs",
            "PreemptType=preempt/qos",
            "PreemptMode=REQUEUE",
        ]
    return lines


def _hours(stack: Stack) -> list[str]:
    """Lines for accounts with hours of a month; empty without one."""
    if all(account.accelerator_hours_per_month is None for account in stack.slurm.accounts):
        return []
    return [
        "# hours of accounts count from the first of the month, and so does their use in the fair share: with a decay,",
        "# hours would come back day by day",
        "PriorityDecayHalfLife=0",
        "PriorityUsageResetPeriod=MONTHLY",
    ]


def _mpi(stack: Stack) -> list[str]:
    if stack.slurm.pmix is None:
        return []
    return [
        "# `srun` starts MPI jobs by itself, without ssh; no `pmix_v3`, which is there for one release of PMIx alone",
        "MpiDefault=pmix",
    ]


def _power(stack: Stack) -> list[str]:
    if stack.slurm.power is None:
        return []
    return [
        "",
        "# nodes that were idle for this long stop, and start when a job needs them",
        f"SuspendTime={math.ceil(stack.slurm.power.down_after)}",
        *power_lines(_autoscale(stack)),
    ]


def _autoscale(stack: Stack) -> Autoscale:
    """Power saving of the compute nodes in the words of `slurm_power`, whose programs it uses."""
    power = stack.slurm.power
    assert power is not None
    first = hardware_of(next(stack.groups("compute")))
    node = CloudNode(cores=first.sockets * first.cores_per_socket * first.threads_per_core, memory=first.memory)
    nodes = ",".join(group.hosts for group in stack.groups("compute"))
    slurm = SlurmAutoscale(nodes=nodes, node=node, start=power.start, stop=power.stop, folder=_FOLDER)
    return Autoscale(keep=power.keep, start_timeout=power.start_timeout, stop_timeout=power.stop_timeout, slurm=slurm)


def _accounting(stack: Stack) -> list[str]:
    if not stack.slurm.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    (database,) = stack.hosts("database")
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={database}",
        *(["AccountingStorageTRES=gres/gpu"] if _gres(stack) else []),
        "# jobs of users without an account are refused, and limits of accounts hold",
        "AccountingStorageEnforce=associations,limits,qos",
        "JobAcctGatherType=jobacct_gather/cgroup",
    ]


def _nodes(group: NodeGroup) -> list[str]:
    hardware = hardware_of(group)
    reason = "# memory that `slurmd -C` prints"
    if group.machine is not None:
        reason = f"# {group.machine}: 95 % of its memory, since a node that reports less than this is drained"
    shape = "# sockets, cores and threads as the kernel counts them, and no `CPUs`: other counts drain the node, too"
    words = [
        f"NodeName={group.hosts}",
        f"NodeAddr={','.join(group.addresses.values())}",
        f"Sockets={hardware.sockets}",
        f"CoresPerSocket={hardware.cores_per_socket}",
        f"ThreadsPerCore={hardware.threads_per_core}",
        f"RealMemory={hardware.memory // 2**20}",
        *([f"Gres={gres_of(hardware.accelerators)}"] if hardware.accelerators else []),
        "State=UNKNOWN",
    ]
    return [reason, shape, " ".join(words)]


def _partition(partition: Partition) -> str:
    default = " Default=YES" if partition.default else ""
    limit = f" MaxTime={partition.max_time} PriorityJobFactor={partition.priority}"
    return f"PartitionName={partition.name} Nodes=ALL{default}{limit} State=UP"


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
