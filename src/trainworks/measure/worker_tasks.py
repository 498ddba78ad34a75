"""Tasks of the worker, which has torch and the libraries of the ranks: each is a process that answers in JSON."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from trainworks.config.data import Data, Evaluation, Reencoding
from trainworks.config.run_file import Workload
from trainworks.errors import EnvironmentProblem, MissingExtraError, TrainworksError, UsageError
from trainworks.host import process
from trainworks.host.corpus import check_sources
from trainworks.units import format_bytes

ByteProgress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class PreparedData(TypedDict):
    """Counts, folders and fingerprint of prepared data."""

    kind: str
    num_shards: int
    num_items: int
    num_bytes: int
    num_bytes_of_text: int
    num_tokens: int
    padding_tokens: int
    chats: dict[str, int] | None
    template: str | None
    vocabulary: int | None
    classes: int
    folder: str
    held_out: dict[str, str]
    """Folders by the name of the held-out set, which is empty for a single one."""
    held_out_samples: dict[str, int]
    fingerprint: str
    tokenization: str | None
    gain: Mapping[str, object] | None
    """A `trainworks.worker.data.card.ReencodingGain` as JSON."""
    damaged: int
    seconds: float


class DamagedShard(TypedDict):
    """A shard that is not as it was written."""

    folder: str
    shard: str
    problem: str


class VerifiedData(TypedDict):
    """Shards that were read back."""

    shards: int
    num_bytes: int
    damaged: list[DamagedShard]


def ask(
    action: str,
    request: Mapping[str, object],
    progress: ByteProgress = lambda done, total: None,
    *,
    module: str = "data.command",
    python: str | None = None,
) -> Any:
    """The worker's answer to `prepare` or `verify`, or of another of its modules: a mapping.

    `request` is as `trainworks.worker.data.command` reads it, and `module` one of the worker that talks as that does.
    `progress` is called with bytes done and bytes in all. `python` is the interpreter of the ranks; Trainworks' own
    when None.

    Raises:
        TrainworksError: the worker reports it.
    """
    command = process.python_module(
        f"trainworks.worker.{module}", action, json.dumps(request), str(os.getpid()), python=python
    )
    answer: Any = {}
    for line in process.lines(command):
        answer = json.loads(line)
        if "done" in answer:
            progress(answer["done"], answer["total"])
    if "error" in answer:
        kinds: dict[int, type[TrainworksError]] = {2: UsageError, 3: EnvironmentProblem}
        raise kinds.get(answer["exit_code"], TrainworksError)(answer["error"], hint=answer["hint"])
    if not answer or "done" in answer:
        raise EnvironmentProblem("the worker ended without an answer", hint="read the error that it printed above")
    return answer


def require_packages(*packages: str, extra: str = "train") -> None:
    """Check that libraries of the worker are installed, which come with an extra of Trainworks.

    Raises:
        MissingExtraError: one is not.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra)


def prepare_data(
    data: Data,
    evaluation: Evaluation | None = None,
    *,
    to: str | None = None,
    processes: int | None = None,
    images: bool = False,
    reencode: Reencoding | None = None,
    progress: ByteProgress,
) -> PreparedData:
    """Write shards with checksums; continues after an interruption.

    Args:
        data: of a workload.
        evaluation: of the same workload; what it holds out is prepared apart.
        to: destination of the shards, which then hold everything: a split of them holds out whole shards.
        processes: that tokenize, or encode images; as many as there are cores when None.
        images: pack a folder of images into shards; a run reads the folder itself.
        reencode: encode these images anew; None to keep their bytes.
        progress: receives the bytes done.
    """
    check_sources(data.sources)
    shards_of_images = images or (data.image_size is not None and to is not None)
    request: dict[str, object] = {
        "data": data.model_dump(mode="json"),
        "to": to,
        "processes": processes,
        "images": shards_of_images,
    }
    if reencode is not None:
        request["reencode"] = reencode.model_dump(mode="json")
    if evaluation is not None and to is None and not shards_of_images:
        request["evaluation"] = evaluation.model_dump(mode="json")
    prepared: PreparedData = ask("prepare", request, progress)
    return prepared


def verify_data(data: Data, *, progress: ByteProgress) -> VerifiedData:
    """Read shards back; returns how many there are, and the damaged ones."""
    verified: VerifiedData = ask("verify", {"addresses": [source.source for source in data.sources]}, progress)
    return verified


def prepared_folder(workload: Workload, announce: Callable[[str], None]) -> str | None:
    """Folder of the prepared data, which a trial reads; None for a module, which brings its own."""
    return None if workload.task == "module" else _prepared(workload, announce)["folder"]


def held_out_samples(workload: Workload, announce: Callable[[str], None]) -> tuple[int, ...] | None:
    """Samples of each held-out set, which are prepared if needed; None unless the run evaluates all of them."""
    if workload.task == "module" or workload.eval is None or workload.eval.steps != "all":
        return None
    return tuple(_prepared(workload, announce)["held_out_samples"].values())


def tokens_in_data(workload: Workload, announce: Callable[[str], None]) -> int | None:
    """Size of the tokenized data, which is prepared if needed; None unless the run counts epochs."""
    return None if workload.train_for.unit != "epochs" else _prepared(workload, announce)["num_tokens"]


def _prepared(workload: Workload, announce: Callable[[str], None]) -> PreparedData:
    """Prepare the data of a workload and what it holds out; `announce` receives a line if they have to be made."""
    evaluation = workload.eval.model_dump(mode="json") if workload.eval else None
    is_announced = False

    def progress(done: int, total: int) -> None:
        nonlocal is_announced
        if not is_announced:
            announce(tokenizing_line(total))
        is_announced = True

    request = {"data": workload.data.model_dump(mode="json"), "evaluation": evaluation}
    prepared: PreparedData = ask("prepare", request, progress)
    return prepared


def tokenizing_line(total_bytes: int) -> str:
    """What is about to happen to a text that was not tokenized yet."""
    return f"tokenizing {format_bytes(total_bytes)} of text; later runs find its tokens in the cache"
