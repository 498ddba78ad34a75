"""`python -m trainworks.worker.data.command prepare|verify REQUEST_JSON PARENT_PID`: the worker's half of `data`.

Prints one JSON object per line: `{"done": .., "total": ..}` in bytes while it works, at the end the result, or
`{"error": .., "hint": .., "exit_code": ..}`.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from trainworks.config.data import Data, Evaluation, Reencoding, scheme_of
from trainworks.errors import TrainworksError, UsageError
from trainworks.files import held_lock
from trainworks.host.corpus import anchored_source
from trainworks.host.folders import cache_folder
from trainworks.host.probe import num_cores
from trainworks.host.process import die_with_parent
from trainworks.worker.data.card import CARD, DatasetCard, Progress, Shard, fingerprint, read_card
from trainworks.worker.data.images import image_files, make_image_shards, read_files
from trainworks.worker.data.preparation import num_samples, prepare_evaluation, training_side
from trainworks.worker.data.prepare import num_tokens, prepare
from trainworks.worker.data.reencoding import Reencoder
from trainworks.worker.data.shards import put, stored_data
from trainworks.worker.data.store import Store, extra, naming_store
from trainworks.worker.data.tokenization import template_origin

_INTERVAL_S = 0.2


class _Printer:
    """Progress as lines, a few per second."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= _INTERVAL_S or done == total:
            self._last = now
            print_facts({"done": done, "total": total})


def main(action: str, request_json: str, parent: str) -> int:
    """Answer the request; returns the exit code."""
    return answer(request_json, parent, _prepare if action == "prepare" else _verify)


def answer(request_json: str, parent: str, work: Callable[[Mapping[str, Any]], Mapping[str, object]]) -> int:
    """Print the result of `work`, or its error; returns the exit code. This process dies with process `parent`."""
    die_with_parent(signal.SIGKILL, int(parent))
    try:
        print_facts(work(json.loads(request_json)))
    except TrainworksError as error:
        print_facts({"error": error.message, "hint": error.hint, "exit_code": error.exit_code})
        return error.exit_code
    return 0


def _prepare(request: Mapping[str, Any]) -> Mapping[str, object]:
    """`data`, and perhaps `evaluation` of its run, `processes`, `images` (shards of them), `reencode` (how) and `to`
    (another place).
    """
    evaluation = Evaluation.model_validate(request["evaluation"]) if request.get("evaluation") else None
    data, cache, started = Data.model_validate(request["data"]), cache_folder("data"), time.monotonic()
    if request.get("images"):
        folder, card = _image_shards(data, cache, request)
    else:
        folder, card = prepare(
            data, cache, _Printer(), processes=request.get("processes"), side=training_side(evaluation)
        )
    to = request.get("to")
    if to is not None:
        if card.parts or card.kind == "image-files":
            raise UsageError(
                f"`--to` takes one source in shards, not a {card.kind}", hint="prepare each of its sources"
            )
        put(folder, card, to if scheme_of(to) else anchored_source(to))
    held_out = prepare_evaluation(data, evaluation, folder, cache, _Printer())
    return _facts(card) | {
        "template": template_origin(folder),
        "held_out": {name: str(each) for name, each in held_out.items()},
        "held_out_samples": {name: num_samples(each, data) for name, each in held_out.items()},
        "folder": to or str(folder),
        "num_tokens": num_tokens(folder),
        "seconds": time.monotonic() - started,
    }


def _image_shards(data: Data, cache: Path, request: Mapping[str, Any]) -> tuple[Path, DatasetCard]:
    source, how = data.sources[0], request.get("reencode")
    classes, files = image_files(source)
    facts = [source.source, classes, [(file.path, file.num_bytes) for file in files]]
    if how is not None:
        facts += [how, extra("PIL", "images").__version__]  # another encoder gives other bytes
    folder = cache / f"image-shards-{fingerprint(facts)[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with held_lock(folder.with_name(f"{folder.name}.lock")):
        if (folder / CARD).exists():
            return folder, read_card(folder)
        if how is None:
            return folder, make_image_shards(source, folder, _Printer())
        encoder = Reencoder(
            files,
            Reencoding.model_validate(how),
            image_size=data.image_size or 0,
            processes=request.get("processes") or num_cores(),
        )
        with closing(encoder):
            return folder, make_image_shards(source, folder, _Printer(), encoder)


def _facts(card: DatasetCard) -> dict[str, object]:
    return {
        "kind": card.kind,
        "num_shards": len(card.shards),
        "num_items": card.num_items,
        "num_bytes": card.num_bytes,
        "num_bytes_of_text": card.num_bytes_of_text,
        "padding_tokens": card.padding_tokens,
        "chats": card.chats.model_dump() if card.chats is not None else None,
        "vocabulary": card.vocabulary,
        "classes": len(card.classes),
        "fingerprint": card.fingerprint,
        "tokenization": card.tokenization,
        "gain": card.gain.model_dump(mode="json") if card.gain is not None else None,
        "damaged": card.damaged,
    }


def _verify(request: Mapping[str, Any]) -> Mapping[str, object]:
    """`addresses` of prepared data."""
    cache = cache_folder("data")
    folders = [folder for address in request["addresses"] for folder in _folders(address, cache)]
    checked = [(folder, verify(folder, _Printer())) for folder in folders]
    return {
        "shards": sum(len(read_card(folder).shards) for folder in folders),
        "num_bytes": sum(read_card(folder).num_bytes for folder in folders),
        "damaged": [{"folder": str(folder), **damage} for folder, found in checked for damage in found],
    }


def _folders(address: str, cache: Path) -> Iterator[Path]:
    if scheme_of(address) is not None:
        cache.mkdir(parents=True, exist_ok=True)
        folder = stored_data(address, cache)
        if folder is None:
            raise UsageError(f"`{address}` holds no prepared data: no {CARD}", hint="trainworks data prepare --to")
    else:
        folder = Path(anchored_source(address))
    parts = read_card(folder).parts
    for part in parts:
        yield from _folders(part.folder, cache)
    if not parts:
        yield folder


def print_facts(facts: Mapping[str, object]) -> None:
    """Print a line of the answer."""
    print(json.dumps(facts), flush=True)  # noqa: T201


_READ_BYTES = 4 << 20


def verify(folder: Path, progress: Progress) -> list[dict[str, str]]:
    """Every damaged or missing shard, `{"shard": .., "problem": ..}`, of prepared data here or in its store.

    Images in folders have no checksum: their sizes are compared.

    Raises:
        EnvironmentProblem: the store does not answer.
    """
    card = read_card(folder)
    if card.kind == "image-files":
        return _changed_files(folder)
    store = Store(card.store or anchored_source(str(folder)))
    found: list[dict[str, str]] = []
    done = 0
    for name, shard in card.shards.items():
        problem = _problem(store, name, shard)
        if problem is not None:
            found.append({"shard": name, "problem": problem})
        done += shard.num_bytes
        progress(done, card.num_bytes)
    return found


def _problem(store: Store, name: str, shard: Shard) -> str | None:
    path, digest, size = store.path(name), hashlib.sha256(), 0
    if not store.exists(name):
        return "missing"
    with naming_store(f"{store.address}/{name}"), store.fs.open(path, "rb", block_size=_READ_BYTES) as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
            size += len(chunk)
    if size != shard.num_bytes:
        return f"has {size} bytes, the card says {shard.num_bytes}"
    return None if digest.hexdigest() == shard.sha256 else "its SHA-256 is not that of the card"


def _changed_files(folder: Path) -> list[dict[str, str]]:
    found = []
    for file in read_files(folder):
        path = Path(file.path)
        if not path.is_file():
            found.append({"shard": file.path, "problem": "missing"})
        elif path.stat().st_size != file.num_bytes:
            found.append({"shard": file.path, "problem": f"has {path.stat().st_size} bytes, had {file.num_bytes}"})
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
