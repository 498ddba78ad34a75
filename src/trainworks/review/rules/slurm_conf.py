"""TW314 to TW316, TW319 to TW323: plugins, default memory, controllers and misplaced parameters of slurm.conf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import partial

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.conf import Parameter
from trainworks.review.rule import rule

_conf_rule = partial(rule, file="slurm.conf", source="https://slurm.schedmd.com/slurm.conf.html")
_PLUGINS = {
    "accountingstoragetype": "accounting_storage/ none slurmdbd filetxt mysql",
    "authtype": "auth/ munge none slurm",
    "credtype": "cred/ munge none slurm",
    "jobacctgathertype": "jobacct_gather/ cgroup linux none",
    "jobcomptype": "jobcomp/ elasticsearch filetxt kafka lua mysql none script",
    "mpidefault": "mpi/ none openmpi pmi2 pmix cray_shasta",
    "preempttype": "preempt/ none partition_prio qos",
    "prioritytype": "priority/ basic multifactor",
    "proctracktype": "proctrack/ cgroup linuxproc pgid",
    "schedulertype": "sched/ backfill builtin",
    "selecttype": "select/ cons_res cons_tres linear",
    "switchtype": "switch/ hpe_slingshot none nvidia_imex",
    "taskplugin": "task/ affinity cgroup none",
    "topologyplugin": "topology/ 3d_torus block default flat none tree",
}
"""The prefix of each kind of plugin, and the plugins that Slurm has."""


@_conf_rule(
    "TW314",
    "A plugin that Slurm does not have",
    why="A daemon ends when it cannot load a plugin of its configuration.",
    fix="Write the name of the message.",
    bad="ProctrackType=proctrack/cgroups\n",
    good="ProctrackType=proctrack/cgroup\n",
)
def unknown_plugin(file: ReviewedFile) -> Iterator[Problem]:
    """A name that Slurm does not know and that resembles one that it does; a site may have others of its own."""
    for line in file.conf if file.is_slurm_conf else ():
        for found in line.parameters:
            prefix, *names = _PLUGINS.get(found.name, "").split() or [""]
            known = [prefix + name for name in names]
            for value in found.value.split(",") if "/" in found.value else ():
                near = get_close_matches(value.lower(), known, n=1, cutoff=0.8)
                if near and value.lower() not in known:
                    yield Problem(found.line, found.column, f"Slurm has no `{value}`; it has `{near[0]}`")


@_conf_rule(
    "TW315",
    "A job without --mem takes all memory",
    "warning",
    why="Slurm allocates memory, and the default of a job is unlimited: a job that requests none takes all memory of "
    "its nodes, and no second job starts there however many CPUs and GPUs are free.",
    fix="Set `DefMemPerCPU`, or `DefMemPerGPU` with `select/cons_tres`.",
    bad="SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\n",
    good="SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\nDefMemPerCPU=2000\n",
)
def no_default_memory(file: ReviewedFile) -> Iterator[Problem]:
    """`CR_..._Memory` in a slurm.conf that includes no other file and names no default of memory."""
    other = re.search(r"^[ \t]*include\s|DefMemPer(?:CPU|GPU|Node)|JobSubmitPlugins=", file.text, re.I | re.M)
    if not file.is_slurm_conf or other:
        return
    for line in file.conf:
        found = line.get("selecttypeparameters")
        if found and re.search(r"CR_\w*Memory", found.value, re.IGNORECASE):
            yield Problem(found.line, found.column, f"`{found.value}` without a default of memory")


@_conf_rule(
    "TW316",
    "The controller runs as root",
    "note",
    why="slurmctld reads what every user submits. As root a fault in it, or in a plugin, is one of the whole machine.",
    fix="Create a user `slurm` with the same number on all nodes, give it `StateSaveLocation`, and set "
    "`SlurmUser=slurm`.",
    bad="SlurmctldHost=head\nSlurmUser=root\n",
    good="SlurmctldHost=head\nSlurmUser=slurm\n",
)
def controller_as_root(file: ReviewedFile) -> Iterator[Problem]:
    """`SlurmUser=root`."""
    for line in file.conf:
        found = line.get("slurmuser")
        if found and found.value == "root" and file.is_slurm_conf:
            yield Problem(found.line, found.column, "`SlurmUser=root`")


@_conf_rule(
    "TW319",
    "Processes of a job that Slurm does not find",
    "warning",
    why="`proctrack/linuxproc` and `proctrack/pgid` follow parents and groups of processes. A program that leaves them "
    "survives its job and keeps its GPU.",
    fix="Set `ProctrackType=proctrack/cgroup`.",
    bad="GresTypes=gpu\nProctrackType=proctrack/linuxproc\nNodeName=gpu1 Gres=gpu:8\n",
    good="GresTypes=gpu\nProctrackType=proctrack/cgroup\nNodeName=gpu1 Gres=gpu:8\n",
)
def lost_processes(file: ReviewedFile) -> Iterator[Problem]:
    """Such a plugin in the configuration of nodes with GPUs."""
    gpus = any(found.value.startswith("gpu") for line in file.conf if (found := line.get("gres")))
    for line in file.conf if gpus and file.is_slurm_conf else ():
        found = line.get("proctracktype")
        if found and found.value in ("proctrack/linuxproc", "proctrack/pgid"):
            yield Problem(found.line, found.column, f"`{found.value}` on nodes with GPUs")


@_conf_rule(
    "TW320",
    "The second controller has another state",
    why="The controller that takes over reads the state of the first from `StateSaveLocation`. In a folder of one host "
    "it finds none, and the jobs of the cluster are lost.",
    fix="Put it on a file system that both hosts mount.",
    bad="SlurmctldHost=head1\nSlurmctldHost=head2\nStateSaveLocation=/var/spool/slurmctld\n",
    good="SlurmctldHost=head1\nSlurmctldHost=head2\nStateSaveLocation=/shared/slurmctld\n",
)
def state_of_one_host(file: ReviewedFile) -> Iterator[Problem]:
    """Two controllers, and a folder below `/var` or `/tmp`."""
    hosts = [found for line in file.conf if (found := line.get("slurmctldhost") or line.get("backupcontroller"))]
    for line in file.conf if len(hosts) > 1 and file.is_slurm_conf and "{%" not in file.text else ():
        found = line.get("statesavelocation")
        if found and re.match("/(?:var|tmp)/", found.value):
            yield Problem(found.line, found.column, f"`{found.value}` is a folder of one host")


_OF_PARTITIONS = re.compile(
    "(?:allow|deny)(?:accounts|groups|qos)|defaulttime|exclusiveuser|lln|maxcpuspernode|(?:max|min)nodes|maxtime"
    "|oversubscribe|priorityjobfactor|prioritytier|reqresv|rootonly"
)
"""Options of a line `PartitionName`, without those that are options of the whole cluster as well."""
_LISTS = re.compile(
    "slurmctldhost|nodename|partitionname|nodeset|downnodes|frontendname|switchname|blockname|include"
    "|(?:prolog|epilog)(?:slurmctld)?|(?:task|srun)(?:prolog|epilog)"
)
"""Parameters that a slurm.conf may have several times."""


@_conf_rule(
    "TW321",
    "An option of a partition stands alone",
    why="Limits of time and nodes, priorities and sharing belong to a line `PartitionName`. Alone on a line they are "
    "unknown to Slurm: slurmctld does not start.",
    fix="Write the option on the line of each partition, or on one of `PartitionName=DEFAULT` above them.",
    bad="ClusterName=train\nMaxTime=72:00:00\nPartitionName=gpu Nodes=gpu[1-4]\nNodeName=gpu[1-4]\n",
    good="ClusterName=train\nPartitionName=gpu Nodes=gpu[1-4] MaxTime=72:00:00\nNodeName=gpu[1-4]\n",
)
def option_of_partition(file: ReviewedFile) -> Iterator[Problem]:
    """Such an option at the start of a line."""
    for line in file.conf if file.is_slurm_conf else ():
        found = line.parameters[0]
        if _OF_PARTITIONS.fullmatch(found.name) and line.get("partitionname") is None:
            yield Problem(found.line, found.column, f"`{found.written}` is an option of a partition")


@_conf_rule(
    "TW322",
    "A parameter with two values",
    "warning",
    why="Slurm takes the last of two lines with a parameter and logs that it did; also `+=` replaces. The settings of "
    "the other line have no effect.",
    fix="Join the values on one line: `SchedulerParameters=bf_interval=30,bf_max_job_test=500`.",
    bad="SchedulerParameters=bf_max_job_test=500\nSchedulerParameters=bf_interval=30\n",
    good="SchedulerParameters=bf_max_job_test=500,bf_interval=30\n",
)
def parameter_twice(file: ReviewedFile) -> Iterator[Problem]:
    """A parameter of the cluster at the start of two lines, with different values."""
    seen: dict[str, Parameter] = {}
    for line in file.conf if file.is_slurm_conf and "{%" not in file.text else ():
        found = line.parameters[0]
        before = None if _LISTS.fullmatch(found.name) else seen.setdefault(found.name, found)
        if before is not None and before.value != found.value:
            yield Problem(found.line, found.column, f"`{found.written}` has another value on line {before.line}")


@_conf_rule(
    "TW323",
    "The limits of cgroup.conf have no effect",
    "warning",
    why="Slurm confines jobs to their cores, memory and GPUs in the plugin `task/cgroup`. Without it a job uses all "
    "that its node has, and two jobs can take the same GPU.",
    fix="Set `TaskPlugin=task/cgroup,task/affinity`.",
    bad="ClusterName=train\nGresTypes=gpu\nNodeName=gpu[1-4] Gres=gpu:8\n",
    good="ClusterName=train\nGresTypes=gpu\nTaskPlugin=task/cgroup,task/affinity\nNodeName=gpu[1-4] Gres=gpu:8\n",
)
def unconfined_jobs(file: ReviewedFile) -> Iterator[Problem]:
    """A whole slurm.conf without `task/cgroup`, with GPUs or beside a cgroup.conf that confines jobs."""
    if not file.is_slurm_conf or re.search(r"^[ \t]*include\s|task/cgroup|\{%", file.text, re.I | re.M):
        return
    whole = next((found for line in file.conf if (found := line.get("clustername"))), None)
    gpus = any(found.value.startswith("gpu") for line in file.conf if (found := line.get("gres")))
    confines = re.search(r"^[ \t]*Constrain\w+\s*=\s*yes", file.read_near("cgroup.conf") or "", re.I | re.M)
    plugin = next((found for line in file.conf if (found := line.get("taskplugin"))), whole)
    if whole and plugin and (gpus or confines):
        yield Problem(plugin.line, plugin.column, "`TaskPlugin` lacks `task/cgroup`")
