"""The git commit of a folder."""

from __future__ import annotations

from trainworks.errors import EnvironmentProblem
from trainworks.host import process

_LONGEST_S = 5.0


def commit_of(folder: str) -> str | None:
    """Hash of the checked-out commit, with `-dirty` if tracked files differ from it.

    Returns:
        None outside of a repository, without git, and in a repository that takes longer than five seconds.
    """
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        output = process.run(command, timeout_s=_LONGEST_S)
    except (OSError, EnvironmentProblem):
        return None
    return output.stdout.strip() or None if output.exit_code == 0 else None
