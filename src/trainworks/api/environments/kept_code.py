"""Keep the code of a run as it is at submission."""

from __future__ import annotations

from pathlib import Path

from trainworks.api.notices import Notify
from trainworks.errors import UsageError
from trainworks.record.code_archive import link, pack, unpack
from trainworks.record.resolved import KeptCode, ResolvedRun
from trainworks.record.run_dir import RunDir


def keep_code(resolved: ResolvedRun, run_dir: RunDir, *, notify: Notify, first: RunDir | None = None) -> ResolvedRun:
    """Copy the working directory of a run into its run directory, and let the run start in the copy.

    Args:
        resolved: the run.
        run_dir: its run directory, which is itself never copied.
        notify: receives a warning that names the files left out because they are named like secrets.
        first: run directory of the first job of the same array. Its copy is linked while no job has changed the files.

    Raises:
        UsageError: the files are too large, or one of them cannot be copied.
    """
    kept = _linked(first, run_dir) if first else None
    if kept is None:
        kept = _copied(resolved, run_dir)
        if kept.left_out:
            notify(f"the code of {run_dir.run_id} is kept without {', '.join(kept.left_out)}: named like secrets")
    return resolved.model_copy(update={"code": kept, "working_folder": str(run_dir.code_folder.absolute())})


def _linked(first: RunDir, run_dir: RunDir) -> KeptCode | None:
    kept = first.read_resolved().code if first.resolved_file.exists() else None
    is_linked = kept is not None and link(first.code_folder, run_dir.code_folder, num_files=kept.num_files)
    return kept if is_linked else None


def _copied(resolved: ResolvedRun, run_dir: RunDir) -> KeptCode:
    folder = Path(resolved.working_folder)
    try:
        archive = pack(folder, without=run_dir.path.parent)
    except OSError as error:
        hint = "list the file in .trainworksignore"
        raise UsageError(f"cannot keep the code of `{folder}`: {error}", hint=hint) from None
    unpack(archive.data, run_dir.code_folder)
    return KeptCode(
        digest=archive.digest,
        num_files=archive.num_files,
        num_bytes=archive.num_bytes,
        left_out=archive.left_out,
        commit=resolved.commit,
    )
