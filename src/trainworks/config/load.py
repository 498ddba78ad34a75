"""From a YAML file to a RunFile; every error says file, line and field, and all of them come at once."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from trainworks.config.limits import above_limit
from trainworks.config.run_file import RunFile
from trainworks.errors import LayoutError, RunFileError, TrainworksError, UsageError

__all__ = [
    "ELSEWHERE",
    "LATER",
    "FieldPath",
    "Source",
    "load_run_file",
    "name_from",
    "parse_run_file",
    "problems_of",
    "read_text",
]

LATER = {
    "track": "read `metrics.jsonl` of the run, or `trainworks report --json`",
    "notify": None,
    "recover.warm_spares": None,
    "volumes": "on this machine the files are where they are; name their paths in `envs`",
    "config": None,
    "service": None,
    "pool": None,
    **{
        f"resources.{key}": "leave it out"
        for key in ("labels", "disk_tier", "network_tier", "local_disk", "accelerator_args", "ports")
    },
}
"""Keys of the design and of a SkyPilot task file that are not built yet, and what to do meanwhile."""

_RENTED = "with `engine: skypilot`, or leave it out to run on this machine"

ELSEWHERE = {
    **{
        f"resources.{key}": f"set `cluster.skypilot.{key}` {_RENTED}"
        for key in ("infra", "ordered", "instance_type", "disk_size", "max_hourly_cost")
    },
    **{f"resources.{key}": f"set `cluster.skypilot.infra` {_RENTED}" for key in ("cloud", "region", "zone", "any_of")},
    "resources.image_id": f"set `cluster.skypilot.image` {_RENTED}",
    "resources.autostop": "set `cluster.autoscale`, or leave it out: a job gives its nodes back at its end",
    "resources.job_recovery": "set `recover: {max_restarts: N}`",
    "file_mounts": "set `cluster.skypilot.file_mounts`; on this machine name the paths of the files in `envs`",
    "secrets": "name them in `envs` without a value, `HF_TOKEN: null`: the value comes from your shell",
}
"""Keys of a SkyPilot task file that a run file has under another name, and what to write."""

FieldPath = tuple[str | int, ...]

_DEEPEST = 100
"""Levels of a run file."""
_MOST_FIELDS = 100_000
"""Fields of a run file, with those that its aliases repeat."""


class _Loader(yaml.SafeLoader):
    """YAML in which `20:25` is text: YAML 1.1 takes it for a number of base 60, which nobody means."""

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
    """A run file's text and where each of its fields stands, for errors found later in the program."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self._lines: dict[tuple[str, ...], int] = {}

    def place(self, field: FieldPath) -> str:
        """`file:line  a.b.c`; a field that is not written points at its nearest written parent."""
        return f"{self.name}:{self.line(field)}  {'.'.join(str(part) for part in field)}".rstrip()

    def line(self, field: FieldPath) -> int:
        """Line of a field, or of its nearest written parent."""
        written = tuple(str(part) for part in field)
        while written not in self._lines and written:
            written = written[:-1]
        return self._lines.get(written, 1)

    def locate(self, error: LayoutError) -> RunFileError:
        """The error with the place of the layout field that it blames; of the batch if no layout is written."""
        written = ("layout", error.field) if ("layout",) in self._lines else ("workload", "global_batch")
        place = self.place(written)
        return RunFileError([UsageError(error.message, place=place, hint=error.hint)])

    def parse(self) -> Any:
        """The YAML as plain Python values, its line numbers remembered.

        Raises:
            RunFileError: the text is not YAML, is nested or repeated by aliases beyond the limits, or has a key twice.
        """
        try:
            node = yaml.compose(self.text, Loader=_Loader)
            self._remember(node, ())
            return yaml.load(self.text, Loader=_Loader)  # noqa: S506, a safe loader
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            problem = UsageError(f"not YAML: {error.problem}", place=f"{self.name}:{line}")
            raise RunFileError([problem]) from None
        except yaml.YAMLError as error:
            raise RunFileError([UsageError(f"not YAML: {error}", place=self.name)]) from None

    def _remember(self, node: yaml.Node | None, path: tuple[str, ...], above: tuple[yaml.Node, ...] = ()) -> None:
        if node is None:
            return
        self._check_aliases(node, above)
        above = (*above, node)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                field = (*path, str(key.value))
                if field in self._lines:
                    raise yaml.MarkedYAMLError(problem=f"`{key.value}` stands twice", problem_mark=key.start_mark)
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


def load_run_file(path: Path) -> tuple[RunFile, Source]:
    """Read and check a run file.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: every problem in it, each with its line.
    """
    return parse_run_file(read_text(path), name=str(path))


def read_text(path: Path) -> str:
    """The text of a file that somebody named.

    Raises:
        UsageError: the file does not exist or cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"no run file `{path}`", hint=_near_file(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from None


def parse_run_file(text: str, *, name: str) -> tuple[RunFile, Source]:
    """Check the text of a run file; `name` is what errors call it.

    Raises:
        RunFileError: every problem in it, each with its line.
    """
    source = Source(name, text)
    data = source.parse()
    if not isinstance(data, dict):
        raise RunFileError([UsageError("a run file is a mapping of keys to values", place=f"{name}:1")])
    if "run" in data:
        data.setdefault("name", name_from(Path(name).stem))
    try:
        return RunFile.model_validate(data), source
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, data, source))) from None


def name_from(text: str) -> str:
    """A name of a run from any text: `train` for `train.py` without its ending, `command` where nothing is left."""
    return re.sub("[^A-Za-z0-9]", "-", text.lstrip("._-")).strip("-")[:60] or "command"


def problems_of(error: ValidationError, data: Mapping[str, Any], source: Source) -> Iterator[TrainworksError]:
    """What pydantic found, in our words and in the order of the file."""
    found = [
        (_written_path(detail["loc"], data, missing=detail["type"] == "missing"), detail)
        for detail in error.errors(include_url=False)
    ]
    numbers = {path for path, detail in found if detail["type"] in ("greater_than_equal", "less_than_equal")}
    found = [each for each in found if each[1]["type"] != "literal_error" or each[0] not in numbers]
    for path, detail in sorted(found, key=lambda problem: source.line(problem[0])):
        message, hint = _wording(detail, path)
        yield UsageError(message, place=source.place(path), hint=hint)


def _wording(detail: Any, path: FieldPath) -> tuple[str, str | None]:
    """Our words for pydantic's finding: message and hint."""
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _unknown_key_wording(path)
    if kind == "missing":
        return f"`{path[-1]}` is missing", None
    if kind == "value_error":
        message, _, hint = str(detail["ctx"]["error"]).partition("\x1f")
        return message, hint or None
    if kind == "literal_error":
        return _literal_wording(detail["input"], detail["ctx"]["expected"])
    return _range_wording(detail, path)


def _unknown_key_wording(path: FieldPath) -> tuple[str, str | None]:
    key, dotted = path[-1], ".".join(map(str, path))
    if dotted in LATER:
        return f"`{key}` is not in this version", LATER[dotted]
    if dotted in ELSEWHERE:
        return f"`{dotted}` has another name in a run file", ELSEWHERE[dotted]
    known = _fields_at(RunFile, path[:-1])
    near = get_close_matches(str(key), known, n=1)
    return f"unknown key `{key}`", f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}"


def _range_wording(detail: Any, path: FieldPath) -> tuple[str, str | None]:
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    if detail["type"] == "less_than_equal" and (problem := above_limit(name, int(detail["input"]))):
        return problem, "check the number of digits"
    return f"`{str(detail['input'])[:100]}` does not fit: {detail['msg'][0].lower()}{detail['msg'][1:]}", None


def _literal_wording(value: object, expected: str) -> tuple[str, str | None]:
    options = [option.strip("' ") for option in expected.replace(" or ", ",").split(",")]
    near = get_close_matches(str(value), options, n=1)
    return f"`{value}` is not one of {', '.join(options)}", f"did you mean `{near[0]}`?" if near else None


def _written_path(loc: FieldPath, data: Any, *, missing: bool) -> FieldPath:
    """Pydantic's location without the union tags that nobody wrote."""
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


def _near_file(path: Path) -> str | None:
    folder = path.parent if path.parent.is_dir() else Path()
    candidates = [str(found) for found in sorted(folder.glob("*.y*ml"))]
    near = get_close_matches(str(path), candidates, n=1)
    return f"did you mean `{near[0]}`?" if near else None
