"""The program `trainworks`. A command's module is imported when that command is called, and not before."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from trainworks import __version__
from trainworks.cli.commands import ALIASES, COMMANDS, PARTS, command_of, current_name, sparing_defaults
from trainworks.cli.problems import end_with, exit_code_of
from trainworks.errors import DiskFullError, TrainworksError, UsageError, problem_of_place, suggest
from trainworks.report.rendering.printable import prepare_streams, say
from trainworks.system import REQUESTS_TO_END

_OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Imports make many objects that stay: with Python's 700, looking for garbage among them takes an eighth of a `ps`."""


class _LazyCommands(TyperGroup):
    """Knows every command's summary, and imports the one that is called."""

    def get_params(self, ctx: Any) -> list[Any]:
        return sparing_defaults(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = ALIASES.get(args[0], args[0]) if args else ""
        if name not in COMMANDS and not ctx.resilient_parsing and (hint := suggest(name, COMMANDS)):
            raise UsageError(f"no command `{name}`", hint=hint)
        if name in COMMANDS:
            return name, _imported(name), args[1:]
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for part, names in PARTS.items():
            with formatter.section(part):
                formatter.write_dl([(name, COMMANDS[name]) for name in names])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Placeholder of a command: listings need its summary only, and so does the completion of its name."""
        if cmd_name not in COMMANDS:
            return None
        listed = typer.Typer(add_completion=False, rich_markup_mode=None)
        listed.command(name=cmd_name, help=COMMANDS[cmd_name])(lambda: None)
        return typer.main.get_command(listed)


def _imported(name: str) -> Any:
    function = command_of(name)
    command = typer.Typer(add_completion=False, rich_markup_mode=None)
    command.command(
        name=name,
        cls=_Command,
        help=f"{COMMANDS[name]}\n\n{inspect.cleandoc(function.__doc__ or '')}",
        context_settings={"token_normalize_func": lambda option: current_name(name, option)},
    )(function)
    return typer.main.get_command(command)


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return sparing_defaults(super().get_params(ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from trainworks.cli.examples import EXAMPLES

        with formatter.section("Examples"):
            formatter.write("".join(f"  trainworks {example}\n" for example in EXAMPLES[str(self.name)]))


app = typer.Typer(
    cls=_LazyCommands,
    name="trainworks",
    help="Plan, prove, run and show AI training. The plan is a prediction that the run has to answer for.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"trainworks {__version__}")
        raise typer.Exit


def _set_verbosity(count: int) -> None:
    if count or "TRAINWORKS_LOG" in os.environ:
        from trainworks.verbosity import be_verbose

        be_verbose(count)


def _set_catalogue(path: str | None) -> None:
    if path is not None:  # processes that this one starts read the same rows
        os.environ["TRAINWORKS_CATALOG"] = str(Path(path).absolute())


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
    verbose: int = typer.Option(
        0,
        *("--verbose", "-v"),
        count=True,
        show_default=False,
        metavar="",
        help="Log decisions and external calls on stderr; -vv: all that is logged.",
        callback=_set_verbosity,
    ),
    catalog: str | None = typer.Option(
        None,
        "--catalog",
        metavar="FILE",
        help="Rows of your own beside the catalogue's. [default: $TRAINWORKS_CATALOG]",
        callback=_set_catalogue,
    ),
) -> None:
    """Options of the program itself; each acts in its own callback, before a command is asked for."""


def main() -> None:
    """Run the program; an error that we foresaw is printed without a traceback, with its exit code."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    prepare_streams()
    _tidy_up_when_asked_to_end()
    try:
        sys.exit(exit_code_of(app))
    except TrainworksError as error:
        end_with(error)
    except BrokenPipeError:  # `trainworks logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except OSError as error:
        problem = problem_of_place(error)
        if isinstance(problem, DiskFullError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left to be written
        end_with(problem)
    except KeyboardInterrupt:
        sys.exit(130)


def _tidy_up_when_asked_to_end() -> None:
    """Let commands remove their mounts, namespaces and processes at SIGTERM and when the terminal closes."""

    def leave(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)

    for number in REQUESTS_TO_END:
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores the second
            signal.signal(number, leave)
