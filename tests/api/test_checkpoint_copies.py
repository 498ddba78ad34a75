"""Copies of checkpoints in folders and S3-compatible stores are complete or absent, whatever is killed or fails."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest
import requests

from tests.worker.object_store import s3_server
from trainworks.api.checkpointing.copies import prune_copies
from trainworks.config.layout import ResolvedLayout
from trainworks.config.spec import CheckpointCopy
from trainworks.errors import EnvironmentProblem
from trainworks.host.copies.places import CheckpointPlace, FolderPlace, place_of
from trainworks.host.copies.s3 import S3Place
from trainworks.jobs.state import JobState
from trainworks.observe.copies.copier import Copier, linked
from trainworks.record.events.log import read_events
from trainworks.record.manifest import Manifest, checksum, delete_checkpoint, read_manifest, write_manifest
from trainworks.record.run_dir import RunDir

LAYOUT = ResolvedLayout(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, micro_batch=1, grad_accum_steps=1)
PART_BYTES = 5 << 20
"""S3's least."""


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """The address of moto's server."""
    with s3_server() as server:
        yield "http://{}:{}".format(*server.get_host_and_port())


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointPlace:
    """An empty place."""
    if request.param == "folder":
        return FolderPlace(tmp_path / "away" / "run-1")
    request.getfixturevalue("store")
    return S3Place(f"s3://bucket/{tmp_path.name}/run-1", part_bytes=PART_BYTES)


@pytest.fixture
def s3(store: str, tmp_path: Path) -> S3Place:
    """An empty prefix."""
    return S3Place(f"s3://bucket/{tmp_path.name}/run-1", part_bytes=PART_BYTES)


def save(run_dir: RunDir, step: int, *, num_bytes: int = 1000, seed: int = 0) -> tuple[Manifest, Path]:
    """Complete a checkpoint."""
    folder = run_dir.checkpoint(step)
    delete_checkpoint(folder)
    folder.mkdir(parents=True)
    files = {"rank-0.safetensors": bytes((step + seed,)) * num_bytes, "metadata.json": b"{}", "empty": b""}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    manifest = Manifest(
        step=step,
        attempt=1,
        created_at=float(step) + seed,
        layout=LAYOUT,
        samples_consumed=step,
        data_fingerprint="",
        torch="",
        files={name: len(content) for name, content in files.items()},
        checksums={name: checksum(folder / name) for name in files},
    )
    write_manifest(folder, manifest)
    return manifest, folder


def copied_back(place: CheckpointPlace, manifest: Manifest, target: Path) -> bool:
    """Whether a copy comes back as it went."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    place.get(manifest, target)
    return all(checksum(target / name) == value for name, value in manifest.checksums.items()) and (
        read_manifest(target) == manifest
    )


def test_a_copy_comes_back_bit_by_bit(place: CheckpointPlace, run_dir: RunDir, tmp_path: Path) -> None:
    manifest, folder = save(run_dir, 20, num_bytes=PART_BYTES + 7)
    assert place.manifests() == {}
    place.put(manifest, folder)
    assert place.manifests() == {20: manifest}
    assert copied_back(place, manifest, tmp_path / "back")
    place.delete(20)
    assert place.manifests() == {}


def test_a_damaged_checkpoint_is_not_copied(place: CheckpointPlace, run_dir: RunDir) -> None:
    manifest, folder = save(run_dir, 20)
    (folder / "rank-0.safetensors").write_bytes(b"x" * 1000)
    with pytest.raises(EnvironmentProblem, match=r"damaged: rank-0\.safetensors: checksum differs"):
        place.put(manifest, folder)
    assert place.manifests() == {}


@pytest.mark.parametrize("calls", [1, 2, 3, 5, 7, 8, 10])
def test_an_upload_that_is_killed_at_any_request_is_finished_by_the_next(
    s3: S3Place, run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    manifest, folder = save(run_dir, 20, num_bytes=2 * PART_BYTES + 7)
    numbers, make = count(1), s3._s3._make_api_call

    def killed(operation: str, arguments: dict) -> object:
        if next(numbers) >= calls:
            raise KeyboardInterrupt
        return make(operation, arguments)

    with monkeypatch.context() as patched:
        patched.setattr(s3._s3, "_make_api_call", killed)
        with pytest.raises(KeyboardInterrupt):
            s3.put(manifest, folder)
    there = S3Place(s3.address, part_bytes=PART_BYTES)
    assert there.manifests() in ({}, {20: manifest})
    there.put(manifest, folder)
    assert copied_back(there, manifest, tmp_path / "back")
    assert there._uploads("") == []


def test_parts_that_arrived_are_not_sent_again(s3: S3Place, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, folder = save(run_dir, 20, num_bytes=3 * PART_BYTES)
    make, sent = s3._s3._make_api_call, []

    def watched(operation: str, arguments: dict) -> object:
        if operation == "CompleteMultipartUpload" and not sent.count("killed"):
            sent.append("killed")
            raise KeyboardInterrupt
        sent.append(operation)
        return make(operation, arguments)

    monkeypatch.setattr(s3._s3, "_make_api_call", watched)
    with pytest.raises(KeyboardInterrupt):
        s3.put(manifest, folder)
    before = sent.index("killed")
    s3.put(manifest, folder)
    assert sent[:before].count("UploadPart") == 3
    assert sent[before:].count("UploadPart") == 2  # of the two small files


@pytest.fixture
def flaky(store: str) -> Iterator[str]:
    """A store that fails every third request: with 503, or by a connection that breaks off."""
    numbers, lock = count(1), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with lock:
                number = next(numbers)
            if number % 3 == 0:
                self.close_connection = True
                if number % 2:
                    self.send_response(503)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                return
            reply = requests.request(self.command, store + self.path, headers=dict(self.headers), data=body, timeout=30)
            self.send_response(reply.status_code)
            for name, value in reply.headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "content-length", "content-encoding"):
                    self.send_header(name, value)
            length = reply.headers["Content-Length"] if self.command == "HEAD" else str(len(reply.content))
            self.send_header("Content-Length", length)
            self.end_headers()
            content = reply.content
            if self.command == "GET" and len(content) > PART_BYTES and number % 2:  # breaks off in the middle
                content, self.close_connection = content[: len(content) // 2], True
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_store_that_fails_every_third_request_is_asked_again(
    flaky: str, run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    place = S3Place(f"s3://bucket/{tmp_path.name}/flaky", endpoint=flaky, part_bytes=PART_BYTES)
    manifest, folder = save(run_dir, 20, num_bytes=3 * PART_BYTES)
    place.put(manifest, folder)
    assert copied_back(place, manifest, tmp_path / "back")


def test_a_store_that_is_not_there_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    with pytest.raises(EnvironmentProblem, match=r"cannot reach `s3://bucket/x`"):
        S3Place("s3://bucket/x", endpoint="http://127.0.0.1:9").manifests()
    with pytest.raises(EnvironmentProblem, match=r"the store refuses `s3://no-bucket/x`: NoSuchBucket"):
        S3Place("s3://no-bucket/x").manifests()


# Beside a run


class Watched:
    """A run, and the process that copies its checkpoints."""

    def __init__(self, run_dir: RunDir, place: CheckpointPlace) -> None:
        self.state = JobState.RUNNING
        self.run_dir, self.place = run_dir, place
        self.copier = Copier(run_dir, place, keep=2, state=lambda: self.state)

    def events(self) -> list[tuple[str, int]]:
        """Kind and step of what the copier wrote."""
        events = read_events(self.run_dir.events_file)
        return [(event["kind"], event["step"]) for event in events if event["kind"].startswith("checkpoint_cop")]


def test_the_newest_checkpoints_are_kept_there(run_dir: RunDir, place: CheckpointPlace) -> None:
    watched = Watched(run_dir, place)
    watched.copier.send()
    for step in (10, 20, 30):
        save(run_dir, step)
        watched.copier.send()
        watched.copier.send()
    assert sorted(place.manifests()) == [20, 30]
    assert watched.events() == [("checkpoint_copied", 10), ("checkpoint_copied", 20), ("checkpoint_copied", 30)]
    assert not list(run_dir.path.glob("copying-*"))


def test_the_copy_of_the_best_checkpoint_is_spared(run_dir: RunDir, place: CheckpointPlace) -> None:
    copier = Copier(run_dir, place, keep=1, state=lambda: JobState.RUNNING, best_step=lambda: 10)
    for step in (10, 20, 30):
        save(run_dir, step)
        copier.send()
    assert sorted(place.manifests()) == [10, 30]
    assert prune_copies([place], 1, 30) > 0
    assert sorted(place.manifests()) == [30]


def test_a_checkpoint_of_before_a_rollback_is_replaced(run_dir: RunDir, place: CheckpointPlace, tmp_path: Path) -> None:
    watched = Watched(run_dir, place)
    save(run_dir, 10)
    watched.copier.send()
    manifest, _ = save(run_dir, 10, seed=1)
    watched.copier.send()
    assert place.manifests() == {10: manifest}
    assert copied_back(place, manifest, tmp_path / "back")


def test_a_checkpoint_that_the_run_deletes_during_the_copy_is_copied_to_the_end(
    run_dir: RunDir, s3: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(run_dir, s3)
    manifest, folder = save(run_dir, 10)
    put = s3.put
    monkeypatch.setattr(s3, "put", lambda *given: (delete_checkpoint(folder), put(*given)))
    watched.copier.send()
    assert copied_back(s3, manifest, tmp_path / "back")


def test_a_checkpoint_that_is_deleted_before_is_left_out(run_dir: RunDir, tmp_path: Path) -> None:
    manifest, folder = save(run_dir, 10)
    shutil.rmtree(folder)
    assert not linked(manifest, folder, tmp_path / "links")


def test_a_copier_deletes_the_links_that_one_of_its_place_left_when_it_was_killed(
    run_dir: RunDir, place: CheckpointPlace
) -> None:
    manifest, folder = save(run_dir, 10)
    for number in (0, 1):
        assert linked(manifest, folder, run_dir.path / f"copying-{number}")
    Watched(run_dir, place)
    assert [left.name for left in run_dir.path.glob("copying-*")] == ["copying-1"]


def test_the_copy_of_a_run_that_ended_is_finished_before_its_end_is_reported(run_dir: RunDir, s3: S3Place) -> None:
    watched = Watched(run_dir, s3)
    save(run_dir, 10)
    watched.state = JobState.SUCCEEDED
    assert watched.copier.send() is JobState.SUCCEEDED
    assert sorted(s3.manifests()) == [10]


def test_every_copy_of_a_run_has_a_folder_of_its_own(tmp_path: Path, store: str) -> None:
    assert place_of(CheckpointCopy(to="s3://bucket/p/"), "run-7").address == "s3://bucket/p/run-7"
    assert place_of(CheckpointCopy(to=str(tmp_path)), "run-7").address == f"{tmp_path}/run-7"


@pytest.mark.parametrize(
    "value",
    [
        "s3://key:secret@bucket/prefix",
        "gs://bucket/prefix",
        {"to": "/mnt/other", "endpoint": "http://127.0.0.1"},
        {"to": "s3://bucket/p", "endpoint": "http://key:secret@127.0.0.1"},
        {"to": "/mnt/other", "keep": 0},
    ],
)
def test_what_is_no_place_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="1 validation error"):
        CheckpointCopy.model_validate(value)
