"""The log of what a process of Trainworks does, on stderr: levels by module, from `TRAINWORKS_LOG`.

    TRAINWORKS_LOG=info                                         decisions and external calls of every module
    TRAINWORKS_LOG=trainworks.agent=debug,trainworks.backends=info
    TRAINWORKS_LOG=info,kubernetes=debug                        a library's own log, too

Processes inherit the variable: supervisors, agents, ranks, and programs of backends. Without it nothing is configured,
and warnings are printed as Python does.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from contextlib import suppress

from trainworks.errors import UsageError, suggest
from trainworks.masking import masked

VARIABLE = "TRAINWORKS_LOG"
LEVELS = ("debug", "info", "warning", "error")
_FORMAT = "%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s"
_EXAMPLE = f"`{VARIABLE}=info,trainworks.agent=debug`"
_configured: set[str] = set()
"""Loggers that have a level or the handler of an earlier call."""


class _MaskingFormatter(logging.Formatter):
    """Writes a line without the secrets of its text and its arguments."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


def be_verbose(count: int) -> None:
    """Log with level info, or debug from a count of 2 on, here and in the processes that this one starts.

    Args:
        count: how often `--verbose` is given; with 0 the variable alone decides.

    Raises:
        UsageError: the variable cannot be read.
    """
    if count:
        levels = [os.environ.get(VARIABLE, ""), LEVELS[0] if count > 1 else LEVELS[1]]
        os.environ[VARIABLE] = ",".join(filter(None, levels))
    configure_log()


def configure_log() -> None:
    """Set the levels of the variable, and print what they let through on stderr; replaces an earlier configuration.

    Raises:
        UsageError: the variable cannot be read.
    """
    levels = parse_levels(os.environ.get(VARIABLE, ""))
    for logger in map(logging.getLogger, _configured):
        logger.setLevel(logging.NOTSET)
        logger.handlers.clear()
        logger.propagate = True
    handler = logging.StreamHandler()
    handler.setFormatter(_MaskingFormatter(_FORMAT))
    roots = {name.partition(".")[0] for name in levels}
    for root in map(logging.getLogger, roots):
        root.addHandler(handler)
        root.propagate = False
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level.upper())
    _configured.clear()
    _configured.update(levels, roots)


def inherit_log() -> None:
    """Configure the log of a process as the one that started it; the command line reports a variable that is wrong."""
    if _configured or os.environ.get(VARIABLE):  # most jobs start two processes that log nothing
        with suppress(UsageError):
            configure_log()


def parse_levels(text: str) -> dict[str, str]:
    """Levels by logger of `LEVEL,LOGGER=LEVEL,...`; a level alone is that of `trainworks`, and the last one counts.

    Raises:
        UsageError: no such level, or no such module of Trainworks.

    >>> parse_levels("info, trainworks.agent=debug")
    {'trainworks': 'info', 'trainworks.agent': 'debug'}
    """
    levels = {}
    for part in filter(None, map(str.strip, text.split(","))):
        logger, _, word = part.rpartition("=")
        name, level = logger.strip() or "trainworks", word.strip().lower()
        if level not in LEVELS:
            hint = suggest(level, LEVELS, otherwise=f"one of {', '.join(LEVELS)}: {_EXAMPLE}")
            raise UsageError(f"no log level `{word.strip()}`", place=VARIABLE, hint=hint)
        if name.startswith("trainworks.") and not _exists(name):
            raise UsageError(f"no module `{name}`", place=VARIABLE, hint=f"name a folder or a file: {_EXAMPLE}")
        levels[name] = level
    return levels


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a module in a folder that does not exist
        return False
