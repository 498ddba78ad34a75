"""Real ranks train on mixtures, packed rows and shards of a store, and go on from a checkpoint as if never stopped."""

from __future__ import annotations

import shutil

import pytest

from tests.worker.harness import events, write_corpus
from tests.worker.object_store import s3_server
from trainworks.config.data import Data
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.shards import put

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pack", [False, True])
def test_a_killed_run_on_a_mixture_resumes_bit_for_bit(new_run, corpus, tmp_path, pack):
    other = write_corpus(tmp_path / "other", words=9_000)
    data = {
        "source": [{"source": str(corpus), "weight": 3}, {"source": str(other), "weight": 1}],
        "sequence_length": 32,
        "vocabulary": 400,
        "pack": pack,
    }
    whole, killed = new_run(workload__data=data), new_run(workload__data=data)
    assert whole.train() == [0, 0]
    killed.train(until=killed.a_checkpoint_is_complete)
    assert killed.train() == [0, 0]
    assert killed.curve() == whole.curve()


def test_ranks_that_lose_their_store_say_so(new_run, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINWORKS_CACHE", str(tmp_path / "cache"))
    folder, card = prepare(Data(source=str(corpus), sequence_length=32, vocabulary=400), tmp_path / "made")
    with s3_server():
        put(folder, card, "s3://bucket/lost")
        run = new_run(workload__data={"source": "s3://bucket/lost", "sequence_length": 32, "vocabulary": 400})
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert 0 not in run.train()
    assert any(
        "cannot read `s3://bucket/lost/tokens-00000.bin`" in event["message"] for event in events(run, "failure")
    )


def test_ranks_train_on_streamed_shards_as_on_local_ones(new_run, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINWORKS_CACHE", str(tmp_path / "cache"))
    folder, card = prepare(Data(source=str(corpus), sequence_length=32, vocabulary=400), tmp_path / "made")
    with s3_server():
        put(folder, card, "s3://bucket/tokens")
        data = {"source": "s3://bucket/tokens", "sequence_length": 32, "vocabulary": 400}
        streamed, local = new_run(workload__data=data), new_run(workload__data=data | {"source": str(folder)})
        assert streamed.train() == local.train() == [0, 0]
    assert streamed.curve() == local.curve()
