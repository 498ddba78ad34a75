"""Launches of training programs: torchrun and its predecessor, with their options and what precedes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trainworks.review.readers.shell import Command, Script, Word

_FLAGS = frozenset({"standalone", "module", "m", "no_python", "run_path", "use_env", "help", "h"})
"""Options of torchrun without a value."""
_MULTI_NODE = ("srun", "mpirun", "mpiexec", "pdsh", "clush", "ssh", "blaunch", "jsrun", "xargs", "parallel")

_INTERPRETER = re.compile(r"(?:\S*/)?(?:python3?(?:\.\d+)?|bash|sh)")


@dataclass(frozen=True, slots=True)
class TorchLaunch:
    """A call of torchrun or `torch.distributed.launch`.

    Source: https://docs.pytorch.org/docs/main/distributed/elastic/run.html
    """

    command: Command
    launcher: Word
    deprecated: bool
    """It is `torch.distributed.launch`."""
    options: dict[str, Word]
    """Options by name, with `_` for `-`; the word is the value, or the option itself without one."""
    values: dict[str, str]
    """Values of the options as text."""
    opaque: bool
    """A variable stands for further options."""
    script: Word | None
    arguments: tuple[Word, ...]
    prefix: tuple[Word, ...]
    """Words before it, such as `srun` and its options."""

    @property
    def is_under_srun(self) -> bool:
        """`srun` starts it."""
        return bool(self.prefix) and self.prefix[0].text == "srun"

    @property
    def has_rendezvous(self) -> bool:
        """Options, or variables of the command, name the meeting point of its nodes."""
        named = {"rdzv_endpoint", "master_addr", "standalone"} & self.options.keys()
        return bool(named) or self.opaque or any(s.name.startswith(("PET_", "MASTER_")) for s in self.command.settings)


def launches(script: Script) -> Iterator[TorchLaunch]:
    """Every launch of a script, in its order."""
    return (found for command in script.commands if (found := launch_in(command)))


def launch_in(command: Command) -> TorchLaunch | None:
    """The launch of a command; None for any other command."""
    for index, text in enumerate(command.texts):
        if text.rpartition("/")[2] == "torchrun" or text in ("torch.distributed.run", "torch.distributed.launch"):
            words = command.words
            options: dict[str, Word] = {}
            values: dict[str, str] = {}
            opaque, at = False, index + 1
            while at < len(words) and (words[at].text.startswith(("-", "$")) or words[at].text == ""):
                word = words[at]
                name, equals, value = word.text.lstrip("-").partition("=")
                name = name.replace("-", "_")
                at += 1
                if word.text.startswith("$"):
                    opaque = True
                elif equals:
                    options[name], values[name] = word, value
                elif name in _FLAGS or at == len(words) or words[at].text.startswith("-"):
                    options[name], values[name] = word, ""
                else:
                    options[name], values[name] = words[at], words[at].text
                    at += 1
            before = index - 2 if words[index].text.startswith("torch.") else index
            return TorchLaunch(
                command=command,
                launcher=words[index],
                deprecated=words[index].text == "torch.distributed.launch",
                options=options,
                values=values,
                opaque=opaque,
                script=words[at] if at < len(words) else None,
                arguments=words[at + 1 :],
                prefix=words[: max(0, before)],
            )
    return None


def program_of(command: Command) -> Word | None:
    """The script that a command starts by itself, or with a shell, Python, srun or torchrun; None without a path."""
    if (launch := launch_in(command)) is not None:
        return None if {"module", "m", "no_python", "run_path"} & launch.options.keys() else launch.script
    words = command.words
    index = next((i for i, word in enumerate(words) if _INTERPRETER.fullmatch(word.text)), None)
    if index == 0 or (index is not None and words[0].text == "srun"):
        script = words[index + 1] if index + 1 < len(words) else None
        return None if script is None or script.text.startswith("-") else script
    return words[0] if words[0].text.endswith((".sh", ".py")) else None


def starts_on_every_node(script: Script) -> bool:
    """The script names a program that starts others on several nodes, or a loop that could."""
    return any(word in script.text for word in (*_MULTI_NODE, "for ", "while "))


def nodes_of(script: Script, launch: TorchLaunch) -> int | None:
    """Number of nodes where it is written out, of a range the fewest."""
    return script.number(script.resolve(launch.values.get("nnodes", "")).partition(":")[0])


def count_of(text: str | None) -> int | None:
    """A number of an option of sbatch; of a range the most."""
    found = re.fullmatch(r"(?:\d+-)?(\d+)", text or "")
    return int(found[1]) if found else None
