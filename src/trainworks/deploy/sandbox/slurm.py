"""A real Slurm of several nodes on one machine: without systemd and containers, all files in one folder.

Every node is a slurmd with its own address in 127.0.1.0/24; cores, memory and accelerators are simulated. It needs
root, because slurmd does, and Slurm's packages: `install` gets those of Debian.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import psutil

from trainworks.deploy.sandbox.slurm_files import CLUSTER, SandboxSize, SlurmPaths, fixed_nodes, node_names, slurm_files
from trainworks.errors import EnvironmentProblem, PortInUseError, UsageError
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.network import is_free
from trainworks.system import check_linux

_PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins")
_ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")
_PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "sinfo", "scontrol", "sbatch")
_ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb", "mariadb-install-db", "sacctmgr")
_MODES = {".sh": 0o755}
_PATIENCE_S = 120.0
"""Time in which a daemon has to start, to answer, or to save its state and end, on a busy machine."""
_POLICY = Path("/usr/sbin/policy-rc.d")
_SQL = """create database if not exists slurm_acct;
create user if not exists 'slurm'@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct.* to 'slurm'@'127.0.0.1';
create user if not exists 'slurm'@'localhost' identified by 'slurm'; grant all on slurm_acct.* to 'slurm'@'localhost';
"""


def missing_programs(*, accounting: bool = False) -> list[str]:
    """Missing programs of Slurm."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    programs = _PROGRAMS + (_ACCOUNTING_PROGRAMS if accounting else ())
    return [program for program in programs if shutil.which(program, path=path) is None]


def install(*, accounting: bool = False) -> None:
    """Install Slurm from Debian, without starting its services.

    Raises:
        EnvironmentProblem: the user is not root, apt-get is missing, or it failed.
    """
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise EnvironmentProblem(
            "cannot install Slurm: root and apt-get are needed", hint=f"install {', '.join(_PACKAGES)}"
        )
    packages = _PACKAGES + (_ACCOUNTING_PACKAGES if accounting else ())
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with _no_services():
        for command in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *packages]):
            done = process.run(["apt-get", *command], timeout_s=900, env=env)
    if done.exit_code != 0:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentProblem(f"apt-get could not install Slurm: {reason}", hint="check the network")


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Keep Debian from starting services: this program has to return 101."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


class SlurmSandbox:
    """A Slurm sandbox in one folder, whose path is absolute and short.

    Raises:
        EnvironmentProblem: this machine does not run Linux.
    """

    def __init__(self, folder: Path | None = None, clock: Clock | None = None) -> None:
        check_linux("the sandbox")
        # below the temporary files: socket paths must be short, and MariaDB must be able to read its data
        self.paths = SlurmPaths(folder or Path(tempfile.gettempdir()) / "trainworks-slurm")
        self._clock = clock or SystemClock()

    @property
    def size(self) -> SandboxSize:
        """Size that the sandbox was started with.

        Raises:
            UsageError: it was never started.
        """
        try:
            return SandboxSize(**json.loads(self.paths.size_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise UsageError(f"no sandbox in `{self.paths.folder}`", hint="trainworks sandbox slurm up") from None

    def env(self) -> dict[str, str]:
        """Environment variables for clients."""
        return {"SLURM_CONF": str(self.paths.conf)}

    def _mark(self) -> dict[str, str]:
        """Environment variables that identify processes of the sandbox's jobs."""
        return {"SLURM_CLUSTER_NAME": CLUSTER} | self.env()

    def up(self, size: SandboxSize) -> None:
        """Start all daemons that do not run, and wait until all nodes are idle.

        Raises:
            EnvironmentProblem: the user is not root, Slurm is missing, or a daemon does not start.
            PortInUseError: another program listens on the port of a daemon; nothing was started.
        """
        if size.cloud > size.nodes:
            raise UsageError(
                f"`--cloud {size.cloud}` exceeds `--nodes {size.nodes}`", hint=f"set `--nodes` to at least {size.cloud}"
            )
        if os.geteuid() != 0:
            raise EnvironmentProblem("a Slurm sandbox needs root, because slurmd does", hint="run it as root")
        if missing := missing_programs(accounting=size.accounting):
            option = " --accounting" if size.accounting else ""
            hint = f"trainworks sandbox slurm install{option}"
            raise EnvironmentProblem(f"Slurm is incomplete: {', '.join(missing)} missing", hint=hint)
        self._write_files(size)
        self._start_munge()
        if size.accounting:
            self._start_database(size)
        self.start_controller()
        for name in fixed_nodes(size):
            self.start_node(name)
        self._wait(self._all_idle, "every node idle", "slurmctld")

    def _check_ports(self, size: SandboxSize) -> None:
        programs, ports = dict(self._all(size)), size.ports()
        for name, port in ports.items():
            if daemon_pid(self.paths.pid_file(name), programs[name]) is not None or is_free(port):
                continue
            width = max(ports.values()) - size.first_port + 1
            others = range(size.first_port + 100, 65_536 - width, 100)
            free = next((first for first in others if all(map(is_free, range(first, first + width)))), None)
            raise PortInUseError(
                f"cannot start {name}: another program listens on port {port}",
                place="--port",
                hint=f"choose other ports: `--port {free}`" if free else f"see which one: ss -ltnp 'sport = :{port}'",
            )

    def _write_files(self, size: SandboxSize) -> None:
        folder = self.paths.folder
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():  # any user can create a name in /tmp
            raise EnvironmentProblem(f"`{folder}` belongs to another user", hint="choose another `--folder`")
        self._check_ports(size)
        for name in ("etc", "run", "log", "state", "spool", "gpu", "munge", "sql"):
            (folder / name).mkdir(exist_ok=True)
        folder.chmod(0o755)
        if not self.paths.munge_key.exists():
            self.paths.munge_key.write_bytes(os.urandom(1024))
        self.paths.munge_key.chmod(0o400)
        for index in range(size.accelerators):
            _make_device(self.paths.device(index))
        for name, text in slurm_files(size, self.paths, host=socket.gethostname().split(".")[0]).items():
            (folder / "etc" / name).write_text(text, encoding="utf-8")
            (folder / "etc" / name).chmod(_MODES.get(Path(name).suffix, 0o644) if name != "slurmdbd.conf" else 0o600)
        self.paths.size_file.write_text(json.dumps(asdict(size)), encoding="utf-8")

    def _start_munge(self) -> None:
        command = ["munged", "--force", "--num-threads=4", "--origin=127.0.0.1"]
        files = {
            "socket": self.paths.munge_socket,
            "key-file": self.paths.munge_key,
            "pid-file": self.paths.pid_file("munged"),
            "log-file": self.paths.log("munged"),
            "seed-file": self.paths.folder / "munge" / "seed",
        }
        self._start("munged", [*command, *(f"--{option}={file}" for option, file in files.items())])
        check = ("munge", "--no-input", f"--socket={self.paths.munge_socket}")
        self._wait(lambda: self._succeeds(*check), "an answer of munged", "munged")

    def _start_database(self, size: SandboxSize) -> None:
        if daemon_pid(self.paths.pid_file("mariadb"), "mariadbd") is None:
            self._start_mariadb(size)
        self._start("slurmdbd", ["slurmdbd"])
        self._wait(lambda: self._succeeds("sacctmgr", "-n", "list", "cluster"), "an answer of slurmdbd", "slurmdbd")
        if CLUSTER not in self._run("sacctmgr", "-n", "list", "cluster", "format=cluster").stdout.split():
            # two accounts for root, and a QOS whose jobs preempt others
            self._call("sacctmgr", "-i", "add", "cluster", CLUSTER)
            self._call("sacctmgr", "-i", "add", "qos", "high", "priority=100", "preempt=normal", "preemptmode=requeue")
            for account, share in (("research", 2), ("product", 1)):
                self._call("sacctmgr", "-i", "add", "account", account, f"fairshare={share}")
                self._call("sacctmgr", "-i", "add", "user", "root", f"account={account}", "qos=normal,high")
            self._call("sacctmgr", "-i", "modify", "user", "root", "set", "defaultaccount=research")

    def _start_mariadb(self, size: SandboxSize) -> None:
        data, log = self.paths.database, self.paths.log("mariadb")
        shutil.chown(data, "mysql", "mysql")
        base = ["--no-defaults", "--user=mysql", f"--datadir={data}"]
        if not (data / "mysql").is_dir():
            install = ["mariadb-install-db", *base, "--auth-root-authentication-method=normal", "--skip-test-db"]
            start_daemon(install, log=log, env=self._environment())
        options = [f"--socket={self.paths.database_socket}", "--bind-address=127.0.0.1", f"--port={size.database_port}"]
        tuning = ["--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"]
        pid_file = f"--pid-file={self.paths.pid_file('mariadb')}"
        server = ["setsid", "--fork", "mariadbd", *base, *options, pid_file, *tuning]
        start_daemon(server, log=log, env=self._environment())
        client = ("mariadb", "--no-defaults", f"--socket={self.paths.database_socket}", "--user=root")
        self._wait(lambda: self._succeeds(*client, "--execute=select 1"), "an answer of MariaDB", "mariadb")
        self._call(*client, f"--execute={_SQL}")

    def start_node(self, name: str) -> None:
        """Start a node that does not run; it rejoins by itself."""
        self._check_node(name)
        (self.paths.spool / name).mkdir(exist_ok=True)
        booted = [] if name in fixed_nodes(self.size) else ["-b"]  # Slurm expects a new boot time
        if booted:
            # slurmd's boot time is in whole seconds and up to one second early. slurmctld ignores a node that booted
            # before the second in which its start was requested, and slurmd does not register twice.
            self._clock.sleep(1)
        self._start(f"slurmd-{name}", ["slurmd", "-N", name, *booted, "-f", str(self.paths.conf)])

    def start_controller(self) -> None:
        """Start slurmctld unless it runs."""
        self._start("slurmctld", ["slurmctld", "-f", str(self.paths.conf)])
        self._wait(lambda: self._succeeds("scontrol", "ping"), "an answer of slurmctld", "slurmctld")

    def stop_controller(self) -> None:
        """Stop slurmctld, which saves its state; jobs keep running, but cannot be queried."""
        end_daemon(self.paths.pid_file("slurmctld"), "slurmctld", self._clock)

    def kill_node(self, name: str) -> None:
        """Simulate a power failure: the daemons die before they can report the end of their tasks."""
        self._check_node(name)
        tasks = process.processes_with({"SLURMD_NODENAME": name} | self._mark())
        steps = set()
        for task in tasks:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
                if (parent := task.parent()) is not None and parent.name() == "slurmstepd":
                    steps.add(parent.pid)
        pid_file = self.paths.pid_file(f"slurmd-{name}")
        slurmd = daemon_pid(pid_file, "slurmd")
        kill_daemons([*([slurmd] if slurmd else []), *steps, *(task.pid for task in tasks)])
        pid_file.unlink(missing_ok=True)
        spool = self.paths.spool / name  # a leftover folder of a job would hold the job at its next start
        for path in (*spool.glob(f"{name}_*"), *spool.glob("job[0-9]*")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _check_node(self, name: str) -> None:
        if name not in (names := node_names(self.size)):
            raise UsageError(f"the sandbox has no node `{name}`", hint=f"choose one of {names[0]} to {names[-1]}")

    def status(self) -> dict[str, bool]:
        """Names of all daemons, and whether each runs."""
        return {
            name: daemon_pid(self.paths.pid_file(name), program) is not None for name, program in self._all(self.size)
        }

    def down(self) -> None:
        """Stop all jobs and daemons; their files remain."""
        if daemon_pid(self.paths.pid_file("slurmctld"), "slurmctld") is not None:
            self._run("scancel", "--user=root")
            self._run("scancel", "--user=root", "--signal=KILL", "--full")
            self._wait_for_jobs()
        for name, program in self._all(self.size):
            end_daemon(self.paths.pid_file(name), program, self._clock)
        kill_daemons(one.pid for one in process.processes_with(self._mark()))

    def purge(self) -> None:
        """Stop everything, and remove the folder."""
        if self.paths.size_file.exists():
            self.down()
            shutil.rmtree(self.paths.folder)

    @staticmethod
    def _all(size: SandboxSize) -> list[tuple[str, str]]:
        """Name and program of every daemon, in the order in which they are stopped."""
        nodes = [(f"slurmd-{name}", "slurmd") for name in node_names(size)]
        database = [("slurmdbd", "slurmdbd"), ("mariadb", "mariadbd")] if size.accounting else []
        return [*nodes, ("slurmctld", "slurmctld"), *database, ("munged", "munged")]

    def _wait_for_jobs(self) -> None:
        with contextlib.suppress(EnvironmentProblem):
            self._wait(lambda: not self._run("squeue", "--noheader").stdout.strip(), "the end of all jobs", "slurmctld")

    def _all_idle(self) -> bool:
        idle = self._run("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").stdout.split()
        return set(idle) >= set(fixed_nodes(self.size))

    def _start(self, name: str, command: list[str]) -> None:
        if daemon_pid(self.paths.pid_file(name), command[0]) is None:
            self.paths.pid_file(name).unlink(missing_ok=True)
            start_daemon(command, log=self.paths.log(f"{name}-start"), env=self._environment())

    def _wait(self, condition: Callable[[], bool], what: str, daemon: str) -> None:
        wait_for_daemon(condition, self._clock, what, timeout_s=_PATIENCE_S, log=self.paths.log(daemon))

    def _succeeds(self, *command: str) -> bool:
        return self._run(*command).exit_code == 0

    def _call(self, *command: str) -> None:
        if (done := self._run(*command)).exit_code != 0:
            reason = (done.stderr or done.stdout).strip()
            raise EnvironmentProblem(
                f"`{' '.join(command[:4])} ...` failed: {reason}", hint=f"see {self.paths.folder}/log"
            )

    def _run(self, *command: str) -> process.Output:
        return process.run(command, timeout_s=_PATIENCE_S, env=self._environment())

    def _environment(self) -> dict[str, str]:
        """Environment without variables of another Slurm."""
        prefixes = ("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_")
        env = {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}
        return env | {"PATH": f"{env.get('PATH', '')}:/usr/sbin:/sbin", "LC_ALL": "C"} | self.env()


def _make_device(path: Path) -> None:
    """Create a device file like /dev/null, or a plain file if device files are not permitted."""
    if path.exists():
        return
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        path.touch()


_POLL_S = 0.05


def daemon_pid(pid_file: Path, program: str) -> int | None:
    """Process named in a pid file, if it still runs that program."""
    with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
        pid = int(pid_file.read_text(encoding="utf-8"))
        if process.state(pid) not in "XZ" and psutil.Process(pid).name() == program:
            return pid
    return None


def start_daemon(command: list[str], *, log: Path, env: dict[str, str]) -> None:
    """Start a program that daemonizes itself.

    Raises:
        EnvironmentProblem: the program failed; the message is its last line.
    """
    child = process.spawn(command, log=log, env=env, new_session=True)
    code = child.wait(timeout_s=_PATIENCE_S)
    if code is None:
        child.end(1.0)
    if code != 0:
        output = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise EnvironmentProblem(f"`{command[0]}` did not start: {output[-1] if output else code}", hint=f"see {log}")


def end_daemon(pid_file: Path, program: str, clock: Clock, *, timeout_s: float = _PATIENCE_S) -> None:
    """Terminate the process named in a pid file, and kill it after a timeout."""
    if (pid := daemon_pid(pid_file, program)) is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = clock.now() + timeout_s
        while daemon_pid(pid_file, program) == pid and clock.now() < deadline:
            clock.sleep(_POLL_S)
        kill_daemons([pid])
    pid_file.unlink(missing_ok=True)


def kill_daemons(pids: Iterable[int]) -> None:
    """Kill processes; ignore those that have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for_daemon(condition: Callable[[], bool], clock: Clock, what: str, *, timeout_s: float, log: Path) -> None:
    """Wait for a daemon.

    Raises:
        EnvironmentProblem: the timeout has passed.
    """
    deadline = clock.now() + timeout_s
    while not condition():
        if clock.now() > deadline:
            raise EnvironmentProblem(f"timed out after {timeout_s:.0f} s waiting for {what}", hint=f"see {log}")
        clock.sleep(_POLL_S)
