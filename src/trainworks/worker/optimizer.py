"""The optimizer of a run, its learning rate as a function of the step, gradient clipping and loss scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate

from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Guard
from trainworks.errors import LayoutError
from trainworks.worker.guard import StepJudge
from trainworks.worker.mesh import Mesh
from trainworks.worker.muon import MuonWithAdamW
from trainworks.worker.parallel.blocks import stored_weight
from trainworks.worker.parallel.build import tied_embedding
from trainworks.worker.update_rules import AdamW8bit, Lion, adamw, parameter_groups, sgd

_MASKED = frozenset({"adamw", "lion", "sgd"})
"""Optimizers that leave out a step by a flag on the device."""


def learning_rate(step: int, *, num_steps: int, settings: Optimizer) -> float:
    """Learning rate of optimizer step `step` (0 is the first).

    Warm-up over w steps rises linearly from lr / w to lr; then, with x = (step - w) / (num_steps - w) in 0 ... 1
    and r = min_lr_ratio:

        cosine        lr * (r + (1 - r) * (1 + cos(pi x)) / 2)
        linear        lr * (1 - (1 - r) * x)
        constant      lr
        wsd           lr, and in the last d = decay_share of all steps lr * (1 - (1 - r) * (1 - (n - step) / (d n)))
        inverse-sqrt  lr * sqrt(w / (step + 1)), w at least 1
        range-test    lr * r^(1 - x)

    Edge: steps from num_steps on keep the last value; of inverse-sqrt they lower it further. Sources: wsd, Hu et al.
    2024 (MiniCPM), section 4; inverse-sqrt, Vaswani et al. 2017, equation 3; range-test, Smith 2017, section 3.3.
    """
    warmup = settings.warmup.amount if settings.warmup else 0
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    x = min(1.0, (step - warmup) / max(1, num_steps - warmup))
    floor = settings.min_lr_ratio
    if settings.schedule == "cosine":
        return settings.lr * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)
    if settings.schedule == "linear":
        return settings.lr * (1 - (1 - floor) * x)
    if settings.schedule == "wsd":
        decayed = 1 - (num_steps - step) / (settings.decay_share * num_steps)
        return settings.lr * (1 - (1 - floor) * min(1.0, max(0.0, decayed)))
    if settings.schedule == "inverse-sqrt":
        return settings.lr * math.sqrt(max(1, warmup) / (step + 1))
    return float(settings.lr * floor ** (1 - x)) if settings.schedule == "range-test" else settings.lr


class StepOptimizer:
    """One optimizer step: unscale, clip, judge, update, with no host synchronisation in between.

    AdamW is element-wise, so it works on each rank's part of a distributed parameter as on a plain tensor; dispatching
    its operations on distributed tensors would cost more than a small step takes.

    `parts` are the model, or this rank's stages of it; fp16 scales the loss, and `guard` says what happens to a step
    that cannot be right. `build` makes another optimizer than AdamW, of this rank's part of each parameter; the run
    file's schedule scales its learning rates.
    """

    def __init__(
        self,
        parts: Sequence[nn.Module],
        mesh: Mesh,
        settings: Optimizer,
        *,
        num_steps: int,
        precision: str,
        device: torch.device,
        guard: Guard,
        build: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] | None = None,
    ) -> None:
        self._settings = settings
        self._num_steps = num_steps
        self._device = device
        self.parameters = [_Parameter(name, parameter) for name, parameter in named_parameters(parts)]
        self._norm = GlobalNorm([each.whole for each in self.parameters], mesh, not_counted=tied_embedding(parts))
        local = [each.local for each in self.parameters]
        if settings.groups:
            settings.check_groups(_trained_names(self.parameters, spread=mesh.layout.pp > 1))
        self.adamw = build(local) if build else self._build(settings, mesh, precision)
        """AdamW, another one of the run file, or the optimizer of a module."""
        self._unchecked = build is not None
        self._peaks = [float(group["lr"]) / settings.lr for group in self.adamw.param_groups]
        self.loss_scale = LossScale(device, enabled=precision == "fp16")
        self.masks_on_device = (
            bool(local) and local[0].device.type != "cpu" and build is None and settings.name in _MASKED
        )
        self.judge = StepJudge(guard, device)
        self.verdict = torch.zeros((), device=device)
        """Verdict of StepJudge on the last step."""

    def _build(self, settings: Optimizer, mesh: Mesh, precision: str) -> torch.optim.Optimizer | MuonWithAdamW:
        named = [(each.name, each.local) for each in self.parameters]
        groups = parameter_groups(named, settings)
        if settings.name == "muon":
            wholes = [(each.name, each.whole, each.local) for each in self.parameters]
            return MuonWithAdamW(wholes, settings, mesh, precision=precision, device=self._device)
        if settings.name == "adamw-8bit":
            self._check_whole_rows()
            return AdamW8bit(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps)
        if settings.name == "lion":
            return Lion(groups, lr=settings.lr, betas=settings.betas)
        if settings.name == "sgd":
            return sgd(groups, settings)
        return adamw(named, settings)

    def _check_whole_rows(self) -> None:
        """Refuse 8-bit moments where this rank has parts of rows: their blocks would depend on the layout."""
        matrices = (each for each in self.parameters if each.whole.ndim > 1)
        part = next((each.name for each in matrices if each.local.shape[-1] != each.whole.shape[-1]), None)
        if part is not None:
            raise LayoutError(
                f"`optimizer.name: adamw-8bit` scales rows, and this rank has a part of those of `{part}`",
                field="tp",
                hint="use `dp_shard` instead of `tp`, or take another optimizer",
            )

    @property
    def lr(self) -> float:
        """Learning rate of the last step, of parameters that no group of the run file takes."""
        return float(self.adamw.param_groups[0]["lr"])

    def step(self, step: int, loss: Tensor) -> Tensor:
        """Update the weights and clear the gradients; returns the gradient norm before clipping, on the device.

        A step that the judge refuses leaves weights, moments and step counts as they are.
        """
        rate = learning_rate(step, num_steps=self._num_steps, settings=self._settings)
        for group, peak in zip(self.adamw.param_groups, self._peaks, strict=True):
            group["lr"] = rate * peak
        for each in self.parameters:
            each.local.grad = each.gradient()
        gradients = [each.local.grad for each in self.parameters]
        self.loss_scale.undo(gradients)
        norm = self._norm.of(gradients, self._device)
        if self._settings.clip_grad_norm is not None:
            clip(gradients, norm, self._settings.clip_grad_norm)
        self.verdict = self.judge.judge(loss, norm)
        self._update()
        if self._unchecked:
            self._check_elementwise()
            self._unchecked = False
        self.loss_scale.adapt(norm)
        self.clear()
        return norm

    def _update(self) -> None:
        """An optimizer that can leave a step out by itself reads `found_inf` on the device, as it does for GradScaler.

        For any other one, and for weights on the CPU, the host looks at the verdict.
        """
        if self.masks_on_device:
            self.adamw.found_inf = (self.verdict != 0).float()  # type: ignore[union-attr]
            self.adamw.step()
        elif self.verdict.item() == 0:
            self.adamw.step()

    def clear(self) -> None:
        """Forget all gradients."""
        self.adamw.zero_grad(set_to_none=True)
        for each in self.parameters:
            each.whole.grad = None

    def fill_state(self) -> None:
        """Make the state that the first step would make, so that a checkpoint has something to be loaded into."""
        if self.adamw.state:
            return
        for group in self.adamw.param_groups:
            group["lr"] = 0.0  # a tensor then does not change, decayed or not
        for each in self.parameters:
            each.local.grad = torch.zeros_like(each.local)
        self.adamw.step()
        self.clear()

    def _check_elementwise(self) -> None:
        """Refuse optimizer state that is not shaped like its sharded parameter, and so cannot be sharded with it."""
        for each in self.parameters:
            for key, value in self.adamw.state[each.local].items():
                if isinstance(value, Tensor) and value.ndim and value.shape != each.local.shape and each.is_sharded:
                    raise LayoutError(
                        f"{type(self.adamw).__name__} keeps `{key}` of `{each.name}` for the parameter as a whole, "
                        "and shards have parts of it",
                        field="dp_shard",
                        hint="train it with replicas (`dp_replicate`), or take an element-wise optimizer",
                    )

    def checkpoint_state(self) -> Mapping[str, object]:
        """Optimizer state under its parameter's name, distributed as the parameter is, and what judges the steps."""
        return {"optimizer": self._state(), "loss_scale": self.loss_scale.state(), "judge": self.judge.state()}

    def _state(self) -> dict[str, dict[str, object]]:
        return {
            each.name: {key: each.like_whole(key, value) for key, value in self.adamw.state[each.local].items()}
            for each in self.parameters
        }


def _trained_names(own: Sequence[_Parameter], *, spread: bool) -> set[str]:
    """Names of the trained parameters; with `spread`, the ranks have different ones."""
    names = {each.name for each in own}
    if spread:
        of_ranks: list[set[str]] = [set()] * dist.get_world_size()
        dist.all_gather_object(of_ranks, names)
        names = names.union(*of_ranks)
    return names


class LossScale:
    """Dynamic loss scaling of fp16: half as large after gradients that overflow, twice after 2,000 steps that do not
    (Micikevicius et al. 2018).

    torch's GradScaler looks at the gradients that a rank has, so that ranks with different shards would part ways; here
    the norm of all gradients decides, which is the same everywhere.
    """

    _GROWTH, _BACKOFF, _GROWTH_STEPS = 2.0, 0.5, 2000

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.enabled = enabled
        self._scale = torch.full((), 65536.0 if enabled else 1.0, device=device)
        self._good_steps = torch.zeros((), dtype=torch.int32, device=device)

    def per_micro_batch(self, grad_accum_steps: int) -> Tensor | float:
        """Factor of each micro-batch's loss before backward."""
        return self._scale / grad_accum_steps if self.enabled else 1.0 / grad_accum_steps

    def undo(self, gradients: Sequence[Tensor | None]) -> None:
        """Bring gradients back to their own size."""
        if self.enabled:
            multiply(gradients, 1.0 / self._scale)

    def adapt(self, norm: Tensor) -> None:
        """Change the scale after a step, from the norm of all gradients."""
        if self.enabled:
            overflow = torch.isfinite(norm).logical_not().float()
            torch._amp_update_scale_(
                self._scale, self._good_steps, overflow, self._GROWTH, self._BACKOFF, self._GROWTH_STEPS
            )

    def state(self) -> dict[str, Tensor]:
        """State for the checkpoint, loaded in place."""
        return {"scale": self._scale, "good_steps": self._good_steps} if self.enabled else {}


class _Parameter:
    """A parameter, and this rank's part of it as a leaf of its own over the same storage."""

    def __init__(self, name: str, whole: nn.Parameter) -> None:
        self.name = name
        self.whole = whole
        self.local = whole
        self._wholes: dict[str, tuple[Tensor, int, DTensor]] = {}
        """State tensors by name, with their addresses and what `like_whole` made of them."""
        if isinstance(stored := stored_weight(whole.detach()), DTensor):
            self.local = nn.Parameter(stored.to_local())

    @property
    def is_sharded(self) -> bool:
        """True if this rank has only a part of the parameter."""
        return isinstance(self.whole, DTensor) and self.local.shape != self.whole.shape

    def gradient(self) -> Tensor | None:
        """This rank's part. Gradients of norms that saw other positions elsewhere are still to be summed."""
        gradient = self.whole.grad
        if not isinstance(gradient, DTensor) or not isinstance(self.whole, DTensor):
            return gradient
        if gradient.placements != self.whole.placements:
            gradient = gradient.redistribute(placements=self.whole.placements)
        return gradient.to_local()

    def like_whole(self, name: str, value: Any) -> Any:
        """A state tensor as the distributed tensor of which it is this rank's part; a scalar as it is.

        It has a value per weight, or some per row, such as the scales of 8-bit moments. A plain tensor that is updated
        in place keeps its distributed one: making them anew was most of the time for which a save stops the loop.
        """
        if not isinstance(self.whole, DTensor) or not isinstance(value, Tensor):
            return value
        is_plain = type(value) is Tensor
        if is_plain and (kept := self._wholes.get(name)) and kept[0] is value and kept[1] == value.data_ptr():
            return kept[2]
        by_row = value.ndim == self.local.ndim > 1 and value.shape[:-1] == self.local.shape[:-1]
        if value.shape == self.local.shape:
            shape = self.whole.shape
        elif by_row:
            shape = torch.Size([*self.whole.shape[:-1], value.shape[-1]])
        else:
            return value
        made = DTensor.from_local(
            value,
            self.whole.device_mesh,
            self.whole.placements,
            run_check=False,
            shape=shape,
            stride=torch.empty(shape, device="meta").stride(),
        )
        if is_plain:
            self._wholes[name] = (value, value.data_ptr(), made)
        return made


def named_parameters(parts: Sequence[nn.Module]) -> list[tuple[str, nn.Parameter]]:
    """Trained parameters by the name that they have in every layout."""
    return [
        (name, parameter) for part in parts for name, parameter in part.named_parameters() if parameter.requires_grad
    ]


class GlobalNorm:
    """Norm of all gradients over all ranks, in one collective.

        ||g||^2 = sum over ranks r and parameters p of ||g_rp||^2 / c_p

    g_rp is the part of p's gradient on rank r, and c_p the number of ranks that have the same part: world size over
    pipeline stages and over the ranks among which p is sharded. A parameter that two stages share counts on the first:
    `not_counted` is the one that another rank counts.
    """

    def __init__(self, parameters: Sequence[Tensor], mesh: Mesh, *, not_counted: Tensor | None) -> None:
        skipped = not_counted if mesh.pp_rank > 0 else None
        layout = mesh.layout
        per_stage = layout.world_size // layout.pp
        self._copies = [math.inf if each is skipped else per_stage / _shards(each) for each in parameters]
        self._spread = layout.pp > 1 or any(copies != per_stage for copies in self._copies)

    def of(self, gradients: Sequence[Tensor | None], device: torch.device) -> Tensor:
        """The norm, a scalar on the device, the same on every rank; parameters without gradients count as zeros.

        Gradients may be on the CPU, where the weights are offloaded.
        """
        if not self._spread:  # every rank has every gradient
            return torch.nn.utils.get_total_norm([each for each in gradients if each is not None], foreach=True).to(
                device
            )
        by_copies: dict[float, list[Tensor]] = {}
        for gradient, copies in zip(gradients, self._copies, strict=True):
            if gradient is not None and not math.isinf(copies):
                by_copies.setdefault(copies, []).append(gradient)
        squares = [
            torch.nn.utils.get_total_norm(group, foreach=True) ** 2 / copies for copies, group in by_copies.items()
        ]
        total = torch.stack(squares).sum().to(device)  # NCCL sums nothing on a CPU
        dist.all_reduce(total)
        return total.sqrt()


def _shards(parameter: Tensor) -> int:
    """Ranks among which a parameter is split."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh, placements = parameter.device_mesh, parameter.placements
    return math.prod(mesh.size(dim) for dim, placement in enumerate(placements) if not isinstance(placement, Replicate))


def clip(gradients: Sequence[Tensor | None], norm: Tensor, limit: float) -> None:
    """Scale gradients in place to a norm of at most `limit`, without asking the device for the norm."""
    multiply(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))


def multiply(gradients: Sequence[Tensor | None], factor: Tensor) -> None:
    """Multiply gradients in place by a scalar, which may be on another device than they."""
    present = [each for each in gradients if each is not None]
    if present:
        torch._foreach_mul_(present, factor.to(present[0].device))
