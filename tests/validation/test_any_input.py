"""Laws of untrusted input: every run file, cluster text and table row is answered or refused after bounded work."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lanes import examples
from tests.measure.rows import RUN
from trainworks.api.planning.described import plan_cluster
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.models import preset
from trainworks.config.load import parse_run_file
from trainworks.errors import TrainworksError
from trainworks.measure.scoring import predict_memory, predict_run
from trainworks.plan import search, space
from trainworks.plan.shapes.transformer import shape_of_hf_config

MOST_LAYOUTS = 2_000
"""Layouts of one search in this test; a plan searches several sizes and offloading, too."""
MOST_SEARCHES = 100
MOST_MESHES = 1_000_000

COUNTS = st.one_of(
    st.integers(1, 64),
    st.integers(0, 24).map(lambda power: 2**power),
    st.sampled_from([720720, 8648640, 10**7, 10**8, 10**9, 10**12, 10**20, 10**300, 0, -1]),
    st.sampled_from(["1e20", "9" * 50, "many", "", None, True, 1.5, [1], {}]),
)
NAMES = st.sampled_from(
    [
        "H100",
        "A100",
        "DGX H100",
        "GB200 NVL72",
        "p4d.24xlarge",
        "TPU v5p pod",
        "8x H100",
        "7x A100",
        "GPT-4",
        "HDR",
        "x",
    ]
)
NETWORKS = st.sampled_from(["HDR", "8x NDR", "200 Gb/s", "9999999x EDR", "1e99 TB/s", "0 Gb/s", "Fibre Channel"])
CLUSTERS = st.one_of(
    st.builds("{}x {}".format, COUNTS, NAMES),
    st.builds("{} nodes of {}".format, COUNTS, NAMES),
    st.builds("{} nodes of {}x {} over {}".format, COUNTS, COUNTS, NAMES, NETWORKS),
    st.text(max_size=60),
)
MODELS = st.sampled_from(["llama2-7b", "deepseek-v3", "qwen3-30b-a3b", "resnet-50", "bert-base", "vit-b16", "gpt-4"])
DEGREES = ("dp_shard", "dp_replicate", "tp", "pp", "cp", "ep", "micro_batch", "interleave", "stage_layers", "zero")
SMALL = {"layers": 4, "hidden": 1024, "heads": 8}
GOOD = {
    "name": "any",
    "workload": {
        "task": "causal-lm",
        "model": SMALL,
        "data": {"sequence_length": 2048},
        "global_batch": 256,
        "train_for": "100 steps",
    },
    "cluster": "4 nodes of DGX H100",
}
EDITS: list[tuple[str, st.SearchStrategy[Any]]] = [
    *((f"workload.model.{name}", COUNTS) for name in (*SMALL, "kv_heads", "feed_forward")),
    ("workload.model", st.builds(lambda count: {**SMALL, "architecture": "mixtral", "experts": count}, COUNTS)),
    ("workload.model", st.builds(lambda name: {"preset": name}, MODELS)),
    ("workload.task", st.sampled_from(["masked-lm", "image-classification", "module"])),
    ("workload.data.sequence_length", COUNTS),
    ("workload.data", st.builds(lambda count: {"image_size": count}, COUNTS)),
    ("workload.precision", st.sampled_from(["fp8", "fp32"])),
    ("workload.global_batch", COUNTS),
    ("workload.train_for", st.builds("{} {}".format, COUNTS, st.sampled_from(["steps", "tokens", "x"]))),
    ("cluster", CLUSTERS),
    ("cluster", st.builds("{} nodes of DGX H100".format, COUNTS)),
    ("goal", st.builds(lambda text: {"deadline": text}, st.sampled_from(["1s", "30d", "1e99h", "9" * 999 + "h"]))),
    *((f"layout.{name}", COUNTS) for name in DEGREES),
]


@st.composite
def run_files(draw: st.DrawFn) -> dict[str, Any]:
    """The good run file with some of its fields replaced."""
    run = copy.deepcopy(GOOD)
    for path, values in draw(st.lists(st.sampled_from(EDITS), max_size=4)):
        *parents, last = path.split(".")
        inner: dict[str, Any] = run
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = draw(values)
    return run


CELLS = st.one_of(COUNTS.map(str), st.sampled_from(["", "nan", "1e400", "-1", "A100-80GB (air)", "8x HDR200", "fp8"]))
ROWS = st.dictionaries(st.sampled_from([name for name in RUN if name != "id"]), CELLS, max_size=6)
CONFIGS = st.dictionaries(
    st.sampled_from([*preset("llama2-7b"), "num_key_value_heads", "head_dim", "sliding_window"]), COUNTS, max_size=4
)


class Work:
    """Meshes and layouts that searches looked at."""

    def __init__(self) -> None:
        self.meshes = 0
        self.layouts = 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Work]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("TRAINWORKS_DATA", raising=False)
    monkeypatch.setattr(space, "MAX_LAYOUTS", MOST_LAYOUTS)
    counted, splits, chunks = Work(), space.Space._splits, search._split_in_chunks

    def count_splits(*arguments: Any) -> Iterator[tuple[int, int, int]]:
        for found in splits(*arguments):
            counted.meshes += 1
            yield found

    def count_layouts(parts: Any) -> Iterator[Any]:
        for layouts in chunks(parts):
            counted.layouts += len(layouts)
            yield layouts

    monkeypatch.setattr(space.Space, "_splits", count_splits)
    monkeypatch.setattr(search, "_split_in_chunks", count_layouts)
    yield counted


LAW = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def written(value: Mapping[str, Any]) -> str:
    return json.dumps(value)  # JSON is YAML


@LAW
@given(run_files())
def test_every_run_file_is_planned_or_refused_after_bounded_work(work: Work, run: dict[str, Any]) -> None:
    work.meshes = work.layouts = 0
    try:
        run_file, source = parse_run_file(written(run), name="any.yaml")
        plan_cluster(run_file, source)
    except TrainworksError as error:
        assert error.message
    assert work.layouts <= MOST_SEARCHES * MOST_LAYOUTS
    assert work.meshes <= MOST_MESHES


@given(CLUSTERS)
def test_every_description_of_a_cluster_is_read_or_refused(text: str) -> None:
    try:
        assert parse_cluster(text).num_accelerators <= 10**7
    except TrainworksError as error:
        assert len(error.render()) < 2_000


@given(st.text(max_size=200))
def test_every_text_is_a_run_file_or_refused(text: str) -> None:
    with pytest.raises(TrainworksError):
        parse_run_file(text, name="any.yaml")


@LAW
@given(ROWS)
def test_every_row_of_a_table_is_predicted_or_refused(work: Work, cells: dict[str, str]) -> None:
    work.meshes = work.layouts = 0
    predict_run(RUN | cells)
    predict_memory(RUN | cells)
    assert work.layouts <= MOST_SEARCHES * MOST_LAYOUTS


@given(CONFIGS)
def test_every_config_of_a_model_is_a_shape_or_refused(changes: dict[str, Any]) -> None:
    try:
        assert shape_of_hf_config(preset("llama2-7b") | changes).num_parameters > 0
    except TrainworksError as error:
        assert error.message
