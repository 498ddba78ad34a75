"""dev/server.json and dev/use.json: how to reach the ssh server or JupyterLab of `trainworks dev`, and who uses it.

The node program of the job writes both. `dev/` holds the secrets of the server, too, and only its user can read it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trainworks.config.spec import Spec

DevKind = Literal["ssh", "jupyter"]
_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@\\-]*$", max_length=253)]
"""No blank, quote or shell character: it becomes a word of an ssh configuration."""
_Key = Annotated[str, StringConstraints(pattern=r"^[a-z0-9@.-]+ [A-Za-z0-9+/=]+$", max_length=2000)]


class DevServer(Spec):
    """The content of dev/server.json, written once the server answers."""

    kind: DevKind
    host: _Name
    """Name of the node."""
    address: _Name
    """Address that the server listens on; a loopback address if only the node itself can connect."""
    port: Annotated[int, Field(ge=1, le=65535)]
    user: _Name
    """Only this user can log in."""
    host_key: _Key | None = None
    """Public key of the ssh server, as in a known_hosts file without the name; None for JupyterLab."""
    token_file: str | None = None
    """File with the token of JupyterLab, on the node; None for ssh."""


class DevUse(Spec):
    """The content of dev/use.json, written when it changes."""

    open: int = 0
    """Sessions of ssh that are open now, or kernels of JupyterLab that are busy now."""
    opened: int = 0
    """How often that number has grown since the server started."""
