"""What may be written for `data.source`, and what is said of what may not."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from trainworks.config.data import Data
from trainworks.config.load import parse_run_file
from trainworks.errors import RunFileError

RUN_FILE = """
name: demo
workload:
  task: causal-lm
  model: {layers: 1, hidden: 8, heads: 1}
  data:
    source: SOURCE
    sequence_length: 8
  global_batch: 1
  train_for: 1 steps
"""


def data(source: str) -> Data:
    run_file, _ = parse_run_file(RUN_FILE.replace("SOURCE", source), name="run.yaml")
    assert run_file.workload is not None
    return run_file.workload.data


def parts(source: str) -> list[tuple[str, float | None]]:
    return [(part.source, part.weight) for part in data(source).sources]


@pytest.mark.parametrize("entries", [257, 65_537, 151_936, 262_144])
def test_a_vocabulary_may_be_as_large_as_that_of_a_published_model(entries: int) -> None:
    assert Data(source="text", vocabulary=entries).vocabulary == entries


@pytest.mark.parametrize("entries", [256, 10_000_001])
def test_a_vocabulary_below_the_bytes_or_above_the_limit_is_refused(entries: int) -> None:
    with pytest.raises(ValidationError, match="vocabulary"):
        Data(source="text", vocabulary=entries)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("texts", [("texts", None)]),
        ("{texts: 3, code: 1}", [("texts", 3.0), ("code", 1.0)]),
        ("[texts, code]", [("texts", None), ("code", None)]),
        ("[{source: texts, weight: 2}, {source: code, weight: 1, column: body}]", [("texts", 2.0), ("code", 1.0)]),
        ("s3://bucket/texts", [("s3://bucket/texts", None)]),
    ],
)
def test_one_source_or_several_with_weights(written: str, meant: list[tuple[str, float | None]]) -> None:
    assert parts(written) == meant


def test_options_of_an_address_are_the_keys_beside_it() -> None:
    (part,) = data('"hf://name/of?split=test&column=body&config=en"').sources
    assert (part.source, part.split, part.column, part.config) == ("hf://name/of", "test", "body", "en")


def test_data_survives_being_written_and_read() -> None:
    read = data("{texts: 3, code: 1}")
    assert Data.model_validate_json(read.model_dump_json()) == read


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("hff://x", "unknown kind of store `hff://`", "did you mean `hf://`?"),
        ("hf://x?splitt=a", "unknown option `splitt` in `hf://x?splitt=a`", "did you mean `split`?"),
        ("[{source: a, wieght: 1}]", "unknown key `wieght`", "did you mean `weight`?"),
        (
            "[a, {source: b, weight: 1}]",
            "`a` has no weight, but other sources have one",
            "give a weight to every source or to none",
        ),
        ("{a: 1, b: 1.0e-9}", "weight 1e-09 of `b` is below 1e-5 of the sum of weights, 1", ""),
        ("{a: -1}", "must be greater than 0, got `-1`", ""),
        ("[]", "`source` is an empty list", "name at least one source"),
        ("5", "`5` is not a data source", "give an address, a list of addresses, or addresses with weights"),
        ("{source: a, weight: 1}", "a single source must be text", "write `source: ADDRESS`"),
    ],
)
def test_an_invalid_source_is_refused_with_its_place(written: str, message: str, hint: str) -> None:
    with pytest.raises(RunFileError) as caught:
        data(written)
    problem = caught.value.problems[0]
    assert message in problem.message and hint in (problem.hint or "")
    assert problem.place is not None and problem.place.startswith(("run.yaml:7", "run.yaml:6"))


def test_an_option_in_the_address_and_as_a_key_is_refused() -> None:
    with pytest.raises(RunFileError, match="`split` is set twice"):
        data('"hf://x?split=a"\n    split: b')


def test_several_sources_have_their_own_columns() -> None:
    with pytest.raises(RunFileError, match="`column` and `split` need a single source"):
        data("[a, b]\n    column: text")
