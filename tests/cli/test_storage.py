"""`trainworks storage`: what it prints, explains and refuses."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tests.program import trainworks_program
from trainworks.api.storage import storage
from trainworks.catalog.cluster import parse_cluster
from trainworks.cli.planning.goodput import goodput_command
from trainworks.cli.planning.storage import storage_command
from trainworks.config.data import Reencoding
from trainworks.config.load import parse_run_file
from trainworks.errors import TrainworksError
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.worker.data.card import DatasetCard, ReencodingGain, Shard

TEXT = """\
name: llama
workload:
  task: causal-lm
  model: {preset: llama2-70b}
  data: {sequence_length: 4096}
  precision: bf16
  global_batch: 1024
  train_for: 300B tokens
cluster: 16 nodes of DGX H100
layout: {dp_shard: 8, zero: 1, tp: 8, pp: 2, micro_batch: 1, sequence_parallel: true}
"""
IMAGES = """\
name: resnet
workload:
  task: image-classification
  model: {preset: resnet-50}
  data: {image_size: 224}
  precision: bf16
  global_batch: 8192
  train_for: 14000 steps
cluster: 4 nodes of 8x A100-SXM-80GB over 8x HDR
layout: {dp_shard: 32, zero: 1, micro_batch: 256}
"""


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No measurement of this machine's user calibrates a plan."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("TRAINWORKS_DATA", raising=False)


def run(tmp_path: Path, text: str = TEXT, **options: Any) -> None:
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    storage_command(tmp_path / "run.yaml", **options)


def answer(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str = TEXT, **options: Any) -> dict[str, Any]:
    run(tmp_path, text, as_json=True, **options)
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def refusal(tmp_path: Path, text: str = TEXT, **options: Any) -> str:
    with pytest.raises(TrainworksError) as refused:
        run(tmp_path, text, **options)
    return refused.value.render().replace(f"{tmp_path}/", "")


def masked(text: str) -> str:
    """Without what a better fit of the step time would change."""
    text = re.sub(r"(?m)^(step .* in ).*?,", r"\1#,", text)
    return re.sub(r"(?m)^(dataset read|files opened) .*?(\S*/s)", r"\1 # \2", text)


def counted(text: str) -> str:
    """Without any number, and without the blanks that align them."""
    return "\n".join(" ".join(re.sub(r"\d[\d,.]*", "#", line).split()) for line in text.splitlines()) + "\n"


@pytest.mark.parametrize(
    ("text", "name", "mask"), [(TEXT, "storage_text.txt", masked), (IMAGES, "storage_images.txt", counted)]
)
def test_storage_reads_like_this(tmp_path: Path, capsys, golden, monkeypatch, text: str, name: str, mask) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    run(tmp_path, text)
    golden(name, "".join(f"{line.rstrip()}\n" for line in mask(capsys.readouterr().out).splitlines()))


def test_prepared_images_are_planned_as_they_are_stored(tmp_path: Path) -> None:
    """Sizes, shards and decoding rate come from the card: 2,000 images of 10 kB in two files, 500 images/s per core."""
    how = Reencoding(format="webp", size=256)
    gain = ReencodingGain(
        how=how, source_bytes=1, sample=9, image_size=224, source_images_per_s=1, images_per_s=500, psnr_db=40
    )
    shards = {name: Shard(items=1000, num_bytes=10_000_000, sha256="") for name in ("a", "b")}
    card = DatasetCard(kind="images", source="", fingerprint="", shards=shards, gain=gain)
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "dataset.json").write_text(card.model_dump_json(), encoding="utf-8")
    text = IMAGES.replace("{image_size: 224}", f"{{image_size: 224, source: {tmp_path}/prepared}}")
    planned = storage(parse_run_file(text, name="run.yaml")[0])
    rate = 8192 / planned.plan.best[0].step_time_s
    assert planned.demand.dataset.value == 20_000_000
    assert planned.demand.opens.value == pytest.approx(rate / 1000)
    assert planned.needs.workers.value == max(8, math.ceil(rate / 4 / 500))
    unprepared = storage(parse_run_file(IMAGES, name="run.yaml")[0])
    assert planned.demand.read.value / unprepared.demand.read.value == pytest.approx(10_000 / 110_000)


def test_a_figure_is_explained_down_to_its_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, explain="checkpoint size")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "checkpoint size = 966 GB"
    assert lines[1].startswith("    = parameters * (master + moments + copy)   where master is master weights, ")
    assert (
        "      fp32 per parameter; AdamW: Rajbhandari et al. 2020 (ZeRO), section 3.1; the gradients are not saved"
        in lines
    )


def test_the_answer_has_base_units_in_its_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = answer(tmp_path, capsys)
    assert of["demand"]["checkpoint_size_bytes"] == 68_976_648_192 * 14
    interval_s = of["demand"]["checkpoint_interval_s"]
    assert of["demand"]["checkpoint_write_bytes_per_s"] == pytest.approx(68_976_648_192 * 14 / interval_s)
    assert of["recommended"] == "NFS"


def test_fewer_stalls_take_a_faster_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    background, five, two = (
        answer(tmp_path, capsys, stall=stall)["demand"]["checkpoint_write_bytes_per_s"]
        for stall in (None, "5%", "2.5%")
    )
    assert background < five
    assert two == pytest.approx(2 * five)


def test_packed_images_need_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enough = {
        files: next(
            row["enough"]
            for row in answer(tmp_path, capsys, IMAGES, files=files, dataset_size="141 GB")["systems"]
            if row["name"] == "object store"
        )
        for files in ("1281167", "600")
    }
    assert enough == {"1281167": False, "600": True}


def test_a_described_cluster_may_be_named_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(IMAGES.replace("cluster: 4 nodes", "#"), encoding="utf-8")
    done = trainworks_program("storage", "run.yaml", "--on", "32x H100", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cluster  32x H100: 4 nodes, 32 accelerators" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stall": "0%"}, "error: `0%` is not between 0 and 100 %\n  --> --stall\n\nhint: write it like `5%`"),
        ({"stall": "much"}, "error: `much` is not a share\n  --> --stall\n\nhint: write it like `90%`"),
        (
            {"stall": "1e-300"},
            "error: `1e-300` leaves no time for a save\n  --> --stall\n\nhint: it is at least 0.0001%",
        ),
        ({"stall": "nan"}, "error: `nan` is not between 0 and 100 %\n  --> --stall\n\nhint: write it like `90%`"),
        ({"files": "0"}, "error: `0` must be greater than 0\n  --> --files"),
        ({"dataset_size": "10"}, "error: `10` has no unit; a size takes B"),
        ({"dataset_size": "-1 TB"}, "error: `-1 TB` is not a size\n  --> --dataset-size"),
        ({"restart": "5"}, "error: `5` has no unit; a duration takes ms"),
        ({"on": "4x nothing"}, "error: `4x nothing` does not describe a cluster"),
        ({"explain": "spine switches"}, "error: no figure `spine switches` in this answer\n  --> --explain"),
    ],
)
def test_an_option_that_cannot_be_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    assert refusal(tmp_path, **options).startswith(message)


def test_this_machine_has_no_storage_to_plan(tmp_path: Path) -> None:
    assert refusal(tmp_path, TEXT.replace("cluster: 16 nodes of DGX H100", "cluster: local")).startswith(
        "error: storage is planned for a described cluster, and `cluster` is `local`"
    )


def test_a_sample_of_nothing_is_refused_where_it_is_written(tmp_path: Path) -> None:
    text = TEXT.replace("sequence_length: 4096", "sequence_length: 4096, sample_size: 0 kB")
    assert "run.yaml:5  workload.data.sample_size" in refusal(tmp_path, text)


def test_storage_and_goodput_count_with_the_same_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(tmp_path, capsys)["demand"]
    fleet = usual_node_mttf(parse_cluster("DGX H100").accelerator).value
    assert told["work_lost"] == pytest.approx(1.5 * told["checkpoint_interval_s"] * 16 / fleet)
    goodput_command(run_file=tmp_path / "run.yaml", as_json=True, trials=10)
    forecast = json.loads(capsys.readouterr().out)
    assert told["checkpoint_interval_s"] == forecast["checkpoint_interval_s"]


def test_the_run_files_own_failures_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(tmp_path, capsys, TEXT + "recover: {node_mttf: 20d}\n")["demand"]
    assert told["work_lost"] == pytest.approx(1.5 * told["checkpoint_interval_s"] * 16 / (20 * 86400))
