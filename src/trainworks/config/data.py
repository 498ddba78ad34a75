"""The data of a workload: addresses such as `texts/*.jsonl` or `s3://bucket/data`, how to prepare them, and `eval`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from trainworks.config.finetune import Chat
from trainworks.config.limits import up_to
from trainworks.config.quantities import SizeBytes, TrainForField
from trainworks.config.spec import FieldError, MetricFunction, Spec
from trainworks.errors import suggest

STDLIB = "python-stdlib"
HUB = "hf"
SCHEMES = ("hf", "s3", "gs", "gcs", "az", "abfs", "http", "https", "memory", "file")
"""Valid schemes before `://`: the hub, and stores that fsspec supports."""

_HUB_OPTIONS = ("split", "column", "config")
_SMALLEST_SHARE = 1e-5


class DataSource(Spec):
    """One source of data."""

    source: str
    """`python-stdlib`; a file, folder or glob; a store (`s3://bucket/folder`); a dataset of the hub (`hf://name`)."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Share of the training samples over the sum of all weights; without weights, sources count by their size."""
    column: str | None = None
    """Column or key of the text (JSONL, Parquet, datasets); `text` or `content` by default."""
    split: str | None = None
    """Split of a dataset; `train` by default."""
    config: str | None = None
    """Configuration of a dataset on the hub."""

    @model_validator(mode="before")
    @classmethod
    def _options_of_the_address(cls, value: Any) -> Any:
        """Read the options in `hf://name?split=train&column=text` as keys beside `source`."""
        if not isinstance(value, dict) or not isinstance(value.get("source"), str):
            return value
        scheme = scheme_of(value["source"])
        if scheme is not None and scheme not in SCHEMES:
            raise FieldError(f"unknown kind of store `{scheme}://`", hint=_nearest(scheme, SCHEMES, form="{}://"))
        address = value["source"]
        if scheme_of(address) != HUB or "?" not in address:
            return value | {"source": address}
        name, _, query = address.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        for option in options:
            if option not in _HUB_OPTIONS:
                raise FieldError(f"unknown option `{option}` in `{address}`", hint=_nearest(option, _HUB_OPTIONS))
            if value.get(option) is not None:
                raise FieldError(f"`{option}` is set twice: in `{address}` and as a key")
        return value | options | {"source": name}

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @property
    def scheme(self) -> str | None:
        """Scheme of the address; None for files of this machine."""
        return scheme_of(self.source)


def scheme_of(address: str) -> str | None:
    """Scheme of an address, the part before `://`; None without one."""
    found = re.match(r"^([A-Za-z][A-Za-z0-9+.-]*)://", address)
    return found[1].lower() if found else None


def _nearest(word: str, known: tuple[str, ...], form: str = "{}") -> str | None:
    names = ", ".join(form.format(name) for name in known)
    return suggest(word, known, form=form, otherwise=f"known are {names}")


def sources_from(value: Any) -> Any:
    """Normalise the value of `source`: one address, a list of sources, or addresses with weights.

    A list and a mapping become a list of mappings; one address stays text.
    """
    if isinstance(value, dict):
        if "source" in value:
            raise FieldError("a single source must be text", hint="write `source: ADDRESS`, and `column` beside it")
        return tuple({"source": address, "weight": weight} for address, weight in value.items())
    if isinstance(value, list | tuple):
        return tuple({"source": item} if isinstance(item, str) else item for item in value)
    if not isinstance(value, str):
        raise FieldError(
            f"`{value}` is not a data source", hint="give an address, a list of addresses, or addresses with weights"
        )
    DataSource.model_validate({"source": value})
    return value


def check_weights(sources: tuple[DataSource, ...]) -> None:
    """Check that all sources have a weight or none has, and that each weight has an effect.

    Raises:
        FieldError: some sources have no weight, or a weight is too small.
    """
    missing = [source.source for source in sources if source.weight is None]
    if missing and len(missing) < len(sources):
        raise FieldError(
            f"`{missing[0]}` has no weight, but other sources have one", hint="give a weight to every source or to none"
        )
    total = sum(source.weight for source in sources if source.weight is not None)
    for source in sources:
        if source.weight is not None and source.weight < _SMALLEST_SHARE * total:
            raise FieldError(
                f"weight {source.weight:g} of `{source.source}` is below 1e-5 of the sum of weights, {total:g}"
            )


TRAINED_VOCABULARY = 4096
"""Default number of entries of a tokenizer that is trained on the data."""

_CACHE_BYTES = 50_000_000_000

_SOURCE_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "examples": ["python-stdlib", "texts/*.jsonl", "s3://bucket/data"]},
            {"type": "object", "additionalProperties": {"type": "number"}, "title": "weights by source"},
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}, "title": "sources"},
        ]
    }
)

Sources = Annotated[
    Annotated[str, Tag("address")] | Annotated[tuple[DataSource, ...], Tag("sources")],
    Discriminator(lambda value: "address" if isinstance(value, str) else "sources"),
    BeforeValidator(sources_from),
    _SOURCE_SCHEMA,
]


def _chat_from_flag(value: Any) -> Any:
    if isinstance(value, str):
        raise FieldError(f"`chat` is `{value}`", hint="write `chat: true`, or a mapping with `template`")
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


ChatField = Annotated[Chat | None, BeforeValidator(_chat_from_flag, json_schema_input_type=Chat | bool | None)]


class Data(Spec):
    """Data to train on, prepared once and cached."""

    source: Sources = ""
    """`python-stdlib`, a file, folder or glob (text, JSONL, Parquet), `s3://...`, `hf://name`, a prepared folder; or
    several with weights, `{texts: 3, code: 1}`. A described cluster needs none."""
    sequence_length: Annotated[int, up_to("sequence_length")] = 1
    """Tokens per training sequence; at least 2 for text, not used for images."""
    image_size: Annotated[int, up_to("image_size", least=8)] | None = None
    """Width of the images, which are square without `image_height`."""
    image_height: Annotated[int, up_to("image_size", least=8)] | None = None
    """Height of the images of `task: diffusion`."""
    frames: Annotated[int, up_to("image_size")] | None = None
    """Frames of the videos of `task: diffusion`."""
    column: str | None = None
    """Column or key of the text (JSONL, Parquet, datasets); `text` or `content` by default."""
    split: str | None = None
    """Split of a dataset; `train` by default."""
    tokenizer: str = "bpe"
    """A tokenizer.json; `bpe` trains a byte-pair tokenizer on the text, and takes that of `model.hf` for pretrained
    weights."""
    vocabulary: Annotated[int, up_to("vocabulary", least=257)] | None = None
    """Entries of a trained tokenizer, 4096 by default; a given tokenizer has its own. A plan without data takes those
    of the published model with the same dimensions, else of the architecture's reference, and says so."""
    pack: bool = False
    """Fill sequences with whole documents that fit, instead of cutting them from one long row. Each document has
    its own positions and sees no other one."""
    chat: ChatField = None
    """The source holds conversations or instructions (JSONL, Parquet, datasets); `true` for the defaults."""
    shuffle_shards: Annotated[int, Field(ge=1)] | None = None
    """Number of shards to shuffle together; by default all of them on disk, 16 of a store."""
    cache: SizeBytes | None = None
    """Space on every node for shards streamed from a store, for all runs together; 50 GB by default."""
    sample_size: SizeBytes | None = None
    """Stored size of one sample, for planning storage; by default 2 or 4 bytes per token, 110 kB per image."""

    @model_validator(mode="after")
    def _one_or_several(self) -> Data:
        if isinstance(self.source, str):
            assert len(self.sources) <= 1  # validates that no option of the address is also a key
            return self
        if not self.source:
            raise FieldError("`source` is an empty list", hint="name at least one source")
        if self.column is not None or self.split is not None:
            raise FieldError("`column` and `split` need a single source", hint="set them for each source in the list")
        check_weights(self.source)
        return self

    @model_validator(mode="after")
    def _heights_have_a_width(self) -> Data:
        if self.image_height is not None and self.image_size is None:
            raise FieldError("`image_height` needs `image_size`, the width")
        return self

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of images and videos that are given, by their keys."""
        given = {name: getattr(self, name) for name in ("image_size", "image_height", "frames")}
        return {name: value for name, value in given.items() if value is not None}

    @model_validator(mode="after")
    def _chats_have_no_column(self) -> Data:
        if self.chat is not None and any(source.column for source in self.sources):
            raise FieldError("`column` names a text, and `chat` reads messages", hint="remove one of them")
        if self.chat is not None and self.image_size is not None:
            raise FieldError("`chat` is for text, and `image_size` for images", hint="remove one of them")
        for key in ("pairs", "labels"):
            if self.pack and getattr(self.chat, key, False):
                raise FieldError(f"`pack` does not support `chat.{key}`: a row of them has one conversation")
        return self

    @property
    def sources(self) -> tuple[DataSource, ...]:
        """All sources; none if the data is only used for planning."""
        if not isinstance(self.source, str):
            return self.source
        if not self.source:
            return ()
        beside = {"column": self.column, "split": self.split} if self.column or self.split else {}
        return (DataSource.model_validate({"source": self.source} | beside),)

    @property
    def title(self) -> str:
        """The sources in one line."""
        if isinstance(self.source, str):
            return self.source
        return " + ".join(
            part.source if part.weight is None else f"{part.weight:g} x {part.source}" for part in self.source
        )

    @property
    def cache_bytes(self) -> int:
        """Limit of the node's cache."""
        return self.cache or _CACHE_BYTES


class Reencoding(Spec):
    """How images are encoded anew when they are packed into shards."""

    format: Literal["webp", "jpeg"]
    """Format of the stored images."""
    quality: Annotated[int, Field(ge=1, le=100)] = 80
    """Quality setting of the encoder; the same number is not the same loss in both formats."""
    size: Annotated[int, up_to("image_size", least=8)] | None = None
    """Longest length of the shorter side in pixels; larger images shrink to it, smaller ones keep their size."""

    @property
    def title(self) -> str:
        """The settings in one line."""
        return f"{self.format}, quality {self.quality}" + (f", shorter side {self.size}" if self.size else "")


Metric = Literal["loss", "accuracy"]


def _share(value: Any) -> Any:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value) if isinstance(value, str) else None
    return value if match is None else float(match[1]) / 100


Share = Annotated[
    float,
    BeforeValidator(_share),
    Field(gt=0, le=0.5),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}], "examples": ["5 %", 0.05]}),
]
"""Part of a whole: `5 %` or 0.05; at most a half."""


SET_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}"


def _named_sets(value: Any) -> Any:
    """Check the names of held-out sets, `{wiki: wiki.txt, code: code.jsonl}`; a source has a key `source`."""
    if not isinstance(value, dict) or "source" in value:
        return value
    if (wrong := next((name for name in value if not is_set_name(name)), None)) is not None or not value:
        what = "`data` names no set" if wrong is None else f"`{str(wrong)[:100]}` is not the name of a held-out set"
        hint = "write `{wiki: wiki.txt, code: code.jsonl}`, or `source: ADDRESS` for a single one"
        raise FieldError(what, hint=hint)
    return value


def is_set_name(name: object) -> bool:
    """Whether a held-out set can have this name, which stands in the names of metrics: `wiki/loss`."""
    return isinstance(name, str) and re.fullmatch(SET_NAME, name) is not None and name not in DataSource.model_fields


HeldOutSets = Annotated[
    Annotated[DataSource, Tag("one")] | Annotated[dict[str, DataSource], Tag("sets")],
    Discriminator(lambda value: "sets" if isinstance(value, dict) and "source" not in value else "one"),
    BeforeValidator(_named_sets),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]


class GeneratedTexts(Spec):
    """Texts that the model writes at every evaluation."""

    prompts: Annotated[tuple[str, ...], Field(min_length=1, max_length=16)]
    """What the model continues."""
    tokens: Annotated[int, Field(ge=1, le=1024)] = 64
    """Tokens of a text, at most: it ends where the model ends the document."""
    temperature: Annotated[float, Field(ge=0, le=10)] = 0.0
    """0 takes the likeliest token; above it draws from the 20 likeliest ones, at this temperature."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the draws, the same at every evaluation."""


class Evaluation(Spec):
    """Evaluation on held-out data: either `data`, or a `split` of the training data."""

    data: HeldOutSets | None = None
    """Source of the held-out data, with the tokenizer, chat template and lengths of `workload.data`: an address, or a
    mapping with `source`, `column` and `split`; several sets by their names, `{wiki: wiki.txt, code: code.jsonl}`. A
    module has `build_eval_dataset` instead."""
    split: Share | None = None
    """Share of the training data to hold out, `5 %`: documents by their content, images by their path, and whole shards
    of prepared data. The run does not train on them."""
    every: TrainForField
    """Interval in steps; the last step evaluates, too."""
    steps: Annotated[int, up_to("steps")] | Literal["all"] = 20
    """Global batches of each evaluation, always the same ones; `all` takes all held-out data."""
    metric: Metric = "loss"
    """Metric that decides which checkpoint is the best; `accuracy` for masked-lm, image-classification and
    `preference`, where it is the share of pairs in the right order, or with KTO of answers on the right side."""
    metric_of: str | None = None
    """Name of the held-out set whose metric decides; the first one by default."""
    keep_best: bool = True
    """Save the best checkpoint, and keep it beside the newest ones."""
    metrics: tuple[MetricFunction, ...] = ()
    """Functions of your own, `package.module:function`, that return numbers by name; modules are found as those of
    `callbacks`."""
    generate: GeneratedTexts | None = None
    """Let the model continue prompts; for causal-lm."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """End the run after this many evaluations in a row without an improvement; never by default."""
    min_delta: Annotated[float, Field(ge=0)] = 0.0
    """Least change of the metric that counts as an improvement."""

    @model_validator(mode="after")
    def _check_steps(self) -> Evaluation:
        if self.every.unit != "steps":
            raise FieldError(f"`every` must be in steps, got `{self.every}`", hint="write it like `100 steps`")
        if self.data is not None and self.split is not None:
            raise FieldError("`data` and `split` exclude each other", hint="remove one of them")
        if self.metric_of is not None and self.metric_of not in self.sources and (self.sources or self.split):
            names = tuple(name for name in self.sources if name)
            hint = _nearest(self.metric_of, names) if names else "name the sets: `data: {wiki: wiki.txt}`"
            raise FieldError(f"`metric_of` is `{self.metric_of}`, and no held-out set has this name", hint=hint)
        return self

    @property
    def sources(self) -> dict[str, DataSource]:
        """Sources by the name of their set, which is empty for a single one; none of a `split` or a module."""
        if self.data is None:
            return {}
        return {"": self.data} if isinstance(self.data, DataSource) else self.data

    def deciding_set(self, names: Iterable[str]) -> str:
        """Name of the set whose metric decides, among all of them."""
        return next(iter(names)) if self.metric_of is None else self.metric_of

    @property
    def every_steps(self) -> int:
        """Optimizer steps between two evaluations."""
        return self.every.amount

    def check_task(self, task: str, *, has_pairs: bool = False) -> None:
        """Check that the task has this metric and takes its held-out data from the run file.

        Args:
            task: of the workload.
            has_pairs: it trains on pairs of answers, and counts those whose order is right.

        Raises:
            FieldError: it has not.
        """
        if self.metric == "accuracy" and task not in ("masked-lm", "image-classification") and not has_pairs:
            raise FieldError(f"`task: {task}` has no accuracy", hint="set `metric: loss`")
        if self.metrics and has_pairs:
            raise FieldError(
                "`eval.metrics` sees tokens, and `preference` compares answers", hint="remove `eval.metrics`"
            )
        written = next((name for name in ("data", "split") if getattr(self, name) is not None), None)
        if task == "module" and written is not None:
            raise FieldError(
                f"`task: module` does not use `eval.{written}`: the module builds its own dataset",
                hint="remove it, and define `build_eval_dataset` in the module",
            )
        if task != "causal-lm" and self.generate is not None:
            raise FieldError(f"`eval.generate` needs `task: causal-lm`; {task} does not generate text")
        if task != "module" and written is None:
            raise FieldError("`eval` has no held-out data", hint="set `eval.split: 5 %`, or name `eval.data`")

    def is_due(self, step: int, num_steps: int) -> bool:
        """Whether the run evaluates after this step."""
        return step % self.every_steps == 0 or step == num_steps
