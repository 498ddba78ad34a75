"""Attention as one interface: which keys a query sees, in the form of the kernel that the device has for it.

`config.software.AttentionTask` says which kernel that is, to the planner too. What a kernel needs of a mask is made
once per forward, for all layers.

Shape suffixes: B sequences, T positions, N query heads, K key/value heads, H head dimension.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from trainworks.config.software import PIECE, AttentionTask
from trainworks.worker.models.torch_versions import grouped_heads

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class Kernel(Protocol):
    """softmax(q k^T / sqrt(H)) v over the keys that each query sees."""

    def __call__(self, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, *, dropout: float = 0.0) -> Tensor:
        """[B, T, N, H]; with fewer key than query heads, each serves the same number of neighbours."""


def attention_task(x: Tensor, **known: Any) -> AttentionTask:
    """The task of hidden states with what is `known` of it; under autocast, of their type in products."""
    device = x.device.type
    half = _product_dtype(x).itemsize == 2
    on_gpu = device == "cuda"
    capability = torch.cuda.get_device_capability(x.device) if on_gpu else (0, 0)
    deterministic = torch.are_deterministic_algorithms_enabled()
    varlen = on_gpu and torch.version.hip is None
    return AttentionTask(
        device=device, capability=capability, half=half, deterministic=deterministic, varlen=varlen, **known
    )


def _product_dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def kernel_of(task: AttentionTask, x: Tensor, positions_BT: Tensor | None, *, compiled: bool = False) -> Kernel:
    """The kernel with what it needs of the mask.

    Args:
        task: whose `kernel` it is.
        x: hidden states of the rows.
        positions_BT: of each token in its document, 0 where one begins; of all positions of the rows. None if each row
            is one document.
        compiled: whether a compiler traces the blocks that call it.
    """
    rows, length, device = len(x), task.positions, x.device
    window = task.window if task.window < length else 0
    if task.kernel == "sdpa":
        return Causal(task.repeats_keys)
    if task.kernel == "masked":
        return Masked(_additive(_seen(positions_BT, length, window, device), _product_dtype(x)), task.repeats_keys)
    if task.kernel == "flex":
        return _flex(positions_BT, length, window, device, compiled=compiled)
    if positions_BT is None:
        starts = torch.arange(0, rows * length + 1, length, device=device)
    else:
        begins_BT = positions_BT == 0
        begins_BT[:, 0] = True
        starts = pad(begins_BT.flatten().nonzero().squeeze(1), (0, 1), value=rows * length)
    if task.kernel == "varlen":
        return _varlen(starts.int(), length, window)
    pieces = tuple(_pieces(starts.tolist(), length, window, _product_dtype(x), device))
    return Pieces(pieces, task.repeats_keys, _untraced() if compiled else _by_pieces)


@dataclass(frozen=True, slots=True, eq=False)
class Causal:
    """Every position up to the query's own."""

    repeats_keys: bool = False

    def __call__(self, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, *, dropout: float = 0.0) -> Tensor:
        """See `Kernel`."""
        return _sdpa(q_BTNH, k_BTKH, v_BTKH, None, dropout, repeats_keys=self.repeats_keys)


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """Every position at which the mask, of the type of the products, has 0 and not minus infinity."""

    mask: Tensor
    """[T, T] or [B, 1, T, T]. A boolean one would be converted, and kept, by each layer."""
    repeats_keys: bool = False

    def __call__(self, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, *, dropout: float = 0.0) -> Tensor:
        """See `Kernel`."""
        return _sdpa(q_BTNH, k_BTKH, v_BTKH, self.mask, dropout, repeats_keys=self.repeats_keys)


def _sdpa(
    q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, mask: Tensor | None, dropout: float, *, repeats_keys: bool
) -> Tensor:
    shared = q_BTNH.shape[2] // k_BTKH.shape[2]
    if shared > 1 and repeats_keys:
        k_BTKH, v_BTKH = (x.repeat_interleave(shared, dim=2) for x in (k_BTKH, v_BTKH))
    out_BNTH = scaled_dot_product_attention(
        q_BTNH.transpose(1, 2),
        k_BTKH.transpose(1, 2),
        v_BTKH.transpose(1, 2),
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=mask is None,
        enable_gqa=shared > 1 and not repeats_keys,
    )
    return out_BNTH.transpose(1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class Varlen:
    """FlashAttention of sequences of several lengths, which lie one behind the other."""

    attend: Callable[..., Any]
    """`varlen_attn` with its options."""
    starts: Tensor
    """First token of each document, and the number of all tokens; int32."""
    longest: int
    """Bound of their lengths: that of a row, as the longest document is known on the GPU alone."""

    def __call__(self, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, *, dropout: float = 0.0) -> Tensor:
        """See `Kernel`; without dropout."""
        assert not dropout
        rows, length = q_BTNH.shape[:2]
        q, k, v = (x.to(v_BTKH.dtype).flatten(0, 1) for x in (q_BTNH, k_BTKH, v_BTKH))
        out: Tensor = self.attend(q, k, v, self.starts, self.starts, self.longest, self.longest)
        return out.unflatten(0, (rows, length))


def _varlen(starts: Tensor, longest: int, window: int) -> Varlen:
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  # two seconds of a rank's start

    # A window counts the keys before a query's own; -1 is all of them.
    options: dict[str, Any] = {"window_size": (window - 1, 0), **grouped_heads(varlen_attn)}
    return Varlen(functools.partial(varlen_attn, **options), starts, longest)


@dataclass(frozen=True, slots=True, eq=False)
class Flex:
    """FlexAttention, which leaves out blocks of keys that no query of a block sees."""

    attend: Callable[..., Any]
    """`flex_attention`, compiled on a GPU: else it writes all scores to memory."""
    mask: BlockMask

    def __call__(self, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, *, dropout: float = 0.0) -> Tensor:
        """See `Kernel`; without dropout."""
        assert not dropout
        q, k, v = (x.to(v_BTKH.dtype).transpose(1, 2) for x in (q_BTNH, k_BTKH, v_BTKH))
        out: Tensor = self.attend(q, k, v, block_mask=self.mask, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2)


def _flex(positions_BT: Tensor | None, length: int, window: int, device: torch.device, *, compiled: bool) -> Flex:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: PLC0415  # see `_varlen`

    document_BT = None if positions_BT is None else _documents(positions_BT)

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        visible = query >= key
        if window:
            visible = visible & (query - key < window)
        return visible if document_BT is None else visible & (document_BT[row, query] == document_BT[row, key])

    rows = None if document_BT is None else len(document_BT)
    on_gpu = device.type == "cuda"
    make = _compiled(create_block_mask) if on_gpu else create_block_mask
    mask = make(seen, rows, None, length, length, device=device)
    attend: Any = flex_attention  # a compiled block compiles it too
    return Flex(_compiled(attend) if on_gpu and not compiled else attend, mask)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)


class _Piece(NamedTuple):
    """Queries that lie one behind the other and see the same stretch of keys, which ends where they do."""

    queries: int
    before: int
    """Keys before the first query."""
    mask: Tensor | None
    """[queries, before + queries]; None if they see every key up to themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """One causal attention after another."""

    pieces: Sequence[_Piece]
    repeats_keys: bool
    attend: Callable[..., Tensor]
    """`_by_pieces`."""

    def __call__(self, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, *, dropout: float = 0.0) -> Tensor:
        """See `Kernel`."""
        return self.attend(self, q_BTNH, k_BTKH, v_BTKH, dropout)


def _by_pieces(of: Pieces, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, dropout: float) -> Tensor:
    rows, length = q_BTNH.shape[:2]
    q, k, v = (x.flatten(0, 1).unsqueeze(0) for x in (q_BTNH, k_BTKH, v_BTKH))
    sizes = [piece.queries for piece in of.pieces]
    own = zip(*(x.split(sizes, dim=1) for x in (q, k, v)), strict=True)  # one gradient for all, where they are apart
    outputs, end = [], 0
    for piece, (queries, *stretch) in zip(of.pieces, own, strict=True):
        end += piece.queries
        seen = [x[:, end - piece.queries - piece.before : end] for x in (k, v)] if piece.before else stretch
        outputs.append(_sdpa(queries, seen[0], seen[1], piece.mask, dropout, repeats_keys=of.repeats_keys))
    return torch.cat(outputs, dim=1).squeeze(0).unflatten(0, (rows, length))


@functools.cache
def _untraced() -> Callable[..., Tensor]:
    """The same, left alone by compilers: the number of pieces follows the documents, and changes with the batch."""
    alone: Callable[..., Tensor] = torch.compiler.disable(_by_pieces)
    return alone


def _pieces(
    starts: Sequence[int], length: int, window: int, dtype: torch.dtype, device: torch.device
) -> Iterator[_Piece]:
    """Pieces of documents: short neighbours of a row share one, and windows move by `PIECE` in longer ones."""

    @functools.cache
    def stretch(queries: int, before: int) -> Tensor | None:
        if before == 0 and queries <= (window or queries):
            return None
        return _additive(_band(queries, before, window, device), dtype)

    lengths = [end - start for start, end in itertools.pairwise(starts)]
    group: list[int] = []
    done = 0
    for size, following in zip(lengths, [*lengths[1:], PIECE], strict=True):
        group.append(size)
        done += size
        if done % length and sum(group) + following <= PIECE:
            continue
        if len(group) > 1:
            of = torch.arange(len(group), device=device).repeat_interleave(torch.tensor(group, device=device))
            seen = (of.unsqueeze(1) == of) & _band(len(of), 0, window, device)
            yield _Piece(len(of), 0, _additive(seen, dtype))
        else:
            step = PIECE if 0 < window < group[0] else group[0]
            for first in range(0, group[0], step):
                queries, before = min(step, group[0] - first), min(first, max(window - 1, 0))
                yield _Piece(queries, before, stretch(queries, before))
        group = []


def _documents(positions_BT: Tensor) -> Tensor:
    """Number of each token's document in its row [B, T]."""
    return (positions_BT == 0).cumsum(1)


def _band(queries: int, before: int, window: int, device: torch.device) -> Tensor:
    """Keys [queries, before + queries] up to each query, and within the window."""
    at = torch.arange(before + queries, device=device)
    distance = at[before:].unsqueeze(1) - at
    return (distance >= 0) & (distance < (window or len(at)))


def _seen(positions_BT: Tensor | None, length: int, window: int, device: torch.device) -> Tensor:
    """Keys [T, T], or [B, 1, T, T] of documents, that each query sees."""
    seen_TT = _band(length, 0, window, device)
    if positions_BT is None:
        return seen_TT
    document_BT = _documents(positions_BT)
    return ((document_BT.unsqueeze(2) == document_BT.unsqueeze(1)) & seen_TT).unsqueeze(1)


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, float("-inf"))
