"""A corpus and its tokens, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the trainer needs trainworks[train]")

from tests.worker.harness import TinyRun, make_run, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three text files."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenized data of the whole session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path) -> Callable[..., TinyRun]:
    """A function: the run with these changes that has trained to its end, made once, to be looked at alone."""
    known: dict[str, TinyRun] = {}

    def of(**changes: Any) -> TinyRun:
        key = repr(sorted(changes.items()))
        if key not in known:
            run = make_run(tmp_path_factory.mktemp("undisturbed"), corpus, cache, **changes)
            assert run.train() == [0] * run.world_size
            known[key] = run
        return known[key]

    return of


@pytest.fixture
def new_run(tmp_path: Path, corpus: Path, cache: Path) -> Callable[..., TinyRun]:
    """A function that makes a tiny run with changes to its run file (`workload__precision="bf16"`)."""

    def make(**changes: Any) -> TinyRun:
        return make_run(tmp_path / "runs", corpus, cache, **changes)

    return make
