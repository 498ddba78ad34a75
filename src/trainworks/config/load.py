"""Read a run file from YAML, and values set beside it; all errors are reported at once, each with its place."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError

from trainworks.config.limits import above_limit
from trainworks.config.manifests.reading import FILL_IN
from trainworks.config.run_file import RunFile, Workload
from trainworks.config.skypilot_task import (
    NOT_A_JOB,
    Moves,
    changed_elsewhere,
    ignored_keys,
    is_task,
    kept_otherwise,
    read_task,
)
from trainworks.config.source import FieldPath, Source, parse_value, read_text
from trainworks.config.spec import FieldError, name_from
from trainworks.errors import RunFileError, TrainworksError, UsageError, suggest

Model = TypeVar("Model", bound=BaseModel)
Settings = Mapping[str, Any]
"""Values by dotted key of the run file, `optimizer.lr` or `workload.optimizer.lr`: they replace those of the file, or
add to them; text is read as YAML, and None removes the key. Later ones win."""
NO_SETTINGS: Final[Settings] = types.MappingProxyType({})
LATER = ("recover.warm_spares",)
"""Keys of the design that are not implemented yet."""

_MISTAKEN = {"env": "variables are keys of `envs`; packages are an `environment`"}
"""Keys that users write for another one, and which one."""
_OTHER_NAMES = {
    **dict.fromkeys(("learning_rate", "learning-rate"), "lr"),
    **dict.fromkeys(("batch_size", "batch"), "global_batch"),
    **dict.fromkeys(("steps", "max_steps", "num_steps", "epochs", "tokens"), "train_for"),
}
"""Names that other programs have for a key of the run file."""


def parse_run_file(text: str, *, name: str, settings: Settings = NO_SETTINGS) -> tuple[RunFile, Source]:
    """Check the text of a run file, with other values where there are settings.

    Raises:
        RunFileError: every problem in it, each with its line, or with its `--set`.
        UsageError: a setting that the run file has no key for, or that is not YAML.
    """
    source = Source(name, text)
    data = source.parse()
    if not isinstance(data, dict):
        raise RunFileError([UsageError("a run file must be a mapping of keys to values", place=f"{name}:1")])
    source.settings = _set(data, settings)
    if is_task(data) or "roles" in data:
        data.setdefault("name", name_from(Path(name).stem))
    data, moves = read_task(data)
    source.move(moves)
    try:
        run_file = RunFile.model_validate(data)
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, data, source))) from None
    note_engine(run_file, source, moves)
    return run_file, source


def note_engine(run_file: RunFile, source: Source, moves: Moves) -> None:
    """Note at their places what the engine of a run keeps otherwise than the run file has it, or not at all.

    Args:
        run_file: as read.
        source: gets the notes.
        moves: keys of SkyPilot that moved to its options.
    """
    engine = run_file.cluster.engine
    if engine == "skypilot":
        found = kept_otherwise(run_file.roles)
        source.unused += [f"{source.place(field)}: {what}" for field, what in found]
        return
    chooses = engine in ("local", "described") or run_file.cluster.of is not None
    changed = changed_elsewhere(run_file.resources, run_file.roles, chooses=chooses)
    source.unused += [f"{source.place(field)}: {what}" for field, what in changed]
    ignored = [(source.place(origin), reason) for origin, reason in ignored_keys(moves)]
    source.unused += [f"{place} has no effect on `{engine}`: {why}" for place, why in ignored]


def with_settings(run_file: RunFile, settings: Settings, source: Source | None = None) -> RunFile:
    """The run file with other values by key; its source, if there is one, learns where they are from.

    Raises:
        RunFileError: a key that does not exist, or a value that is not valid, at its `--set`.
        UsageError: a first key that does not exist, or a text that is not YAML.
    """
    if not settings:
        return run_file
    data, source = run_file.model_dump(mode="json", exclude_unset=True), source or Source("", "")
    source.settings = _set(data, settings)
    try:
        return RunFile.model_validate(data)
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, data, source))) from None


def full_key(key: str) -> str:
    """The key with `workload.` before those of a workload.

    Raises:
        UsageError: the run file has no such key.

    >>> full_key("optimizer.lr"), full_key("layout.tp")
    ('workload.optimizer.lr', 'layout.tp')
    """
    first, dot, rest = key.partition(".")
    if first in RunFile.model_fields:
        return key
    if first in Workload.model_fields:
        return f"workload.{key}"
    known = [*Workload.model_fields, *RunFile.model_fields]
    otherwise = _elsewhere(first) or "name a key of the run file, such as `optimizer.lr`"
    hint = suggest(first, known, form=f"{{}}{dot}{rest}", otherwise=otherwise)
    raise UsageError(f"unknown key `{first}`", place=f"--set {key}", hint=hint)


def yaml_value(key: str, value: Any) -> Any:
    """The value of a setting; text, also inside a mapping, is read as YAML.

    Raises:
        UsageError: it is not YAML.
    """
    if isinstance(value, Mapping):
        return {name: yaml_value(f"{key}.{name}", item) for name, item in value.items()}
    try:
        return parse_value(value) if isinstance(value, str) else value
    except RunFileError:
        raise UsageError(f"`{value}` is not a value of YAML", place=f"--set {key}") from None


def _set(data: dict[str, Any], settings: Settings) -> dict[tuple[str, ...], str]:
    """Set values in the data of a run file; returns the fields that are there by a setting, each with its key."""
    found: dict[tuple[str, ...], str] = {}
    for written, text in settings.items():
        key, value = full_key(written), yaml_value(written, text)
        path, inner = tuple(key.split(".")), data
        for depth, part in enumerate(path[:-1]):
            held = _long_form(inner.get(part), path[:depth], part)
            if isinstance(held, list):
                hint = f"set the whole list: `--set '{'.'.join(path[: depth + 1])}=[...]'`"
                raise UsageError(f"`{part}` is a list", place=f"--set {key}", hint=hint)
            if not isinstance(held, dict):
                held = {}
                found[path[: depth + 1]] = key
            inner[part] = inner = held
        found[path] = key
        inner[path[-1]] = value
        if value is None:
            del inner[path[-1]]
    return found


def _long_form(value: Any, parents: FieldPath, key: str) -> Any:
    """The mapping or list that a short form such as `cluster: slurm` stands for; any other value as it is."""
    model = None if value is None or isinstance(value, dict) else _model_at(RunFile, parents)
    for each in model.model_fields[key].metadata if model and key in model.model_fields else ():
        with suppress(FieldError):  # the value of the file is refused at its own line
            value = each.func(value) if isinstance(each, BeforeValidator) else value  # type: ignore[call-arg]
    return value


def load_model(path: Path, model: type[Model], what: str) -> tuple[Model, Source]:
    """Read and check a file of another model, `what` by name.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: every problem in it, each with its line.
    """
    source = Source(str(path), read_text(path, what))
    data = source.parse()
    if not isinstance(data, dict):
        raise RunFileError([UsageError(f"a {what} must be a mapping of keys to values", place=f"{path}:1")])
    try:
        return model.model_validate(data), source
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, data, source, model))) from None


def problems_of(
    error: ValidationError, data: Mapping[str, Any], source: Source, model: type[BaseModel] = RunFile
) -> Iterator[TrainworksError]:
    """Errors of a run file, or of a file of another model, from those of pydantic, in the order of the file."""
    by_path: dict[FieldPath, list[Any]] = {}
    for detail in error.errors(include_url=False):
        path = _path_in_file(detail["loc"], data, missing=detail["type"] == "missing")
        by_path.setdefault(path, []).append(detail)
    # a list whose items are all wrong is not too short
    for path in [path for path, found in by_path.items() if {each["type"] for each in found} == {"too_short"}]:
        if any(len(other) > len(path) and other[: len(path)] == path for other in by_path):
            del by_path[path]
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
    inner = _model_at(model, path[:-1])
    known = list(inner.model_fields) if inner else []
    if model is RunFile and dotted in _MISTAKEN:
        return f"unknown key `{key}`", _MISTAKEN[dotted]
    otherwise = _elsewhere(str(key)) if model is RunFile else None
    every = f"known keys: {', '.join(known)}" if known else None
    hint = suggest(str(key), known, otherwise=otherwise or every)
    return f"unknown key `{key}`", hint


def _elsewhere(key: str) -> str | None:
    """A hint with the keys of the run file that are called so, inside of any mapping that is not an item of a list.

    `trains` has those of `workload`, which stand for both.
    """
    name, found = _OTHER_NAMES.get(key, key), list[str]()
    rest: list[tuple[tuple[str, ...], type[BaseModel]]] = [((), RunFile)]
    for path, model in rest:
        found += [".".join((*path, name))] if name in model.model_fields else []
        fields = {key: info.annotation for key, info in model.model_fields.items() if key != "trains"}
        inner = ((key, _inner_model(of)) for key, of in fields.items() if get_origin(of) not in (tuple, dict))
        rest += [((*path, field), of) for field, of in inner if of is not None]
    return f"did you mean {' or '.join(f'`{path}`' for path in found)}?" if 0 < len(found) <= 3 else None


def invalid_value(detail: Any, path: FieldPath) -> tuple[str, str | None]:
    """Message and hint of a value that pydantic refused."""
    if isinstance(error := detail.get("ctx", {}).get("error"), FieldError):
        return error.message, error.hint
    key = _key(path)
    if detail["type"] == "less_than_equal" and (problem := above_limit(key, int(detail["input"]))):
        return problem, "check the number of digits"
    hint = suggest(str(detail["input"]), _options(detail)) if detail["type"] == "literal_error" else None
    if detail["type"] == "string_pattern_mismatch" and "$" in str(detail["input"]):
        hint = FILL_IN
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


def _model_at(model: type[BaseModel], path: FieldPath) -> type[BaseModel] | None:
    """The model of the mapping at a path; None where there is none."""
    is_name = False
    for part in path:
        if isinstance(part, int) or is_name:  # an item of a list or of a mapping by names: all have one model
            is_name = False
            continue
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if (inner := _inner_model(annotation)) is None:
            return None
        model, is_name = inner, get_origin(annotation) is dict
    return model


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, Annotated, types.UnionType, tuple, dict):
        return next(filter(None, (_inner_model(option) for option in get_args(annotation))), None)
    return None
