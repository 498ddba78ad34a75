"""What a login node does for a machine whose files it does not see."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from trainworks.backends import record_parts
from trainworks.backends.record_parts import send
from trainworks.backends.slurm.login_side import discard, receive

AT = 1_760_000_000.0
HOSTILE = 'it\'s "a" $(run) %j é'


def packed(files: dict[str, str], created_at: float = AT) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in {"resolved.json": json.dumps({"created_at": created_at}), **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return content.getvalue()


def put(folder: Path, files: dict[str, str], created_at: float = AT) -> None:
    content = packed(files, created_at)
    receive(content, folder, hashlib.sha256(content).hexdigest())


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_second_copy_replaces_the_files_and_keeps_the_code_and_the_record(tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE / "t-1"
    put(folder, {"status.json": "1", "code/a.py": "old"})
    (folder / "checkpoint").write_text("kept")
    put(folder, {"status.json": "2", "code/a.py": "new"})
    assert ((folder / "status.json").read_text(), (folder / "code" / "a.py").read_text()) == ("2", "old")
    assert (folder / "checkpoint").read_text() == "kept" and names(folder.parent) == ["t-1"]


def test_what_does_not_arrive_completely_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path / "t-1", {"status.json": "1"})
    content = packed({"status.json": "2"})
    digest = hashlib.sha256(content).hexdigest()
    for name in ("t-1", "t-2"):
        with pytest.raises(ValueError, match="completely"):
            receive(content[:-20], tmp_path / name, digest)
    assert names(tmp_path) == ["t-1"] and (tmp_path / "t-1" / "status.json").read_text() == "1"


def test_what_cannot_be_unpacked_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(tarfile.FilterError):
        put(tmp_path / "runs" / "t-1", {"../outside": "x"})
    assert names(tmp_path) == ["runs"] and names(tmp_path / "runs") == []


def test_what_a_killed_process_left_is_removed_by_the_next_one_of_the_same_run(tmp_path: Path) -> None:
    for name in (".t-1.partial-x", ".t-11.partial-x"):
        (tmp_path / name / "code").mkdir(parents=True)
    put(tmp_path / "t-1", {})
    assert names(tmp_path) == [".t-11.partial-x", "t-1"]


def test_the_folder_of_a_deleted_run_with_the_same_path_is_kept_under_another_name(tmp_path: Path) -> None:
    put(tmp_path / "t-1", {"status.json": "SUCCEEDED"}, AT)
    put(tmp_path / "t-1", {"status.json": "QUEUED"}, AT + 60)
    assert (tmp_path / "t-1" / "status.json").read_text() == "QUEUED"
    assert (tmp_path / f"t-1.of-{AT}" / "status.json").read_text() == "SUCCEEDED"


def test_the_copy_of_a_refused_job_is_removed_unless_the_job_has_begun_before(tmp_path: Path) -> None:
    put(tmp_path / "t-1", {"status.json": "QUEUED", "code/a.py": "x"})
    put(tmp_path / "t-2", {"status.json": "QUEUED", "events.jsonl": ""})
    for name in ("t-1", "t-2", "t-3"):
        discard(tmp_path / name)
    assert names(tmp_path) == ["t-2"]


@pytest.mark.parametrize(
    ("name", "known", "start", "content"),
    [
        ("events.jsonl", "", 0, "one\ntwo\n"),
        ("events.jsonl", "one\n", 4, "two\n"),
        ("logs/rank-0.log", "one\n", 4, "two\n"),
        ("events.jsonl", "one\ntwo\nof this machine\n", 0, "one\ntwo\n"),
        ("status.json", "one\n", 0, "one\ntwo\n"),
    ],
)
def test_of_a_file_that_grows_only_the_end_is_sent(
    tmp_path: Path, name: str, known: str, start: int, content: str
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("one\ntwo\n")
    runs = {str(tmp_path): {name: (len(known), 1)} if known else {}}
    changed_at = file.stat().st_mtime_ns
    assert send(runs, 100) == {
        "runs": {str(tmp_path): {name: {"start": start, "content": content, "time": changed_at}}},
        "is_whole": True,
    }
    runs = {str(tmp_path): {name: (8, changed_at)}}
    assert send(runs, 100) == {"runs": {str(tmp_path): {}}, "is_whole": True}


def test_a_long_log_comes_in_parts_and_ends_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_parts, "LOG_LIMIT_BYTES", 10)
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "rank-0.log"
    log.write_bytes(b"\xff" + b"a" * 20)
    got, time, parts = b"", 0, []
    for _ in range(4):
        answer = send({str(tmp_path): {"logs/rank-0.log": (len(got), time)}}, 4)
        part = answer["runs"][str(tmp_path)].get("logs/rank-0.log", {"start": len(got), "content": ""})
        parts.append((part["start"], len(part["content"]), answer["is_whole"]))
        got += part["content"].encode("latin-1")
    assert parts == [(0, 4, False), (4, 4, False), (8, 2, True), (10, 0, True)]
    assert got == log.read_bytes()[:10]


def test_only_the_record_is_sent(tmp_path: Path) -> None:
    for name in ("status.json", "secret.pem", "code/a.py", "checkpoints/w", "logs/.a.tmp", "logs/rank-0.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "logs" / "node-0.log").symlink_to("/etc/passwd")
    assert list(send({str(tmp_path): {}}, 100)["runs"][str(tmp_path)]) == ["status.json", "logs/rank-0.log"]


def test_a_run_without_a_copy_has_nothing_to_send(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert send({gone: {}}, 100) == {"runs": {gone: {}}, "is_whole": True}
