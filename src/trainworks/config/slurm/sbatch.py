"""Read a Slurm batch script as a run file: its `#SBATCH` lines are the requests, and the script is the command.

The script runs unchanged, once, on the first node; it starts the other nodes itself, usually with `srun`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainworks.config.command import AtLeast, amount_text
from trainworks.config.engines import JobOptions
from trainworks.config.load import problems_of
from trainworks.config.run_file import RunFile
from trainworks.config.slurm.sbatch_amounts import AMOUNTS, amounts_of, expand_nodes, parse_slurm_time
from trainworks.config.slurm.sbatch_options import KNOWN_OPTIONS, MAGIC, PYXIS, Option, read_options
from trainworks.config.source import FieldPath, Source, read_text
from trainworks.config.spec import LONGEST_RUN_NAME, is_run_id, name_from
from trainworks.errors import RunFileError, TrainworksError, UsageError

_SIGNAL_S = 60.0
"""Default time of `--signal` before the end; also how much earlier Slurm may send one."""

_REFUSED = {
    "clusters": ("a job runs on one cluster", "write a run file with `cluster.slurm.login`"),
    "wrap": ("the script is the command", "remove it"),
    "test-only": ("it submits no job", "use `trainworks submit --dry-run`"),
    "help": ("it submits no job", "use `sbatch --help`"),
    "usage": ("it submits no job", "use `sbatch --usage`"),
    "version": ("it submits no job", "use `sbatch --version`"),
}
_LOGS = "`trainworks logs` shows the output of the job"
_UNUSED = {
    "output": _LOGS,
    "error": _LOGS,
    "open-mode": _LOGS,
    "comment": "Trainworks uses the comment to identify the job",
    "wait": "`trainworks run` waits for the end",
    "parsable": "`trainworks submit` prints the id of the run",
    "quiet": "`trainworks submit` prints only the id",
    "verbose": "`trainworks submit --dry-run` shows what is submitted",
}
"""Options of the command sbatch itself, and their counterparts here."""


class BatchSource(Source):
    """A batch script; the place of a field is that of its option."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.options: dict[FieldPath, Option] = {}
        self.notes: list[str] = []
        """Options without effect and options of plugins, each with its line."""
        self.array: str | None = None
        """Indexes of `--array`: `0-9`, `1,3,5-7%2`."""

    def place_in_file(self, field: FieldPath) -> str:
        """`file:line  --option`; the first line for a field without an option."""
        option = self._option(field)
        return option.place if option else f"{self.name}:1  {'.'.join(str(part) for part in field)}"

    def line(self, field: FieldPath) -> int:
        """Line of the option that sets a field."""
        option = self._option(field)
        return option.line if option else 1

    def _option(self, field: FieldPath) -> Option | None:
        while field not in self.options and field:
            field = field[:-1]
        return self.options.get(field)


def is_batch_script(path: Path) -> bool:
    """Recognise a batch script by its suffix, or by `#!` and a line of `#SBATCH` before its first command."""
    if path.suffix in (".sbatch", ".slurm"):
        return True
    try:
        with path.open("rb") as file:
            text = file.read() if file.read(2) == b"#!" else b""
    except OSError:
        return False
    before = takewhile(lambda line: not line.strip() or line.lstrip().startswith(b"#"), text.split(b"\n")[1:])
    return any(line.startswith(MAGIC.encode()) for line in before)


def load_batch_script(path: Path) -> tuple[RunFile, BatchSource]:
    """Read and check a batch script.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: every problem in it, each with its line.
    """
    return parse_batch_script(read_text(path), name=str(path))


def parse_batch_script(text: str, *, name: str) -> tuple[RunFile, BatchSource]:
    """Check the text of a batch script.

    Raises:
        RunFileError: every problem in it, each with its line.
    """
    place = f"{name}:1"
    if "\r\n" in text:
        hint = rf"sed -i 's/\r$//' {name}"
        raise RunFileError([UsageError("the lines end with a carriage return, as on Windows", place=place, hint=hint)])
    first = text.partition("\n")[0]
    if not first.startswith("#!"):
        problem = UsageError(
            "a batch script must begin with `#!`", place=place, hint="write `#!/bin/bash` on the first line"
        )
        raise RunFileError([problem])
    if not re.fullmatch(r"#![ \t]*/\S+.*", first.rstrip()):
        hint = "write it like `#!/bin/bash`, or `#!/usr/bin/env python3`"
        raise RunFileError([UsageError(f"`{first}` has no path of an interpreter", place=place, hint=hint)])
    source = BatchSource(name, text)
    reading = _Reading(source)
    lines = read_options(text, name=name)
    reading.problems += lines.problems
    reading.take({option.name: option for option in lines.options})
    source.notes += [f"{name}:{line}: `{MAGIC}` after the first command has no effect" for line in lines.late]
    if reading.problems:
        raise RunFileError(sorted(reading.problems, key=_line_of))
    try:
        return RunFile.model_validate(reading.data), source
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, reading.data, source))) from None


def _line_of(problem: TrainworksError) -> int:
    found = re.search(r":(\d+)(?:  |$)", problem.place or "")
    return int(found[1]) if found else 0


class _Reading:
    def __init__(self, source: BatchSource) -> None:
        self.source = source
        self.problems: list[TrainworksError] = []
        self.data: dict[str, Any] = {
            "name": name_from(Path(source.name).stem),
            "run": source.text,
            "framework": "slurm",
            "cluster": {"engine": "slurm", "slurm": {"options": []}},
        }

    def take(self, options: Mapping[str, Option]) -> None:
        """Add all options; the last of a name counts, as with sbatch."""
        self._try(self._take_amounts, options)
        for option in options.values():
            if option.name not in AMOUNTS:
                self._try(self._take_one, option)
        self._fit_grace(options)
        # without an image and a container, the options of containers are for sbatch
        if not {"container-image", "container-name"} & options.keys():
            self.data["cluster"]["slurm"].pop("container", None)
            for option in (one for one in options.values() if one.name in PYXIS):
                self.pass_on(option)

    def _fit_grace(self, options: Mapping[str, Option]) -> None:
        """Shorten the grace of a job whose limit, in Slurm's whole minutes, leaves no room for the usual one."""
        limit = self.data.get("job", {}).get("time_limit")
        if limit is not None and "signal" not in options:
            left = math.ceil(limit / 60) * 60 - _SIGNAL_S
            if left < JobOptions().grace:
                self.data["job"]["grace"] = max(1.0, left)

    def _try(self, step: Callable[[Any], None], argument: Any) -> None:
        try:
            step(argument)
        except UsageError as error:
            if error.place is None and isinstance(argument, Option):
                error.place = argument.place
            self.problems.append(error)

    def put(self, field: tuple[str, ...], value: Any, option: Option | None) -> None:
        """Set a field of the run file and remember its option."""
        inner = self.data
        for key in field[:-1]:
            inner = inner.setdefault(key, {})
        inner[field[-1]] = value
        if option is not None:
            self.source.options[field] = option

    def pass_on(self, option: Option | str) -> None:
        """Pass an option on to sbatch unchanged."""
        options = self.data["cluster"]["slurm"]["options"]
        if isinstance(option, Option):
            self.source.options[("cluster", "slurm", "options", len(options))] = option
        options.append(str(option))

    def _take_one(self, option: Option) -> None:
        if option.name in _REFUSED:
            message, hint = _REFUSED[option.name]
            raise UsageError(f"`{option}`: {message}", place=option.place, hint=hint)
        if option.name in _UNUSED:
            self.source.notes.append(f"{option.place} has no effect: {_UNUSED[option.name]}")
        elif option.name in _FIELDS:
            self.put(_FIELDS[option.name], option.text, option)
        elif option.name in _OWN:
            _OWN[option.name](self, option)
        elif option.name in PYXIS:
            self.data["cluster"]["slurm"].setdefault("container", {}).setdefault("options", []).append(str(option))
        else:
            if option.name not in KNOWN_OPTIONS:
                note = "is left to a plugin of Slurm, because sbatch itself lacks it"
                self.source.notes.append(f"{option.place} {note}")
            self.pass_on(option)

    def _take_amounts(self, options: Mapping[str, Option]) -> None:
        amounts = amounts_of(options)
        option_of = {
            name: next(iter(options[key] for key in keys if key in options), None) for name, keys in _SET_BY.items()
        }
        self.put(("num_nodes",), amounts.nodes, option_of["nodes"])
        self.put(("cluster", "processes_per_node"), amounts.tasks_per_node, option_of["tasks"])
        if amounts.min_nodes != amounts.nodes:
            self.put(("job", "min_nodes"), amounts.min_nodes, option_of["nodes"])
        wanted = {
            "accelerators": f"{amounts.accelerator}:{amounts.accelerators}" if amounts.accelerators else None,
            "cpus": f"{amounts.cores}+" if amounts.cores else None,
            "memory": amount_text(AtLeast(amounts.memory_bytes / 1e9)) if amounts.memory_bytes else None,
        }
        for key, value in wanted.items():
            if value is not None:
                self.put(("resources", key), value, option_of[key])
        for other in amounts.other:
            self.pass_on(other)


_FIELDS = {
    "partition": ("cluster", "slurm", "partition"),
    "account": ("cluster", "slurm", "account"),
    "qos": ("cluster", "slurm", "qos"),
    "constraint": ("cluster", "slurm", "constraint"),
    "switches": ("cluster", "slurm", "switches"),
    "reservation": ("cluster", "slurm", "reservation"),
    "chdir": ("workdir",),
    "container-image": ("cluster", "slurm", "container", "image"),
}
"""Fields of a run file by the option that sets them."""
_SET_BY = {
    "nodes": ("nodes", "ntasks"),
    "tasks": ("ntasks-per-node", "ntasks", "ntasks-per-gpu"),
    "accelerators": ("gpus-per-node", "gres", "gpus-per-task", "gpus"),
    "cpus": ("cpus-per-task", "cpus-per-gpu"),
    "memory": ("mem", "mem-per-cpu", "mem-per-gpu"),
}


def _name(reading: _Reading, option: Option) -> None:
    fits = is_run_id(option.text) and len(option.text) <= LONGEST_RUN_NAME
    reading.put(("name",), option.text if fits else name_from(option.text), option)


def _time(reading: _Reading, option: Option) -> None:
    seconds = parse_slurm_time(option.text)
    if seconds is None:
        reading.pass_on(option)
    else:
        reading.put(("job", "time_limit"), seconds, option)


def _exclude(reading: _Reading, option: Option) -> None:
    if "/" in option.text:
        raise UsageError(f"`{option}` names a file", hint="list the nodes: `--exclude=node[1-3,7]`")
    reading.put(("job", "exclude"), list(expand_nodes(option.text)), option)


def _signal(reading: _Reading, option: Option) -> None:
    """Take the time as grace period, and pass the signal on, because the script expects it."""
    found = re.fullmatch(r"(?:[RB]{1,2}:)?[A-Za-z0-9]+(?:@([0-9]{1,5}))?", option.text)
    if found is None:
        raise UsageError(f"`{option.text}` is not a signal with a time", hint="write it like `USR1@120` or `B:TERM@60`")
    if (seconds := float(found[1] or _SIGNAL_S)) > 0:
        reading.put(("job", "grace"), seconds, option)
    reading.pass_on(option)


def _dependency(reading: _Reading, option: Option) -> None:
    """Pass on dependencies on Slurm job ids; `job.depends_on` takes jobs of Trainworks."""
    jobs = [job for part in re.split("[,?]", option.text) for job in part.partition(":")[2].split(":") if job]
    if any(not re.fullmatch(r"[0-9]+(_([0-9]+|\*))?(\+[0-9]+)?", job) for job in jobs):
        hint = "write it like `afterok:1234:1235`; `squeue` shows the ids"
        raise UsageError(f"`{option}` does not name jobs by their Slurm ids", hint=hint)
    reading.pass_on(option)


def _export(reading: _Reading, option: Option) -> None:
    """Take values as `envs`; pass the option on too if it restricts the exported variables."""
    names = re.findall(r"""(?:[^,'"]|'[^']*'|"[^"]*")+""", option.text)
    envs: dict[str, str | None] = {}
    for item in names:
        variable, equals, value = item.partition("=")
        if item in ("ALL", "NONE", "NIL"):
            continue
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", variable):
            raise UsageError(f"invalid variable name `{variable}`", hint="write it like `--export=ALL,SEED=1`")
        envs[variable] = re.sub("['\"]", "", value) if equals else None
    if envs:
        reading.put(("envs",), envs, option)
    if "ALL" not in names:
        reading.pass_on(option)


def _array(reading: _Reading, option: Option) -> None:
    """Keep the indexes for `trainworks submit`, which makes a job of each; a single number means a count to it."""
    if not re.fullmatch(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%[1-9]\d*)?", option.text):
        hint = "write it like `0-9`, `1,3,5-7`, `0-20:4` or `0-99%8`"
        raise UsageError(f"`{option.text}` is not a list of indexes", hint=hint)
    indexes, percent, at_once = option.text.partition("%")
    reading.source.array = (f"{indexes}-{indexes}" if indexes.isdecimal() else indexes) + percent + at_once


_OWN: dict[str, Callable[[_Reading, Option], None]] = {
    "job-name": _name,
    "time": _time,
    "exclude": _exclude,
    "hold": lambda reading, option: reading.put(("job", "hold"), True, option),
    "signal": _signal,
    "dependency": _dependency,
    "export": _export,
    "array": _array,
    "container-mounts": lambda reading, option: reading.put(
        ("cluster", "slurm", "container", "mounts"), option.text.split(","), option
    ),
}
