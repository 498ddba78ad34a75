"""The text of a YAML file with the line of each field, for errors that say where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from trainworks.errors import ArgumentError, LayoutError, RunFileError, UsageError, suggest

FieldPath = tuple[str | int, ...]

_DEEPEST = 100
"""Deepest nesting of a run file."""
_MOST_FIELDS = 100_000
"""Most fields of a run file, repeats by aliases included."""


class _Loader(yaml.SafeLoader):
    """YAML in which `20:25` is text; YAML 1.1 reads it as a number of base 60."""

    _depth = 0

    def resolve(self, kind: type[yaml.Node], value: str, implicit: bool | tuple[bool, bool]) -> str:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_number = tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        return "tag:yaml.org,2002:str" if is_number and ":" in value else tag

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise yaml.MarkedYAMLError(
                problem=f"nested more than {_DEEPEST} levels deep",
                problem_mark=self.peek_event().start_mark,  # type: ignore[no-untyped-call]
            )
        try:
            node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[no-untyped-call]
        finally:
            self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)  # type: ignore[no-untyped-call]
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            problem = f"`{str(node.value)[:40]}` is not a valid {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


class Source:
    """The text of a run file and the line of each field, for errors found later in the program."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.unused: list[str] = []
        """Keys without effect on the engine of the run, each with its line."""
        self.settings: dict[tuple[str, ...], str] = {}
        """Key of the option `--set` by the field that it sets instead of the file."""
        self._lines: dict[tuple[str, ...], int] = {}

    def move(self, moves: Mapping[FieldPath, FieldPath]) -> None:
        """Say of fields at new places the lines of those in the file."""
        for origin, place in moves.items():
            line, start = self.line(origin), tuple(map(str, origin))
            inner = {path[len(start) :]: at for path, at in self._lines.items() if path[: len(start)] == start}
            new = tuple(map(str, place))
            self._lines |= {new: line, (*new, start[-1]): line} | {(*new, *path): at for path, at in inner.items()}

    def adopt(self, other: Source, place: FieldPath) -> None:
        """Take the lines of another document of the file, whose fields are below a place of this run file."""
        start = tuple(map(str, place))
        self._lines |= {start: other.line(("name",))} | {(*start, *path): line for path, line in other._lines.items()}

    def place(self, field: FieldPath) -> str:
        """`file:line  a.b.c`, or `--set a.b.c`; a field that is in neither points at its nearest parent there."""
        path = tuple(map(str, field))
        if path[:1] == ("workload",) and ("trains",) in self._lines:  # planned as a workload
            path = ("trains", *path[1:])
        parents = (path[:length] for length in range(len(path), 0, -1))
        key = next((self.settings[parent] for parent in parents if parent in self.settings), None)
        if key is None:  # a mapping that is not valid may be so by what is set inside
            inside = dict.fromkeys(key for at, key in self.settings.items() if at[: len(path)] == path)
            return ", ".join([self.place_in_file(path), *(f"--set {key}" for key in inside)])
        dotted = ".".join(path)
        return f"--set {dotted if dotted.startswith(f'{key}.') else key}"

    def place_in_file(self, field: FieldPath) -> str:
        """`file:line  a.b.c`; of an object, which has no lines, the field alone."""
        dotted = ".".join(map(str, field))
        return f"{self.name}:{self.line(field)}  {dotted}".rstrip() if self.name else dotted

    def line(self, field: FieldPath) -> int:
        """Line of a field, or of its nearest parent in the file."""
        path = tuple(str(part) for part in field)
        while path not in self._lines and path:
            path = path[:-1]
        return self._lines.get(path, 1)

    def locate(self, error: LayoutError) -> RunFileError:
        """The error with the place of its layout field; that of the batch if the file has no layout."""
        path = ("layout", error.field) if ("layout",) in self._lines else ("workload", "global_batch")
        return RunFileError([UsageError(error.message, place=self.place(path), hint=error.hint)])

    def blame(self, error: ArgumentError) -> RunFileError:
        """The error at the line of the field that its argument names, such as `nodes.0.machine`."""
        place = self.place(tuple(error.argument.split(".")))
        return RunFileError([UsageError(error.message, place=place, hint=error.hint)])

    def parse(self) -> Any:
        """Parse the YAML into plain Python values and remember the line numbers.

        Raises:
            RunFileError: the text is not YAML, is nested or repeated by aliases beyond the limits, or has a key twice.
        """
        self._lines.clear()
        try:
            loader = _Loader(self.text)
            node = loader.get_single_node()  # type: ignore[no-untyped-call]
            self._remember(node, ())
            return None if node is None else loader.construct_document(node)  # type: ignore[no-untyped-call]
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            several = error.problem == "but found another document"
            hint = "`trainworks submit` takes a pipeline of SkyPilot" if several else None
            problem = UsageError(f"invalid YAML: {error.problem}", place=f"{self.name}:{line}", hint=hint)
            raise RunFileError([problem]) from None
        except yaml.YAMLError as error:
            raise RunFileError([UsageError(f"invalid YAML: {error}", place=self.name)]) from None

    def _remember(self, node: yaml.Node | None, path: tuple[str, ...], above: tuple[yaml.Node, ...] = ()) -> None:
        if node is None:
            return
        self._check_aliases(node, above)
        above = (*above, node)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                field = (*path, str(key.value))
                if field in self._lines:
                    raise yaml.MarkedYAMLError(problem=f"duplicate key `{key.value}`", problem_mark=key.start_mark)
                self._lines[field] = key.start_mark.line + 1
                self._remember(value, field, above)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._lines[(*path, str(index))] = item.start_mark.line + 1
                self._remember(item, (*path, str(index)), above)

    def _check_aliases(self, node: yaml.Node, above: tuple[yaml.Node, ...]) -> None:
        problem = None
        if node in above:
            problem = "an alias contains itself"
        elif len(self._lines) > _MOST_FIELDS:
            problem = f"more than {_MOST_FIELDS:,} fields"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def parse_value(text: str) -> Any:
    """The value that a text is as YAML, read as the values of a run file are.

    Raises:
        RunFileError: the text is not YAML.

    >>> parse_value("20:25"), parse_value("{a: [1, 2]}")
    ('20:25', {'a': [1, 2]})
    """
    return Source("", text).parse()


def split_documents(text: str) -> Iterator[str]:
    """Each document of a YAML file, after as many empty lines as the file has lines before it.

    `---` at the start of a line is always a boundary.
    """
    lines = text.split("\n")
    starts = [index for index, line in enumerate(lines) if re.match(r"---(\s|$)", line)]
    for start, end in zip([0, *starts], [*starts, len(lines)], strict=True):
        text = "\n" * start + "\n".join(lines[start:end])
        yield text if end == len(lines) else f"{text}\n"


def read_text(path: Path, what: str = "run file") -> str:
    """Text of a run file, or of another one that an error names.

    Raises:
        UsageError: the file does not exist or cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        folder = path.parent if path.parent.is_dir() else Path()
        nearest = suggest(str(path), [str(file) for file in sorted(folder.glob("*.y*ml"))])
        raise UsageError(f"{what} `{path}` not found", hint=nearest) from None
    except IsADirectoryError:
        inside = next((f"`{file}`" for file in sorted(path.glob("*.y*ml"))), "a file")
        raise UsageError(f"`{path}` is a folder, not a {what}", hint=f"name {inside} in it") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read `{path}`: not text in UTF-8") from None
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}") from None


def read_package_data(package: str, name: str) -> Any:
    """The content of a YAML file in the folder `data` of a package."""
    from importlib import resources  # noqa: PLC0415  # every process imports this module, and few read data

    text = resources.files(package).joinpath("data", f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506, a safe loader
