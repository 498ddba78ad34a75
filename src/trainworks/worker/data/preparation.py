"""Prepare what a run trains on and is evaluated on, and write the progress as events."""

from __future__ import annotations

import time
from pathlib import Path

from trainworks.config.data import Data, Evaluation
from trainworks.errors import UsageError
from trainworks.record.events.log import append_event
from trainworks.record.events.training import DataProgressEvent, DataReadyEvent
from trainworks.worker.data.card import DataFolders, Progress, first_card
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.prepare import num_tokens, prepare
from trainworks.worker.data.split import Side
from trainworks.worker.data.tokenization import Tokenization, template_origin

_PROGRESS_INTERVAL_S = 0.5


def training_side(evaluation: Evaluation | None) -> Side | None:
    """The side of a split that a run trains on; None without a split."""
    return None if evaluation is None or evaluation.split is None else Side(evaluation.split, held_out=False)


def num_samples(folder: Path, data: Data) -> int:
    """Sequences or images of prepared data."""
    return len(open_dataset(folder, data, augment=False))


def prepare_evaluation(
    data: Data, evaluation: Evaluation | None, train: Path, cache: Path, progress: Progress = lambda done, total: None
) -> dict[str, Path]:
    """Folders of held-out data by the name of their set, tokenized and rendered as those in `train`.

    There is one of an empty name for a run with a single set, and no folder for one that does not evaluate.

    Raises:
        UsageError: no documents are held out, the source names no files, or it was prepared in another way than the
            training data.
        EnvironmentProblem: a store does not answer.
        DiskFullError: no space for the shards.
    """
    if evaluation is None:
        return {}
    tokenization = None if data.image_size is not None else Tokenization.read(train)
    if evaluation.split is not None:
        side = Side(evaluation.split, held_out=True)
        return {"": prepare(data, cache, progress, side=side, tokenization=tokenization)[0]}
    folders = {}
    for name, source in evaluation.sources.items():
        held_out = data.model_copy(update={"source": (source,), "column": None, "split": None})
        folders[name], _ = prepare(held_out, cache, progress, tokenization=tokenization)
        if tokenization is not None:
            _check_alike(folders[name], train)
    return folders


def _check_alike(held_out: Path, train: Path) -> None:
    """Check that prepared held-out data have the form of the training data. `prepare` compares the tokenizations."""
    forms = {card.form for card, _ in map(first_card, (train, held_out))}
    if len(forms) > 1:
        raise UsageError(
            f"held-out data in `{held_out}` and training data in `{train}` differ: one of them has rows of whole "
            "documents, pairs, margins or labels",
            hint="prepare both with the same `pack` and `chat`",
        )


def prepare_for_run(
    data: Data, cache: Path, events_file: Path | None, *, model_vocabulary: int, evaluation: Evaluation | None = None
) -> DataFolders:
    """`prepare` and `prepare_evaluation`, their progress and result as events; silent when `events_file` is None.

    Raises:
        UsageError: the tokenizer has more entries than the model's embedding, besides `prepare`'s errors.
    """
    started = last = time.monotonic()
    made = False

    def report(done: int, total: int) -> None:
        nonlocal last, made
        begins, made = not made, True
        due = done > 0 and time.monotonic() - last >= _PROGRESS_INTERVAL_S
        if events_file is not None and (begins or due):
            last = time.monotonic()
            append_event(
                events_file,
                DataProgressEvent(kind="data_progress", done_bytes=0 if begins else done, total_bytes=total),
            )

    folder, card = prepare(data, cache, report, side=training_side(evaluation))
    if card.vocabulary > model_vocabulary:
        raise UsageError(
            f"the tokenizer has {card.vocabulary} entries, the model {model_vocabulary}",
            hint="take the tokenizer that belongs to the model",
        )
    held_out = prepare_evaluation(data, evaluation, folder, cache, report)
    if events_file is not None:
        append_event(
            events_file,
            DataReadyEvent(
                kind="data_ready",
                folder=str(folder),
                num_tokens=num_tokens(folder),
                fingerprint=card.fingerprint,
                seconds=time.monotonic() - started,
                tokenization=card.tokenization,
                template=template_origin(folder),
                cached=not made,
                chats=card.chats.model_dump() if card.chats is not None else None,
            ),
        )
    return DataFolders(folder, held_out)
