"""The config of a model on the Hub, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", reason="the Hub needs trainworks[train]")

from trainworks.errors import EnvironmentProblem
from trainworks.measure.model_config import hf_config

COMMIT = "0" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of a Hub that refuses connections."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("cache")
def test_a_hub_that_cannot_be_reached_is_asked_once() -> None:
    with pytest.raises(EnvironmentProblem, match="Connection refused"):  # the Hub's client tries again, and says less
        hf_config("acme/lm")


def test_a_cached_config_needs_no_network(cache: Path) -> None:
    model = cache / "models--acme--lm"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    snapshot = model / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "llama"}')
    assert hf_config("acme/lm") == {"model_type": "llama"}
