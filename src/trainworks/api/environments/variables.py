"""Variables of a command that are given beside its run file: `--env NAME=VALUE`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError

_OPTION = "--env"


def parse_variables(assignments: Sequence[str], shell: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Variables as the run file's `envs` has them: None takes the value from the shell that submits the run.

    Args:
        assignments: `NAME=VALUE` or `NAME`; of several for one name the last one counts.
        shell: variables of the caller, which must have every `NAME` without a value.

    Raises:
        UsageError: an assignment is malformed, a value holds the character of code 0, or the caller has no such
            variable.

    Examples:
        >>> parse_variables(["LR=1e-4", "QUERY=a=b", "EMPTY=", "HOME"], {"HOME": "/home/ada"})
        {'LR': '1e-4', 'QUERY': 'a=b', 'EMPTY': '', 'HOME': None}
    """
    variables: dict[str, str | None] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
            hint = "write `--env NAME=VALUE`, or `--env NAME` for the value of your shell"
            raise UsageError(f"`{name}` is not the name of a variable", place=_OPTION, hint=hint)
        if "\0" in value:
            raise UsageError(f"`{name}` cannot hold the character of code 0", place=_OPTION)
        if not equals and name not in shell:
            hint = f"export {name}=..., or write `--env {name}=VALUE`"
            raise UsageError(f"environment variable `{name}` has no value", place=_OPTION, hint=hint)
        variables[name] = value if equals else None
    return variables


def warnings_about(run_files: Iterable[RunFile]) -> tuple[str, ...]:
    """Remarks on secrets that are written into run directories."""
    written = dict.fromkeys(name for run_file in run_files for name in run_file.written_secrets)
    return tuple(
        f"the record of the run keeps the value of {name}, readable by you alone; `{name}: null` in `envs` takes it "
        "from your shell and keeps it out"
        for name in written
    )
