"""How to reach a development environment from the machine that submitted it."""

from __future__ import annotations

import getpass
import re
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from trainworks.agent.development.node import READY
from trainworks.agent.development.serving import write_private
from trainworks.api.run_handle import Run
from trainworks.config.engines import Kubernetes
from trainworks.config.run_file import Cluster
from trainworks.errors import EnvironmentProblem
from trainworks.host.network import is_loopback
from trainworks.record.dev_environment import DevServer

_INCLUDE = re.compile(r"^\s*include\s+.*config\.d/", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevAccess:
    """How to reach a development environment."""

    run_id: str
    server: DevServer
    forward: str | None = None
    """Command that has to run first, in another terminal, and stays; None if the server is reached directly."""
    ssh_config: str | None = None
    """A `Host` block for ~/.ssh/config; None for JupyterLab."""
    ssh_config_file: Path | None = None
    """File with the same block, for `ssh -F`."""
    url: str | None = None
    """Address of JupyterLab; without its token if that can only be read on the node."""
    token_command: str | None = None
    """Command that prints the token, where the address lacks it."""

    @property
    def alias(self) -> str:
        """Name of the host in the ssh configuration."""
        return alias_of(self.run_id)


def alias_of(run_id: str) -> str:
    """Name of a run as a host of ssh: `trainworks-dev-1`."""
    return f"trainworks-{run_id}"


def access_of(run: Run, identity: Path | None = None) -> DevAccess | None:
    """How to reach the environment now, by the private key `identity` or one that ssh chooses; None while it does not
    answer yet.
    """
    server = _server_of(run)
    if server is None:
        return None
    cluster = run.resolved.run_file.cluster
    pod = _pod_of(cluster.kubernetes, server) if cluster.engine == "kubernetes" else None
    if server.kind == "jupyter":
        return _jupyter(run, server, cluster, pod)
    folder = run.run_dir.dev_folder.absolute()
    folder.mkdir(mode=0o700, exist_ok=True)
    write_private(folder / "known_hosts", f"{alias_of(run.id)} {server.host_key}\n")
    block = ssh_config(run.id, server, folder / "known_hosts", identity=identity, jump=_jump(cluster))
    write_private(folder / "ssh_config", block)
    forward = _port_forward(pod, server.port) if pod else None
    file = folder / "ssh_config"
    return DevAccess(run_id=run.id, server=server, forward=forward, ssh_config=block, ssh_config_file=file)


def _jump(cluster: Cluster) -> str | None:
    return cluster.slurm.login if cluster.engine == "slurm" else None


def ssh_config(
    run_id: str, server: DevServer, known_hosts: Path, *, identity: Path | None = None, jump: str | None = None
) -> str:
    """A `Host` block that ssh and VS Code read; it accepts the pinned host key alone, which is in the file
    `known_hosts`.

    Without an `identity`, a private key, ssh chooses. `jump` is the login node before the cluster, as ssh names it.

    Examples:
        >>> node = {"host": "n1", "address": "10.0.0.1", "port": 2201, "user": "ada"}
        >>> server = DevServer(kind="ssh", host_key="ssh-ed25519 AAAA", **node)
        >>> print(ssh_config("dev-1", server, Path("/r/known_hosts"), jump="ada@login1"))
        Host trainworks-dev-1
            HostName 10.0.0.1
            Port 2201
            User ada
            HostKeyAlias trainworks-dev-1
            UserKnownHostsFile "/r/known_hosts"
            StrictHostKeyChecking yes
            ProxyJump ada@login1
        <BLANKLINE>
    """
    lines = [
        f"Host {alias_of(run_id)}",
        f"    HostName {server.address}",
        f"    Port {server.port}",
        f"    User {server.user}",
        f"    HostKeyAlias {alias_of(run_id)}",
        f'    UserKnownHostsFile "{_percent(known_hosts)}"',
        "    StrictHostKeyChecking yes",
    ]
    if identity is not None:
        lines += [f'    IdentityFile "{_percent(identity)}"', "    IdentitiesOnly yes"]
    if jump is not None:
        lines.append(f"    ProxyJump {jump}")
    elif not is_loopback(server.address):
        lines.append(
            f"    # from a machine outside of the cluster: ProxyJump {getpass.getuser()}@{socket.gethostname()}"
        )
    return "\n".join(lines) + "\n"


def _percent(path: Path) -> str:
    """A path for ssh, which replaces `%h` and the like."""
    return str(path).replace("%", "%%")


def _jupyter(run: Run, server: DevServer, cluster: Cluster, pod: list[str] | None) -> DevAccess:
    local = f"http://127.0.0.1:{server.port}/lab"
    if pod is not None:
        token = shlex.join([*pod[:-1], "exec", pod[-1], "--", "cat", server.token_file or ""])
        forward = _port_forward(pod, server.port)
        return DevAccess(run_id=run.id, server=server, forward=forward, url=local, token_command=token)
    token = Path(server.token_file or "").read_text(encoding="utf-8").strip()
    login = _jump(cluster)
    if login is None:
        return DevAccess(run_id=run.id, server=server, url=f"http://{server.address}:{server.port}/lab?token={token}")
    forward = shlex.join(["ssh", "-N", "-L", f"{server.port}:{server.address}:{server.port}", login])
    return DevAccess(run_id=run.id, server=server, forward=forward, url=f"{local}?token={token}")


def _pod_of(options: Kubernetes, server: DevServer) -> list[str]:
    """Words of kubectl with the job of the first pod: its host name is that of the job, and the index of the pod."""
    context = ["--context", options.context] if options.context else []
    return ["kubectl", *context, "--namespace", options.namespace, f"job/{server.host.rpartition('-')[0]}"]


def _port_forward(pod: list[str], port: int) -> str:
    return shlex.join([*pod[:-1], "port-forward", pod[-1], str(port)])


def _server_of(run: Run) -> DevServer | None:
    """The record of the node; where its files are not here, the line that it printed last."""
    if not run.has_remote_output:
        return run.run_dir.read_dev_server()
    found = None
    for line in run.output(node=0):
        _, mark, text = line.partition(READY)
        if mark:
            try:
                found = DevServer.model_validate_json(text)
            except ValidationError:
                continue
    return found


def write_ssh_config(access: DevAccess) -> tuple[Path, str | None]:
    """Write the `Host` block into `~/.ssh/config.d`; returns the file, and what `~/.ssh/config` lacks to read it.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    ssh = Path.home() / ".ssh"
    file = ssh / "config.d" / f"{access.alias}.conf"
    try:
        ssh.mkdir(mode=0o700, exist_ok=True)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(file, access.ssh_config or "")
        config = ssh / "config"
        included = config.exists() and _INCLUDE.search(config.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise EnvironmentProblem(f"cannot write `{file}`: {error.strerror}", place="--write-ssh-config") from None
    return file, None if included else f"begin `{ssh / 'config'}` with the line `Include config.d/*.conf`"
