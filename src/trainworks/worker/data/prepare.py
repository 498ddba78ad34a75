"""Prepare sources as folders of data, cached by source and tokenizer.

<cache>/tokenizers/<key>/tokenizer.json    trained on the sources
        <source>-<key>/                    prepared tokens or images, see data/card.py
        mixture-<key>/                     a card that names the folders of several sources
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainworks.config.data import STDLIB, TRAINED_VOCABULARY, Data, DataSource
from trainworks.errors import UsageError
from trainworks.files import naming_full_disk, write_atomic
from trainworks.host.probe import num_cores
from trainworks.system import lock_file
from trainworks.worker.data.card import CARD, TOKENIZER, DatasetCard, Part, Progress, fingerprint, making, read_card
from trainworks.worker.data.encoding import Recipe
from trainworks.worker.data.images import prepare_images
from trainworks.worker.data.inputs import Input, Piece, documents, find_inputs, part_bytes_for, parts_of, records
from trainworks.worker.data.shards import prepared_folder
from trainworks.worker.data.split import Side, split_prepared
from trainworks.worker.data.token_shards import make_token_shards
from trainworks.worker.data.tokenization import END_OF_TEXT, Tokenization, agreed, find_tokenization

_TRAINING_SAMPLE_BYTES = 6_000_000
_FORMAT = 2
"""Counted up when the same source gives other bytes."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What is prepared, and where."""

    data: Data
    cache: Path
    progress: Progress
    side: Side | None


def prepare(
    data: Data,
    cache: Path,
    progress: Progress = lambda done, total: None,
    *,
    processes: int | None = None,
    side: Side | None = None,
    tokenization: Tokenization | None = None,
) -> tuple[Path, DatasetCard]:
    """The folder of prepared data for `data`, made now if it is not there; one process at a time makes it.

    `progress` is called while something is made, by as many `processes` as there are cores when None. With a `side` of
    a split its documents alone are prepared. `tokenization` is that of the training data, for held-out data; found, or
    trained on the sources, when None.

    Raises:
        UsageError: a source names no files, cannot be read as it is, holds too little text for one sequence, or was
            prepared with another tokenizer or chat template.
        EnvironmentProblem: the tokenizer cannot be read, or a store does not answer.
        DiskFullError: no space for the shards; what is finished is kept for the next try.
    """
    cache.mkdir(parents=True, exist_ok=True)
    if data.image_size is not None:
        return _several(data, cache, [prepare_images(source, cache, side) for source in data.sources])
    ready = {source: found for source in data.sources if (found := _prepared_already(source, cache)) is not None}
    raw = {source: find_inputs(source) for source in data.sources if source not in ready}
    job, workers = _Job(data, cache, progress, side), processes or num_cores()
    tokenization = _tokenization(job, list(ready.values()), raw, tokenization)
    if side is not None:
        ready = {source: split_prepared(found, side, cache) for source, found in ready.items()}
    folders = [
        ready[source] if source in ready else _tokenized(job, source, raw[source], tokenization, workers)
        for source in data.sources
    ]
    folder, card = _several(data, cache, folders)
    _check_enough(data, folders, side)
    return folder, card


def num_tokens(folder: Path) -> int:
    """Tokens of a prepared folder, or of all sources of a mixture."""
    card = read_card(folder)
    return card.num_tokens + sum(num_tokens(Path(part.folder)) for part in card.parts)


def _prepared_already(source: DataSource, cache: Path) -> Path | None:
    folder = prepared_folder(source, cache)
    if folder is not None and (kind := read_card(folder).kind) != "tokens":
        raise UsageError(f"`{source.source}` holds prepared {kind}, not tokens")
    return folder


def _several(data: Data, cache: Path, folders: Sequence[Path]) -> tuple[Path, DatasetCard]:
    """The one folder, or that of a mixture of several."""
    cards = [read_card(folder) for folder in folders]
    if len(folders) == 1:
        return folders[0], cards[0]
    parts = tuple(Part(folder=str(at), weight=source.weight) for at, source in zip(folders, data.sources, strict=True))
    card = DatasetCard(
        kind="mixture",
        source=data.title,
        fingerprint=fingerprint([(each.fingerprint, part.weight) for each, part in zip(cards, parts, strict=True)]),
        vocabulary=max(each.vocabulary for each in cards),
        tokenization=None if data.image_size is not None else agreed([*map(Tokenization.read, folders)]).fingerprint,
        classes=cards[0].classes,
        parts=parts,
    )
    folder = cache / f"mixture-{fingerprint([card.model_dump_json()])[:16]}"
    with _locked(folder), naming_full_disk(folder):
        folder.mkdir(exist_ok=True)
        write_atomic(folder / CARD, card.model_dump_json(indent=2) + "\n")
    return folder, card


def _check_enough(data: Data, folders: Sequence[Path], side: Side | None) -> None:
    cards = [read_card(folder) for folder in folders]
    if len({card.form for card in cards}) > 1:
        raise UsageError(
            "some sources have rows of whole documents, pairs, margins or labels, others do not",
            hint="prepare all with the same `pack` and `chat`",
        )
    for source, card in zip(data.sources, cards, strict=True):
        if card.chats is not None and not card.num_tokens:
            raise UsageError(
                f"none of the {card.chats.conversations:,} conversations of `{source.source}` has an answer within "
                f"{data.sequence_length} tokens",
                hint="raise `data.sequence_length`",
            )
        if card.packed not in (None, data.sequence_length + 1):
            raise UsageError(
                f"`{source.source}` is packed for sequences of {card.packed - 1}, not {data.sequence_length}",
                hint=f"set `data.sequence_length: {card.packed - 1}`, or pack it again",
            )
        if card.num_tokens <= data.sequence_length and side is not None:
            raise UsageError(
                f"{side.share:.3g} of `{source.source}` held out for `eval.split` leaves {card.num_tokens} tokens "
                f"{'to evaluate' if side.held_out else 'to train'} on, fewer than one sequence of "
                f"{data.sequence_length} + 1",
                hint="documents are held out as a whole: set another `eval.split`, or name other data in `eval.data`",
            )
        if card.num_tokens <= data.sequence_length:
            raise UsageError(
                f"`{source.source}` holds {card.num_tokens} tokens, "
                f"fewer than one sequence of {data.sequence_length} + 1",
                hint="lower `data.sequence_length` or name more text",
            )


def _tokenized(job: _Job, source: DataSource, inputs: list[Input], tokenization: Tokenization, processes: int) -> Path:
    """The folder of one source's tokens, made now if it is not there."""
    data, side = job.data, job.side
    recipe = Recipe(
        column=source.column,
        row=data.sequence_length + 1 if data.pack or data.chat else None,
        one_per_row=data.chat is not None and not data.pack,
        chat=data.chat.model_copy(update={"template": None}) if data.chat else None,  # the tokenization has it
    )
    if data.chat is None:
        tokenization = replace(tokenization, chat=None)
    files = [(file.address, file.num_bytes, file.version) for file in inputs]
    facts = [_FORMAT, tokenization.tokenizer_sha256, files, source.column, tokenization.chat_facts]
    facts += [recipe.model_dump_json()] if recipe.marked else []
    key = fingerprint([*facts, *(side.facts if side else [])])[:16]
    folder = job.cache / f"{STDLIB if source.source == STDLIB else source.scheme or 'files'}-{key}"
    with _locked(folder):
        if not (folder / CARD).exists():
            if tokenization.chat is not None:
                from trainworks.worker.data.chats import check_style  # noqa: PLC0415  # imports `transformers`

                check_style(tokenization.chat)
            with making(folder) as work, naming_full_disk(folder):
                make_token_shards(
                    work,
                    parts_of(inputs, part_bytes_for(inputs), side),
                    source=source.source,
                    recipe=recipe,
                    tokenization=tokenization,
                    processes=processes,
                    progress=job.progress,
                )
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        lock_file(file.fileno(), waits=True)
        yield


def _tokenization(
    job: _Job, prepared: Sequence[Path], raw: dict[DataSource, list[Input]], given: Tokenization | None
) -> Tokenization:
    """The tokenization of all sources: given, written in the run file, of the prepared sources, or trained now.

    Sources with different ones, or with another one than the given or written one, are refused. Held-out documents do
    not train a tokenizer.
    """
    data = job.data
    if given is None and data.tokenizer != "bpe":
        given = find_tokenization(Path(data.tokenizer), data.chat)
    found = [*([given] if given else []), *map(Tokenization.read, prepared)]
    if not found:
        return find_tokenization(_trained(job, raw), data.chat)
    common, chat = agreed(found), data.chat
    is_settled = chat is None or (given is not None and given.chat is not None) or not (raw or chat.template)
    return common if is_settled else agreed([common.with_chat_template(chat), *found])


def _trained(job: _Job, raw: dict[DataSource, list[Input]]) -> Path:
    data, side = job.data, job.side
    vocabulary = data.vocabulary or TRAINED_VOCABULARY
    facts = [
        [source.column, *((file.address, file.num_bytes, file.version) for file in files)]
        for source, files in raw.items()
    ]
    how = [*(["messages"] if data.chat else []), *(side.facts if side else [])]
    folder = job.cache / "tokenizers" / fingerprint([_FORMAT, vocabulary, facts, *how])[:16]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / TOKENIZER
    with _locked(folder):
        if not file.exists():
            job.progress(0, sum(file.num_bytes for files in raw.values() for file in files))
            read = _texts_of_chats if data.chat else documents
            write_atomic(file, _train(vocabulary, _sample(raw, side, read)).to_str(pretty=True))
    return file


def _texts_of_chats(pieces: Sequence[Piece], column: str | None) -> Iterator[str]:
    from trainworks.worker.data.chats import plain_text  # noqa: PLC0415  # imports `transformers`

    return (plain_text(record) for record in records(pieces))


def _sample(
    raw: dict[DataSource, list[Input]], side: Side | None, read: Callable[[Sequence[Piece], str | None], Iterator[str]]
) -> Iterator[str]:
    """Documents spread evenly over all sources, about as many as training a tokenizer needs."""
    parts = [(source, part) for source, files in raw.items() for part in parts_of(files, part_bytes_for(files), side)]
    share = _TRAINING_SAMPLE_BYTES / max(1, len(parts))
    for source, part in parts:
        taken = 0
        every = max(1, round(sum(piece.num_bytes for piece in part) / share))
        for text in islice(read(part, source.column), 0, None, every):
            yield text[:_TRAINING_SAMPLE_BYTES]
            taken += len(text)
            if taken >= 2 * share:
                break


def _train(vocabulary: int, texts: Iterator[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
