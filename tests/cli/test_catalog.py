"""`trainworks catalog`: facts with their sources, as text and as JSON."""

from __future__ import annotations

import json

import pytest
import typer

from tests.program import trainworks_program
from trainworks.catalog.lint import LintFinding
from trainworks.catalog.rows import KINDS, read_rows
from trainworks.cli.planning.catalog import catalog_command


def catalog(*arguments: str) -> str:
    """What `trainworks catalog` prints when all goes well."""
    done = trainworks_program("catalog", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def test_a_row_reads_like_this(golden) -> None:
    golden(
        "catalog_show.txt",
        "\n".join([catalog("show", "A100"), catalog("show", "DGX", "H100"), catalog("show", "FPGA")]),
    )


def test_a_row_as_json_has_every_figure_with_its_source() -> None:
    row = json.loads(catalog("show", "A100-SXM-80GB", "--json"))
    assert row["memory_bytes_per_s"] == 2.039e12
    by_name = {figure["name"]: figure for figure in row["figures"]}
    assert by_name["memory bandwidth"]["written"] == "2039 GB/s"
    assert all(figure["source"] and figure["date"] and figure["confidence"] for figure in row["figures"])


def test_all_kinds_are_listed() -> None:
    rows = json.loads(catalog("list", "--json"))
    assert {kind: len(found) for kind, found in rows.items()} == {kind: len(read_rows(kind)) for kind in KINDS}


def test_one_kind_is_listed_alone() -> None:
    assert list(json.loads(catalog("list", "switches", "--json"))) == ["switches"]
    assert catalog("list", "switches").splitlines()[0].split() == ["switches", "ports", "port", "network", "latency"]


def test_the_lint_of_the_shipped_catalogue_says_what_the_data_explain() -> None:
    assert catalog("lint").splitlines()[-1].startswith("0 finding(s), and ")


def test_a_finding_that_nothing_explains_is_a_failed_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = LintFinding("links", "NVLink3", "sum-of-lanes", "600 GB/s", "12 lanes of 25 GB/s", "both directions")
    monkeypatch.setattr("trainworks.api.catalog.lint", lambda: [finding])
    with pytest.raises(typer.Exit) as raised:
        catalog_command("lint")
    assert raised.value.exit_code == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 finding(s), and 0 that the data explain"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "prices"), "no kind `prices` in the catalogue"),
        (("show",), "`show` needs a name"),
        (("show", "H30"), "no row `H30` in the catalogue"),
    ],
)
def test_what_the_catalogue_does_not_have_is_a_usage_error(arguments: tuple[str, ...], message: str) -> None:
    done = trainworks_program("catalog", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == f"error: {message}"


def test_a_model_is_named_as_one() -> None:
    done = trainworks_program("catalog", "show", "LLaMA-2-7B")
    assert done.returncode == 2
    assert "`LLaMA-2-7B` is a model" in done.stderr and "{preset: llama2-7b}" in done.stderr
