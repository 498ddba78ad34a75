"""The options in a batch script of Slurm, read as sbatch reads them.

`#SBATCH` counts at the start of a line and before the first command. The rest of such a line is split at blanks outside
of quotes and backslashes, and a `#` outside of quotes ends it. A cluster may have plugins with options of their own, so
an option that resembles none of sbatch is taken for one of a plugin.

Source: sbatch(1) of Slurm 25.11 for the options; https://github.com/NVIDIA/pyxis/wiki/Usage for those of containers;
tests with sbatch 22.05 for the syntax of a line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from trainworks.errors import UsageError, suggest

MAGIC = "#SBATCH"


_SHORT = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task",
    "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "h": "help",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution",
    "N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos",
    "S": "core-spec", "s": "oversubscribe", "t": "time", "V": "version", "v": "verbose", "W": "wait",
    "w": "nodelist", "x": "exclude",
}  # fmt: skip
_WITH_VALUE = frozenset({
    "account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint", "clusters",
    "comment", "constraint", "container", "container-id", "core-spec", "cores-per-socket", "cpu-freq",
    "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution", "error", "exclude",
    "export", "export-file", "extra", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node",
    "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "input", "job-name", "kill-on-invalid-dep",
    "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus",
    "network", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node",
    "ntasks-per-socket", "open-mode", "output", "partition", "power", "prefer", "priority", "profile", "qos",
    "reservation", "segment", "signal", "sockets-per-node", "switches", "tasks-per-node", "thread-spec",
    "threads-per-core", "time", "time-min", "tmp", "tres-bind", "tres-per-task", "uid", "wait-all-nodes", "wckey",
    "wrap",
})  # fmt: skip
_MAYBE_WITH_VALUE = frozenset({"exclusive", "get-user-env", "nice", "no-kill", "oom-kill-step", "propagate"})
_FLAGS = frozenset({
    "consolidate-segments", "contiguous", "help", "hold", "ignore-pbs", "no-requeue", "overcommit",
    "oversubscribe", "parsable", "quiet", "reboot", "requeue", "share", "spread-job", "spread-segments", "stepmgr",
    "test-only", "usage", "use-min-nodes", "verbose", "version", "wait",
})  # fmt: skip
_ALIASES = {"share": "oversubscribe", "tasks-per-node": "ntasks-per-node"}
PYXIS = frozenset({
    "container-entrypoint", "container-entrypoint-log", "container-env", "container-image", "container-mount-home",
    "container-mounts", "container-name", "container-readonly", "container-remap-root", "container-save",
    "container-workdir", "container-writable", "no-container-entrypoint", "no-container-mount-home",
    "no-container-remap-root",
})  # fmt: skip
"""Options of the plugin Pyxis."""
_SBATCH = _WITH_VALUE | _MAYBE_WITH_VALUE | _FLAGS | _ALIASES.keys()
KNOWN_OPTIONS = _SBATCH | PYXIS
_TYPO = 0.8
"""Similarity from which an unknown name is a misspelt one, and not that of a plugin."""
_REMOVED = frozenset({"checkpoint", "checkpoint-dir", "restart-dir"})
"""Options of the checkpoint plugins, such as that of BLCR, which left Slurm with 20.02."""
_HETEROGENEOUS = ("hetjob", "packjob")


@dataclass(frozen=True, slots=True)
class Option:
    """One option and its line."""

    name: str
    """Long name in full, without dashes."""
    value: str | None
    file: str
    line: int

    @property
    def place(self) -> str:
        """`file:line  --name`."""
        return f"{self.file}:{self.line}  --{self.name}"

    @property
    def text(self) -> str:
        """Value; empty without one."""
        return self.value or ""

    def __str__(self) -> str:
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class OptionLines:
    """Options and problems of the `#SBATCH` lines of a script."""

    options: tuple[Option, ...]
    problems: tuple[UsageError, ...]
    """Problems of lines that cannot be parsed."""
    late: tuple[int, ...]
    """Numbers of lines after the first command, which have no effect."""


def read_options(text: str, *, name: str) -> OptionLines:
    """Read the options of a script, in their order."""
    options: list[Option] = []
    problems: list[UsageError] = []
    lines = text.split("\n")
    begin = next(
        (at for at, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")), len(lines) + 1
    )
    marked = [(number, line) for number, line in enumerate(lines, start=1) if line.startswith(MAGIC)]
    for number, line in marked:
        if number > begin:
            continue
        try:
            words = list(_words(line.removeprefix(MAGIC)))
            options += [Option(option, value, name, number) for option, value in _options(words)]
        except UsageError as error:
            error.place = f"{name}:{number}"
            problems.append(error)
    return OptionLines(tuple(options), tuple(problems), tuple(number for number, _ in marked if number > begin))


def _words(line: str) -> Iterator[str]:
    """Split a line after `#SBATCH` into words; a backslash quotes any character but a blank."""
    rest = line.strip()
    while rest and not rest.startswith("#"):
        found = re.match(r"""(?:\\\S?|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\s#"'\\])+""", rest)
        behind = rest[found.end() :] if found else rest
        if behind.startswith(("'", '"')):
            raise UsageError(f"the quote {behind[0]} is not closed in `{line.strip()}`")
        if found is None or found[0].startswith(":"):
            raise UsageError(f"unexpected `:` in `{line.strip()}`", hint=f"write it like `{MAGIC} --nodes=2`")
        word = re.sub(r"""\\\S?|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""", _meaning, found[0])
        if not word:
            raise UsageError(f"an empty word in `{line.strip()}`", hint="remove it: Slurm ignores the rest of the line")
        yield word
        rest = behind.lstrip()


def _meaning(marked: re.Match[str]) -> str:
    """A quoted or escaped part without its quotes."""
    text = marked[0]
    return text[1:] if text.startswith("\\") else re.sub(r"\\(.)", r"\1", text[1:-1])


def _options(words: list[str]) -> Iterator[tuple[str, str | None]]:
    """Parse names and values as getopt_long does."""
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if word.startswith("--") and len(word) > 2:
            yield _long(word, rest)
        elif word.startswith("-") and len(word) > 1:
            yield from _short(word, rest)
        elif word in _HETEROGENEOUS:
            hint = "submit it with sbatch, or make each part a job of its own"
            raise UsageError(f"`{word}` begins other nodes, and all nodes of a run are alike", hint=hint)
        else:
            raise _no_option(word)


def _long(word: str, rest: deque[str]) -> tuple[str, str | None]:
    written, equals, value = word[2:].partition("=")
    name = _full_name(written)
    if equals and name in _FLAGS:
        raise UsageError(f"`--{name}` takes no value, got `{value}`")
    if equals:
        return name, value
    if name in _WITH_VALUE:
        return name, _next_value(f"--{name}", rest)
    takes_next = name not in _SBATCH and rest and not rest[0].startswith("-")
    return name, rest.popleft() if takes_next else None


def _short(word: str, rest: deque[str]) -> Iterator[tuple[str, str | None]]:
    """`-N4`, `-N 4`, and several in one word as in `-HN4`."""
    for index, letter in enumerate(word[1:], start=1):
        name = _SHORT.get(letter)
        if name is None:
            raise _no_option(word)
        if name not in _WITH_VALUE:
            yield name, None
            continue
        value = word[index + 1 :]
        if value.startswith("="):
            raise UsageError(
                f"`{word}`: a short option has no `=` before its value", hint=f"write `-{letter} {value[1:]}`"
            )
        yield name, value or _next_value(f"-{letter}", rest)
        return


def _next_value(option: str, rest: deque[str]) -> str:
    value = rest.popleft() if rest else ""
    if not value:
        raise UsageError(f"`{option}` has no value")
    return value


def _full_name(written: str) -> str:
    """Complete a name that is the start of exactly one option; that of a plugin stays as it is."""
    if written in KNOWN_OPTIONS:
        return _ALIASES.get(written, written)
    if written in _REMOVED:
        raise UsageError(
            f"`--{written}` was removed from Slurm with 20.02, and never saved the memory of a GPU",
            hint="remove it, and let the program save: a workload does with `checkpoint:`",
        )
    beginning = sorted({_ALIASES.get(name, name) for name in _SBATCH if name.startswith(written)})
    if len(beginning) == 1:
        return beginning[0]
    if beginning:
        raise UsageError(
            f"`--{written}` is ambiguous", hint=f"use one of {', '.join(f'`--{name}`' for name in beginning)}"
        )
    is_name = re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]+", written)
    if not is_name or suggest(written, KNOWN_OPTIONS, cutoff=_TYPO):
        raise _no_option(f"--{written}")
    return written


def _no_option(word: str) -> UsageError:
    bare = word.lstrip("-").partition("=")[0]
    hint = suggest(bare, KNOWN_OPTIONS, form="--{}", otherwise="quote a value that contains blanks")
    return UsageError(f"`{word}` is not an option of sbatch", hint=hint)
