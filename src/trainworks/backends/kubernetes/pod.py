"""Facts that a pod has about itself and its job, and the message it leaves when it ends."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainworks.agent.remote_agent import TOKEN_FILE, NodeAddresses, wait_for_nodes
from trainworks.errors import EnvironmentProblem
from trainworks.host.clock import Clock

SECRETS = "/etc/trainworks"
"""Mount path of the job's Secret."""
RESOLVED = "resolved.json"
ENVS = "envs.json"
CODE = "code.tar.gz"
"""Keys of the job's Secret, beside the token; each is a file in every pod. Only runs with `job.keep_code` have CODE."""
TERMINATION_LOG = Path("/dev/termination-log")
"""File that Kubernetes stores with the end of a pod: `kubectl describe pod` shows it, and the backend reads it."""

_LONGEST_MESSAGE = 600
"""Kubernetes stores 4096 bytes, and a character takes up to six in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One node of a job."""

    index: int
    address: str
    node: str
    """Name of the cluster node that the pod runs on."""
    num_nodes: int
    cores: int
    accelerators: int
    names: str
    """DNS name of the job's pods; `%d` stands for the index."""
    token: str = field(repr=False)
    """Secret by which the pods of a job recognize each other."""

    @property
    def job(self) -> str:
        """Id of this submission of the run."""
        return hashlib.sha256(self.token.encode()).hexdigest()[:12]

    def name_of(self, index: int) -> str:
        """DNS name of a pod of the job."""
        return self.names.replace("%d", str(index))


def wait_for_pods(pod: Pod, clock: Clock) -> NodeAddresses:
    """Wait until all pods of the job answer; `pod` is the first one.

    Raises:
        EnvironmentProblem: a process that does not know the token answers at a pod's address.
    """
    first = NodeAddresses(addresses=(pod.address,), names=(pod.node,))
    return wait_for_nodes(first, map(pod.name_of, range(1, pod.num_nodes)), pod.token, clock)


def pod_of(env: Mapping[str, str], secrets: Path) -> Pod:
    """Read the variables that the manifest sets, and the job's Secret.

    Raises:
        EnvironmentProblem: this process does not run in a pod of a job.
    """
    try:
        return Pod(
            index=int(env["JOB_COMPLETION_INDEX"]),
            address=env["POD_IP"],
            node=env["NODE_NAME"],
            num_nodes=int(env["TRAINWORKS_NODES"]),
            cores=int(env["TRAINWORKS_CORES"]),
            accelerators=int(env["TRAINWORKS_ACCELERATORS"]),
            names=env["TRAINWORKS_PODS"],
            token=(secrets / TOKEN_FILE).read_text(encoding="utf-8"),
        )
    except KeyError as missing:
        hint = "submit the run: this program starts in the pods of a job"
        raise EnvironmentProblem(f"{missing} is not set", hint=hint) from None
    except OSError as error:
        raise EnvironmentProblem(f"cannot read `{secrets / TOKEN_FILE}`: {error.strerror}") from None


def private_variables(secrets: Path) -> dict[str, str]:
    """Variables that have no value in the run file; their values come from the shell that submitted the run."""
    return dict(json.loads((secrets / ENVS).read_bytes()))


def write_termination_message(state: str, *, message: str | None, path: Path = TERMINATION_LOG, **details: Any) -> None:
    """Record how a pod ends, for clients that do not see the run directory."""
    content = {"state": state, "message": (message or "")[:_LONGEST_MESSAGE] or None, **details}
    try:
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"cannot write `{path}`: {error.strerror}\n")
