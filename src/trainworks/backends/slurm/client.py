"""Slurm's programs, here or on a login node; every call has a time limit, and every answer one meaning.

Commands over ssh share one connection, by OpenSSH's multiplexing.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import os
import re
import shlex
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, Self, final

from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.system import IS_WINDOWS, user_id

_LOG = logging.getLogger(__name__)

PERSIST_S = 60
"""Time that a connection without commands stays open."""
_ASK_S = 10.0
"""Time limit of a question to the local ssh, which asks no other machine."""
_LONGEST_SOCKET = 107 - 17
"""Longest path: ssh first binds the socket under a name that is 17 characters longer, see unix(7) and mux.c."""
_PLAIN = re.compile(r"[A-Za-z0-9/._+-]+")
"""Paths that ssh reads as they are, without quotes and `%`."""
_NOT_SET = "0"


@final
class SharedSsh:
    """Makes ssh commands for one destination; the first one opens a connection that the next ones share.

    The connection closes 60 s after its last command, or when the other side is silent for 15 s. If the user's ssh
    configuration has a `ControlPath` for the destination, it alone decides whether commands share a connection. They do
    not share one either if no private folder can hold the socket.
    """

    def __init__(self, destination: str, run: Callable[..., process.Output], env: Mapping[str, str]) -> None:
        self._destination = destination
        self._run = run
        self._env = dict(env)

    def command(self, remote: str, *, connect_s: float, terminal: bool = False) -> list[str]:
        """Argument vector that runs a line of shell there; it never asks for a password.

        `connect_s`, rounded up to seconds, is the longest time until the other side greets. With `terminal` the line
        gets one there.
        """
        batch = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={math.ceil(connect_s)}"]
        return ["ssh", *(["-t"] if terminal else []), *batch, *self._options, self._destination, remote]

    def is_open(self) -> bool:
        """Whether a process listens on the socket; it does so too while the network is gone."""
        if self._socket is None:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.setblocking(False)
            try:
                door.connect(str(self._socket))
            except BlockingIOError:
                return True
            except OSError:
                return False
        return True

    def drop(self) -> None:
        """Let the next command open a new connection; commands on the old one continue."""
        if self._socket is None:
            return
        with suppress(EnvironmentProblem, OSError):
            command = ["ssh", *self._options, "-O", "stop", self._destination]
            self._run(command, timeout_s=1.0, env=self._env, stdin=None, keeps_stderr=True)
        self._socket.unlink(missing_ok=True)

    @cached_property
    def _settings(self) -> dict[str, str]:
        """What the user's configuration says of the destination, by lower-case keyword; empty if ssh cannot tell."""
        try:
            said = self._run(["ssh", "-G", self._destination], timeout_s=_ASK_S, env=self._env, stdin=None)
        except (EnvironmentProblem, OSError):
            return {}
        return dict(line.partition(" ")[::2] for line in said.stdout.splitlines()) if said.exit_code == 0 else {}

    @cached_property
    def _socket(self) -> Path | None:
        """Socket of the shared connection; one for each destination and configuration of it."""
        folder = _private_folder(self._env) if self._settings and "controlpath" not in self._settings else None
        if folder is None:
            return None
        identity = f"{self._destination}\0{sorted(self._settings.items())}"
        file = folder / hashlib.sha256(identity.encode()).hexdigest()[:16]
        return file if len(str(file)) <= _LONGEST_SOCKET and _PLAIN.fullmatch(str(file)) else None

    @cached_property
    def _options(self) -> list[str]:
        if self._socket is None:
            return []
        shared = ["ControlMaster=auto", f"ControlPath={self._socket}", f"ControlPersist={PERSIST_S}"]
        if self._settings.get("serveraliveinterval", _NOT_SET) == _NOT_SET:
            shared += ["ServerAliveInterval=5", "ServerAliveCountMax=3"]
        return [word for option in shared for word in ("-o", option)]


def _private_folder(env: Mapping[str, str]) -> Path | None:
    """A folder on this machine that is this user's alone; None if another user took its name.

    None on Windows, too, whose ssh does not share connections.
    """
    if IS_WINDOWS:
        return None
    runtime = env.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path("/tmp")  # noqa: S108, checked below
    folder = base / f"trainworks-ssh-{user_id()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError:
        return None
    is_private = stat.S_ISDIR(facts.st_mode) and facts.st_uid == user_id() and not facts.st_mode & 0o077
    return folder if is_private else None


Program = Literal["sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo"]

_TIMEOUT_S = 60.0
_CONNECT_S = 10.0
_RETRY_S = 2.0
_SSH_FAILED = 255
_NOT_FOUND = 127
_END = "trainworks: end of answer"
_CODE = re.compile(rf"\n{_END} (\d+)\n")
"""Follows the answer of each of several programs, with its exit code."""
_READABLE = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
"""Not for sbatch, which hands its variables on to the job."""
_OPTIONS_OF_A_USER = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SCANCEL_")
_ALREADY_IN_A_JOB = re.compile(r"SLURM_(?!CONF$|CLUSTERS$|JWT$)|SBATCH_")
_SITE_DEFAULTS = {
    "SBATCH_ACCOUNT": "--account",
    "SBATCH_PARTITION": "--partition",
    "SBATCH_QOS": "--qos",
    "SBATCH_RESERVATION": "--reservation",
    "SBATCH_CONSTRAINT": "--constraint",
}
"""Variables that would beat what the script says; they hold where it says nothing."""
_SILENT = re.compile(
    r"unable to contact|connection (refused|timed out|reset)|timed out|zero bytes|transport endpoint|"
    r"unable to establish|message (receive|send) failure|communication (connection|shutdown) failure|"
    r"missing socket error|no route to host|unexpected message received|slurm backup controller|"
    r"configuration source",
    re.IGNORECASE,
)


class SlurmRefusedError(UsageError):
    """Slurm understood, and says no; the message is its own."""


@final
class SlurmClient:
    """Calls Slurm.

    `login` is where its programs are, as ssh names it; this machine when None. `env` has the variables of this shell;
    those of this process when None.

    Attributes:
        timeout_s: longest time of each call, if it names no other.
    """

    def __init__(
        self,
        login: str | None = None,
        run: Callable[..., process.Output] = process.run,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._login = login
        self._run = run
        self.timeout_s, self._connect_s = _TIMEOUT_S, _CONNECT_S
        self._env = dict(os.environ if env is None else env)
        self._ssh = None if login is None else SharedSsh(login, run, self._env)

    @property
    def is_connected(self) -> bool:
        """Whether the programs are here, or a connection to the login node is open."""
        return self._ssh is None or self._ssh.is_open()

    def within(self, seconds: float, *, connect_s: float = _CONNECT_S) -> Self:
        """A client of the same programs that waits for each answer, and for the greeting of ssh, only so long."""
        hurried = copy.copy(self)
        hurried.timeout_s, hurried._connect_s = seconds, connect_s
        return hurried

    def call(self, program: Program, *arguments: str) -> str:
        """What a program says.

        Raises:
            UnreachableError: slurmctld, or the login node, does not answer.
            SlurmRefusedError: the program failed for another reason.
            EnvironmentProblem: the program is missing.
        """
        return self._said(self._query([program, *arguments]))

    def call_patiently(self, patience_s: float, clock: Clock, program: Program, *arguments: str) -> str:
        """What a program says, even if slurmctld is away for a while: a job outlives it.

        A slurmctld that does not answer for `patience_s` is an error.

        Raises: as `call`.
        """
        deadline = clock.now() + patience_s
        while True:
            try:
                return self.call(program, *arguments)
            except UnreachableError as away:
                if clock.now() >= deadline:
                    raise
                _LOG.info("asking again in %g s: %s", _RETRY_S, away.message)
                clock.sleep(_RETRY_S)

    def _query(self, command: list[str]) -> process.Output:
        env = {name: value for name, value in self._env.items() if not name.startswith(_OPTIONS_OF_A_USER)}
        return self._call(command, env | _READABLE, _READABLE, None)

    def calls(self, *commands: Sequence[str]) -> list[Callable[[], str]]:
        """What several programs say, by one command of ssh where they are on a login node.

        Returns:
            Functions with the answer of each, in their order. They raise as `call`.

        Raises: as `call`, for all of them.
        """
        if self._ssh is None:
            return [partial(lambda command: self._said(self._query(command)), list(command)) for command in commands]
        end = f"printf '\\n{_END} %d\\n' $?; printf '\\n{_END}\\n' >&2"
        together = self._query(["sh", "-c", "\n".join(f"{shlex.join(command)}; {end}" for command in commands)])
        ends = [int(code) for code in _CODE.findall(together.stdout)]
        if len(ends) != len(commands):
            self._said(process.Output(together.exit_code or _SSH_FAILED, "", together.stderr))
        said, errors = _CODE.split(together.stdout)[::2], together.stderr.split(f"\n{_END}\n")
        return [partial(self._said, process.Output(*one)) for one in zip(ends, said, errors, strict=False)]

    def submit(self, script: str, *options: str, lock: int | None = None) -> str:
        """What sbatch says of a script, with `options` beside those of the script. The open file `lock` stays open
        until sbatch has ended, even if this process ends before.

        Raises: as `call`.
        """
        inherited = {name: value for name, value in self._env.items() if not _ALREADY_IN_A_JOB.match(name)}
        defaults = {
            name: self._env[name]
            for name, option in _SITE_DEFAULTS.items()
            if name in self._env and f"#SBATCH {option}=" not in script
        }
        held = () if lock is None else (lock,)
        return self._said(self._call(["sbatch", "--parsable", *options], inherited | defaults, {}, script, held))

    def run_on_login(self, command: Sequence[str], text: str, *, timeout_s: float | None = None) -> process.Output:
        """Run a program on the login node that may run twice: again on a new connection, if an old one is broken.

        `text` is its standard input. `timeout_s` is that of every other call when None.

        Raises:
            UnreachableError: the login node does not answer.
        """
        output = self._call(list(command), self._env, {}, text, is_repeatable=True, timeout_s=timeout_s)
        if output.exit_code == _SSH_FAILED:
            self._said(output)
        return output

    def attached(self, command: Sequence[str], *, terminal: bool) -> list[str]:
        """Argument vector that runs a program of Slurm with the streams of its caller, also on the login node, where it
        may get a terminal.
        """
        if self._ssh is not None:
            return self._ssh.command(shlex.join(command), connect_s=self._connect_s, terminal=terminal)
        inherited = [f"--unset={name}" for name in sorted(self._env) if _ALREADY_IN_A_JOB.match(name)]
        return ["env", *inherited, *command]

    def _call(
        self,
        command: list[str],
        env: dict[str, str],
        remote_env: dict[str, str],
        stdin: str | None,
        held: Sequence[int] = (),
        *,
        is_repeatable: bool = False,
        timeout_s: float | None = None,
    ) -> process.Output:
        try:
            if self._ssh is not None:
                assignments = [f"{name}={value}" for name, value in remote_env.items()]
                line = shlex.join(["env", *assignments, *command])
                is_repeatable = is_repeatable or stdin is None
                return self._run_over(self._ssh, line, env, stdin, timeout_s or self.timeout_s, again=is_repeatable)
            return self._run(command, timeout_s=timeout_s or self.timeout_s, env=env, stdin=stdin, pass_fds=held)
        except FileNotFoundError:
            missing = "ssh" if self._ssh else command[0]
            hint = None if self._ssh else "set `cluster.slurm.login` to the node that has it"
            raise EnvironmentProblem(f"`{missing}` is not installed here", hint=hint) from None
        except EnvironmentProblem as slow:
            raise UnreachableError(f"Slurm does not answer: {slow.message}", hint="try again later") from None

    def _run_over(
        self, ssh: SharedSsh, line: str, env: Mapping[str, str], stdin: str | None, timeout_s: float, *, again: bool
    ) -> process.Output:
        """Run a line of shell on the login node.

        If `again`, a line that fails on an open connection is run once more on a new one: the network may have changed
        since. A script is sent once.
        """

        def ask() -> process.Output:
            command = ssh.command(line, connect_s=self._connect_s)
            return self._run(command, timeout_s=timeout_s, env=env, stdin=stdin, keeps_stderr=True)

        was_open = ssh.is_open()
        try:
            output = ask()
            if not was_open or output.exit_code != _SSH_FAILED:
                return output
            problem = None
        except EnvironmentProblem as slow:
            if not was_open:
                raise
            output, problem = process.Output(_SSH_FAILED, "", ""), slow
        ssh.drop()
        if again:
            return ask()
        if problem is not None:
            raise problem
        return output

    def _said(self, output: process.Output) -> str:
        if output.exit_code == 0:
            return output.stdout
        text = (output.stderr or output.stdout).strip()
        lines = [re.sub(r"^\w+: (error|fatal): ", "", line) for line in text.splitlines()]
        said = "; ".join(dict.fromkeys(line for line in lines if line)) or "no reason given"
        if self._login is not None and output.exit_code in (_SSH_FAILED, _NOT_FOUND):
            where = f"`{self._login}` does not answer" if output.exit_code == _SSH_FAILED else "Slurm is not there"
            raise UnreachableError(f"{where}: {said}", hint=f"does `ssh {self._login} sinfo` work?")
        if _SILENT.search(said):
            raise UnreachableError(f"Slurm does not answer: {said}", hint="try again later")
        raise SlurmRefusedError(said)
