"""How the program ends with an error: as text on stderr, and with `--json` as data on stdout as well."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

import typer

from trainworks.cli.commands import COMMANDS
from trainworks.errors import RunFileError, TrainworksError, UsageError, suggest
from trainworks.report.rendering.printable import say

_ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""Base of what typer raises for a command line that it cannot read: that of its own copy of click."""
SCHEMA = "trainworks.error/1"


def exit_code_of(app: typer.Typer) -> int:
    """Run the program.

    Raises:
        UsageError: the command line cannot be read.
    """
    try:
        code = app(standalone_mode=False)
    except typer.Abort:  # `no` to a question
        say("Aborted!", err=True)
        return 1
    except _ClickException as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            raise _problem_of(error) from None
        say(error.format_message(), err=True)
        return int(error.exit_code)
    return code if isinstance(code, int) else 0


def _problem_of(error: Any) -> UsageError:
    """What typer says of a command line, in the form of all errors: what is wrong, and what to type."""
    context = getattr(error, "ctx", None)
    command = next((word for word in sys.argv[1:] if word in COMMANDS), None)
    path = context.command_path if context is not None else f"trainworks {command}" if command else "trainworks"
    if type(error).__name__ == "NoSuchOption":
        known = [name for one in context.command.get_params(context) for name in one.opts] if context else []
        hint = suggest(error.option_name, known) or f"{path} --help"
        return UsageError(f"`{path}` has no option `{error.option_name}`", hint=hint)
    text = error.format_message().rstrip(".")
    return UsageError(text[:1].lower() + text[1:], place=path, hint=f"{path} --help")


def end_with(error: TrainworksError) -> NoReturn:
    """Print an error, and leave with its exit code.

    With `--json` stdout has one more document: `{"schema": "trainworks.error/1", "errors": [...], "exit_code": ...}`,
    whose errors are those of `TrainworksError.to_json`, several of a run file.
    """
    say(error.render(), err=True)
    if _wants_json(sys.argv[1:]):
        problems = error.problems if isinstance(error, RunFileError) else [error]
        facts = {"schema": SCHEMA, "errors": [one.to_json() for one in problems], "exit_code": error.exit_code}
        say(json.dumps(facts))
    sys.exit(error.exit_code)


def _wants_json(arguments: list[str]) -> bool:
    """Whether the command has `--json`; words after `--` are those of another program."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own
