"""A working directory is packed with the rules of git, and unpacked completely or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainworks.errors import UsageError
from trainworks.record.code_archive import link, pack, packed_names, unpack

_FILES = (
    "train.py",
    "data/big.bin",
    "data/keep.txt",
    "a/b/x.log",
    "a/b/keep.log",
    "build/y",
    "sub/build/z",
    "ü \n$x.py",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in _FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


@pytest.mark.parametrize(
    "rules",
    [
        "",
        "*.log\n!keep.log\n",
        "/build\n",
        "build/\n",
        "data/*\n!data/keep.txt\n",
        "a/**/x.log\n",
        "data/\n!data/keep.txt\n",
    ],
)
@pytest.mark.parametrize("nested", ["", "*\n", "!x.log\n"])
def test_the_files_are_those_that_git_lists(tree: Path, rules: str, nested: str) -> None:
    (tree / ".gitignore").write_text(rules)
    (tree / "a/.gitignore").write_text(nested)
    subprocess.run(["git", "init", "-q", tree], check=True)
    listed = subprocess.run(
        ["git", "-C", tree, "ls-files", "-oz", "--exclude-per-directory=.gitignore"], check=True, capture_output=True
    )
    assert set(packed_names(tree)) == {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}


def test_equal_files_give_equal_bytes_whatever_their_times(tree: Path) -> None:
    first = pack(tree, limit_bytes=10**6)
    os.utime(tree / "train.py", (1, 1))
    assert pack(tree, limit_bytes=10**6) == first
    (tree / "train.py").chmod(0o755)
    assert pack(tree, limit_bytes=10**6)[1].digest != first[1].digest


def test_what_is_unpacked_is_what_was_packed(tree: Path, tmp_path: Path) -> None:
    (tree / "link").symlink_to("data/keep.txt")
    archive = pack(tree, limit_bytes=10**6)
    unpack(archive[0], tmp_path / "copy")
    assert pack(tmp_path / "copy", limit_bytes=10**6) == archive


def test_a_copy_is_linked_while_its_files_are_as_they_were_unpacked(tree: Path, tmp_path: Path) -> None:
    (tree / "link").symlink_to("data/keep.txt")
    archive = pack(tree, limit_bytes=10**6)
    unpack(archive[0], tmp_path / "first")
    (tmp_path / "first/result.txt").write_text("of the first job")
    assert link(tmp_path / "first", tmp_path / "second", num_files=archive[1].num_files)
    assert pack(tmp_path / "second", limit_bytes=10**6) == archive
    assert (tmp_path / "first/train.py").samefile(tmp_path / "second/train.py")
    with (tmp_path / "first/train.py").open("a") as file:
        file.write("# changed by the first job")
    assert not link(tmp_path / "first", tmp_path / "third", num_files=archive[1].num_files)
    assert not (tmp_path / "third").exists()


def test_secrets_are_left_out_and_named(tree: Path) -> None:
    (tree / ".env").write_text("TOKEN=x")
    archive = pack(tree, limit_bytes=10**6)
    assert (archive[1].left_out, archive[1].num_files) == ((".env",), len(_FILES))


def test_the_ignore_file_of_trainworks_has_the_last_word(tree: Path) -> None:
    (tree / ".gitignore").write_text("data/*\n")
    (tree / ".trainworksignore").write_text("!data/keep.txt\n*.log\n")
    ignored = {"data/big.bin", "a/b/x.log", "a/b/keep.log"}
    assert set(packed_names(tree)) == {*_FILES, ".gitignore", ".trainworksignore"} - ignored


def test_a_folder_inside_is_left_out_by_its_exact_name(tree: Path) -> None:
    (tree / "a[b]").mkdir()
    (tree / "a[b]/run").touch()
    assert set(packed_names(tree, tree / "a[b]")) == set(_FILES)


@pytest.mark.parametrize("target", ["/etc/passwd", "../other", "a/../../x", "sub/up/../x"])
def test_a_link_out_of_the_tree_is_refused(tree: Path, target: str) -> None:
    (tree / "sub/up").symlink_to("..")
    (tree / "link").symlink_to(target)
    with pytest.raises(UsageError, match="leads out of"):
        pack(tree, limit_bytes=10**6)


def test_a_pipe_and_too_many_bytes_are_refused(tree: Path) -> None:
    with pytest.raises(UsageError, match="exceed"):
        pack(tree, limit_bytes=10)
    os.mkfifo(tree / "pipe")
    with pytest.raises(UsageError, match="pipe, socket or device"):
        pack(tree, limit_bytes=10**6)


def test_a_kill_while_unpacking_leaves_no_folder_and_what_it_leaves_is_removed_by_the_next_start(
    tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.tgz").write_bytes(pack(tree, limit_bytes=10**6)[0])
    script = (
        "import os, signal, pathlib, trainworks.record.code_archive as c\n"
        "c.os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
        "c.unpack(pathlib.Path('a.tgz').read_bytes(), pathlib.Path('copy'))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False).returncode == -9
    assert not (tmp_path / "copy").exists() and list(tmp_path.glob(".copy.*"))
    unpack((tmp_path / "a.tgz").read_bytes(), tmp_path / "copy")
    assert set(packed_names(tmp_path / "copy")) == set(_FILES) and not list(tmp_path.glob(".copy.*"))
