"""What a manifest of Trainworks says of its job beside what Kubernetes reads, so that it can be read back.

The annotation has the command as it was written, and a hash of the one that Kubernetes starts: who edits that one gets
it, and not the one of the annotation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

JOB = "trainworks/job"
"""Annotation of a JobSet or TrainJob that Trainworks wrote for `kubectl apply`."""
SUBMITTED = "trainworks/run"
"""Annotation of a JobSet that Trainworks submitted itself."""
OWN_POD_SECURITY: dict[str, object] = {"seccompProfile": {"type": "RuntimeDefault"}}
OWN_CONTAINER_SECURITY: dict[str, object] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""`securityContext` of pods and of their containers under the Pod Security standard `restricted`."""
OWN_VARIABLES = ("RESTARTS", "TRAINWORKS_RUN_DIR")
"""Variables that the program of an exported pod reads."""
_KEYS = {"name", "run", "setup", "framework", "processes_per_node", "accelerator", "sha256"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnJob:
    """Command of a job as in its run file; without text for a manifest of others."""

    name: str | None = None
    run: str | None = None
    setup: str | None = None
    framework: str | None = None
    processes_per_node: int | None = None
    """None for a command that starts once per node."""
    accelerator: str | None = None
    sha256: str = ""
    """Hash of the command that Kubernetes starts."""

    def wrote(self, argv: Sequence[str]) -> bool:
        """Whether a command is the one that Trainworks wrote."""
        return self.run is not None and hash_of(argv) == self.sha256

    def to_json(self) -> str:
        """Value of the annotation."""
        return json.dumps({key: getattr(self, key) for key in self.__slots__ if getattr(self, key) is not None})


def hash_of(argv: Sequence[str]) -> str:
    """Hash of a command in Kubernetes' spelling."""
    return hashlib.sha256("\0".join(argv).encode()).hexdigest()


def own_job(metadata: Mapping[str, Any]) -> OwnJob:
    """The job in the annotation of a manifest; an empty one if there is none, or if it cannot be read."""
    annotations = metadata.get("annotations")
    text = annotations.get(JOB) if isinstance(annotations, Mapping) else None
    try:
        values = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return OwnJob()
    known = values.keys() <= _KEYS and isinstance(values.get("run"), str) if isinstance(values, dict) else False
    return OwnJob(**values) if known else OwnJob()
