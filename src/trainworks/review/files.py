"""A file under review: what kind it is, and its contents as the rules read them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import yaml

from trainworks.catalog.software import slurm_of_systems
from trainworks.config.slurm.sbatch_options import MAGIC, OptionLines, read_options
from trainworks.config.stack_parts.words import is_of_stack
from trainworks.numerals import ascii_width
from trainworks.review.finding import Edit
from trainworks.review.readers import tree
from trainworks.review.readers.conf import ConfLine, Field, read_columns, read_conf
from trainworks.review.readers.launch import TorchLaunch, launches
from trainworks.review.readers.prose import comments_in, python_in, scripts_in
from trainworks.review.readers.python import PythonCode
from trainworks.review.readers.run_file import RunFileText, read_run_file
from trainworks.review.readers.shell import Command, Script, Setting
from trainworks.review.readers.statements import Language, Statement, language_of, statements_in, vocabulary
from trainworks.review.versions import Allowed, Software, allowed_releases

Kind = Literal[
    "shell", "python", "slurm", "yaml", "json", "dockerfile", "requirements", "environment", "exports", "fstab", "text"
]

_SUFFIXES: dict[str, Kind] = {
    ".sh": "shell", ".bash": "shell", ".sbatch": "shell", ".slurm": "shell", ".job": "shell", ".py": "python",
    ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".dockerfile": "dockerfile", ".env": "environment",
    ".md": "text", ".markdown": "text", ".rst": "text", ".txt": "text",
}  # fmt: skip
_NAMES: dict[str, Kind] = {
    "slurm.conf": "slurm", "gres.conf": "slurm", "cgroup.conf": "slurm", ".env": "environment", "exports": "exports",
    "fstab": "fstab",
}  # fmt: skip
_SHEBANG = re.compile(r"#! *\S*(?:env +)?\S*sh\b")
LARGEST_BYTES = 1_000_000
"""Larger files are data, and are not read."""


def kind_of(path: Path) -> Kind | None:
    """What a file is by its name; None if no rule reads such a file."""
    if path.name in _NAMES:
        return _NAMES[path.name]
    if re.fullmatch(r"(?:Docker|Container)file(?:[._-].*)?", path.name, re.IGNORECASE):
        return "dockerfile"
    if re.fullmatch(r"requirements.*\.txt", path.name, re.IGNORECASE):
        return "requirements"
    if re.fullmatch(r"slurm[_-].*\.conf", path.name):
        return "slurm"
    return _SUFFIXES.get(path.suffix.lower())


class ReviewedFile:
    """A file, parsed as far as the rules ask for it.

    `name` is the path as findings show it. The kind is that of the name, else of the first line, else text. Files that
    it names are looked for in `folder`.
    """

    def __init__(self, name: str, text: str, kind: Kind | None = None, folder: Path | None = None) -> None:
        self.name = name
        self.text = text
        self.kind: Kind = kind or kind_of(Path(name)) or ("shell" if _SHEBANG.match(text) else "text")
        self.folder = folder
        self._naming: dict[tuple[str, ...], tuple[Statement, ...]] = {}

    @cached_property
    def lines(self) -> Sequence[str]:
        """Lines without their ends."""
        return self.text.split("\n")

    @cached_property
    def prose(self) -> str:
        """The sentences of a file at their places: a text, or the comments of code and configuration."""
        return self.text if self.kind == "text" else comments_in(self.text) if self.kind != "json" else ""

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """Sentences of a text, without its code, or of the comments of code."""
        return tuple(statements_in(self.prose))

    def naming(self, concepts: tuple[str, ...]) -> tuple[Statement, ...]:
        """The statements that have a word for one of the concepts."""
        if concepts not in self._naming:
            text = ascii_width(self.prose)
            named = any(vocabulary()[concept].search(text) for concept in concepts)
            self._naming[concepts] = tuple(one for one in self.statements if one.names(*concepts)) if named else ()
        return self._naming[concepts]

    @cached_property
    def whole_lines(self) -> tuple[Statement, ...]:
        """Lines of a text or of comments as one statement each, such as the description of a machine."""
        return tuple(statements_in(self.prose, whole=True))

    @cached_property
    def language(self) -> Language:
        """Language of a text, or of the comments of code and configuration, in which findings answer."""
        return language_of(self.prose)

    @cached_property
    def scripts(self) -> tuple[Script, ...]:
        """Shell code of the file: all of it, the commands of an image or a container, or blocks of a text."""
        if self.kind == "shell":
            return (Script(self.text),)
        if self.kind == "text":
            return tuple(scripts_in(self.text))
        if self.kind == "dockerfile":
            return tuple(self._instructions("RUN"))
        if self.run_file is not None:
            return tuple(self.run_file.scripts())
        return tuple(self._container_scripts()) if self.kind == "yaml" else ()

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """Simple commands of all `scripts`."""
        return tuple(command for script in self.scripts for command in script.commands)

    @cached_property
    def launches(self) -> tuple[tuple[Script, TorchLaunch], ...]:
        """Every launch with torchrun or its predecessor, with its script."""
        return tuple((script, launch) for script in self.scripts for launch in launches(script))

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Environment variables that the file sets, in shell code, an image, a manifest or an environment file."""
        found = [setting for script in self.scripts for setting in script.settings]
        if self.kind == "environment":
            found += Script(self.text).settings
        elif self.kind == "dockerfile":
            found += [setting for script in self._instructions("ENV") for setting in script.settings]
        elif self.run_file is not None:
            found += self.run_file.settings()
        elif self.kind == "yaml":
            found += self._container_settings()
        return tuple(found)

    @cached_property
    def values(self) -> dict[str, str]:
        """The last value of every variable of `settings`."""
        return {setting.name: setting.value for setting in self.settings}

    @cached_property
    def run_file(self) -> RunFileText | None:
        """A run file, or a SkyPilot task; None for any other file."""
        return read_run_file(self.documents, self.lines) if self.kind == "yaml" else None

    @cached_property
    def stack(self) -> yaml.Node | None:
        """The document of a stack file; None for any other file."""
        keys = tree.entries(self.documents[0]) if len(self.documents) == 1 else {}
        return self.documents[0] if is_of_stack(keys.keys()) else None

    @property
    def configures_torchrun(self) -> bool:
        """Variables give torchrun the options of its nodes: the file sets them, or its launcher does."""
        return self.run_file is not None or any(name.startswith("PET_") for name in self.values)

    @cached_property
    def batch(self) -> OptionLines | None:
        """The `#SBATCH` options of a batch script; None without any. Those of a script in a text are left out."""
        if self.kind != "shell" or not re.search("^#SBATCH", self.text, re.MULTILINE):
            return None
        (script,) = self.scripts
        other = {n for n, line in enumerate(self.lines, start=1) if line.startswith(MAGIC)} - script.comments
        return None if other else read_options(self.text, name=self.name)

    @cached_property
    def options(self) -> dict[str, str]:
        """The last value of every option of a batch script."""
        return {} if self.batch is None else {option.name: option.text for option in self.batch.options}

    @cached_property
    def python(self) -> PythonCode:
        """Code of a Python file that names torch, or of the fenced programs of a text; empty for any other file."""
        if self.kind == "text":
            return PythonCode(python_in(self.text) if "```" in self.text else "")
        return PythonCode(self.text if self.names_torch else "")

    @property
    def names_torch(self) -> bool:
        """It is Python, and may be a training program of PyTorch."""
        return self.kind == "python" and "torch" in self.text

    @cached_property
    def documents(self) -> tuple[yaml.Node, ...]:
        """Documents of a YAML or JSON file."""
        return tree.read_documents(self.text) if self.kind in ("yaml", "json") else ()

    @cached_property
    def exports(self) -> tuple[tuple[Field, ...], ...]:
        """Lines of an /etc/exports: the folder, and its clients with their options."""
        return tuple(read_columns(self.text)) if self.kind == "exports" else ()

    @cached_property
    def mounts(self) -> tuple[tuple[Field, ...], ...]:
        """Lines of an /etc/fstab with at least the four fields device, folder, type and options."""
        lines = read_columns(self.text) if self.kind == "fstab" else ()
        return tuple(fields for fields in lines if len(fields) >= 4)

    @property
    def is_slurm_conf(self) -> bool:
        """It is a slurm.conf, also under a longer name such as `slurm-gpu.conf`."""
        return self.kind == "slurm" and Path(self.name).name not in ("gres.conf", "cgroup.conf")

    @cached_property
    def conf(self) -> tuple[ConfLine, ...]:
        """Lines of a configuration file of Slurm."""
        return tuple(read_conf(self.text)) if self.kind == "slurm" else ()

    def edit(self, line: int, column: int, old: str, new: str) -> tuple[Edit, ...]:
        """Replace a text that begins at a place or behind it, on the same line; nothing if the line lacks it there."""
        at = self.lines[line - 1].find(old, column - 1)
        return (Edit(line, at + 1, len(old), new),) if at >= 0 else ()

    def allowed_releases(self, software: Software) -> tuple[Allowed, ...]:
        """Releases of a software that the file is used with, by its own text and the files around it."""
        return allowed_releases(software, self.name, self.text, self.folder, slurm_of_systems())

    def read_near(self, name: str) -> str | None:
        """Text of a file that this one names; None if it is not there."""
        if self.folder is None or not name or "$" in name:
            return None
        path = self.folder / name
        try:
            if not path.is_file() or path.stat().st_size > LARGEST_BYTES:
                return None
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def _instructions(self, name: str) -> Iterator[Script]:
        """Instructions of a Dockerfile as shell code, each with its continuation lines.

        A blank may follow a backslash there, which the shell does not see.
        """
        at = 0
        while at < len(self.lines):
            start, found = at, re.match(rf"[ \t]*{name}[ \t]+", self.lines[at], re.IGNORECASE)
            while at + 1 < len(self.lines) and self.lines[at].rstrip().endswith("\\"):
                at += 1
            at += 1
            if found:
                first = " " * found.end() + self.lines[start][found.end() :]
                code = "\n".join([first, *self.lines[start + 1 : at]])
                yield Script(re.sub(r"\\[ \t]+$", r"\\", code, flags=re.MULTILINE), line=start + 1)

    def _container_scripts(self) -> Iterator[Script]:
        """Multi-line shell code in the `command` and `args` of containers."""
        for document in self.documents:
            for mapping in tree.mappings(document):
                for key in ("command", "args"):
                    for item in tree.items(tree.get(mapping, key)):
                        if isinstance(item, yaml.ScalarNode) and item.style == "|":
                            indent = tree.indent(self.lines, item)
                            yield Script(item.value, line=item.start_mark.line + 2, indent=indent)

    def _container_settings(self) -> Iterator[Setting]:
        """Variables of the `env` lists of containers."""
        for document in self.documents:
            for mapping in tree.mappings(document):
                for item in tree.items(tree.get(mapping, "env")):
                    name, value = tree.scalar(tree.get(item, "name")), tree.get(item, "value")
                    if name and isinstance(value, yaml.ScalarNode):
                        line, column = tree.place(value)
                        yield Setting(name, str(value.value), line, column, column)
