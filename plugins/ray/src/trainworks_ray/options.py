"""The `cluster.ray` block of a run file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from trainworks.config.spec import Spec

__all__ = ["RayOptions"]

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@/:+=,\[\]-]*$", max_length=253)]
"""Resource name: no blanks, no quotes, nothing that a shell interprets."""
Place = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9/][A-Za-z0-9._@/:+=-]*$", max_length=4096)]
"""Path: no blanks, no quotes, nothing that a shell interprets."""
Url = Annotated[
    str,
    StringConstraints(pattern=r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$"),
]
"""Address of a service, without user, password and query."""
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of an environment variable."""


class RayOptions(Spec):
    """A running Ray cluster, through the HTTP interface of its jobs."""

    address: Url | None = None
    """Address of the dashboard: `http://ray-head:8265`."""
    token_from: Variable = "RAY_AUTH_TOKEN"  # noqa: S105, a name
    """Environment variable with the cluster's token; without it, requests carry no token."""
    verify_tls: bool = True
    """Verify the certificate of an `https` address."""
    ca_file: Place | None = None
    """Certificates to trust instead of the system's."""
    python: Place = "python"
    """Python with Ray, as a shell on the head node finds it."""
    resources: dict[Word, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Further resources that every node must have, in Ray's names: `{spot: 1}`."""
