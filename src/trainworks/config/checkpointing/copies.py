"""Further places of checkpoints: `checkpoint.copies`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from trainworks.config.spec import FieldError, Spec

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class CheckpointCopy(Spec):
    """A second place of checkpoints. A text is short for `{to: ...}`."""

    to: str
    """A folder, such as that of a file server, or `s3://bucket/prefix` of an S3-compatible store; the run's id is
    added. Keys come from the environment, as for every tool of AWS."""
    keep: Annotated[int, Field(ge=1)] = 2
    """Number of complete copies to keep there, beside that of the best evaluation."""
    endpoint: str | None = None
    """Address of the store; by default `AWS_ENDPOINT_URL`, else AWS."""
    region: str | None = None
    """Region of the bucket; by default that of the environment."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"to": value} if isinstance(value, str) else value

    @field_validator("to")
    @classmethod
    def _is_a_place(cls, to: str) -> str:
        if "://" not in to:
            return to
        url = urlsplit(to)
        if url.scheme != "s3":
            raise FieldError(f"cannot copy checkpoints to `{url.scheme}`", hint="name a folder or s3://bucket/prefix")
        if not _BUCKET.fullmatch(url.netloc):
            raise FieldError("the address of a bucket is `s3://bucket/prefix`; keys come from the environment")
        return to.rstrip("/")

    @model_validator(mode="after")
    def _of_a_store(self) -> CheckpointCopy:
        if not self.is_s3 and (self.endpoint or self.region):
            raise FieldError(f"`{self.to}` is a folder: it has neither endpoint nor region")
        if self.endpoint is not None and "@" in self.endpoint:
            raise FieldError("an endpoint holds no keys; they come from the environment")
        return self

    def address(self, run_id: str) -> str:
        """Folder or URL of the copies of a run."""
        return f"{self.to}/{run_id}" if self.is_s3 else str(Path(self.to).expanduser() / run_id)

    @property
    def is_s3(self) -> bool:
        """Whether the place is a store."""
        return self.to.startswith("s3://")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | dict) else value


_ONE = {"anyOf": [{"type": "string", "examples": ["/mnt/other", "s3://bucket/prefix"]}, {"type": "object"}]}
CheckpointCopies = Annotated[
    tuple[CheckpointCopy, ...],
    BeforeValidator(_as_list),
    Field(max_length=4),
    WithJsonSchema({"anyOf": [*_ONE["anyOf"], {"type": "array", "items": _ONE}]}),
]
