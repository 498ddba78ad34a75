"""Who may change a job, and whose run directory a dispatcher executes.

The job store answers neither question for sure: every user who can write it can write any row. So a dispatcher executes
only what the file system says belongs to its own user.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from trainworks.errors import NotOwnerError
from trainworks.files import closing_handle
from trainworks.host.users import ADMINISTRATORS, is_administrator, this_host, user_name
from trainworks.jobs.database import sqlite_file
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.store import JobStore
from trainworks.system import IS_WINDOWS, others_write, owner_id, user_id

_WSL = "leave TRAINWORKS_STORE unset, or submit in WSL"


def check_may_change(job: JobRow) -> None:
    """Refuse to change a job of another user or of another machine; administrators may change every job here.

    Raises:
        NotOwnerError: naming the owner or the machine.
    """
    uid = user_id()
    if job.host not in (None, this_host()):
        raise NotOwnerError(
            f"cannot change job {job.id} ({job.run_id}) here: it belongs to the queue of {job.host}",
            hint=f"run this command on {job.host}",
        )
    if job.uid != uid and not is_administrator(uid):
        owner = job.owner if job.uid is None else user_name(job.uid)
        raise NotOwnerError(
            f"cannot change job {job.id} ({job.run_id}): it belongs to {owner}",
            hint=f"ask {owner}, root or a member of the group `{ADMINISTRATORS}`",
        )


def stopped_by(job: JobRow) -> str | None:
    """`stopped by ada` if a user has requested the end of the job; None otherwise."""
    is_asked = job.asked_to_end in ("stop", "kill") and job.asked_by is not None
    return f"stopped by {user_name(job.asked_by)}" if is_asked else None


def may_end(asked_by: int | None) -> bool:
    """Whether a dispatcher obeys a request of this user to end one of its jobs."""
    return asked_by is not None and (asked_by == user_id() or is_administrator(asked_by))


def obeyed_drains(store: JobStore) -> dict[str, str]:
    """Nodes that this user or an administrator has drained, and why; the drains of others are for their own jobs."""
    return {node: reason for node, (reason, uid) in store.drains().items() if may_end(uid)}


def check_undrain(store: JobStore, node: str) -> None:
    """Refuse to replace or lift the drain of another user; administrators may.

    Raises:
        NotOwnerError: naming the user.
    """
    _, uid = store.drains().get(node, ("", None))
    if uid not in (None, user_id()) and not is_administrator(user_id()):
        owner = user_name(uid)
        raise NotOwnerError(
            f"cannot change the drain of `{node}`: it belongs to {owner}",
            hint=f"ask {owner}, root or a member of the group `{ADMINISTRATORS}`",
        )


def is_private(store_url: str) -> bool:
    """Whether this user alone can write a job store: a SQLite file, in a folder, without access for others."""
    file = sqlite_file(store_url)
    return file is not None and not any(_others_write(path) for path in (file, file.parent) if path.exists())


def _others_write(path: Path) -> bool:
    facts = path.stat()
    return owner_id(facts) not in (0, user_id()) or others_write(facts)


def check_run_dir(folder: Path, *, shared: bool) -> None:
    """Refuse a run directory that another user made, or could have written to.

    If other users can write the store (`shared`), no folder above may be a link or belong to another user, who could
    put something else in the place of the run directory after this check. Windows keeps owners in access lists: there
    a run directory belongs to this user if the store does.

    Raises:
        NotOwnerError: with the owner, or what is wrong.
        OSError: the run directory cannot be read.
    """
    if IS_WINDOWS:
        if shared:
            raise NotOwnerError("a job store of several users cannot tell on Windows whose runs it has", hint=_WSL)
        return
    if shared:
        _check_parents(folder)
    with closing_handle(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)) as handle:
        _check_owner(folder, os.fstat(handle))
        for name in ("resolved.json", ".resolved.edited.json", ".environment.json"):
            try:
                facts = os.stat(name, dir_fd=handle, follow_symlinks=False)
            except FileNotFoundError:
                continue
            _check_owner(folder / name, facts, also=0)


def _check_parents(folder: Path) -> None:
    for parent in folder.parents:
        facts = parent.lstat()
        if not stat.S_ISDIR(facts.st_mode):
            raise NotOwnerError(f"`{folder}` does not belong to you for sure: `{parent}` is a link", hint=_MOVE)
        if facts.st_uid not in (0, user_id()):
            raise NotOwnerError(
                f"`{folder}` does not belong to you for sure: `{parent}` belongs to {user_name(facts.st_uid)}",
                hint=_MOVE,
            )
        if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
            raise NotOwnerError(
                f"`{folder}` does not belong to you for sure: every user can write `{parent}`",
                hint=f"chmod o-w {shlex.quote(str(parent))}, or {_MOVE}",
            )


_MOVE = "submit with `--runs` and a folder of your own"


def _check_owner(path: Path, facts: os.stat_result, also: int | None = None) -> None:
    if facts.st_uid not in (user_id(), also):
        raise NotOwnerError(
            f"`{path}` belongs to {user_name(facts.st_uid)}, and this dispatcher starts jobs of {user_name()} only",
            hint="submit the run again as its owner",
        )
    if others_write(facts):
        raise NotOwnerError(f"other users can write `{path}`", hint=f"chmod go-w {shlex.quote(str(path))}")
