"""What a pod knows of itself and of its job."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainworks.errors import EnvironmentProblem

__all__ = ["ENVS", "LAST_WORDS", "RESOLVED", "TOKEN", "Pod", "leave_words", "pod_of", "private_variables"]

RESOLVED = "resolved.json"
TOKEN = "token"  # noqa: S105  # the name of a file
ENVS = "envs.json"
"""Keys of the job's Secret, which are files in every pod."""
LAST_WORDS = Path("/dev/termination-log")
"""File whose content Kubernetes keeps with the end of a pod; `kubectl describe pod` shows it, the backend reads it."""

_LONGEST_MESSAGE = 600
"""Kubernetes keeps 4096 bytes, and a character takes up to six in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One node of a job."""

    index: int
    address: str
    node: str
    """Name of the cluster's node that it runs on."""
    num_nodes: int
    cores: int
    accelerators: int
    names: str
    """Where DNS has the pods of this job; `%d` is the index."""
    token: str = field(repr=False)
    """Who shows it belongs to the job."""

    @property
    def job(self) -> str:
        """Tells one submission of a run from another."""
        return hashlib.sha256(self.token.encode()).hexdigest()[:12]

    def name_of(self, index: int) -> str:
        """Of another pod of the job, in DNS."""
        return self.names.replace("%d", str(index))


def pod_of(env: Mapping[str, str], secrets: Path) -> Pod:
    """From the variables that the manifest asks for, and the job's Secret.

    Raises:
        EnvironmentProblem: this is no pod of a job.
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
            token=(secrets / TOKEN).read_text(encoding="utf-8"),
        )
    except KeyError as missing:
        hint = "this runs in a pod of a job: submit the run"
        raise EnvironmentProblem(f"{missing} is not set", hint=hint) from None
    except OSError as error:
        raise EnvironmentProblem(f"cannot read `{secrets / TOKEN}`: {error.strerror}") from None


def private_variables(secrets: Path) -> dict[str, str]:
    """Variables of the run file without a value there: they come from whoever submitted the run."""
    return dict(json.loads((secrets / ENVS).read_bytes()))


def leave_words(state: str, *, message: str | None, path: Path = LAST_WORDS, **words: Any) -> None:
    """Say how a pod ends, for those who do not see the run directory."""
    said = {"state": state, "message": (message or "")[:_LONGEST_MESSAGE] or None, **words}
    try:
        path.write_text(json.dumps(said, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"cannot write `{path}`: {error.strerror}\n")
