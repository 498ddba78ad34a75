"""`--html` and `--pdf`: one grammar for the page of every result."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.report.conftest import RunWriter, make_plan
from trainworks.cli.app import app
from trainworks.cli.commands import COMMANDS, command_of
from trainworks.report.rendering import renderer

PLAN = ["plan", "examples/plan-llama-2-7b.yaml", "--on", "8x A100-SXM-80GB"]
WITH_PAGES = (
    "accuracy", "bench", "capacity", "compare", "cost", "deploy", "drill", "goodput", "network", "plan", "report",
    "score", "size", "storage", "usage", "why",
)  # fmt: skip


def test_every_command_with_a_page_takes_both_forms_and_none_takes_one_of_them() -> None:
    forms = {name: {"html", "pdf", "plot"} & {*inspect.signature(command_of(name)).parameters} for name in COMMANDS}
    assert {name: found for name, found in forms.items() if found} == {name: {"html", "pdf"} for name in WITH_PAGES}


def test_a_plan_is_written_as_page_and_on_paper(tmp_path: Path) -> None:
    html, pdf = tmp_path / "plan.html", tmp_path / "plan.pdf"
    answer = CliRunner().invoke(app, [*PLAN, "--html", str(html), "--pdf", str(pdf)])
    assert answer.exit_code == 0, answer.output
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert pdf.read_bytes().startswith(b"%PDF-")


def test_the_old_name_of_the_option_still_works(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert CliRunner().invoke(app, [*PLAN, "--plot", str(page)]).exit_code == 0
    assert page.exists()


@pytest.mark.parametrize(
    ("option", "name", "hint"),
    [("--pdf", "plan.html", "plan.pdf"), ("--html", "plan.pdf", "plan.html"), ("--html", "demo-1", "demo-1.html")],
)
def test_a_name_of_another_format_is_refused_before_planning(tmp_path: Path, option: str, name: str, hint: str) -> None:
    error = CliRunner().invoke(app, ["plan", "missing.yaml", option, str(tmp_path / name)]).exception
    assert f"`{tmp_path / name}` does not end in" in str(error)
    assert str(tmp_path / hint) in str(getattr(error, "hint", ""))
    assert not list(tmp_path.iterdir())


def test_a_pdf_without_its_library_is_refused_before_planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "find_spec", lambda name: None)
    error = CliRunner().invoke(app, ["plan", "missing.yaml", "--pdf", str(tmp_path / "plan.pdf")]).exception
    assert getattr(error, "hint", "") == "pip install 'trainworks[pdf]'"


@pytest.mark.parametrize(
    ("options", "pages"),
    [
        ([], ["t-1/report.html"]),
        (["--no-html"], []),
        (["--html", "page.html"], ["page.html"]),
        (["--json"], []),
        (["--json", "--pdf", "page.pdf"], ["page.pdf"]),
    ],
    ids=" ".join,
)
def test_a_report_is_beside_the_record_unless_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], pages: list[str]
) -> None:
    RunWriter(tmp_path, make_plan(), None, name="t").launch().steps(20).finish()
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, ["report", "t-1", "--runs", ".", *options])
    assert answer.exit_code == 0, answer.output
    found = sorted(str(path) for kind in ("html", "pdf") for path in Path().rglob(f"*.{kind}"))
    assert found == pages


@pytest.mark.parametrize("option", ["--html", "--pdf"])
def test_a_step_of_deploy_without_a_page_refuses_one(tmp_path: Path, option: str) -> None:
    page = tmp_path / f"page.{option[2:]}"
    error = CliRunner().invoke(app, ["deploy", "apply", "stack.yaml", "--into", ".", option, str(page)]).exception
    assert str(error).startswith(f"`{option}` is for `verify`")


def test_a_character_without_a_font_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainworks.report.rendering.pdf import fonts

    monkeypatch.setattr(fonts, "_FOLDERS", ())
    RunWriter(tmp_path, make_plan(), None, name="\u0928").launch().steps(20).finish()
    page = tmp_path / "page.pdf"
    answer = CliRunner().invoke(app, ["report", "\u0928-1", "--runs", str(tmp_path), "--pdf", str(page)])
    assert answer.exit_code == 0, answer.output
    assert "warning: no TrueType font of the machine that wrote this PDF has U+0928" in answer.stderr
