"""The `data` of a workload: what to train on, and how it is prepared, read and shuffled."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from trainworks.config.data_source import DataSource, check_weights, sources_from
from trainworks.config.limits import up_to
from trainworks.config.quantities import FieldError, SizeBytes
from trainworks.config.spec import Spec

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


class Data(Spec):
    """Data to train on, prepared once and cached."""

    source: Sources = ""
    """`python-stdlib`, a file, folder or glob (text, JSONL, Parquet), `s3://...`, `hf://name`, a prepared folder; or
    several with weights, `{texts: 3, code: 1}`. A described cluster needs none."""
    sequence_length: Annotated[int, up_to("sequence_length")] = 1
    """Tokens per training sequence; at least 2 for text, not used for images."""
    image_size: Annotated[int, up_to("image_size", least=8)] | None = None
    """Width of the square images."""
    column: str | None = None
    """Column or key of the text (JSONL, Parquet, datasets); `text` or `content` by default."""
    split: str | None = None
    """Split of a dataset; `train` by default."""
    tokenizer: str = "bpe"
    """`bpe` trains a byte-pair tokenizer on the text; otherwise a tokenizer.json."""
    vocabulary: Annotated[int, Field(ge=257, le=65536)] | None = None
    """Entries of a trained tokenizer, 4096 by default; a given tokenizer has its own."""
    pack: bool = False
    """Fill sequences with whole documents that fit, instead of cutting them from one long row."""
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
