"""Checkpoints in an S3-compatible store: in parts, resumed after a kill, verified there, the manifest last."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import FORBIDDEN, NOT_FOUND, REQUESTED_RANGE_NOT_SATISFIABLE, UNAUTHORIZED
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainworks.errors import EnvironmentProblem, MissingExtraError, TrainworksError
from trainworks.record.manifest import MANIFEST, Damage, Manifest, check_file, check_manifest, parse_manifest
from trainworks.record.run_dir import checkpoint_name

_PART_BYTES = 16 << 20
_MOST_PARTS = 9_000
"""S3 allows 10,000."""
_THREADS = 4
_TRIES = 8
"""Tries of each request, with growing pauses; `standard` retries wait up to 20 s."""
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a store."""

    key: str
    size: int
    etag: str
    """MD5 of an object that was sent at once and is not encrypted by KMS, in hexadecimal and in double quotes."""


class S3Prefix:
    """A prefix of a bucket, `s3://bucket/prefix/RUN`.

    `endpoint` and `region` are those of the environment when None, and the store is AWS's without any.

    Raises:
        MissingExtraError: botocore is not installed.
    """

    def __init__(self, address: str, *, endpoint: str | None = None, region: str | None = None) -> None:
        self.address = address
        url = urlsplit(address)
        self._bucket, self._prefix = url.netloc, url.path.strip("/")
        self._s3 = _client(endpoint, region)

    def _objects(self, prefix: str) -> Iterator[StoredObject]:
        """All objects whose key begins so."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        for page in pages:
            for item in page.get("Contents", ()):
                yield StoredObject(item["Key"], item["Size"], item["ETag"])

    def _read(self, key: str) -> bytes:
        content: bytes = self._s3.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        return content

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Turn what goes wrong with the store into an error that names the place."""
        known = _exceptions()
        try:
            yield
        except (TrainworksError, OSError):
            raise
        except known.ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            hint = (
                "check bucket, keys and endpoint"
                if _status(error) in (UNAUTHORIZED, FORBIDDEN, NOT_FOUND)
                else "try again later"
            )
            raise EnvironmentProblem(f"the store refuses `{self.address}`: {code}", hint=hint) from None
        except known.NoCredentialsError:
            hint = "export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the node a role"
            raise EnvironmentProblem(f"no keys for `{self.address}`", hint=hint) from None
        except known.BotoCoreError as error:
            reason = str(error).splitlines()[0]
            raise EnvironmentProblem(f"cannot reach `{self.address}`: {reason}", hint="check the endpoint") from None


class S3Place(S3Prefix):
    """Checkpoints of a run below a prefix; a file of more than 9,000 parts has parts larger than `part_bytes`.

    Raises: as `S3Prefix`.
    """

    def __init__(
        self, address: str, *, endpoint: str | None = None, region: str | None = None, part_bytes: int = _PART_BYTES
    ) -> None:
        super().__init__(address, endpoint=endpoint, region=region)
        self._part_bytes = part_bytes

    def manifests(self) -> dict[int, Manifest]:
        """Every complete copy, by step."""
        with self._naming():
            keys = [key for key in self._keys(f"{self._prefix}/step-") if key.endswith(f"/{MANIFEST}")]
            found = (parse_manifest(self._read(key)) for key in keys)
            return {manifest.step: manifest for manifest in found if isinstance(manifest, Manifest)}

    def put(self, manifest: Manifest, source: Path) -> None:
        """Upload a checkpoint; parts and files that are there are not sent again.

        Raises:
            EnvironmentProblem: the source is damaged, or the store refuses or does not answer.
        """
        with self._naming():
            for name in manifest.files:
                self._put_file(source, manifest, name)
            content = (source / MANIFEST).read_bytes()
            self._s3.put_object(Bucket=self._bucket, Key=self._key(manifest.step, MANIFEST), Body=content)

    def get(self, manifest: Manifest, target: Path) -> None:
        """Download a checkpoint into an empty folder."""
        with self._naming():
            for name in manifest.files:
                self._get_file(self._key(manifest.step, name), target / name)
            (target / MANIFEST).write_bytes(self._read(self._key(manifest.step, MANIFEST)))
        found = check_manifest(target)
        if isinstance(found, Damage):
            raise EnvironmentProblem(f"the copy in `{self.address}` of step {manifest.step} is damaged: {found}")

    def delete(self, step: int) -> None:
        """Delete a copy, its manifest first, and what is left of interrupted uploads."""
        with self._naming():
            self._s3.delete_object(Bucket=self._bucket, Key=self._key(step, MANIFEST))
            prefix = self._key(step, "")
            for key in self._keys(prefix):
                self._s3.delete_object(Bucket=self._bucket, Key=key)
            for upload in self._uploads(prefix):
                self._s3.abort_multipart_upload(Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def _put_file(self, source: Path, manifest: Manifest, name: str) -> None:
        """Upload one file, and compare what the store then has with what was read."""
        key, size = self._key(manifest.step, name), manifest.files[name]
        if damage := check_file(source, manifest, name):
            raise EnvironmentProblem(f"the checkpoint of step {manifest.step} is damaged: {damage}")
        parts = _Parts(source / name, size, self._part_bytes)
        if (head := self._head(key)) is not None and self._is_intact(head, parts):
            return
        upload, there = self._upload_of(key)

        def send(number: int) -> dict[str, Any]:
            content = parts.read(number)
            etag = f'"{parts.digest(number, content).hex()}"'
            if there.get(number) != etag:
                sent = {"Bucket": self._bucket, "Key": key, "UploadId": upload, "PartNumber": number}
                etag = self._s3.upload_part(**sent, Body=content)["ETag"]
            return {"PartNumber": number, "ETag": etag}

        with ThreadPoolExecutor(_THREADS) as threads:
            sent = list(threads.map(send, parts.numbers))
        self._s3.complete_multipart_upload(
            Bucket=self._bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": sent}
        )
        if (head := self._head(key)) is None or not self._is_intact(head, parts):
            self._s3.delete_object(Bucket=self._bucket, Key=key)
            raise EnvironmentProblem(f"`s3://{self._bucket}/{key}` is not what was sent; it is deleted there")

    def _is_intact(self, head: dict[str, Any], parts: _Parts) -> bool:
        """Compare size and ETag: the MD5 of the parts' MD5s. Objects that KMS encrypts have no such ETag."""
        is_hash = "kms" not in head.get("ServerSideEncryption", "")
        return bool(head["ContentLength"] == parts.size and (not is_hash or head["ETag"] == parts.etag()))

    def _head(self, key: str) -> dict[str, Any] | None:
        try:
            head: dict[str, Any] = self._s3.head_object(Bucket=self._bucket, Key=key)
        except self._s3.exceptions.ClientError as error:
            if _status(error) == NOT_FOUND:
                return None
            raise
        return head

    def _upload_of(self, key: str) -> tuple[str, dict[int, str]]:
        """The upload of this file that was begun, with the ETags of its parts, or a new one."""
        for upload in self._uploads(key):
            if upload["Key"] == key:
                there = {"Bucket": self._bucket, "Key": key, "UploadId": upload["UploadId"]}
                pages = self._s3.get_paginator("list_parts").paginate(**there)
                etags = {part["PartNumber"]: part["ETag"] for page in pages for part in page.get("Parts", ())}
                return upload["UploadId"], etags
        return self._s3.create_multipart_upload(Bucket=self._bucket, Key=key)["UploadId"], {}

    def _uploads(self, prefix: str) -> list[dict[str, Any]]:
        pages = self._s3.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=prefix)
        return [upload for page in pages for upload in page.get("Uploads", ())]

    def _get_file(self, key: str, target: Path) -> None:
        """Download one file; a connection that breaks off continues where it was."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for left in reversed(range(_TRIES)):
                try:
                    reply = self._s3.get_object(Bucket=self._bucket, Key=key, Range=f"bytes={file.tell()}-")
                    for block in reply["Body"].iter_chunks(_READ_BYTES):
                        file.write(block)
                    break
                except self._s3.exceptions.ClientError as error:
                    if _status(error) == REQUESTED_RANGE_NOT_SATISFIABLE:  # nothing is left
                        break
                    raise
                except _exceptions().HTTPClientError:
                    if not left:
                        raise
            file.flush()
            os.fsync(file.fileno())

    def _keys(self, prefix: str) -> list[str]:
        return [item.key for item in self._objects(prefix)]

    def _key(self, step: int, name: str) -> str:
        return f"{self._prefix}/{checkpoint_name(step)}/{name}".lstrip("/")


class _Parts:
    """The parts of a file, numbered from 1, and their MD5s: what S3 names them by."""

    def __init__(self, path: Path, size: int, part_bytes: int) -> None:
        self._path = path
        self.size = size
        self._part_bytes = max(part_bytes, -(-size // _MOST_PARTS))
        self.numbers = range(1, max(1, -(-size // self._part_bytes)) + 1)
        self._digests: dict[int, bytes] = {}

    def read(self, number: int) -> bytes:
        """The content of one part."""
        with self._path.open("rb") as file:
            file.seek((number - 1) * self._part_bytes)
            return file.read(self._part_bytes)

    def digest(self, number: int, content: bytes | None = None) -> bytes:
        """MD5 of one part, computed once."""
        if number not in self._digests:
            content = self.read(number) if content is None else content
            self._digests[number] = hashlib.md5(content, usedforsecurity=False).digest()
        return self._digests[number]

    def etag(self) -> str:
        """What S3 calls an object that has these parts."""
        whole = hashlib.md5(b"".join(map(self.digest, self.numbers)), usedforsecurity=False)
        return f'"{whole.hexdigest()}-{len(self.numbers)}"'


def _client(endpoint: str | None, region: str | None) -> Any:
    """A client with keys from the environment, the files of AWS's tools, or the role of the node."""
    try:
        session = import_module("botocore.session").get_session()
    except ImportError:
        raise MissingExtraError("botocore", "s3") from None
    config = import_module("botocore.config").Config(
        connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": _TRIES}
    )
    wanted = region or os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
    return session.create_client("s3", endpoint_url=endpoint, region_name=wanted, config=config)


def _exceptions() -> Any:
    return import_module("botocore.exceptions")


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
