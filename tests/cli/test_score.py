"""`trainworks score`: predictions held against a table of measurements."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from tests.measure.rows import RUN, collective_row, run_row
from tests.program import trainworks_program


def write(path: Path, *rows: dict[str, str]) -> Path:
    """A table with the columns of its rows."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two sources, a model with experts, and rows that cannot be predicted."""
    return write(
        tmp_path / "runs.csv",
        *(run_row(id=f"k-{size}", micro_batch=size, step_time_s_eval="14") for size in ("1", "2", "4", "8")),
        run_row(id="ours", source_key="ours", gpu="H100-SXM5-80GB", precision="bf16", step_time_s_eval="6.5"),
        {"id": "experts", "source_key": "ours", "model": "Mixtral 8x7B", "seq_len": "4096", "global_batch": "256"}
        | {"gpu": "H100", "num_gpus": "64", "tp": "4", "pp": "4", "ep": "4", "iteration_time_s": "7"},
        run_row(id="typo", gpu="H10"),
        {"id": "empty"},
    )


def scored(*arguments: str | Path) -> str:
    """What `trainworks score` prints when all goes well."""
    done = trainworks_program("score", *map(str, arguments))
    assert (done.returncode, done.stderr) == (0, "")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def read(path: Path) -> list[dict[str, str]]:
    """The lines of a table."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def without_figures(text: str) -> str:
    """Figures move with every fit of the planner; what is printed around them does not."""
    shares = re.sub(r" +[+-]?\d+\.\d %|  +\d+ %", lambda found: "x %".rjust(len(found[0])), text)
    return re.sub(r" +-?\d\.\d\d\b", lambda found: "x".rjust(len(found[0])), shares)


def test_a_score_reads_like_this(runs: Path, golden) -> None:
    golden("score.txt", without_figures(scored(runs)))


def test_a_score_as_json_has_every_refusal_with_its_reason(runs: Path) -> None:
    found = json.loads(scored(runs, "--json"))
    assert (found["table"], found["rows"], found["predicted"]) == ("runs", 8, 6)
    assert found["kinds"]["yes"]["sources"]["korthikanti22"]["n"] == 4
    assert list(found["kinds"]) == ["yes", "moe"]
    assert [(row["id"], row["source"]) for row in found["refused"]] == [("typo", "korthikanti22"), ("empty", "unnamed")]
    assert "nearest are `H100-SXM-80GB`" in found["refused"][0]["reason"]


def test_predictions_are_written_for_every_row(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "predictions.csv"
    scored(runs, "--out", out)
    lines = read(out)
    assert [line["id"] for line in lines] == ["k-1", "k-2", "k-4", "k-8", "ours", "experts", "typo", "empty"]
    assert list(lines[0]) == ["id", "step_time_s", "low_s", "high_s", "memory_bytes", "refused"]
    assert [bool(line["refused"]) for line in lines] == [False] * 6 + [True] * 2


def test_a_memory_table_says_what_would_have_been_rejected(tmp_path: Path) -> None:
    fitted = run_row(id="fits", memory_gb_per_gpu="40", memory_kind="nvidia-smi GB", outcome="ok")
    table = write(
        tmp_path / "memory.csv", fitted, run_row(id="not", num_gpus="8", pp="1", interleave="", outcome="OOM")
    )
    found = json.loads(scored("--memory", table, "--json", "--out", tmp_path / "out.csv"))
    assert found["rejections"] == {
        "out_of_memory": 1,
        "out_of_memory_rejected": 1,
        "fitting": 1,
        "fitting_rejected": 0,
    }
    assert [line["fits"] for line in read(tmp_path / "out.csv")] == ["yes", "no"]


def test_a_table_of_collectives_is_scored_by_group(tmp_path: Path) -> None:
    table = write(tmp_path / "comm.csv", collective_row(), collective_row(id="b", size_bytes="1024"))
    found = json.loads(scored("--collectives", table, "--json"))
    assert list(found["every"]["sources"]) == ["all_reduce, 8x H100-SXM-80GB, NVLink4/NVSwitch (single node)"]
    assert (found["every"]["rows"]["n"], found["large"]["rows"]["n"]) == (2, 1)


def test_a_table_without_measurements_is_predicted_all_the_same(tmp_path: Path) -> None:
    table = write(tmp_path / "plans.csv", RUN | {"step_time_s_eval": ""})
    assert scored(table) == "no row has a measured step time to score\n\n1 of 1 rows predicted\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.csv",), "error: `none.csv` cannot be read: no such file or directory"),
        (("pets.csv",), "error: `pets.csv` has no known column: `name`, `age`"),
        (("--memory", "--collectives", "pets.csv"), "error: `--memory` and `--collectives` are two tables"),
        (("pets.csv", "--out", "no/out.csv"), "error: `no` is not a folder"),
    ],
)
def test_what_cannot_be_scored_is_a_usage_error(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "pets.csv").write_text("name,age\nrex,3\n", encoding="utf-8")
    done = trainworks_program("score", *arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == message
