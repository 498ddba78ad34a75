"""The program `trainworks`. A command's module is imported when that command is called, and not before."""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from trainworks import __version__
from trainworks.errors import DiskFullError, EnvironmentProblem, TrainworksError, UsageError, suggest
from trainworks.report.rendering.printable import say

__all__ = ["COMMANDS", "app", "main", "module_of"]

COMMANDS = {
    "run": "Plan and start a run, follow it to its end, then report.",
    "submit": "Plan a run, queue it and return.",
    "plan": "Predict layout, step time, memory and duration of a run.",
    "size": "Propose what to buy or rent for a goal, with alternatives.",
    "network": "Design a cluster network: switches, cables, bandwidth.",
    "storage": "Compute storage requirements, and find storage that meets them.",
    "goodput": "Predict failures, spares and the finish time of a run.",
    "cost": "Compare the cost of renting and owning for a run or a year.",
    "capacity": "Replay a job trace: waiting time against cost of capacity.",
    "calibrate": "Correct the planner with a measurement of a cluster.",
    "data": "Prepare or verify training data.",
    "ps": "List jobs, with status and the reason why they wait.",
    "describe": "Show why a job waits, where it runs, or why it failed.",
    "hold": "Hold a queued job.",
    "release": "Release a held job.",
    "retry": "Requeue a failed or stopped job.",
    "jobs": "Rebuild the job store from run directories.",
    "nodes": "List the nodes that jobs run on.",
    "drain": "Drain a node: start no new jobs on it.",
    "ls": "List runs.",
    "status": "Show the state and progress of a run.",
    "logs": "Print the logs of a run.",
    "stop": "Stop a run; a workload saves a checkpoint first.",
    "profile": "Record some steps of a run with torch.profiler.",
    "resume": "Continue a run from its newest complete checkpoint.",
    "export": "Write a checkpoint as a Hugging Face model.",
    "report": "Compare what was planned with what was measured.",
    "score": "Score the planner's predictions against your measurements.",
    "catalog": "Look up accelerators, nodes and links, with sources.",
    "hooks": "Generate Slurm prolog and health-check scripts.",
    "autoscale": "Generate autoscaling config for Slurm or Kueue.",
    "sandbox": "Start a real Slurm of several nodes on this machine.",
    "schema": "Print the JSON Schema of the run file.",
}


ALIASES = {"launch": "submit", "queue": "ps", "squeue": "ps", "cancel": "stop", "scancel": "stop", "sinfo": "nodes"}
"""Command names of SkyPilot and Slurm."""


_LONGEST_PATH = 200
"""Characters of a path that an error shows."""
_WRITABLE = "name a place where you can write: TRAINWORKS_DATA, TRAINWORKS_CACHE, TRAINWORKS_RUNS"
_BAD_PLACE = {
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EROFS: _WRITABLE,
    errno.ENOSPC: "free some space, or name a place on another disk",
    errno.EDQUOT: "free some space, or name a place on another disk",
    errno.ENOTDIR: "a part of the path is a file: name another place",
    errno.ENAMETOOLONG: "take a shorter path",
    errno.EIO: "the disk reports an error: name a place on another one",
}
"""Errors of a place and not of the program, and the next step to take."""


_FOLDERS = {
    "planning": ("plan", "size", "cost", "goodput", "capacity", "network", "storage", "catalog", "score", "calibrate"),
    "runs": ("run", "submit", "resume", "report", "export", "profile", "data", "status", "ls", "logs", "stop"),
    "jobs": ("ps", "describe", "hold", "release", "retry", "nodes", "drain", "jobs"),
    "admin": ("sandbox", "hooks", "autoscale", "schema"),
}
_MODULES = {name: f"{folder}.{name}" for folder, names in _FOLDERS.items() for name in names}
_MODULES |= {"jobs": "jobs.job_store"}


def module_of(name: str) -> Any:
    """The module of a command, imported."""
    return importlib.import_module(f"trainworks.cli.{_MODULES[name]}")


class _LazyCommands(TyperGroup):
    """Knows every command's summary, and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = ALIASES.get(args[0], args[0]) if args else ""
        if name not in COMMANDS and (hint := suggest(name, COMMANDS)):
            raise UsageError(f"no command `{name}`", hint=hint)
        if name in COMMANDS and not ctx.resilient_parsing:
            return name, _imported(name), args[1:]
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """For listings and completion, which need the summary only."""
        return typer.main.get_command(_placeholder(cmd_name)) if cmd_name in COMMANDS else None


def _imported(name: str) -> Any:
    module = module_of(name)
    command = typer.Typer(add_completion=False, rich_markup_mode=None)
    command.command(
        name=name,
        help=f"{COMMANDS[name]}\n\n{inspect.cleandoc(module.command.__doc__ or '')}",
        context_settings=getattr(module, "CONTEXT_SETTINGS", None),
    )(module.command)
    return typer.main.get_command(command)


def _placeholder(name: str) -> typer.Typer:
    listed = typer.Typer(add_completion=False, rich_markup_mode=None)
    listed.command(name=name, help=COMMANDS[name])(lambda: None)
    return listed


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


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Options of the program itself; each acts in its own callback, before a command is asked for."""


def main() -> None:
    """Run the program; an error that we foresaw is printed without a traceback, with its exit code."""
    if sys.stdout is None:  # `trainworks ls >&-`: nobody listens
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, until the end of the program
    try:
        app()
    except TrainworksError as error:
        say(error.render(), err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `trainworks logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except OSError as error:
        problem = _problem_of(error)
        if isinstance(problem, DiskFullError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left to be written
        say(problem.render(), err=True)
        sys.exit(problem.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _problem_of(error: OSError) -> EnvironmentProblem:
    """What is wrong with a place of the machine; anything else is an error of the program, and raised again."""
    if error.filename is None and error.errno == errno.ENOSPC:
        return DiskFullError("no space left for what is printed")
    if error.filename is None or error.errno not in _BAD_PLACE:
        raise error
    path = str(error.filename)
    shown = path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}..."
    return EnvironmentProblem(f"cannot use `{shown}`: {error.strerror}", hint=_BAD_PLACE[error.errno])
