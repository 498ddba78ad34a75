"""Open the task of a workload; the task of a module that a user's file defines."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import default_collate

from trainworks.config.data import Evaluation, is_set_name
from trainworks.config.run_file import Workload
from trainworks.errors import LayoutError, UsageError, suggest
from trainworks.record.model_shape import ModelShape
from trainworks.worker.data.card import first_card
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.order import FullShuffle, Indices, Order
from trainworks.worker.data.reader import Dataset
from trainworks.worker.loss import IGNORED
from trainworks.worker.mesh import Mesh
from trainworks.worker.parallel.build import Parallel, Setup, distribute_module
from trainworks.worker.tasks.causal_lm import CausalLanguageModeling, Task
from trainworks.worker.tasks.preferences import preference_task
from trainworks.worker.tasks.user_module import UserModule, load_user_module

_PROBES = 16
"""Items sampled for a fingerprint."""


@dataclass(frozen=True, slots=True)
class OpenedTask:
    """A task with its dataset."""

    task: Task
    dataset: Dataset
    build_optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] | None = None
    """A module's own; that of the run file otherwise."""
    held_out: Mapping[str, Dataset] = field(default_factory=dict)
    """What the run is evaluated on, by the name of the set; none for a run that does not evaluate."""


def open_task(
    workload: Workload,
    mesh: Mesh,
    *,
    data_folder: Path | None,
    evaluation_folders: Mapping[str, Path] | None = None,
    shape: ModelShape | None = None,
) -> OpenedTask:
    """The task of a workload, with its prepared data and held-out data where it has any.

    `shape` is that of the model of a causal-lm that formulas describe.

    Raises:
        UsageError: a module's file is at fault.
    """
    if workload.task == "module":
        own = ModuleTask(workload, mesh.layout.micro_batch)
        return OpenedTask(
            own, own.dataset, own.user.build_optimizer, own.held_out(workload.eval) if workload.eval else {}
        )
    assert data_folder is not None
    folders = evaluation_folders or {}
    if workload.task == "causal-lm":
        card = first_card(data_folder)[0]
        packed = card.marked and not card.one_per_row
        language = CausalLanguageModeling(workload, shape, mesh, marked=card.marked, packed=packed)
        task = preference_task(workload, language, data_folder) if workload.preference else language
        if shape is None or not shape.is_described:
            language.check_room(card.vocabulary)
        held_out = {name: open_dataset(folder, workload.data) for name, folder in folders.items()}
        return OpenedTask(task, open_dataset(data_folder, workload.data), held_out=held_out)
    from trainworks.worker.tasks.transformer_tasks import (  # noqa: PLC0415  # imports `transformers`
        ImageClassification,
        MaskedLanguageModeling,
    )

    kind = MaskedLanguageModeling if workload.task == "masked-lm" else ImageClassification
    other = kind(workload, data_folder, mesh.layout.micro_batch)
    return OpenedTask(other, other.dataset, held_out={name: other.held_out(folder) for name, folder in folders.items()})


class MapStyleDataset:
    """Items of a map-style dataset as arrays by name.

    An item is a tensor, a tuple or a dictionary of them; arrays and numbers count as tensors. A dataset with
    `gather(indices, samples)` gives arrays of many items at once; `samples` are their numbers in the run, which
    should key random draws. One with `fingerprint` identifies itself.

    Raises:
        UsageError: it has no length, no items, or items that are nothing of the kind.
    """

    def __init__(self, dataset: Any, place: str) -> None:
        self._dataset = dataset
        self._gathers = hasattr(dataset, "gather") and not isinstance(dataset, torch.Tensor)  # whose gather is another
        self._place = place
        self._names: tuple[str, ...] = ()
        self._kind: type = dict
        try:
            self._len = len(dataset)
        except TypeError:
            raise self._refusal("has no length: give it `__len__` and `__getitem__`") from None
        if self._len == 0:
            raise self._refusal("is empty")
        first = self.gather(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
        self.sample_bytes = max(1, sum(array.nbytes for array in first.values()))
        self.fingerprint = str(getattr(dataset, "fingerprint", None) or self._probed())

    def __len__(self) -> int:
        return self._len

    def order(self, seed: int | Sequence[int]) -> Order:
        """The dataset's own, else every epoch a shuffle of all items."""
        if hasattr(self._dataset, "order"):
            order: Order = self._dataset.order(seed)
            return order
        return FullShuffle(len(self), seed)

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """Arrays by name, or by place in the tuple."""
        if self._gathers:
            named: Mapping[str, Any] = self._dataset.gather(indices, samples)
            return {name: np.ascontiguousarray(array) for name, array in named.items()}
        batch = default_collate([self._dataset[int(index)] for index in indices])
        return {name: tensor.contiguous().numpy() for name, tensor in self._to_tensors(batch).items()}

    def to_item(self, batch: Mapping[str, Any]) -> Any:
        """Input of the model, reassembled: a tensor, a tuple or a dictionary."""
        if self._kind is dict:
            return dict(batch)
        values = tuple(batch[name] for name in self._names)
        return values if self._kind is tuple else values[0]

    def _to_tensors(self, batch: Any) -> dict[str, torch.Tensor]:
        self._kind = next((kind for kind in (dict, tuple) if isinstance(batch, kind)), torch.Tensor)
        if isinstance(batch, list):  # what default_collate makes of tuples
            self._kind = tuple
        listed = batch if self._kind is tuple else [batch]
        values = batch if isinstance(batch, dict) else {str(place): value for place, value in enumerate(listed)}
        self._names = tuple(values)
        for name, value in values.items():
            if not isinstance(value, torch.Tensor):
                raise self._refusal(f"gives {type(value).__name__} in `{name}`; an item holds tensors, arrays, numbers")
        return values

    def _probed(self) -> str:
        """Fingerprint of the length and some items, the same on all ranks."""
        digest = hashlib.sha256(str(self._len).encode())
        indices = np.unique(np.linspace(0, self._len - 1, _PROBES).astype(np.int64))
        for array in self.gather(indices, indices).values():
            digest.update(array.tobytes())
        return digest.hexdigest()

    def _refusal(self, problem: str) -> UsageError:
        return UsageError(f"the dataset {problem}", place=self._place)


class ModuleTask:
    """Task with the user's own model and dataset.

    Raises:
        UsageError: the file is at fault; with its line.
    """

    def __init__(self, workload: Workload, micro_batch: int) -> None:
        self._seed = workload.seed
        self._micro_batch = micro_batch
        self.user = load_user_module(Path(str(workload.model.module)))
        self._sow()
        self.dataset = MapStyleDataset(self.user.build_dataset(), self.user.place_of("build_dataset"))

    def held_out(self, settings: Evaluation) -> dict[str, MapStyleDataset]:
        """What `build_eval_dataset` of the file returns: a dataset, or several by name.

        Raises:
            UsageError: the file has no such function, returns no dataset, or none of the name that decides.
        """
        build = self.user.build_eval_dataset
        if build is None:
            raise UsageError(
                "`workload.eval` needs held-out data, and the module has none",
                place=self.user.place_of("build_dataset"),
                hint="define `build_eval_dataset()` beside `build_dataset()`",
            )
        self._sow()
        built, place = build(), self.user.place_of("build_eval_dataset")
        sets = dict(built) if isinstance(built, Mapping) and built and all(map(is_set_name, built)) else {"": built}
        if settings.metric_of is not None and settings.metric_of not in sets:
            raise UsageError(
                f"`build_eval_dataset` returns no set `{settings.metric_of}`, which `eval.metric_of` names",
                place=place,
                hint=suggest(settings.metric_of, [name for name in sets if name], otherwise="return sets by name"),
            )
        return {name: MapStyleDataset(dataset, place) for name, dataset in sets.items()}

    def build(self, setup: Setup) -> Parallel:
        """The model that the file builds, from the same seed on every rank."""
        self._sow()
        model = self.user.build_model()
        if not isinstance(model, nn.Module):
            problem = f"`build_model` returned {type(model).__name__}, not a torch.nn.Module"
            raise UsageError(problem, place=self.user.place_of("build_model"))
        blocks = self.user.blocks(model)
        layout = setup.mesh.layout
        if not blocks and (layout.recompute != "none" or layout.offload_activations):
            raise LayoutError(
                "the module has no list of layers that could be recomputed or offloaded one by one",
                field="recompute" if layout.recompute != "none" else "offload_activations",
                hint="define `blocks(model)` in its file: a list of its layers",
            )
        return distribute_module(_Objective(model, self.user, self.dataset), blocks, setup)

    def _sow(self) -> None:
        torch.manual_seed(self._seed)
        np.random.seed(self._seed % 2**32)  # for users' own code
        random.seed(self._seed)

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Any, Any]:
        """All of it, and beside it a row per micro-batch: what of it is a label is the module's own business."""
        return dict(batch), torch.zeros(len(next(iter(batch.values()))))

    def num_items(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Items by the file's `num_items_in_batch`, else the `labels` that are not -100; None without either, when the
        loss is a mean over the samples.
        """
        if self.user.num_items_in_batch is not None:
            count, first = self.user.num_items_in_batch, next(iter(batch.values()))
            micro_batches = [{name: values[row] for name, values in batch.items()} for row in range(len(first))]
            counts = [self._checked(count(self.dataset.to_item(each))) for each in micro_batches]
            return torch.stack([each.to(first.device, non_blocking=True) for each in counts])
        labels = batch.get("labels")
        if labels is None or not labels.dtype.is_signed or labels.is_floating_point():
            return None
        return (labels != IGNORED).flatten(1).sum(1)

    def _checked(self, count: Any) -> Tensor:
        if isinstance(count, Tensor | int):
            number = torch.as_tensor(count)
            if number.numel() == 1 and not number.is_floating_point():
                return number.view(())
        what = f"{count.dtype} of shape {tuple(count.shape)}" if isinstance(count, Tensor) else type(count).__name__
        raise UsageError(
            f"`num_items_in_batch` returned {what}, not one whole number",
            place=self.user.place_of("num_items_in_batch"),
            hint="return how many items the loss of this batch is a mean over",
        )

    def blank_batch(self, num_micro_batches: int) -> dict[str, Tensor]:
        """The first items: only they are sure to be something that the module can take."""
        first = np.arange(num_micro_batches * self._micro_batch) % len(self.dataset)
        arrays = self.dataset.gather(first, first)
        shape = (num_micro_batches, self._micro_batch)
        return {name: torch.from_numpy(array).view(*shape, *array.shape[1:]) for name, array in arrays.items()}


class _Objective(nn.Module):
    """Maps a batch to the loss, by the model's own forward or by the file's `loss`."""

    def __init__(self, model: nn.Module, user: UserModule, dataset: MapStyleDataset) -> None:
        super().__init__()
        self.model = model
        self._user = user
        self._dataset = dataset
        self.watch: Callable[..., None] | None = None
        """Called in evaluation with the model and its batch."""

    def forward(self, batch: Mapping[str, Tensor], _: Tensor) -> Tensor:
        item = self._dataset.to_item(batch)
        if self._user.loss is not None:
            loss = self._user.loss(self.model, item)
        elif isinstance(item, dict):
            loss = self.model(**item)
        else:
            loss = self.model(*item) if isinstance(item, tuple) else self.model(item)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            if self.watch is not None:
                self.watch(self.model, item)
            return loss
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(
            f"the model returned {what}, not its loss",
            place=self._user.place_of("loss" if self._user.loss is not None else "build_model"),
            hint="return one number from `forward`, or define `loss(model, batch)`",
        )
