"""Configuration files of a Slurm sandbox: several nodes on one machine, with simulated accelerators."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import trainworks
from trainworks.config.autoscale import Autoscale, CloudNode, SlurmAutoscale
from trainworks.deploy.slurm_power import partition_line, power_lines, resume_program, suspend_program
from trainworks.deploy.templating import render

CLUSTER = "sandbox"
_SLURMCTLD, _SLURMDBD, _MARIADB, _SLURMD = 0, 1, 2, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSize:
    """Size that the sandbox simulates."""

    nodes: int = 4
    cores: int = 16
    """Cores per node; advertised, not real."""
    memory_mb: int = 64_000
    accelerators: int = 8
    """Accelerators per node; their device files are copies of /dev/null."""
    accelerator: str = "h100"
    first_port: int = 18_800
    """Port of slurmctld; slurmdbd and MariaDB use the next two, nodes those from 10 upward."""
    accounting: bool = False
    """Run an accounting database, which adds history, quotas, QOS and fair share."""
    node_timeout_s: int = 10
    """Time after which a silent node counts as down; Slurm's default is 300 s."""
    message_timeout_s: int = 5
    """Time in which a daemon has to answer; a client tries as long to reach slurmctld. Slurm's default is 10 s."""
    credential_s: int = 5
    """Time in which a node has to start a step, and which a requeued job waits for its next start; Slurm's default is
    120 s."""
    cloud: int = 0
    """Number of nodes, counted from the last, that start on demand."""
    down_after_s: int = 30
    """Idle time after which an on-demand node stops."""

    @property
    def database_port(self) -> int:
        """Port of MariaDB."""
        return self.first_port + _MARIADB

    def ports(self) -> dict[str, int]:
        """Port of each daemon that listens, by the name of its pid file."""
        database = {"slurmdbd": self.first_port + _SLURMDBD, "mariadb": self.database_port} if self.accounting else {}
        nodes = {f"slurmd-{name}": self.first_port + _SLURMD + index for index, name in enumerate(node_names(self))}
        return {"slurmctld": self.first_port + _SLURMCTLD} | database | nodes


@dataclass(frozen=True, slots=True)
class SlurmPaths:
    """Paths below the folder of a sandbox; short, because socket paths are limited."""

    folder: Path

    @property
    def conf(self) -> Path:
        """Value of SLURM_CONF for clients."""
        return self.folder / "etc" / "slurm.conf"

    @property
    def size_file(self) -> Path:
        """File with the size of the sandbox, for commands after `up`."""
        return self.folder / "sandbox.json"

    @property
    def munge_key(self) -> Path:
        """Shared secret of the daemons."""
        return self.folder / "munge" / "key"

    @property
    def munge_socket(self) -> Path:
        """Socket of the sandbox's munged."""
        return self.folder / "munge" / "socket"

    @property
    def database(self) -> Path:
        """Data folder of MariaDB."""
        return self.folder / "sql"

    @property
    def database_socket(self) -> Path:
        """Socket of MariaDB."""
        return self.database / "socket"

    @property
    def spool(self) -> Path:
        """A folder per node."""
        return self.folder / "spool"

    def device(self, index: int) -> Path:
        """A device file that stands for an accelerator."""
        return self.folder / "gpu" / f"nvidia{index}"

    def pid_file(self, daemon: str) -> Path:
        """Process id of a daemon; of `slurmd-node1` for a node. MariaDB is not root: it writes into its own folder."""
        return self.database / "pid" if daemon == "mariadb" else self.folder / "run" / f"{daemon}.pid"

    def log(self, daemon: str) -> Path:
        """What a daemon says."""
        return self.folder / "log" / f"{daemon}.log"


def node_names(size: SandboxSize) -> list[str]:
    """`node1` ... in order."""
    return [f"node{number}" for number in range(1, size.nodes + 1)]


def fixed_nodes(size: SandboxSize) -> list[str]:
    """Those that are there all the time."""
    return node_names(size)[: size.nodes - size.cloud]


def slurm_files(size: SandboxSize, paths: SlurmPaths, *, host: str) -> dict[str, str]:
    """Name and text of every file in the sandbox's `etc`.

    slurmctld and slurmd compare `host`, the machine's short name, with their own.
    """
    # two leaf switches and a spine
    half = (size.nodes + 1) // 2
    leaves = [f"SwitchName=leaf1 Nodes=node[1-{half}]"]
    if size.nodes > half:
        leaves.append(f"SwitchName=leaf2 Nodes=node[{half + 1}-{size.nodes}]")
    devices = f"{paths.device(0).parent}/nvidia[0-{size.accelerators - 1}]"
    gres = f"NodeName=node[1-{size.nodes}] Name=gpu Type={size.accelerator} File={devices}\n"
    files = {
        "slurm.conf": _slurm_conf(size, paths, host),
        "topology.conf": "\n".join([*leaves, f"SwitchName=spine Switches=leaf[1-{len(leaves)}]"]) + "\n",
        "gres.conf": gres if size.accelerators else "",
    }
    if size.cloud:
        autoscale = _autoscale(size.nodes, size.cloud, size.down_after_s, paths.folder)
        files |= {"resume.sh": resume_program(autoscale), "suspend.sh": suspend_program(autoscale)}
    return files | ({"slurmdbd.conf": _render("slurmdbd.conf", size, paths, host)} if size.accounting else {})


def _slurm_conf(size: SandboxSize, paths: SlurmPaths, host: str) -> str:
    power = power_settings(size.nodes, size.cloud, size.down_after_s, paths.folder) if size.cloud else []
    return _render(
        "slurm.conf", size, paths, host, cluster=CLUSTER, power_settings=power, node_lines=_nodes(size, host)
    )


def _nodes(size: SandboxSize, host: str) -> list[str]:
    gres = f" Gres=gpu:{size.accelerator}:{size.accelerators}" if size.accelerators else ""
    fixed = fixed_nodes(size)
    return [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.1.{index + 1} Port={size.first_port + _SLURMD + index} "
        f"CPUs={size.cores} RealMemory={size.memory_mb}{gres} Feature=rack{index // 2} "
        f"State={'UNKNOWN' if name in fixed else 'CLOUD'}"
        for index, name in enumerate(node_names(size))
    ]


def _render(name: str, size: SandboxSize, paths: SlurmPaths, host: str, **values: object) -> str:
    offsets = {"slurmctld": _SLURMCTLD, "slurmdbd": _SLURMDBD}
    ports = {daemon: size.first_port + offset for daemon, offset in offsets.items()}
    return render(f"sandbox/{name}", size=size, paths=paths, host=host, ports=ports, **values)


def power_settings(nodes: int, cloud: int, down_after_s: int, folder: Path) -> list[str]:
    """Lines for the programs and for the partition of these nodes; slurmctld checks every second."""
    autoscale = _autoscale(nodes, cloud, down_after_s, folder)
    settings = ["PrivateData=cloud", "SlurmctldParameters=power_save_interval=1,power_save_min_interval=0"]
    return [*settings, *power_lines(autoscale), partition_line(autoscale)]


def _autoscale(nodes: int, cloud: int, down_after_s: int, folder: Path) -> Autoscale:
    source = Path(trainworks.__file__).parents[1]
    place = f"--folder {shlex.quote(str(folder))}"
    program = f"PYTHONPATH={shlex.quote(str(source))} {shlex.quote(sys.executable)} -m trainworks sandbox slurm"
    slurm = SlurmAutoscale(
        nodes=f"node[{nodes - cloud + 1}-{nodes}]",
        node=CloudNode(cores=1, memory=1),
        start=f'{program} start-node "$NODE" {place} && echo 127.0.1.${{NODE#node}}',
        stop=f'{program} kill-node "$NODE" {place}',
        folder=f"{folder}/etc",
        log=f"{folder}/log/power.log",
    )
    return Autoscale(down_after=float(down_after_s), start_timeout=60.0, stop_timeout=8.0, slurm=slurm)
