"""Ranks of a command in containers of podman or docker on this machine.

A container shares network, processes and memory segments with the machine, as under Apptainer: ranks meet at the
addresses of the machine, and signals have their usual effect. Variables are passed by name, so that no value is on a
command line.

The agent deletes its containers when it ends. After a kill of the agent the supervisor ends their processes, which it
finds by a variable: those of docker are children of its daemon.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainworks.config.engines import LocalContainer
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.installed import driver_version, machine_platform
from trainworks.record.run_environment import NodeEnvironment, ResolvedEnvironment

_OF_THE_MACHINE = frozenset(
    ("HOME", "HOSTNAME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "OLDPWD", "PATH", "PWD", "PYTHONHOME", "PYTHONPATH")
) | {"SHELL", "SHLVL", "TMPDIR", "USER", "_"}
"""Variables of a shell on the machine, which mean nothing in an image."""
_MARK = "TRAINWORKS_CONTAINER"
_PULL_TIMEOUT_S = 3600.0
_REMOVALS = 3


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """How to start containers of one run on this machine."""

    options: LocalContainer
    folders: tuple[Path, ...]
    """Folders that every container sees under their paths here."""
    on_accelerators: bool

    def command(self, argv: Sequence[str], name: str, env: Mapping[str, str], folder: Path) -> list[str]:
        """Arguments that run a rank in a container of this name, in the foreground.

        The process that is started needs the variables `env` of the rank in its environment.
        """
        mounts = [f"{path}:{path}" for path in map(str, dict.fromkeys(self.folders))]
        mounts += [one if ":" in one else f"{one}:{one}" for one in self.options.mounts]
        passed = [name for name in sorted(env) if name not in _OF_THE_MACHINE]  # which of all accelerators, too
        devices = ["--device=nvidia.com/gpu=all"] if self.options.runtime == "podman" else ["--gpus=all"]
        return [
            *self._program(),
            "run",
            "--rm",
            f"--name={name}",
            "--network=host",
            "--pid=host",
            "--ipc=host",
            *self._user(),
            *(devices if self.on_accelerators else []),
            *(f"--volume={mount}" for mount in mounts),
            *(f"--env={name}" for name in passed),
            f"--workdir={folder}",
            "--entrypoint=",
            *self.options.options,
            self.options.image or "",
            *argv,
        ]

    def remove(self, names: Sequence[str]) -> None:
        """End and delete containers, one by one; skips names that do not exist.

        A container whose `run` was killed while it removed itself needs a second request.
        """
        for name in names:
            for _ in range(_REMOVALS):
                if process.run([*self._program(), "container", "inspect", "--format={{.Id}}", name]).exit_code != 0:
                    break
                process.run([*self._program(), "rm", "--force", name])

    def facts(self, wanted: ResolvedEnvironment | None) -> NodeEnvironment:
        """The image as this machine has it, pulled now if it does not.

        Raises:
            EnvironmentProblem: the program is not installed, or the image cannot be pulled.
        """
        image, runtime = self.options.image or "", self.options.runtime
        if shutil.which(runtime) is None:
            raise EnvironmentProblem(f"`{runtime}` is not installed", hint=f"install {runtime}, or use a lock file")
        seen = self._inspect(image)
        if seen is None:
            pulled = process.run([*self._program(), "pull", image], timeout_s=_PULL_TIMEOUT_S)
            seen = self._inspect(image) if pulled.exit_code == 0 else None
            if seen is None:
                reason = (pulled.stderr.strip().splitlines() or ["no output"])[-1]
                raise EnvironmentProblem(f"cannot pull image `{image}`: {reason[:300]}", hint=f"{runtime} pull {image}")
        return NodeEnvironment(
            kind="image",
            sha256=wanted.sha256 if wanted else None,
            folder=image,
            python="",
            platform=machine_platform(),
            tool=runtime,
            driver=driver_version(),
            image_digest=seen,
        )

    def _inspect(self, image: str) -> str | None:
        """Id of an image, which is the digest of its configuration; None if the machine does not have it."""
        found = process.run([*self._program(), "image", "inspect", "--format={{.Id}}", image])
        if found.exit_code != 0:
            return None
        return f"sha256:{found.stdout.strip().removeprefix('sha256:')}"

    def _program(self) -> list[str]:
        return [self.options.runtime, *self.options.runtime_options]

    def _user(self) -> list[str]:
        """The user of the run inside as well, so that files on mounts belong to the user."""
        if os.geteuid() == 0:
            return []
        if self.options.runtime == "podman":
            return ["--userns=keep-id"]
        return [f"--user={os.geteuid()}:{os.getegid()}"]


def mark(env: Mapping[str, str]) -> dict[str, str]:
    """Variables of a rank in a container, by which its processes are found."""
    return dict(env) | {_MARK: "1"}


def end_containers(marks: Mapping[str, str]) -> None:
    """Kill what still runs in containers of a run whose agents are gone; `marks` are variables of its processes."""
    for one in process.processes_with(dict(marks) | {_MARK: "1"}):
        process.kill(one.pid)
