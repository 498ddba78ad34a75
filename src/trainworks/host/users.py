"""Users of this machine: names for messages, administrators, and the name of the machine itself."""

from __future__ import annotations

import getpass
import os
import socket
import sys

from trainworks.system import user_id

if sys.platform != "win32":
    import grp
    import pwd

ADMINISTRATORS = "trainworks-admins"
"""Group whose members may change the jobs of other users."""


def user_name(uid: int | None = None) -> str:
    """Name of a user for display, or the number of an unknown account; by default the user of this process."""
    uid = user_id() if uid is None else uid
    if sys.platform == "win32":
        return getpass.getuser() if uid == user_id() else f"uid {uid}"
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError, ValueError):
        return f"uid {uid}"


def is_administrator(uid: int) -> bool:
    """True for root and members of the group `trainworks-admins`, which only root can change; Windows has neither."""
    if sys.platform == "win32":
        return False
    if uid == 0:
        return True
    try:
        group, user = grp.getgrnam(ADMINISTRATORS), pwd.getpwuid(uid)
    except (KeyError, OverflowError, ValueError):
        return False
    return user.pw_gid == group.gr_gid or user.pw_name in group.gr_mem


def this_host() -> str:
    """Name of this machine in a shared job store: `$TRAINWORKS_HOST`, else the host name."""
    return os.environ.get("TRAINWORKS_HOST") or socket.gethostname()
