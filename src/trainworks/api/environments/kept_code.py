"""Keep the code of a run as it is at submission."""

from __future__ import annotations

from pathlib import Path

from trainworks.api.notices import Notify
from trainworks.errors import UsageError
from trainworks.record.code_archive import pack, unpack
from trainworks.record.resolved import KeptCode, ResolvedRun
from trainworks.record.run_dir import RunDir

LIMIT_BYTES = 64 * 2**20
"""Most bytes of code: more are nearly always data or results that no ignore file lists."""


def keep_code(resolved: ResolvedRun, run_dir: RunDir, *, notify: Notify) -> ResolvedRun:
    """Copy the working directory of a run into its run directory, and let the run start in the copy.

    Args:
        resolved: the run.
        run_dir: its run directory, which is itself never copied.
        notify: receives a warning that names the files left out because they are named like secrets.

    Raises:
        UsageError: the files are too large, or one of them cannot be copied.
    """
    folder = Path(resolved.working_folder)
    try:
        archive = pack(folder, limit_bytes=LIMIT_BYTES, without=run_dir.path.parent)
    except OSError as error:
        hint = "list the file in .trainworksignore"
        raise UsageError(f"cannot keep the code of `{folder}`: {error}", hint=hint) from None
    unpack(archive.data, run_dir.code_folder)
    if archive.left_out:
        notify(f"the code of {run_dir.run_id} is kept without {', '.join(archive.left_out)}: named like secrets")
    kept = KeptCode(
        digest=archive.digest,
        num_files=archive.num_files,
        num_bytes=archive.num_bytes,
        left_out=archive.left_out,
    )
    return resolved.model_copy(update={"code": kept, "working_folder": str(run_dir.code_folder.absolute())})
