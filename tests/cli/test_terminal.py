"""Text of other programs is printed so that it cannot steer the terminal."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

import trainworks.cli
from trainworks.cli import app as program
from trainworks.cli.app import app
from trainworks.errors import UsageError
from trainworks.record.runs_folder import create_run_dir
from trainworks.record.status import RunStatus
from trainworks.report.rendering.console import SafeConsole
from trainworks.report.rendering.printable import printable

HOSTILE = "a\x1b]0;owned\x07b\u202ecba\x9b31m[/oops]:smile:\r\ud800"
SHOWN = r"a\x1b]0;owned\x07b\u202ecba\x9b31m[/oops]:smile:\x0d\ud800"


def printed(thing: object) -> str:
    """What a console writes."""
    console = SafeConsole(width=200)
    console.file = io.StringIO()
    console.print(thing)
    return console.file.getvalue()


@pytest.mark.parametrize("code", [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
def test_every_control_character_but_tab_and_newline_is_an_escape(code: int) -> None:
    shown = printable(f"a{chr(code)}b")
    assert (chr(code) in shown) is (chr(code) in "\t\n")


def test_other_text_stays_as_it_is() -> None:
    text = "é 漢字 🙂 مرحبا\tone\ntwo"
    assert printable(text) == text


def test_a_table_and_a_text_show_escapes_and_take_nothing_for_markup() -> None:
    table = Table("name")
    table.add_row(HOSTILE)
    assert SHOWN in printed(table)
    assert printed(Text("a\x1b[31mb\u202ec[/oops]")) == "a\\x1b[31mb\\u202ec[/oops]\n"
    assert printed(HOSTILE) == f"{SHOWN}\n"


def test_an_error_shows_escapes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(**options: object) -> None:
        raise UsageError(HOSTILE, hint=HOSTILE)

    monkeypatch.setattr(program, "app", fail)
    with pytest.raises(SystemExit):
        program.main()
    assert capsys.readouterr().err == f"error: {SHOWN}\n\nhint: {SHOWN}\n"


def test_a_run_s_message_is_harmless_in_text_and_unchanged_in_json(tmp_path: Path) -> None:
    run_dir = create_run_dir(tmp_path, "t")
    run_dir.write_status(RunStatus(state="FAILED", cause=HOSTILE[:-1], message=HOSTILE[:-1]))
    for command in ("ls", "ls --json"):
        result = CliRunner().invoke(app, [*command.split(), "--runs", str(tmp_path)])
        assert result.exit_code == 0, result.exception
        assert not set(result.output) & {"\x1b", "\u202e", "\x9b"}
    assert json.loads(result.output)[0]["cause"] == HOSTILE[:-1]


def test_every_command_prints_to_this_console() -> None:
    folder = Path(trainworks.cli.__file__).parent
    others = [
        path.name
        for path in folder.glob("*.py")
        if re.search(r"(?<![A-Za-z])Console\(", path.read_text(encoding="utf-8")) and path.name != "console.py"
    ]
    assert others == []
