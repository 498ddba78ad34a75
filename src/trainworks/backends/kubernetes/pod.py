"""The Secret with what the pods of a job need, what a pod reads from it, and the message it leaves when it ends."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from trainworks.agent.allocation import Allocation
from trainworks.agent.remote_agent import TOKEN_FILE, greeting_of
from trainworks.config.engines import Kubernetes
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host.clock import Clock
from trainworks.host.network import is_known
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.units import format_bytes

GROUP = "TRAINWORKS_GROUP"
"""Variable of a pod with the number of its role among those of the job; unset in a job without roles.

TRAINWORKS_PODS has the DNS name of each role's pods, `%d` for their index, and TRAINWORKS_NODES how many there are.
"""
STARTS_ALONE = "TRAINWORKS_STARTS_ALONE"
"""Variable of a pod with the numbers of the roles whose pods are replaced one by one."""

_LOOK_S = 0.5
_LARGEST_BYTES = 1 << 20
"""Most bytes of all values together; MaxSecretSize in pkg/apis/core/types.go of Kubernetes."""


def check_volume(options: Kubernetes) -> None:
    """Refuse a workload whose checkpoints would end with its pods.

    Raises:
        UsageError: the option `volume` is missing.
    """
    if options.volume is None:
        hint = "set `cluster.kubernetes.volume` to a PersistentVolumeClaim, ReadWriteMany for several nodes"
        raise UsageError("checkpoints need a volume that outlives the pods", hint=hint)


def secret_content(run_dir: RunDir, env: Mapping[str, str], options: Kubernetes) -> dict[str, bytes]:
    """Values of the Secret by key: the resolved run, private variables, a new token and the kept code.

    `env` gives values to variables that have none in the run file.

    Raises:
        UsageError: a variable has no value, a workload has no volume, or the values exceed 1 MiB.
    """
    resolved = run_dir.read_resolved()
    if resolved.run_file.workload is not None:
        check_volume(options)
    every = [resolved.run_file.envs, *(role.envs for role in resolved.run_file.roles.values())]
    names = dict.fromkeys(name for envs in every for name, value in envs.items() if value is None)
    if missing := [name for name in names if name not in env]:
        raise UsageError(f"`envs.{missing[0]}` has no value", hint=f"export {missing[0]}=..., and submit again")
    content = {
        RESOLVED: run_dir.resolved_file.read_bytes(),
        ENVS: json.dumps({name: env[name] for name in names}).encode(),
        TOKEN_FILE: secrets.token_hex(32).encode(),
    }
    left_bytes = _LARGEST_BYTES - sum(map(len, content.values()))
    if left_bytes < 0:
        raise UsageError(f"the resolved run is {format_bytes(-left_bytes)} too long for a Secret of 1 MiB")
    if resolved.code is not None:
        from trainworks.record.code_archive import pack  # noqa: PLC0415 - few runs need tarfile and pathspec

        data, _ = pack(run_dir.code_folder)
        if len(data) > left_bytes:
            raise UsageError(
                f"the code is {format_bytes(len(data))} packed, and a Secret has room for {format_bytes(left_bytes)}",
                place="job.keep_code",
                hint="list files in .trainworksignore, or put the code into the image or on the volume",
            )
        content[CODE] = data
    return content


def secret(owner: Mapping[str, Any], content: Mapping[str, bytes]) -> Mapping[str, object]:
    """Build a Secret that has the name of its JobSet and is deleted with it."""
    metadata = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": "JobSet", "name": metadata["name"]}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {"app.kubernetes.io/managed-by": "trainworks"},
            "ownerReferences": [{**reference, "uid": metadata["uid"], "controller": True}],
        },
        "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
    }


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
    """Number of the node among all of the job."""
    address: str
    node: str
    """Name of the cluster node that the pod runs on."""
    cores: int
    accelerators: int
    names: tuple[str, ...]
    """DNS name of each pod of the job."""
    starts_alone: frozenset[int] = frozenset()
    """Nodes whose pods Kubernetes replaces one by one while the others run on, under the same name."""
    has_roles: bool = False
    token: str = field(repr=False)
    """Secret by which the pods of a job recognize each other."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the job."""
        return len(self.names)

    @property
    def job(self) -> str:
        """Id of this submission of the run."""
        return hashlib.sha256(self.token.encode()).hexdigest()[:12]


def wait_for_pods(pod: Pod, clock: Clock) -> Allocation:
    """Wait until all pods of the job answer; Kubernetes may start them one after the other. `pod` is the first one.

    The addresses of roles are names: that of a pod stays when another one replaces it.

    Raises:
        EnvironmentProblem: a process that does not know the token answers at a pod's address.
    """
    while pod.has_roles and not is_known(pod.names[0]):  # Kubernetes publishes it once the pod has an address
        clock.sleep(_LOOK_S)
    others = [greeting_of(name, pod.token, clock) for name in pod.names[1:]]
    addresses = (pod.address, *(address for _, address in others))
    return Allocation(
        job=pod.job,
        nodes=(pod.node, *(name for name, _ in others)),
        addresses=pod.names if pod.has_roles else addresses,
        cores_per_node=pod.cores,
        accelerators_per_node=pod.accelerators,
    )


def pod_of(env: Mapping[str, str], secrets: Path) -> Pod:
    """Read the variables that the manifest sets, and the job's Secret.

    Raises:
        EnvironmentProblem: this process does not run in a pod of a job.
    """
    try:
        counts = [int(count) for count in env["TRAINWORKS_NODES"].split(",")]
        groups = list(zip(env["TRAINWORKS_PODS"].split(","), counts, strict=True))
        first_nodes = list(accumulate(counts, initial=0))
        alone = (int(number) for number in env.get(STARTS_ALONE, "").split(",") if number)
        return Pod(
            index=first_nodes[int(env.get(GROUP, "0"))] + int(env["JOB_COMPLETION_INDEX"]),
            address=env["POD_IP"],
            node=env["NODE_NAME"],
            cores=int(env["TRAINWORKS_CORES"]),
            accelerators=int(env["TRAINWORKS_ACCELERATORS"]),
            names=tuple(names.replace("%d", str(index)) for names, count in groups for index in range(count)),
            starts_alone=frozenset(node for one in alone for node in range(first_nodes[one], first_nodes[one + 1])),
            has_roles=GROUP in env,
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


def write_termination_message(
    end: End,
    *,
    rank: int | None = None,
    node: int | None = None,
    restarts: int | None = None,
    path: Path = TERMINATION_LOG,
) -> None:
    """Record how a pod ends, where that began and after how many restarts, for clients without the run directory."""
    message = (end.message or "")[:_LONGEST_MESSAGE]
    hint = (end.hint or "")[: _LONGEST_MESSAGE - len(message)]
    words = {"state": end.state, "message": message or None, "hint": hint or None, "cause": end.cause}
    content = words | {"exit_code": end.exit_code, "rank": rank, "node": node, "restarts": restarts}
    try:
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"cannot write `{path}`: {error.strerror}\n")
