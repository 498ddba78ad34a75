"""Tokens per second into int64 batches, shuffled: Trainworks' reader over a plain memmap Dataset, litdata and MDS.

    python benchmarks/reader_throughput.py --rounds 5

All read the same random tokens from the page cache, without worker processes, each alone in a process, and take turns.
A ratio is formed within a round. litdata and mosaicml-streaming both import torchvision, whose wheels do not fit a CPU
build of torch; an empty stand-in takes its place here, since no image is read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from trainworks.worker.data.card import DatasetCard, Shard
from trainworks.worker.data.opening import MixedDataset
from trainworks.worker.data.order import FullShuffle, WindowShuffle
from trainworks.worker.data.reader import BatchReader
from trainworks.worker.data.tokens import TokenDataset

T, BATCH, SHARDS = 1024, 8, 16

Batches = Callable[[int], Iterator[torch.Tensor]]


class Plain(Dataset[torch.Tensor]):
    """What most people write: a memmap, a slice, a conversion."""

    def __init__(self, file: Path) -> None:
        self._tokens = np.memmap(file, dtype=np.uint16, mode="r")

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // T

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._tokens[index * T : index * T + T + 1].astype(np.int64))


def plain(file: Path) -> Batches:
    loader = DataLoader(Plain(file), batch_size=BATCH, shuffle=True)
    return lambda steps: (batch for _, batch in zip(range(steps), loader, strict=False))


def written(folder: Path, tokens: np.ndarray[Any, Any], *, packed: bool = False) -> tuple[Path, DatasetCard]:
    """The tokens as Trainworks prepares them."""
    here = folder.exists()
    folder.mkdir(exist_ok=True)
    shards = {}
    for number, part in enumerate(np.array_split(tokens, SHARDS)):
        rows = part[: len(part) // (T + 1) * (T + 1)] if packed else part
        if not here:
            rows.tofile(folder / f"tokens-{number:05d}.bin")
        shards[f"tokens-{number:05d}.bin"] = Shard(items=len(rows), num_bytes=2 * len(rows), sha256="")
    return folder, DatasetCard(source="random", fingerprint="", shards=shards, packed=T + 1 if packed else None)


def ours(dataset: TokenDataset | MixedDataset) -> Batches:
    def batches(steps: int) -> Iterator[torch.Tensor]:
        reader = BatchReader(
            dataset, seed=1, global_batch=BATCH, micro_batch=BATCH, dp_rank=0, dp=1, first_step=0, last_step=steps
        )
        for _ in range(steps):
            yield reader.next_batch()["tokens"]
        reader.close()

    return batches


def with_stand_in_for_torchvision() -> None:
    names = ("", ".transforms", ".transforms.functional", ".datasets", ".io")
    for name in names:
        module = sys.modules.setdefault(f"torchvision{name}", types.ModuleType(f"torchvision{name}"))
        module.__spec__ = ModuleSpec(f"torchvision{name}", None)
    sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
    sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]


def _blocks(number: int, file: str) -> Iterator[torch.Tensor]:
    tokens = np.memmap(file, dtype=np.uint16, mode="r")
    yield torch.from_numpy(np.array_split(tokens, SHARDS)[number].astype(np.int32))


def litdata(folder: Path, file: Path) -> Batches:
    with_stand_in_for_torchvision()
    import litdata  # noqa: PLC0415, a peer
    from litdata.streaming.item_loader import TokensLoader  # noqa: PLC0415

    target = folder / "litdata"
    if not target.exists():
        litdata.optimize(
            fn=_LitdataBlocks(str(file)),
            inputs=list(range(SHARDS)),
            output_dir=str(target),
            chunk_size=T * 8192,
            item_loader=TokensLoader(),
            num_workers=1,
        )
    dataset = litdata.StreamingDataset(str(target), item_loader=TokensLoader(block_size=T + 1), shuffle=True)
    loader = litdata.StreamingDataLoader(dataset, batch_size=BATCH)
    return lambda steps: (batch.long() for _, batch in zip(range(steps), loader, strict=False))


class _LitdataBlocks:
    def __init__(self, file: str) -> None:
        self._file = file

    def __call__(self, number: int) -> Iterator[torch.Tensor]:
        yield from _blocks(number, self._file)


def mosaicml(folder: Path, file: Path) -> Batches:
    with_stand_in_for_torchvision()
    import streaming  # noqa: PLC0415, a peer

    target = folder / "mds"
    if not target.exists():
        tokens = np.memmap(file, dtype=np.uint16, mode="r")
        with streaming.MDSWriter(out=str(target), columns={"tokens": "ndarray:uint16"}) as writer:
            for start in range(0, len(tokens) - T, T):
                writer.write({"tokens": np.asarray(tokens[start : start + T + 1])})
    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=str(target), shuffle=True, batch_size=BATCH)

    def joined(items: list[dict[str, np.ndarray]]) -> torch.Tensor:
        return torch.from_numpy(np.stack([item["tokens"] for item in items]).astype(np.int64))

    loader = DataLoader(dataset, batch_size=BATCH, collate_fn=joined)
    return lambda steps: (batch for _, batch in zip(range(steps), loader, strict=False))


def trainworks(**options: int | bool) -> Callable[[Path, Path], Batches]:
    """Our reader over the tokens in 16 shards."""

    def made(folder: Path, file: Path) -> Batches:
        packed = bool(options.get("packed"))
        at, card = written(folder / f"prepared-{packed}", np.memmap(file, dtype=np.uint16, mode="r"), packed=packed)
        return ours(TokenDataset(at, card, T, window=options.get("window")))

    return made


def mixed(folder: Path, file: Path) -> Batches:
    tokens = np.memmap(file, dtype=np.uint16, mode="r")
    sources = [written(folder / "whole", tokens), written(folder / "half", tokens[: len(tokens) // 2])]
    return ours(MixedDataset([TokenDataset(at, card, T) for at, card in sources], [3, 1]))


_PLAIN, _OURS = "memmap Dataset + DataLoader", "trainworks, full shuffle"
CONTENDERS: dict[str, tuple[Callable[[Path, Path], Batches], float]] = {
    _PLAIN: (lambda folder, file: plain(file), 0.5),
    _OURS: (trainworks(), 1),
    "trainworks, window of 4 shards": (trainworks(window=4), 1),
    "trainworks, packed rows": (trainworks(packed=True), 1),
    "trainworks, two sources mixed": (mixed, 1),
    "litdata TokensLoader": (litdata, 0.2),
    "mosaicml-streaming MDS": (mosaicml, 0.1),
}
"""What gives batches, and how much of an epoch it is watched for."""


def measure(name: str, folder: Path) -> float:
    """Million tokens per second of one contender, in this process."""
    torch.set_num_threads(1)
    make, share = CONTENDERS[name]
    file = folder / "tokens.bin"
    steps = file.stat().st_size // 2 // T // BATCH - SHARDS
    return rate(make(folder, file), int(steps * share))


def measured_alone(name: str, folder: Path) -> float | None:
    """The same in a process of its own: threads that a peer leaves behind would slow down who comes next."""
    command = [sys.executable, __file__, "--only", name, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    result = [line for line in done.stdout.splitlines() if line.startswith("RATE ")]
    if not result:
        print(f"NOT MEASURED: {name}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        return None
    return float(result[0].removeprefix("RATE "))


def rate(batches: Batches, steps: int) -> float:
    """Million tokens per second."""
    begun, read = time.perf_counter(), 0
    for batch in batches(steps):
        assert batch.dtype == torch.int64
        read += batch.numel() // (T + 1) * T
    return read / (time.perf_counter() - begun) / 1e6


def same_shard_pairs(num_shards: int, rows: int, window: int | None, batch: int) -> float:
    """How much oftener than in a perfect shuffle two sequences of a batch come from one shard, over one epoch."""
    sizes = [rows] * num_shards
    total = num_shards * rows
    order = FullShuffle(total, 1) if window is None else WindowShuffle(sizes, 1, window=window)
    shards = (order(np.arange(total // batch * batch)) // rows).reshape(-1, batch)
    counts = np.stack([np.bincount(row, minlength=num_shards) for row in shards])
    same = (counts * (counts - 1)).sum() / (len(shards) * batch * (batch - 1))
    return float(same / ((rows - 1) / (total - 1)))


def _ratios(mine: list[float], theirs: list[float]) -> str:
    """Median and range of the ratios within each round."""
    ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help="measure one contender, in this process")
    parser.add_argument("--folder", type=Path, help="of the tokens, for --only")
    options = parser.parse_args()
    if options.only:
        print(f"RATE {measure(options.only, options.folder)}", flush=True)
        os._exit(0)  # peers leave threads behind
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        np.random.default_rng(0).integers(0, 50_000, options.tokens, dtype=np.uint16).tofile(
            Path(folder) / "tokens.bin"
        )
        found = [name for name in CONTENDERS if measured_alone(name, Path(folder)) is not None]  # writes their formats
        for _ in range(options.rounds):
            for name in found:
                rates.setdefault(name, []).append(measured_alone(name, Path(folder)) or 0.0)
    print(f"{'':32} {'Mtok/s':>8} {'over memmap Dataset':>24} {'full shuffle over it':>24}")
    for name, measured in rates.items():
        over_plain, ours_over = _ratios(measured, rates[_PLAIN]), _ratios(rates[_OURS], measured)
        print(f"{name:32} {statistics.median(measured):8.1f} {over_plain:>24} {ours_over:>24}")
    print("\nTwo sequences of a batch of 512 from one shard of 128, over a perfect shuffle:")
    for window in (None, 64, 32, 16, 8, 4):
        label = "all shards" if window is None else f"window of {window}"
        print(f"{label:16} {same_shard_pairs(128, 4096, window, 512):6.2f}")
    if options.json:
        options.json.write_text(json.dumps(rates, indent=2))


if __name__ == "__main__":
    main()
