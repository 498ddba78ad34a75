"""From a batch script of Slurm to a RunFile: its `#SBATCH` lines say what is asked for, and the script is what runs.

The script runs as it is, once, on the first node; it starts the others itself, with `srun` as a rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainworks.config.load import FieldPath, Source, name_from, problems_of, read_text
from trainworks.config.run_file import RunFile
from trainworks.config.sbatch_amounts import AMOUNTS, Amounts, amounts_of
from trainworks.config.sbatch_options import MAGIC, Option, read_options
from trainworks.config.slurm_words import expand_nodes, parse_slurm_time
from trainworks.errors import RunFileError, TrainworksError, UsageError

__all__ = ["BatchSource", "is_batch_script", "load_batch_script", "parse_batch_script"]

_SHELLS = re.compile(r"#! *(/\S*/)?(env +)?(ba|da|k|z)?sh( .*)?")
_SIGNAL = re.compile(r"(?:[RB]{1,2}:)?[A-Za-z0-9]+(?:@([0-9]{1,5}))?")
_SIGNAL_S = 60.0
"""Before the end, where `--signal` names no time."""

_REFUSED = {
    "array": ("a script is one job here", "submit it with `trainworks submit --array 1-10`"),
    "clusters": ("one cluster at a time", "write a run file, and set `cluster.slurm.login`"),
    "wrap": ("a script is there already", "leave it out"),
    "test-only": ("this would be no job", "use `trainworks submit --dry-run`"),
    "help": ("this would be no job", "use `sbatch --help`"),
    "usage": ("this would be no job", "use `sbatch --usage`"),
    "version": ("this would be no job", "use `sbatch --version`"),
}
_LOGS = "`trainworks logs` shows what the job prints"
_UNUSED = {
    "output": _LOGS,
    "error": _LOGS,
    "open-mode": _LOGS,
    "comment": "a job is known by a comment of Trainworks",
    "wait": "`trainworks run` waits for the end",
    "parsable": "`trainworks submit` prints the id of the run",
    "quiet": "`trainworks submit` says little",
    "verbose": "`trainworks submit --dry-run` shows what is submitted",
}
"""Options of the command sbatch itself, and what does the same here."""


class BatchSource(Source):
    """A batch script; its fields stand where their options do."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.options: dict[FieldPath, Option] = {}
        self.notes: list[str] = []
        """What was read and has no effect, each with its line."""

    def place(self, field: FieldPath) -> str:
        """`file:line  --option`; the first line where no option says it."""
        option = self._option(field)
        return option.place if option else f"{self.name}:1  {'.'.join(str(part) for part in field)}"

    def line(self, field: FieldPath) -> int:
        """Line of the option that says it."""
        option = self._option(field)
        return option.line if option else 1

    def _option(self, field: FieldPath) -> Option | None:
        written = field
        while written not in self.options and written:
            written = written[:-1]
        return self.options.get(written)


def is_batch_script(path: Path) -> bool:
    """Whether a file is a batch script: by its ending, or a shell script with a line that begins with `#SBATCH`."""
    if path.suffix in (".sbatch", ".slurm"):
        return True
    if path.suffix != ".sh" or not path.is_file():
        return False
    return re.search(rf"^{MAGIC}", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE) is not None


def load_batch_script(path: Path) -> tuple[RunFile, BatchSource]:
    """Read and check a batch script.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: every problem in it, each with its line.
    """
    return parse_batch_script(read_text(path), name=str(path))


def parse_batch_script(text: str, *, name: str) -> tuple[RunFile, BatchSource]:
    """Check the text of a batch script; `name` is what errors call it.

    Raises:
        RunFileError: every problem in it, each with its line.
    """
    _check_form(text, name)
    source = BatchSource(name, text)
    reading = _Reading(source)
    lines = read_options(text, name=name)
    reading.problems += lines.problems
    reading.take({option.name: option for option in lines.options})
    source.notes += [f"{name}:{line}: `{MAGIC}` behind the first command does not count" for line in lines.late]
    if reading.problems:
        raise RunFileError(sorted(reading.problems, key=_line_of))
    try:
        return RunFile.model_validate(reading.data), source
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, reading.data, source))) from None


def _line_of(problem: TrainworksError) -> int:
    found = re.search(r":(\d+)(?:  |$)", problem.place or "")
    return int(found[1]) if found else 0


def _check_form(text: str, name: str) -> None:
    """What sbatch refuses, and what no shell would start."""
    place = f"{name}:1"
    if "\r\n" in text:
        hint = rf"sed -i 's/\r$//' {name}"
        raise RunFileError([UsageError("its lines end as on Windows, with a carriage return", place=place, hint=hint)])
    first = text.partition("\n")[0]
    if not first.startswith("#!"):
        problem = UsageError(
            "a batch script begins with `#!`", place=place, hint="write `#!/bin/bash` on its first line"
        )
        raise RunFileError([problem])
    if not _SHELLS.fullmatch(first.rstrip()):
        hint = "begin with `#!/bin/bash`, and call the program below"
        raise RunFileError([UsageError(f"`{first}` is no shell", place=place, hint=hint)])


class _Reading:
    """Options of a script, on their way to a run file."""

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
        """All of them; the last of a name counts, as with sbatch."""
        self._try(self._take_amounts, options)
        for option in options.values():
            if option.name not in AMOUNTS:
                self._try(self._take_one, option)

    def _try(self, step: Callable[[Any], None], argument: Any) -> None:
        try:
            step(argument)
        except UsageError as error:
            if error.place is None and isinstance(argument, Option):
                error.place = argument.place
            self.problems.append(error)

    def put(self, field: tuple[str, ...], value: Any, option: Option | None) -> None:
        """A field of the run file, and the option that said it."""
        inner = self.data
        for key in field[:-1]:
            inner = inner.setdefault(key, {})
        inner[field[-1]] = value
        if option is not None:
            self.source.options[field] = option

    def as_it_is(self, option: Option | str) -> None:
        """Pass an option on to sbatch."""
        options = self.data["cluster"]["slurm"]["options"]
        if isinstance(option, Option):
            self.source.options[("cluster", "slurm", "options", len(options))] = option
        options.append(str(option))

    def _take_one(self, option: Option) -> None:
        if option.name in _REFUSED:
            message, hint = _REFUSED[option.name]
            raise UsageError(f"`{option}`: {message}", place=option.place, hint=hint)
        if option.name in _UNUSED:
            self.source.notes.append(f"{option.place} is not used: {_UNUSED[option.name]}")
        elif option.name in _FIELDS:
            self.put(_FIELDS[option.name], option.text, option)
        elif option.name in _OWN:
            _OWN[option.name](self, option)
        else:
            self.as_it_is(option)

    def _take_amounts(self, options: Mapping[str, Option]) -> None:
        amounts = amounts_of(options)
        said_by = {
            name: next(iter(options[key] for key in keys if key in options), None) for name, keys in _SAYS.items()
        }
        self.put(("num_nodes",), amounts.nodes, said_by["nodes"])
        self.put(("cluster", "processes_per_node"), amounts.tasks_per_node, said_by["tasks"])
        if amounts.min_nodes != amounts.nodes:
            self.put(("job", "min_nodes"), amounts.min_nodes, said_by["nodes"])
        for key, value in _resources(amounts).items():
            self.put(("resources", key), value, said_by[key])
        for text in amounts.other:
            self.as_it_is(text)


_FIELDS = {
    "partition": ("cluster", "slurm", "partition"),
    "account": ("cluster", "slurm", "account"),
    "qos": ("cluster", "slurm", "qos"),
    "constraint": ("cluster", "slurm", "constraint"),
    "switches": ("cluster", "slurm", "switches"),
    "reservation": ("cluster", "slurm", "reservation"),
    "chdir": ("workdir",),
}
"""Options that a run file has under another name."""
_SAYS = {
    "nodes": ("nodes", "ntasks"),
    "tasks": ("ntasks-per-node", "ntasks", "ntasks-per-gpu"),
    "accelerators": ("gpus-per-node", "gres", "gpus-per-task", "gpus"),
    "cpus": ("cpus-per-task", "cpus-per-gpu"),
    "memory": ("mem", "mem-per-cpu", "mem-per-gpu"),
}


def _resources(amounts: Amounts) -> dict[str, str]:
    """In the words of `resources`, where memory is in GB."""
    wanted = {
        "accelerators": f"{amounts.accelerator}:{amounts.accelerators}" if amounts.accelerators else None,
        "cpus": str(amounts.cores) if amounts.cores else None,
        "memory": f"{amounts.memory_bytes / 1e9:.9f}" if amounts.memory_bytes else None,
    }
    return {key: value for key, value in wanted.items() if value is not None}


def _name(reading: _Reading, option: Option) -> None:
    """As it is where a run may be called so."""
    fits = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", option.text)
    reading.put(("name",), option.text if fits else name_from(option.text), option)


def _time(reading: _Reading, option: Option) -> None:
    seconds = parse_slurm_time(option.text)
    if seconds is None:
        reading.as_it_is(option)
    else:
        reading.put(("job", "time_limit"), seconds, option)


def _exclude(reading: _Reading, option: Option) -> None:
    if "/" in option.text:
        raise UsageError(f"`{option}` names a file", hint="name the nodes: `--exclude=node[1-3,7]`")
    reading.put(("job", "exclude"), list(expand_nodes(option.text)), option)


def _hold(reading: _Reading, option: Option) -> None:
    reading.put(("job", "hold"), True, option)


def _signal(reading: _Reading, option: Option) -> None:
    """The script wants this very signal, so it is passed on too."""
    found = _SIGNAL.fullmatch(option.text)
    if found is None:
        raise UsageError(f"`{option.text}` is no signal and time", hint="write it like `USR1@120` or `B:TERM@60`")
    if (seconds := float(found[1] or _SIGNAL_S)) > 0:
        reading.put(("job", "grace"), seconds, option)
    reading.as_it_is(option)


def _dependency(reading: _Reading, option: Option) -> None:
    """Jobs by Slurm's numbers; those of `job.depends_on` are ours."""
    parts = re.split("[,?]", option.text)
    jobs = [job for part in parts for job in part.partition(":")[2].split(":") if job]
    if any(not re.fullmatch(r"[0-9]+(_([0-9]+|\*))?(\+[0-9]+)?", job) for job in jobs):
        hint = "write it like `afterok:1234:1235`; `squeue` shows the numbers"
        raise UsageError(f"`{option}` does not name its jobs by Slurm's numbers", hint=hint)
    reading.as_it_is(option)


def _export(reading: _Reading, option: Option) -> None:
    """Values become `envs`. Where nothing but a list is exported, Slurm has to know it."""
    names = re.findall(r"""(?:[^,'"]|'[^']*'|"[^"]*")+""", option.text)
    envs: dict[str, str | None] = {}
    for item in names:
        variable, equals, value = item.partition("=")
        if item in ("ALL", "NONE", "NIL"):
            continue
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", variable):
            raise UsageError(f"`{variable}` is no name of a variable", hint="write it like `--export=ALL,SEED=1`")
        envs[variable] = re.sub("['\"]", "", value) if equals else None
    if envs:
        reading.put(("envs",), envs, option)
    if "ALL" not in names:
        reading.as_it_is(option)


_OWN: dict[str, Callable[[_Reading, Option], None]] = {
    "job-name": _name,
    "time": _time,
    "exclude": _exclude,
    "hold": _hold,
    "signal": _signal,
    "dependency": _dependency,
    "export": _export,
}
