"""Training of a module that a user's file defines."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainworks.config.run_file import Workload
from trainworks.errors import LayoutError, UsageError
from trainworks.worker.data.map_style import MapStyleDataset
from trainworks.worker.loss import IGNORED
from trainworks.worker.parallel.build import Parallel, Setup, distribute_module
from trainworks.worker.tasks.user_module import UserModule, load_user_module


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

    def held_out(self) -> MapStyleDataset:
        """What `build_eval_dataset` of the file returns.

        Raises:
            UsageError: the file has no such function, or returns no dataset.
        """
        build = self.user.build_eval_dataset
        if build is None:
            raise UsageError(
                "`workload.eval` needs held-out data, and the module has none",
                place=self.user.place_of("build_dataset"),
                hint="define `build_eval_dataset()` beside `build_dataset()`",
            )
        self._sow()
        return MapStyleDataset(build(), self.user.place_of("build_eval_dataset"))

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
            counts = [self._checked(count(self.dataset.as_item(each))) for each in micro_batches]
            return torch.stack([each.to(first.device) for each in counts])
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
        count = num_micro_batches * self._micro_batch
        first = np.arange(count) % len(self.dataset)
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

    def forward(self, batch: Mapping[str, Tensor], _: Tensor) -> Tensor:
        item = self._dataset.as_item(batch)
        if self._user.loss is not None:
            loss = self._user.loss(self.model, item)
        elif isinstance(item, dict):
            loss = self.model(**item)
        else:
            loss = self.model(*item) if isinstance(item, tuple) else self.model(item)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return loss
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(
            f"the model returned {what}, not its loss",
            place=self._user.place_of("loss" if self._user.loss is not None else "build_model"),
            hint="return one number from `forward`, or define `loss(model, batch)`",
        )
