"""Time and memory of attention over packed documents on one accelerator, by the ways that torch has for it.

Grouped-query attention, forward and backward, in bf16: causal alone, then causal within documents by a mask, by a mask
with repeated keys, by FlexAttention, and by attention over sequences of different lengths. Prints a row for each;
memory is the peak beyond inputs and their gradients.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

REPEATS, WARM_UP = 10, 3
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows of tokens that consist of documents of equal length."""

    batch: int
    heads: int
    kv_heads: int
    tokens: int
    head_dim: int
    documents: int

    def inputs(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Random queries, keys and values, [B, N, T, H]."""
        sizes = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (
            torch.randn(self.batch, heads, self.tokens, self.head_dim, device=device, dtype=dtype, requires_grad=True)
            for heads in sizes
        )
        return q, k, v


def ways(shape: Shape, device: torch.device) -> Mapping[str, Attend]:
    """Attention by name; all but the first two see one document at a time."""
    attention = functools.partial(functional.scaled_dot_product_attention, enable_gqa=True)
    document_T = torch.arange(shape.tokens, device=device) // (shape.tokens // shape.documents)
    at_T = torch.arange(shape.tokens, device=device)
    mask_TT = (at_T[:, None] >= at_T) & (document_T[:, None] == document_T)
    groups = shape.heads // shape.kv_heads

    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask_TT)

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (document_T[query] == document_T[key])

    blocks = create_block_mask(seen, None, None, shape.tokens, shape.tokens, device=device.type)
    compiled = torch.compile(flex_attention, dynamic=False)

    def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = compiled(q, k, v, block_mask=blocks, enable_gqa=True)
        assert isinstance(out, Tensor)
        return out

    return {
        "causal, no documents": functools.partial(attention, is_causal=True),
        "mask [T, T]": functools.partial(attention, attn_mask=mask_TT),
        "mask [B, 1, T, T]": functools.partial(attention, attn_mask=mask_TT.expand(shape.batch, 1, -1, -1)),
        "mask, keys repeated": repeated,
        "FlexAttention": flex,
        "varlen_attn": functools.partial(_varlen, shape=shape, groups=1),
        "varlen_attn, keys repeated": functools.partial(_varlen, shape=shape, groups=groups),
    }


def _varlen(q: Tensor, k: Tensor, v: Tensor, *, shape: Shape, groups: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - of torch 2.11 and later

    length = shape.tokens // shape.documents
    ends = torch.arange(0, shape.batch * shape.tokens + 1, length, device=q.device, dtype=torch.int32)
    k, v = (each.repeat_interleave(groups, 1) if groups > 1 else each for each in (k, v))
    flat = [each.transpose(1, 2).flatten(0, 1) for each in (q, k, v)]
    out = varlen_attn(*flat, ends, ends, length, length, window_size=(-1, 0))
    assert isinstance(out, Tensor)
    return out.unflatten(0, (shape.batch, shape.tokens)).transpose(1, 2)


def measure(attend: Attend, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[float, int, Tensor]:
    """Mean milliseconds of forward and backward, peak bytes beyond the inputs, and the output."""
    grad = torch.randn_like(inputs[0])

    def step() -> Tensor:
        for each in inputs:
            each.grad = None
        out = attend(*inputs)
        out.backward(grad)
        return out

    for _ in range(WARM_UP):
        step()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(REPEATS):
        out = step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / REPEATS, torch.cuda.max_memory_allocated() - before, out.detach()


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in (("batch", 1), ("heads", 32), ("kv-heads", 8), ("tokens", 8192), ("head-dim", 128)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--documents", type=int, default=8, help="of equal length, in each row")
    shape = Shape(**vars(parser.parse_args()))
    if not torch.cuda.is_available():
        parser.error("an accelerator is needed, and there is none")
    device = torch.device("cuda")
    inputs = shape.inputs(device, torch.bfloat16)
    free, total = torch.cuda.mem_get_info()
    print(f"{shape}\ndriver's context: {(total - free - torch.cuda.memory_reserved()) / 1e9:.2f} GB")
    print("| attention | ms | memory, GB | differs by |\n|---|---|---|---|")
    reference: Tensor | None = None
    for name, attend in ways(shape, device).items():
        try:
            ms, size, out = measure(attend, inputs)
        except (ImportError, RuntimeError, TypeError, AssertionError) as error:
            print(f"| {name} | {type(error).__name__}: {str(error).splitlines()[0]} |", flush=True)
            continue
        if name == "mask [T, T]":
            reference = out
        differs = "" if reference is None else f"{((out - reference).norm() / reference.norm()).item():.1e}"
        print(f"| {name} | {ms:.2f} | {size / 1e9:.2f} | {differs} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
