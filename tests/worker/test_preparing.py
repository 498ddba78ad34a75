"""Preparing at scale: in parallel, taken up again after a kill, checked, packed; from every format."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.small_disk import mounted
from trainworks.config.data import Data, DataSource
from trainworks.errors import DiskFullError, EnvironmentProblem, UsageError
from trainworks.worker.data.inputs import documents, find_inputs, parts_of
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.tokenization import Tokenization
from trainworks.worker.data.tokens import START, pack

TEXTS = [f"document {number} says {'word ' * (number % 7)}" for number in range(200)]


def data(source="", **changes) -> Data:
    return Data(
        **(
            {
                "source": source if isinstance(source, dict | list) else str(source),
                "sequence_length": 32,
                "vocabulary": 300,
            }
            | changes
        )
    )


def read(source, part_bytes, **options) -> list[str]:
    source = DataSource(source=str(source), **options)
    return [text for part in parts_of(find_inputs(source), part_bytes) for text in documents(part, source.column)]


def content(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """6 MB of JSONL: 6 shards."""
    file = tmp_path_factory.mktemp("large") / "texts.jsonl"
    words = [f"w{number}" for number in np.random.default_rng(0).integers(0, 5000, 40_000)]
    with file.open("w") as out:
        for number in range(300):
            out.write(json.dumps({"text": " ".join(words[number * 7 : number * 7 + 4000])[:20_000]}) + "\n")
    return file


@pytest.fixture(scope="module")
def in_one_go(large, tokenizer, tmp_path_factory):
    """The shards of `large`, made by one process."""
    folder, _ = prepare(of(large, tokenizer), tmp_path_factory.mktemp("cache"), processes=1)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Trained once: it takes longer than tokenizing."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "a.txt").write_text(" ".join(f"w{number}" for number in range(5000)))
    return prepare(data(folder / "a.txt"), folder)[0] / "tokenizer.json"


def of(large, tokenizer) -> Data:
    return data(large, tokenizer=str(tokenizer), vocabulary=None)


# Tokens


@pytest.mark.parametrize("pack", [False, True])
def test_the_last_of_many_entries_is_read_back_as_it_was_written(tmp_path, pack):
    entries = 70_000
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(entries)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    last = [*range(entries - 9, entries)]
    (tmp_path / "text").write_text(" ".join(f"w{number}" for number in last))
    many = data(
        tmp_path / "text", sequence_length=8, vocabulary=entries, pack=pack, tokenizer=str(tmp_path / "tokenizer.json")
    )
    folder, card = prepare(many, tmp_path / "cache")
    assert (card.vocabulary, card.dtype) == (entries, "<u4")
    if not pack:
        first = np.zeros(1, dtype=np.int64)
        assert open_dataset(folder, many).gather(first, first)["tokens"].tolist() == [last]


# Formats


@pytest.mark.parametrize("part_bytes", [1, 100, 3000, 10**9])
def test_jsonl_gives_every_line_once_however_it_is_divided(tmp_path, part_bytes):
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    (tmp_path / "a.jsonl").write_text(lines)
    assert read(tmp_path / "a.jsonl", part_bytes) == TEXTS


def test_compressed_jsonl_is_read(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one"}\n\n{"text": "two"}\n'))
    assert read(tmp_path / "a.jsonl.gz", 5) == ["one", "two"]


@pytest.mark.parametrize("part_bytes", [1, 2000, 10**9])
def test_parquet_gives_every_row_once_however_it_is_divided(tmp_path, part_bytes):
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs trainworks[data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"id": list(range(200)), "content": TEXTS})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    assert read(tmp_path / "a.parquet", part_bytes) == TEXTS


def test_a_dataset_that_datasets_saved_is_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs trainworks[hf]")
    train, test = datasets.Dataset.from_dict({"text": TEXTS}), datasets.Dataset.from_dict({"text": ["x"]})
    datasets.DatasetDict(train=train.select(range(199, -1, -1)), test=test).save_to_disk(str(tmp_path / "saved"))
    assert read(tmp_path / "saved", 1000) == TEXTS[::-1]
    assert read(tmp_path / "saved", 1000, split="test") == ["x"]


def test_a_split_that_is_not_there_names_the_near_one(tmp_path):
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    with pytest.raises(UsageError, match="has no split `validatoin`") as caught:
        find_inputs(DataSource(source=str(tmp_path), split="validatoin"))
    assert caught.value.hint == "did you mean `validation`?"


def test_a_dataset_of_the_hub_without_network_is_an_error_with_its_name(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs trainworks[hf]")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentProblem, match="cannot load `hf://nobody/nothing`, split `train`, from the hub"):
        find_inputs(DataSource(source="hf://nobody/nothing?split=train"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "good"}\nnot json', "a.jsonl:2`: not JSON"),
        ('{"text": 3}', "`text` is int, not text"),
        ('["text"]', "a line is an object"),
        ('{"body": "x", "title": "y"}', "which of body, title is the text"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(UsageError, match=message):
        read(tmp_path / "a.jsonl", 10**6)


def test_a_column_that_is_not_there_names_the_near_one(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "x", "title": "y"}')
    with pytest.raises(UsageError, match="has no text in `boddy`") as caught:
        read(tmp_path / "a.jsonl", 10**6, column="boddy")
    assert caught.value.hint == "did you mean `body`?"


def test_images_are_not_trained_on_as_text(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(UsageError, match="is an image, not text"):
        find_inputs(DataSource(source=str(tmp_path)))


# Parallel, interrupted, damaged


@pytest.mark.slow
@pytest.mark.lane("test-all")
def test_many_processes_make_the_same_bytes_as_one(large, tokenizer, in_one_go, tmp_path):
    folder, _ = prepare(of(large, tokenizer), tmp_path, processes=2)
    assert content(folder) == content(in_one_go)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_kill_loses_no_finished_shard_and_changes_no_byte(large, tokenizer, in_one_go, tmp_path, processes):
    program = (
        "import sys, time; from pathlib import Path; from trainworks.config.data import Data;"
        "from trainworks.worker.data.prepare import prepare\n"
        "def advance(done, total):\n"
        "    if done > 0.9 * total: time.sleep(600)  # a test that had no core for seconds still finds it at work\n"
        "if __name__ == '__main__':\n"
        "    prepare(Data.model_validate_json(sys.argv[1]), Path(sys.argv[2]), advance, processes=int(sys.argv[3]))"
    )
    (tmp_path / "program.py").write_text(program)
    command = [
        sys.executable,
        str(tmp_path / "program.py"),
        of(large, tokenizer).model_dump_json(),
        str(tmp_path / "cache"),
    ]
    with subprocess.Popen([*command, str(processes)], start_new_session=True) as child:
        work = wait_for_shards(tmp_path / "cache", 3, child)
        child.kill()
    wait_until_alone(child.pid)
    kept = {file.name: file.stat().st_mtime_ns for file in work.glob("tokens-*.bin") if finished(work, file.name)}
    folder, _ = prepare(of(large, tokenizer), tmp_path / "cache", processes=processes)
    assert content(folder) == content(in_one_go)
    assert {name: (folder / name).stat().st_mtime_ns for name in kept} == kept


def wait_for_shards(cache, count, child):
    while child.poll() is None:
        journals = list(cache.glob(".*.making/finished.jsonl"))
        if journals and len(journals[0].read_text().splitlines()) >= count:
            return journals[0].parent
        time.sleep(0.005)
    raise AssertionError("it ended before it was killed")


def wait_until_alone(session):
    """Processes of the pool end with their parent."""
    deadline = time.monotonic() + 240
    while subprocess.run(["pgrep", "-s", str(session)], capture_output=True, check=False).returncode == 0:
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.02)


def finished(work, name):
    return any(json.loads(line)["name"] == name for line in (work / "finished.jsonl").read_text().splitlines())


@pytest.mark.lane("test-all")
def test_a_finished_shard_that_was_damaged_is_made_again(large, tokenizer, in_one_go, tmp_path):
    folder, _ = prepare(of(large, tokenizer), tmp_path, processes=1)
    work = folder.with_name(f".{folder.name}.making")
    folder.rename(work)
    card = json.loads((work / "dataset.json").read_text())
    lines = [
        {"name": name, "shard": shard, "num_bytes_of_text": 1, "padding_tokens": 0}
        for name, shard in card["shards"].items()
    ]
    (work / "finished.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (work / "dataset.json").unlink()
    (work / "tokens-00003.bin").write_bytes(b"damaged")
    folder, _ = prepare(of(large, tokenizer), tmp_path, processes=1)
    assert (folder / "tokens-00003.bin").read_bytes() == (in_one_go / "tokens-00003.bin").read_bytes()


@pytest.mark.root
@pytest.mark.lane("test-all")
def test_a_full_disk_keeps_what_is_finished_for_the_next_try(large, tokenizer, in_one_go):
    with mounted("size=3m") as disk:
        with pytest.raises(DiskFullError, match="no space left") as caught:
            prepare(of(large, tokenizer), disk, processes=1)
        assert "not made again" in caught.value.hint
        assert not list(disk.glob("files-*/"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        folder, _ = prepare(of(large, tokenizer), disk, processes=1)
        assert content(folder) == content(in_one_go)


@pytest.mark.lane("test-all")
def test_two_processes_at_once_make_it_once(large, tokenizer, tmp_path):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        first, second = pool.map(prepare, [of(large, tokenizer)] * 2, [tmp_path] * 2)
    assert first == second
    assert list(tmp_path.glob(".*.making")) == []


# Packing


DOCUMENTS = st.lists(st.integers(1, 60), max_size=30)


@given(lengths=DOCUMENTS, row=st.integers(2, 20))
def test_packing_keeps_every_token_and_only_adds_filler(lengths, row):
    documents = [np.arange(n, dtype=np.uint16) + 100 * (i + 1) for i, n in enumerate(lengths)]
    rows, padding = pack(documents, row, filler=0)
    assert set(rows[rows > 0].tolist()) == {int(token) for document in documents for token in document}
    assert (rows == 0).sum() == padding


@given(lengths=DOCUMENTS, row=st.integers(2, 20))
def test_a_document_that_fits_a_row_is_never_cut(lengths, row):
    documents = [np.arange(n, dtype=np.uint16) + 100 * (i + 1) for i, n in enumerate(lengths)]
    rows, _ = pack(documents, row, filler=0)
    texts = [r.tobytes() for r in rows]
    assert all(sum(d.tobytes() in text for text in texts) >= 1 for d in documents if len(d) <= row)


@given(lengths=st.lists(st.integers(1, 19), min_size=1, max_size=30))
def test_packing_takes_no_more_rows_than_twice_what_is_needed(lengths):
    documents = [np.full(n, 7, dtype=np.uint16) for n in lengths]
    rows, _ = pack(documents, 20, filler=0)
    assert len(rows) <= 2 * -(-sum(lengths) // 20)


def test_packed_documents_begin_and_end_within_a_row(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    folder, card = prepare(data(tmp_path / "a.jsonl", pack=True), tmp_path / "cache")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = np.fromfile(folder / "tokens-00000.bin", dtype=card.dtype).reshape(-1, 33) & (START - 1)
    documents = [
        text for row in rows for text in tokenizer.decode(row, skip_special_tokens=False).split("<|endoftext|>")
    ]
    assert sorted(text for text in documents if text) == sorted(TEXTS)
    assert card.padding_tokens == len(documents) - len(rows) - len(TEXTS)


def test_packed_rows_fit_their_own_sequence_length_only(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    folder, _ = prepare(data(tmp_path / "a.jsonl", pack=True), tmp_path / "cache")
    with pytest.raises(UsageError, match="is packed for sequences of 32, not 16"):
        prepare(data(folder, sequence_length=16), tmp_path / "cache")


# Prepared folders and mixtures as sources


def test_a_prepared_folder_is_a_source(in_one_go, tmp_path):
    assert prepare(data(in_one_go), tmp_path)[0] == in_one_go


def test_sources_of_a_mixture_share_a_tokenizer(corpus, tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    folder, card = prepare(data({str(corpus): 3, str(tmp_path / "a.jsonl"): 1}), tmp_path / "cache")
    assert [part.weight for part in card.parts] == [3, 1]
    used = {Tokenization.read(Path(part.folder)).fingerprint for part in card.parts}
    assert used == {Tokenization.read(folder).fingerprint} == {card.tokenization}


def test_sources_prepared_with_different_tokenizers_do_not_mix(corpus, in_one_go, tmp_path):
    other, _ = prepare(data(corpus, vocabulary=400), tmp_path)
    with pytest.raises(UsageError, match="are different tokenizers"):
        prepare(data([str(other), str(in_one_go)]), tmp_path)
