"""Files that are complete or absent, whatever happens to the writer."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.small_disk import mounted
from trainworks.errors import DiskFullError
from trainworks.files import append_text, free_bytes, naming_full_disk, write_atomic

KILLED_BEFORE_THE_RENAME = """
import os, sys
from pathlib import Path
from trainworks.files import write_atomic
sys.addaudithook(lambda event, _: os._exit(9) if event == "os.rename" else None)
write_atomic(Path(sys.argv[1]), "new")
"""


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of 1 MB."""
    with mounted("size=1m") as disk:
        yield disk


@pytest.fixture
def disk_without_inodes() -> Iterator[Path]:
    """A disk that can hold its root folder and one file."""
    with mounted("nr_inodes=2") as disk:
        yield disk


@contextmanager
def files_of_at_most_1_kb() -> Iterator[None]:
    """Writing beyond 1 kB fails with EFBIG, half-way through; pytest's own output file as well, so keep it short."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("content", ["", "text\n", "naïve 漢字", b"\x00\xff", b"x" * 10**6])
def test_what_is_written_is_read(tmp_path: Path, content: str | bytes) -> None:
    write_atomic(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == (content.encode() if isinstance(content, str) else content)


def test_a_new_content_replaces_the_old(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", "old and long")
    write_atomic(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_others_may_read_the_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", "text")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_no_temporary_file_is_left(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_writer_killed_before_the_rename_leaves_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED_BEFORE_THE_RENAME, tmp_path / "file"], check=False)
    assert done.returncode == 9
    assert (tmp_path / "file").read_text() == "old"


def test_a_write_that_fails_half_way_leaves_the_old_content_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError, match="File too large"), files_of_at_most_1_kb():
        write_atomic(tmp_path / "file", b"x" * 4096)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


def test_a_rename_that_fails_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.root
def test_a_full_disk_is_named_and_keeps_the_old_content(small_disk: Path) -> None:
    write_atomic(small_disk / "file", "old")
    with pytest.raises(DiskFullError, match=r"no space left on device: .* free, writing `.*/file`"):
        write_atomic(small_disk / "file", b"x" * 2 * 2**20)
    assert {path.name: path.read_text() for path in small_disk.iterdir()} == {"file": "old"}


@pytest.mark.root
def test_a_disk_without_inodes_is_full_too(disk_without_inodes: Path) -> None:
    write_atomic(disk_without_inodes / "first", "")
    with pytest.raises(DiskFullError):
        write_atomic(disk_without_inodes / "second", "")


@pytest.mark.root
def test_appending_to_a_full_disk_is_named(small_disk: Path) -> None:
    with pytest.raises(DiskFullError):
        append_text(small_disk / "log", "x" * 2 * 2**20)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_and_no_quota_are_both_a_full_disk(tmp_path: Path, number: int) -> None:
    with pytest.raises(DiskFullError), naming_full_disk(tmp_path):
        raise OSError(number, os.strerror(number))


def test_any_other_error_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), naming_full_disk(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def test_appended_lines_follow_each_other(tmp_path: Path) -> None:
    append_text(tmp_path / "log", "one\n")
    append_text(tmp_path / "log", "two\nthree\n")
    assert (tmp_path / "log").read_text() == "one\ntwo\nthree\n"


def test_an_unfinished_line_is_closed_before_the_next(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\ntor")
    append_text(tmp_path / "log", "two\n")
    assert (tmp_path / "log").read_text() == "one\ntor\ntwo\n"


def test_free_space_of_a_folder_to_be_is_that_of_its_parent(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet") == pytest.approx(free_bytes(tmp_path), rel=0.1)
