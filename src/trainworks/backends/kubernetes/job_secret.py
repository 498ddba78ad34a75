"""The Secret of a job: what its pods need, and the manifest does not hold."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any

from trainworks.agent.remote_agent import TOKEN_FILE
from trainworks.backends.kubernetes.pod import CODE, ENVS, RESOLVED
from trainworks.errors import UsageError
from trainworks.record.run_dir import RunDir
from trainworks.units import format_bytes

_LARGEST_BYTES = 1 << 20
"""Most bytes of all values together; MaxSecretSize in pkg/apis/core/types.go of Kubernetes."""


def secret_content(run_dir: RunDir, env: Mapping[str, str], *, has_volume: bool) -> dict[str, bytes]:
    """Values of the Secret by key: the resolved run, private variables, a new token and the kept code.

    Args:
        run_dir: of the run, on the machine that submits it.
        env: source of variables without a value in the run file.
        has_volume: whether the run directory is on a volume that outlives the pods.

    Raises:
        UsageError: a variable has no value, a workload has no volume, or the values exceed 1 MiB.
    """
    resolved = run_dir.read_resolved()
    if resolved.run_file.workload is not None and not has_volume:
        hint = "set `cluster.kubernetes.volume` to a PersistentVolumeClaim"
        raise UsageError("checkpoints need a volume that outlives the pods", hint=hint)
    names = [name for name, value in resolved.run_file.envs.items() if value is None]
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
        content[CODE] = _kept_code(run_dir, left_bytes)
    return content


def _kept_code(run_dir: RunDir, most_bytes: int) -> bytes:
    from trainworks.record.code_archive import pack  # noqa: PLC0415 - few runs need tarfile and pathspec

    data = pack(run_dir.code_folder).data
    if len(data) > most_bytes:
        raise UsageError(
            f"the code is {format_bytes(len(data))} packed, and a Secret has room for {format_bytes(most_bytes)}",
            place="job.keep_code",
            hint="list files in .trainworksignore, or put the code into the image or on the volume",
        )
    return data


def secret(owner: Mapping[str, Any], content: Mapping[str, bytes]) -> dict[str, Any]:
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
