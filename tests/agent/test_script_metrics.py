"""Files of trackers that a user's program writes, and the variables that name their folders."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tests.fakes import resolved_command
from trainworks.agent.script_metrics import ScriptMetricsReader, TrackerFile, tracker_environment, tracker_files
from trainworks.observe.trackers import event_file
from trainworks.record.run_dir import RunDir

BLOCK = 32768


def field(number: int, content: bytes) -> bytes:
    """A field of protobuf with bytes, of less than 16 KiB."""
    assert len(content) < 1 << 14
    key = number << 3 | 2
    head = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
    size = len(content)
    return head + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + content


def history(values: dict[str, str]) -> bytes:
    """A record of W&B: its number, and the history with the values as JSON."""
    items = b"".join(field(1, field(2, key.encode()) + field(16, value.encode())) for key, value in values.items())
    return b"\x08\x05" + field(2, items)


def wandb_file(records: list[bytes]) -> bytes:
    """A file of W&B: seven bytes, then chunks that end at blocks of 32 KiB."""
    data = bytearray(b":W&B&\xe1\x00")
    for record in records:
        begun = False
        while True:
            left = BLOCK - len(data) % BLOCK
            if left < 7:
                data += bytes(left)
                continue
            part, record = record[: left - 7], record[left - 7 :]  # noqa: PLW2901
            kind = {(False, True): 1, (False, False): 2, (True, False): 3, (True, True): 4}[begun, not record]
            data += struct.pack("<IHB", 0, len(part), kind) + part
            begun = True
            if not record:
                break
    return bytes(data)


@pytest.mark.parametrize(("ranks", "is_there"), [(range(1), False), (range(1, 2), True)])
def test_the_first_node_alone_removes_the_folder_that_all_nodes_share(
    tmp_path: Path, ranks: range, is_there: bool
) -> None:
    """Another one may be about to start its ranks in it."""
    run_dir = RunDir(tmp_path / "t-1")
    run_dir.script_trackers.mkdir(parents=True)
    reader = ScriptMetricsReader(run_dir, resolved_command("t-1"), ranks, attempt=1)
    reader.begin([])
    reader.end(whole=True)
    assert run_dir.script_trackers.exists() == is_there


def test_a_number_of_which_every_byte_is_above_127_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events"
    (negative,) = struct.unpack("<f", b"\x81\x82\x83\xbf")
    rows = event_file.scalars(2.0, 10, {"loss": 2.5, "reward": negative}) + event_file.scalars(
        3.0, 20, {"loss": negative}
    )
    path.write_bytes(event_file.first_event(1.0) + rows)
    assert [each["loss"] for each in TrackerFile("tensorboard", path).read()] == [2.5, negative]


@pytest.mark.parametrize(("line", "is_long"), [("loss: 3.0\n", True), ("step 9: loss 3.0\n", False)])
def test_an_output_that_says_no_steps_waits_until_a_tracker_has_written_its_own(
    tmp_path: Path, line: str, is_long: bool
) -> None:
    run_dir = RunDir(tmp_path / "t-1")
    run_dir.rank_log(0).parent.mkdir(parents=True)
    resolved = resolved_command("t-1").model_copy(update={"working_folder": str(tmp_path)})
    reader = ScriptMetricsReader(run_dir, resolved, range(1), attempt=1)
    waits = [reader._wait_s()]
    reader._pids = {os.getpid()}
    (tmp_path / f"events.out.tfevents.1.host.{os.getpid()}.0").write_bytes(event_file.first_event(1.0))
    run_dir.rank_log(0).write_text(line, encoding="utf-8")
    reader._look(last=False)
    reader._look(last=False)
    waits.append(reader._wait_s())
    assert (waits[1] > waits[0]) == is_long


def test_tensorboards_scalars_are_joined_by_their_step(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(
        event_file.first_event(1.0)
        + event_file.scalars(2.0, 10, {"train/loss": 2.5})
        + event_file.scalars(2.5, 10, {"train/lr": 0.5, "other": 7.0})
        + event_file.text(3.0, 10, "note", "loss 3")
    )
    file = TrackerFile("tensorboard", path)
    assert file.read() == [{"step": 10, "t": 2.5, "loss": 2.5, "lr": 0.5}]
    whole = event_file.scalars(4.0, 20, {"train/loss": 2.0, "eval/loss": 2.25})
    with path.open("ab") as opened:
        opened.write(whole[:30])
    assert file.read() == []
    with path.open("ab") as opened:
        opened.write(whole[30:])
    assert file.read() == [{"step": 20, "t": 4.0, "loss": 2.0, "eval_loss": 2.25}]


@pytest.mark.parametrize("filler", [0, 1000, 32600, 32671, 32675, 32680, 40000])
def test_a_record_of_wandb_may_lie_across_two_blocks(tmp_path: Path, filler: int) -> None:
    path = tmp_path / "run.wandb"
    first = history({"loss": "2.5", "_step": "3", "_timestamp": "12.5", "name": '"a"', "_runtime": "1"})
    path.write_bytes(wandb_file([b"\x08\x01" + bytes([0x1A, *_varint(filler)]) + bytes(filler), first]))
    assert TrackerFile("wandb", path).read() == [{"step": 3, "t": 12.5, "loss": 2.5}]


def _varint(value: int) -> list[int]:
    return [value & 127 | 128, value >> 7 & 127 | 128, value >> 14]


def test_wandbs_own_count_gives_way_to_the_step_of_the_trainer(tmp_path: Path) -> None:
    path = tmp_path / "run.wandb"
    path.write_bytes(wandb_file([history({"train/loss": "2.5", "train/global_step": "500", "_step": "3"})]))
    assert [each["step"] for each in TrackerFile("wandb", path).read()] == [500]


def test_a_record_of_wandb_that_is_not_whole_waits(tmp_path: Path) -> None:
    path = tmp_path / "run.wandb"
    whole = wandb_file([history({"loss": "2.5", "_step": "1"}), history({"loss": "2.0", "_step": "2"})])
    path.write_bytes(whole[:-4])
    file = TrackerFile("wandb", path)
    assert [each["step"] for each in file.read()] == [1]
    path.write_bytes(whole)
    assert [each["step"] for each in file.read()] == [2]


def test_the_metrics_of_mlflow_are_joined_by_their_step(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "loss").write_text("1000 2.5 10\n2000 2.0 20\n3000 1.")
    (tmp_path / "lr").write_text("1000 0.5 10\n")
    assert TrackerFile("mlflow", tmp_path).read() == [
        {"step": 10, "t": 1.0, "loss": 2.5, "lr": 0.5},
        {"step": 20, "t": 2.0, "loss": 2.0},
    ]


def test_the_tags_of_tensorboards_own_writer_are_read(tmp_path: Path) -> None:
    writer = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard").SummaryWriter(str(tmp_path))
    for step in (1, 2):
        writer.add_scalar("Loss/train", 3.0 / step, step)
        writer.add_scalar("Loss/val", 4.0 / step, step)
        writer.add_scalar("Accuracy/test", 0.25 * step, step)
        writer.add_scalars("loss", {"train": 3.0, "val": 4.0}, step)  # a folder of each: of val is no training loss
    writer.close()
    files = dict(tracker_files(tmp_path / "trackers", tmp_path, {os.getpid()}))
    assert files.keys() == {"tensorboard"}
    (path,) = tmp_path.glob("events.*")
    read = [each | {"t": 0} for each in TrackerFile("tensorboard", path).read()]
    assert read == [
        {"step": step, "t": 0, "loss": 3.0 / step, "eval_loss": 4.0 / step, "eval_accuracy": 0.25 * step}
        for step in (1, 2)
    ]
    for folder, field in (("loss_train", "loss"), ("loss_val", "eval_loss")):
        (path,) = (tmp_path / folder).glob("events.*")
        assert all(each.keys() == {"step", "t", field} for each in TrackerFile("tensorboard", path).read())


def test_a_folder_of_held_out_data_has_held_out_losses(tmp_path: Path) -> None:
    for folder, field in (("test", "loss"), ("train", "loss"), ("validation", "eval_loss"), ("test", "eval_loss")):
        path = tmp_path / folder / "events"  # Keras has the same tag in all, and a folder `test` alone is of a trial
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(event_file.scalars(2.0, 10, {"epoch_loss": 2.5}))
        assert TrackerFile("tensorboard", path).read() == [{"step": 10, "t": 2.0, field: 2.5}]


def test_a_curve_has_the_losses_of_steps_or_the_means_of_epochs(tmp_path: Path) -> None:
    path = tmp_path / "events"
    steps = [{"train_loss_step": 2.5}, {"train_loss_epoch": 3.0, "val_loss_step": 5.0, "val_loss_epoch": 4.0}]
    path.write_bytes(b"".join(event_file.scalars(2.0, step, each) for step, each in enumerate(steps, 1)))
    assert TrackerFile("tensorboard", path).read() == [
        {"step": 1, "t": 2.0, "loss": 2.5},
        {"step": 2, "t": 2.0, "eval_loss": 4.0},
    ]


def test_the_run_file_names_a_tag(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(event_file.scalars(2.0, 10, {"objective/kl": 0.5, "loss": 9.0}))
    assert TrackerFile("tensorboard", path, {"loss": "objective/kl"}).read() == [{"step": 10, "t": 2.0, "loss": 0.5}]


def test_event_files_belong_to_the_processes_of_the_run(tmp_path: Path) -> None:
    own, other = (tmp_path / "logs" / f"events.out.tfevents.1700000000.host.{pid}.0" for pid in (41, 42))
    own.parent.mkdir()
    own.touch()
    other.touch()
    assert list(tracker_files(tmp_path / "trackers", tmp_path, {41})) == [("tensorboard", own)]
    assert list(tracker_files(tmp_path / "trackers", tmp_path, ())) == []


def test_a_program_keeps_the_variables_that_it_has(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    kept = {"WANDB_DIR": "/data", "MLFLOW_TRACKING_URI": "http://ml:5000", "HOME": str(tmp_path)}
    assert tracker_environment(tmp_path, kept) == {}
    assert tracker_environment(tmp_path, kept | {"HOME": "/nowhere"}) == {"WANDB_MODE": "offline"}
    assert tracker_environment(tmp_path, {"WANDB_API_KEY": "key"}) == {
        "WANDB_DIR": str(tmp_path),
        "MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
