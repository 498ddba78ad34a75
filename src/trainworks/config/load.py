"""Read a run file from YAML; all of its errors are reported at once, each with file, line and field."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from trainworks.config.limits import above_limit
from trainworks.config.quantities import FieldError
from trainworks.config.run_file import RunFile
from trainworks.config.skypilot_task import is_task, read_task, round_up_accelerators, without_effect
from trainworks.errors import LayoutError, RunFileError, TrainworksError, UsageError, suggest

LATER = ("recover.warm_spares",)
"""Keys of the design that are not implemented yet."""

NOT_A_JOB = {
    "service": (
        "`service` describes servers behind a load balancer, which do not end; a run is a job",
        "remove `service` to start one server with `run`",
    ),
    "pool": (
        "`pool` describes workers that wait for jobs; a run is a job",
        "submit each job; the queue shares the nodes",
    ),
}
"""Keys of SkyPilot that make something else than a job of the file: why it is refused, and what to do instead."""

_MISTAKEN = {"env": "variables are keys of `envs`; packages are an `environment`"}
"""Keys that users write for another one, and which one."""

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
        self._lines: dict[tuple[str, ...], int] = {}

    def move(self, moves: Mapping[FieldPath, FieldPath]) -> None:
        """Say of fields at new places the lines of those in the file."""
        for origin, place in moves.items():
            line, start = self.line(origin), tuple(map(str, origin))
            inner = {path[len(start) :]: at for path, at in self._lines.items() if path[: len(start)] == start}
            new = tuple(map(str, place))
            self._lines |= {new: line, (*new, start[-1]): line} | {(*new, *path): at for path, at in inner.items()}

    def place(self, field: FieldPath) -> str:
        """`file:line  a.b.c`; a field that the file lacks points at its nearest parent in the file."""
        return f"{self.name}:{self.line(field)}  {'.'.join(str(part) for part in field)}".rstrip()

    def line(self, field: FieldPath) -> int:
        """Line of a field, or of its nearest parent in the file."""
        path = tuple(str(part) for part in field)
        while path not in self._lines and path:
            path = path[:-1]
        return self._lines.get(path, 1)

    def locate(self, error: LayoutError) -> RunFileError:
        """The error with the place of its layout field; that of the batch if the file has no layout."""
        path = ("layout", error.field) if ("layout",) in self._lines else ("workload", "global_batch")
        place = self.place(path)
        return RunFileError([UsageError(error.message, place=place, hint=error.hint)])

    def parse(self) -> Any:
        """Parse the YAML into plain Python values and remember the line numbers.

        Raises:
            RunFileError: the text is not YAML, is nested or repeated by aliases beyond the limits, or has a key twice.
        """
        self._lines.clear()
        try:
            node = yaml.compose(self.text, Loader=_Loader)
            self._remember(node, ())
            return yaml.load(self.text, Loader=_Loader)  # noqa: S506, a safe loader
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


def split_documents(text: str) -> Iterator[str]:
    """Each document of a YAML file, after as many empty lines as the file has lines before it.

    `---` at the start of a line is always a boundary.
    """
    lines = text.split("\n")
    starts = [index for index, line in enumerate(lines) if re.match(r"---(\s|$)", line)]
    for start, end in zip([0, *starts], [*starts, len(lines)], strict=True):
        yield "\n" * start + "\n".join(lines[start:end])


def load_run_file(path: Path) -> tuple[RunFile, Source]:
    """Read and check a run file.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: every problem in it, each with its line.
    """
    return parse_run_file(read_text(path), name=str(path))


def read_text(path: Path, what: str = "run file") -> str:
    """Text of a run file, or of another one that an error names.

    Raises:
        UsageError: the file does not exist or cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{what} `{path}` not found", hint=_nearest_file(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from None


def parse_run_file(text: str, *, name: str) -> tuple[RunFile, Source]:
    """Check the text of a run file.

    Raises:
        RunFileError: every problem in it, each with its line.
    """
    source = Source(name, text)
    data = source.parse()
    if not isinstance(data, dict):
        raise RunFileError([UsageError("a run file must be a mapping of keys to values", place=f"{name}:1")])
    if is_task(data):
        data.setdefault("name", name_from(Path(name).stem))
    data, moves = read_task(data)
    source.move(moves)
    source.unused += [f"{source.place(field)}: {change}" for field, change in round_up_accelerators(data)]
    try:
        run_file = RunFile.model_validate(data)
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, data, source))) from None
    if run_file.cluster.engine != "skypilot":
        ignored = [(source.place(origin), reason) for origin, reason in without_effect(moves)]
        source.unused += [f"{place} has no effect on `{run_file.cluster.engine}`: {why}" for place, why in ignored]
    return run_file, source


def name_from(text: str) -> str:
    """A valid run name made of any text; `command` if no character of it can be used."""
    return re.sub("[^A-Za-z0-9]", "-", text.lstrip("._-")).strip("-")[:60] or "command"


def problems_of(
    error: ValidationError, data: Mapping[str, Any], source: Source, model: type[BaseModel] = RunFile
) -> Iterator[TrainworksError]:
    """Errors of a run file, or of a file of another model, from those of pydantic, in the order of the file."""
    by_path: dict[FieldPath, list[Any]] = {}
    for detail in error.errors(include_url=False):
        path = _path_in_file(detail["loc"], data, missing=detail["type"] == "missing")
        by_path.setdefault(path, []).append(detail)
    for path in sorted(by_path, key=source.line):
        for message, hint in _messages(by_path[path], path, model):
            yield UsageError(message, place=source.place(path), hint=hint)


def _messages(details: list[Any], path: FieldPath, model: type[BaseModel]) -> Iterator[tuple[str, str | None]]:
    """Message and hint of each error of one field; the alternatives of a union are one error."""
    if any(detail["type"] in _BOUNDS for detail in details):
        details = [detail for detail in details if detail["type"] != "literal_error"]
    alternatives = [requirement for detail in details if (requirement := _requirement(detail))]
    if len(alternatives) == len(details) > 1:
        yield f"`{_key(path)}` must be {' or '.join(alternatives)}, got {_input(details[0])}", None
        return
    for detail in details:
        if detail["type"] == "extra_forbidden":
            yield _unknown_key(path, model)
        elif detail["type"] == "missing":
            yield f"`{path[-1]}` is missing", None
        else:
            yield invalid_value(detail, path)


def _unknown_key(path: FieldPath, model: type[BaseModel]) -> tuple[str, str | None]:
    key, dotted = path[-1], ".".join(map(str, path))
    if model is RunFile and dotted in LATER:
        return f"`{key}` is not supported yet", None
    if model is RunFile and dotted in NOT_A_JOB:
        return NOT_A_JOB[dotted]
    known = _fields_at(model, path[:-1])
    if model is RunFile and dotted in _MISTAKEN:
        return f"unknown key `{key}`", _MISTAKEN[dotted]
    return f"unknown key `{key}`", suggest(str(key), known, otherwise=f"known keys: {', '.join(known)}")


def invalid_value(detail: Any, path: FieldPath) -> tuple[str, str | None]:
    """Message and hint of a value that pydantic refused."""
    if isinstance(error := detail.get("ctx", {}).get("error"), FieldError):
        return error.message, error.hint
    key = _key(path)
    if detail["type"] == "less_than_equal" and (problem := above_limit(key, int(detail["input"]))):
        return problem, "check the number of digits"
    hint = suggest(str(detail["input"]), _options(detail)) if detail["type"] == "literal_error" else None
    if requirement := _requirement(detail):
        return f"`{key}` must be {requirement}, got {_input(detail)}", hint
    return f"invalid `{key}` {_input(detail)}: {detail['msg'][0].lower()}{detail['msg'][1:]}", hint


_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "dict": "a mapping of keys to values",
    "model": "a mapping of keys to values",
    "list": "a list",
    "tuple": "a list",
}
"""Description of a type by the first word of pydantic's error about it: `int_parsing`, `model_type`."""


def _requirement(detail: Any) -> str | None:
    """The values that a field takes, to follow `must be`; None for an error that is about something else."""
    kind = detail["type"]
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = detail["ctx"][name]
        return f"{words} {int(bound) if bound == int(bound) else bound:,}"
    if kind == "literal_error":
        options = _options(detail)
        return f"`{options[0]}`" if len(options) == 1 else f"one of {', '.join(options)}"
    if kind == "string_pattern_mismatch":
        return f"text that matches `{detail['ctx']['pattern']}`"
    first, _, rest = kind.partition("_")
    return _TYPES.get(first) if rest in ("type", "parsing", "from_float", "attributes_type") else None


def _options(detail: Any) -> list[str]:
    return [option.strip("' ") for option in detail["ctx"]["expected"].replace(" or ", ",").split(",")]


def _input(detail: Any) -> str:
    return f"`{str(detail['input'])[:100]}`"


def _key(path: FieldPath) -> str:
    return next((part for part in reversed(path) if isinstance(part, str)), "run file")


def _path_in_file(loc: FieldPath, data: Any, *, missing: bool) -> FieldPath:
    """Pydantic's location without the names of union members, which the file does not have."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part]
        elif not (missing and index == len(loc) - 1):
            continue
        path.append(part)
    return tuple(path)


def _fields_at(model: type[BaseModel], path: FieldPath) -> list[str]:
    for part in path:
        if isinstance(part, int):  # an item of a list: the list's model is that of its items
            continue
        inner = _inner_model(model.model_fields[str(part)].annotation) if str(part) in model.model_fields else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, Annotated, types.UnionType, tuple):
        return next(filter(None, (_inner_model(option) for option in get_args(annotation))), None)
    return None


def _nearest_file(path: Path) -> str | None:
    folder = path.parent if path.parent.is_dir() else Path()
    return suggest(str(path), [str(file) for file in sorted(folder.glob("*.y*ml"))])
