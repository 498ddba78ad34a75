"""Keep the code of a run as it is at submission: an archive with the same bytes for the same files, or none."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from pathspec import GitIgnoreSpec

from trainworks.errors import UsageError
from trainworks.files import fsync_folder, temporary_folder
from trainworks.record.resolved import KeptCode, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.units import format_bytes

IGNORE_FILES = (".gitignore", ".trainworksignore")
"""Files with patterns in the syntax of gitignore(5), in every folder; the later one has the last word."""
LIMIT_BYTES = 64 * 2**20
"""Most bytes of code: more are nearly always data or results that no ignore file lists."""
_SECRETS = (".env", ".env.*", "*.pem", "*.key", "id_rsa", "id_ed25519", "id_ecdsa", ".netrc", "credentials.json")


def pack(folder: Path, *, limit_bytes: int = LIMIT_BYTES, without: Path | None = None) -> tuple[bytes, KeptCode]:
    """Pack the files of a folder that no ignore file excludes, without `.git` and files named like secrets.

    Returns a tar file, compressed with gzip, and what it has, with the size of the files before compression.

    Args:
        folder: the working directory.
        limit_bytes: most bytes of all files before compression.
        without: a folder that is left out if it is below `folder`, such as that of all runs.

    Raises:
        UsageError: the files exceed `limit_bytes`, a link leads out of the folder, or a file is neither a regular
            file, a folder nor a link.
    """
    files, left_out, num_bytes = [], [], 0
    for name in sorted(packed_names(folder, without)):
        if any(fnmatchcase(Path(name).name, pattern) for pattern in _SECRETS):
            left_out.append(name)
            continue
        mode = (folder / name).lstat()
        _check_kind(folder, name, mode.st_mode)
        num_bytes += mode.st_size
        if num_bytes > limit_bytes:
            raise UsageError(
                f"the files of `{folder}` exceed {format_bytes(limit_bytes)}",
                hint="list data and results in .trainworksignore",
            )
        files.append(name)
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in files:
            _add(archive, folder, name)
    data = buffer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    return data, KeptCode(digest=digest, num_files=len(files), num_bytes=num_bytes, left_out=tuple(left_out))


def packed_names(folder: Path, without: Path | None = None) -> Iterator[str]:
    """Names of the files and links below a folder that no ignore file excludes, relative to it."""
    root = folder.resolve()
    excluded = without.resolve() if without else None
    if excluded is None or root == excluded or root not in excluded.parents:
        return _names(folder, "", ())
    escaped = re.sub(r"[*?\[\]\\!# ]", r"\\\g<0>", excluded.relative_to(root).as_posix())
    return _names(folder, "", (("", GitIgnoreSpec.from_lines([f"/{escaped}/"])),))


def _names(root: Path, below: str, rules: tuple[tuple[str, GitIgnoreSpec], ...]) -> Iterator[str]:
    for file in IGNORE_FILES:
        if (path := root / below / file).is_file():
            rules = (*rules, (below, GitIgnoreSpec.from_lines(path.read_text(errors="surrogateescape").splitlines())))
    with os.scandir(root / below) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for entry_name, is_folder in found:
        name = below + entry_name
        if entry_name == ".git" or _is_ignored(name + "/" * is_folder, rules):
            continue
        if is_folder:
            yield from _names(root, name + "/", rules)
        else:
            yield name


def _is_ignored(name: str, rules: tuple[tuple[str, GitIgnoreSpec], ...]) -> bool:
    verdict = False
    for below, spec in rules:
        if (found := spec.check_file(name[len(below) :]).include) is not None:
            verdict = found
    return verdict


def _check_kind(folder: Path, name: str, mode: int) -> None:
    if stat.S_ISLNK(mode):
        target = (folder / name).readlink()
        end = Path(os.path.realpath(folder / name))  # Path.resolve raises at a loop of links before Python 3.13
        if target.is_absolute() or not end.is_relative_to(folder.resolve()):
            raise UsageError(
                f"link `{name}` leads out of `{folder}`, to `{target}`",
                hint="copy the file, or list the link in .trainworksignore",
            )
    elif not stat.S_ISREG(mode):
        raise UsageError(f"`{name}` is a pipe, socket or device", hint="list it in .trainworksignore")


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    path = folder / name
    member = tarfile.TarInfo(name)  # owner, group and time stay 0: the digest depends on paths and contents only
    if path.is_symlink():
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        archive.addfile(member)
        return
    content = path.read_bytes()
    member.size = len(content)
    member.mode = 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
    archive.addfile(member, io.BytesIO(content))


def unpack(data: bytes, folder: Path) -> None:
    """Unpack an archive as `folder`, which is complete or absent at any time; nothing is done if it exists.

    One process at a time may do so: what an earlier one left that was killed meanwhile is removed.

    Raises:
        tarfile.FilterError: a member would be written outside `folder`.
    """
    if folder.is_dir():
        return
    with _atomic_folder(folder) as temporary, tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        archive.extractall(temporary, filter="data")


def link(unpacked: Path, folder: Path, *, num_files: int) -> bool:
    """Copy an unpacked archive as `folder`, complete or absent at any time, by hard links to its files.

    Files that were added to `unpacked` are not copied: those of an archive are recognized by their time, 0.

    Returns:
        False, without a copy, if files of the archive were changed or removed, or if the file system has no hard links.
    """
    names = []
    for name in packed_names(unpacked):
        status = (unpacked / name).lstat()
        if status.st_mtime_ns == 0 or stat.S_ISLNK(status.st_mode):  # tarfile sets no times of links
            names.append(name)
    if len(names) != num_files:
        return False
    try:
        with _atomic_folder(folder) as temporary:
            for name in names:
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(unpacked / name, temporary / name, follow_symlinks=False)
    except OSError:
        return False
    return True


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder`, on disk, at the end of the block; it is deleted after an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}.*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with temporary_folder(f".{folder.name}.", folder.parent) as temporary:
        yield temporary
        for path, _, names in os.walk(temporary):
            for name in names:
                if not (file := Path(path) / name).is_symlink():
                    fsync_folder(file)  # fsync takes a file that is open for reading as well
            fsync_folder(Path(path))
        temporary.chmod(0o755)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process has unpacked the same archive meanwhile
                raise
        fsync_folder(folder.parent)


def keep_code(
    resolved: ResolvedRun, run_dir: RunDir, *, notify: Callable[[str], None], first: RunDir | None = None
) -> ResolvedRun:
    """Copy the working directory of a run into its run directory, and let the run start in the copy.

    The run directory is itself never copied. `notify` receives a warning that names the files left out because they are
    named like secrets. `first` is the run directory of the first job of the same array: its copy is linked while no job
    has changed the files.

    Raises:
        UsageError: the files are too large, or one of them cannot be copied.
    """
    kept = first.read_resolved().code if first and first.resolved_file.exists() else None
    if not (kept and first and link(first.code_folder, run_dir.code_folder, num_files=kept.num_files)):
        folder = Path(resolved.working_folder)
        try:
            data, packed = pack(folder, without=run_dir.path.parent)
        except OSError as error:
            hint = "list the file in .trainworksignore"
            raise UsageError(f"cannot keep the code of `{folder}`: {error}", hint=hint) from None
        unpack(data, run_dir.code_folder)
        kept = packed.model_copy(update={"commit": resolved.commit})
        if kept.left_out:
            notify(f"the code of {run_dir.run_id} is kept without {', '.join(kept.left_out)}: named like secrets")
    return resolved.model_copy(update={"code": kept, "working_folder": str(run_dir.code_folder.absolute())})
