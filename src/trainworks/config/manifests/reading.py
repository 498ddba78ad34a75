"""What the readers of manifests share: the text with its places, the run file that grows, and problems on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trainworks.config.pod_patch import POD_CONTAINER
from trainworks.config.source import FieldPath, Source
from trainworks.errors import TrainworksError, UsageError, suggest

Value = TypeVar("Value")
Handler = Callable[[Any, FieldPath], None] | Mapping[str, "Handler"] | str | None
"""What becomes of a key: a function of its value and place, handlers of the keys below it, the reason why it has no
effect, or nothing to say."""


FILL_IN = "fill it in, as with `envsubst < FILE`"
"""Hint for a `$NAME` that the reader of a template replaces before Kubernetes sees it."""

Entry = tuple[dict[str, Any], FieldPath]
"""A mapping of a list, and its place."""


class ManifestSource(Source):
    """One document of a manifest; the place of a field of the run file is that of the key that set it."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.origins: dict[FieldPath, FieldPath] = {}
        """Key of the manifest by the field of the run file."""
        self.renamed: list[tuple[FieldPath, FieldPath]] = []
        """Start of keys as a reader sees them, and as they are in the file; the first that fits counts."""

    def place_in_file(self, field: FieldPath) -> str:
        """`file:line  spec.trainer.image`; the first line for a field that no key set."""
        return self.place_of(self._origin(field))

    def line(self, field: FieldPath) -> int:
        """Line of the key that set a field."""
        return super().line(self._locate(self._origin(field)))

    def place_of(self, key: FieldPath) -> str:
        """`file:line  a.b.c` of a key of the manifest."""
        key = self._locate(key)
        return f"{self.name}:{super().line(key)}  {'.'.join(map(str, key))}".rstrip()

    def _locate(self, key: FieldPath) -> FieldPath:
        found = next(((seen, real) for seen, real in self.renamed if key[: len(seen)] == seen), ((), ()))
        return (*found[1], *key[len(found[0]) :])

    def _origin(self, field: FieldPath) -> FieldPath:
        while field and field not in self.origins:
            field = field[:-1]
        return self.origins.get(field, ())


class ManifestReading:
    """A run file in the making."""

    def __init__(self, source: ManifestSource) -> None:
        self.source = source
        self.problems: list[TrainworksError] = []
        self.data: dict[str, Any] = {"cluster": {"engine": "kubernetes", "kubernetes": {}}}

    def put(self, field: tuple[str, ...], value: Any, key: FieldPath) -> None:
        """Set a field of the run file and remember the key that it is from."""
        inner = self.data
        for part in field[:-1]:
            inner = inner.setdefault(part, {})
        inner[field[-1]] = value
        self.source.origins[field] = key

    def putter(self, *field: str) -> Callable[[Any, FieldPath], None]:
        """Handler that sets a field to the value as it is."""
        return lambda value, key: self.put(field, value, key)

    def kubernetes(self, name: str, value: Any, key: FieldPath) -> None:
        """Set a field of `cluster.kubernetes`."""
        self.put(("cluster", "kubernetes", name), value, key)

    def patch(self, path: tuple[str, ...], value: Any, key: FieldPath) -> None:
        """Set a field of `cluster.kubernetes.patch`."""
        self.put(("cluster", "kubernetes", "patch", *path), value, key)

    @property
    def container(self) -> dict[str, Any]:
        """Entry of the job's container in the patch."""
        spec = self.data["cluster"]["kubernetes"].setdefault("patch", {}).setdefault("spec", {})
        containers: list[dict[str, Any]] = spec.setdefault("containers", [{"name": POD_CONTAINER}])
        return containers[0]

    def note(self, key: FieldPath, reason: str) -> None:
        """Say that a key has no effect, and why."""
        self.source.unused.append(f"{self.source.place_of(key)} has no effect: {reason}")

    def refuse(self, key: FieldPath, message: str, hint: str | None = None) -> None:
        """Keep a problem; the reader then looks for others."""
        self.problems.append(UsageError(message, place=self.source.place_of(key), hint=hint))

    def each(self, value: Any, key: FieldPath, handlers: Mapping[str, Handler]) -> None:
        """Take the keys of a mapping; a key without a handler is refused."""
        for name, inner in self.mapping(value, key).items():
            path = (*key, name)
            if name not in handlers:
                hint = suggest(str(name), handlers, otherwise=f"known keys: {', '.join(handlers)}")
                self.refuse(path, f"unknown key `{name}`", hint)
            elif isinstance(handler := handlers[name], str):
                self.note(path, handler)
            elif isinstance(handler, Mapping):
                self.each(inner, path, handler)
            elif handler is not None and inner is not None:
                handler(inner, path)

    def mapping(self, value: Any, key: FieldPath) -> dict[str, Any]:
        """A value that must be a mapping; empty, with a problem, if it is another."""
        if not isinstance(value, Mapping | None):
            self.refuse(key, f"`{key[-1]}` must be a mapping of keys to values")
            return {}
        return dict(value or {})

    def entries(self, value: Any, key: FieldPath) -> list[Entry]:
        """Entries of a list of mappings, each with its place; others are a problem."""
        if not isinstance(value, list | None):
            self.refuse(key, f"`{key[-1]}` must be a list")
            return []
        places = [(one, (*key, index)) for index, one in enumerate(value or [])]
        kept = []
        for one, place in places:
            if not isinstance(one, Mapping):
                self.refuse(place, f"an entry of `{key[-1]}` must be a mapping of keys to values")
            elif not isinstance(one.get("name", ""), str):
                self.refuse((*place, "name"), f"`name` must be text, got `{one['name']}`")
            else:
                kept.append((dict(one), place))
        return kept


def at(value: Any, *path: str) -> Any:
    """Value at a path of keys; None if the path ends before."""
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def drop_none(mapping: Mapping[str, Value | None]) -> dict[str, Value]:
    """Copy of a mapping without the keys that have no value."""
    return {key: value for key, value in mapping.items() if value is not None}


def time_limit(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    """Take the longest time of an attempt, in seconds."""
    reading.put(("job", "time_limit"), float(value) if isinstance(value, int) else value, key)
