"""Sample of text from the trained model."""

from __future__ import annotations

from pathlib import Path

import torch

from trainworks.worker.data.tokenization import Tokenization
from trainworks.worker.data.tokenizer import end_of_text
from trainworks.worker.parallel.build import Parallel

_TOP_K = 20
_TEMPERATURE = 0.7


@torch.no_grad()
def generate(
    parallel: Parallel, data_folder: Path, prompt: str, *, num_tokens: int, window: int, device: torch.device
) -> str:
    """The continuation of a prompt, sampled from the 20 likeliest tokens at temperature 0.7 until the document ends.

    Every rank calls it with the same seed and takes part in every forward, as sharded parameters need.

    Args:
        parallel: the model, in any layout.
        data_folder: of prepared data, with the tokenizer.
        prompt: text to continue.
        num_tokens: most tokens to add.
        window: tokens of context that the model sees, T.
        device: of the model.
    """
    tokenizer = Tokenization.read(data_folder).tokenizer
    end = end_of_text(tokenizer)
    tokens: list[int] = tokenizer.encode(prompt, add_special_tokens=False).ids or [end or 0]
    prompt_tokens = len(tokens)
    for part in parallel.parts:
        part.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(num_tokens):
            chosen = _next_token(parallel, torch.tensor([tokens[-window:]], device=device))
            if chosen == end:
                break
            tokens.append(chosen)
    for part in parallel.parts:
        part.train()
    return str(tokenizer.decode(tokens[prompt_tokens:]))


def _next_token(parallel: Parallel, tokens_BT: torch.Tensor) -> int:
    logits, indices = parallel.next_token_logits(tokens_BT).float().cpu()[0].topk(_TOP_K)
    return int(indices[torch.multinomial(torch.softmax(logits / _TEMPERATURE, 0), 1)])
