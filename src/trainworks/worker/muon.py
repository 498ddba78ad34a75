"""Muon for the hidden matrices of a model and AdamW for the rest, with whole matrices or with parts of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainworks.config.optimizer import Optimizer
from trainworks.worker.mesh import Mesh
from trainworks.worker.update_rules import adamw

_TABLES = ("embed", "lm_head", "wte", "wpe", "classifier", "decoder.weight")
"""Parts of the names of embeddings and output matrices, whose rows are tokens, positions or classes."""
_MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_LEAST_NORM = 1e-7


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon updates this parameter: a matrix between hidden states. Source: Jordan et al. 2024, "Muon"."""
    return parameter.ndim == 2 and not any(part in name for part in _TABLES)


def orthogonalised(matrix: Tensor) -> Tensor:
    """The matrix [m, n] with singular values near 1, by five iterations in its own precision; as `torch.optim.Muon`.

        X = M / ||M||    A = X X^T    X = a X + (b A + c A A) X

    A matrix with more rows than columns is transposed for it. Source: Jordan et al. 2024, "Muon".
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=_LEAST_NORM)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows and columns of a matrix that each rank of `Mesh.weights_group` has; ranks may have the same ones."""

    shape: torch.Size
    pieces: tuple[tuple[slice, slice], ...]

    @classmethod
    def of(cls, whole: Tensor, mesh: Mesh) -> Cut | None:
        """The cut of a parameter; None where every rank has all of it."""
        if not isinstance(whole, DTensor) or all(
            placement.is_replicate() or whole.device_mesh.size(axis) == 1
            for axis, placement in enumerate(whole.placements)
        ):
            return None
        ranks = range(dist.get_world_size(mesh.weights_group))
        return cls(whole.shape, tuple(_piece(whole, *divmod(rank, mesh.layout.tp)) for rank in ranks))

    @property
    def sizes(self) -> list[int]:
        """Elements of each piece."""
        return [(rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in self.pieces]


def _piece(whole: DTensor, shard: int, tp_rank: int) -> tuple[slice, slice]:
    """FSDP2 cuts what tensor parallelism left, although it is the earlier axis of the mesh."""
    spans = [(0, size) for size in whole.shape]
    axes = zip(whole.device_mesh.mesh_dim_names or (), whole.placements, strict=True)
    for axis, placement in reversed([*axes]):
        if placement.is_replicate():
            continue
        dim, rank = getattr(placement, "dim"), {"fsdp": shard, "tp": tp_rank}[axis]  # noqa: B009  # of two classes
        start, stop = spans[dim]
        size = -(-(stop - start) // whole.device_mesh[axis].size())
        spans[dim] = min(stop, start + rank * size), min(stop, start + (rank + 1) * size)
    (top, bottom), (left, right) = spans
    return slice(top, bottom), slice(left, right)


class Muon(torch.optim.Optimizer):
    """torch's Muon of matrices of which each rank may have a part.

    With gradient g, momentum m, and decay d, of a matrix [m, n]:

        m = 0.95 m + 0.05 g    u = 0.05 g + 0.95 m    p = p (1 - lr d) - 0.2 lr sqrt(max(m, n)) orthogonalised(u)

    Momenta are shared among ranks as weights are. A group of W ranks takes W matrices of one size at a time: an
    all-to-all brings each rank the parts of one of them, which it orthogonalises, and a second one returns the parts.
    Every matrix is thus computed once per group, from the same numbers as on one rank. Source: Liu et al. 2025, "Muon
    is Scalable for LLM Training"; the exchange is that of Ahn et al. 2025, "Dion".

    Args:
        params: this rank's parts.
        cuts: those of parameters that are cut.
        group: ranks that share a matrix; None where nothing is cut.
        dtype: of the iterations and of what travels.
        device: of the iterations; weights that are offloaded are on another.
    """

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
        cuts: Mapping[Tensor, Cut],
        group: dist.ProcessGroup | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self._cuts, self._group, self._dtype, self._device = cuts, group, dtype, device

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient; ranks of the group call it together."""
        for group in self.param_groups:
            decay = group["lr"] * group["weight_decay"]
            for batch in self._batches([each for each in group["params"] if each.grad is not None]):
                updates = [self._update(each).to(self._device, self._dtype) for each in batch]
                if batch[0] in self._cuts:
                    updates = self._orthogonalised_together([self._cuts[each] for each in batch], updates)
                else:
                    updates = [orthogonalised(each) for each in updates]
                for parameter, update in zip(batch, updates, strict=True):
                    parameter.mul_(1 - decay)
                    size = 0.2 * math.sqrt(max(self._shape(parameter)))
                    parameter.add_(update.to(parameter.device), alpha=-group["lr"] * size)

    def _shape(self, parameter: Tensor) -> torch.Size:
        return self._cuts[parameter].shape if parameter in self._cuts else parameter.shape

    def _batches(self, parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
        """Whole matrices one by one, and those in parts by as many as there are ranks, of one size where there are."""
        cut = sorted((each for each in parameters if each in self._cuts), key=self._shape)
        yield from ([each] for each in parameters if each not in self._cuts)
        ranks = dist.get_world_size(self._group) if cut else 1
        yield from (cut[first : first + ranks] for first in range(0, len(cut), ranks))

    def _update(self, parameter: nn.Parameter) -> Tensor:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        momentum = state.setdefault("momentum_buffer", torch.zeros_like(gradient))
        momentum.lerp_(gradient, 1 - _MOMENTUM)
        return gradient.lerp(momentum, _MOMENTUM)

    def _orthogonalised_together(self, cuts: Sequence[Cut], updates: Sequence[Tensor]) -> list[Tensor]:
        """Parts of the results, from parts of the matrices; rank r of the group computes matrix r."""
        rank, none = dist.get_rank(self._group), [0] * dist.get_world_size(self._group)
        own = [each.numel() for each in updates] + none[len(updates) :]
        mine = cuts[rank] if rank < len(cuts) else None
        sizes = mine.sizes if mine else none
        received = self._exchange(torch.cat([each.flatten() for each in updates]), own, sizes)
        if mine:
            matrix = received.new_empty(mine.shape)
            for piece, part in zip(mine.pieces, received.split(sizes), strict=True):
                matrix[piece] = part.view_as(matrix[piece])
            matrix = orthogonalised(matrix)
            received = torch.cat([matrix[piece].flatten() for piece in mine.pieces])
        returned = self._exchange(received, sizes, own).split(own)
        return [part.view_as(update) for part, update in zip(returned, updates, strict=False)]

    def _exchange(self, sent: Tensor, to: list[int], of: list[int]) -> Tensor:
        """`to[r]` elements go to rank r, and `of[r]` come from it."""
        received = sent.new_empty(sum(of))
        dist.all_to_all_single(received, sent, of, to, group=self._group)
        return received


class MuonWithAdamW:
    """Muon for the hidden matrices of a model, AdamW for the rest, as one optimizer to its caller.

    One learning rate and one weight decay serve both, because Muon's update has the size of AdamW's; `betas` and `eps`
    are those of AdamW. An fp32 run iterates in fp32, where layouts agree to rounding, any other one in bf16.

    Args:
        named: parameters by name, each with this rank's part of it.
        settings: of the run file.
        mesh: of the ranks, with the group that shares a matrix.
        precision: of the run.
        device: that computes.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, Tensor, nn.Parameter]],
        settings: Optimizer,
        mesh: Mesh,
        *,
        precision: str,
        device: torch.device,
    ) -> None:
        hidden = [(whole, local) for name, whole, local in named if is_hidden_matrix(name, local)]
        rest = [(name, local) for name, _, local in named if not is_hidden_matrix(name, local)]
        self._both: list[torch.optim.Optimizer] = [adamw(rest, settings)]
        if hidden:
            cuts: dict[Tensor, Cut] = {local: cut for whole, local in hidden if (cut := Cut.of(whole, mesh))}
            muon = Muon(
                [local for _, local in hidden],
                lr=settings.lr,
                weight_decay=settings.weight_decay,
                cuts=cuts,
                group=mesh.weights_group if cuts else None,
                dtype=torch.float32 if precision == "fp32" else torch.bfloat16,
                device=device,
            )
            self._both.insert(0, muon)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both."""
        return [group for each in self._both for group in each.param_groups]

    @property
    def state(self) -> Mapping[Tensor, Mapping[str, Any]]:
        """The state of both, by parameter."""
        return {key: value for each in self._both for key, value in each.state.items()}

    def step(self) -> None:
        """Update all parameters that have a gradient."""
        for each in self._both:
            each.step()

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for each in self._both:
            each.zero_grad(set_to_none=set_to_none)
