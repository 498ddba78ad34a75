"""Mean loss on the answers of held-out conversations, with `transformers` and `peft` alone.

    python evaluate.py MODEL CHATS [ADAPTER]

MODEL is a checkpoint folder, CHATS a JSONL file of messages. The tokenizer and its chat template come from ADAPTER,
or else from MODEL; `evaluate.py MODEL CHATS ADAPTER --without` leaves the adapter's weights out, to measure the base.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


@torch.no_grad()
def loss_on_answers(model: torch.nn.Module, tokenizer: AutoTokenizer, chats: Path) -> tuple[float, int]:
    """Mean cross-entropy over the tokens of all answers, and their number."""
    total, count = 0.0, 0
    for line in chats.read_text().splitlines():
        messages = json.loads(line)["messages"]
        before = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True)["input_ids"]
        whole = torch.tensor([tokenizer.apply_chat_template(messages)["input_ids"]])
        logits = model(input_ids=whole).logits[0, len(before) - 1 : -1]
        total += torch.nn.functional.cross_entropy(logits, whole[0, len(before) :], reduction="sum").item()
        count += whole.shape[1] - len(before)
    return total / count, count


def answer(model: torch.nn.Module, tokenizer: AutoTokenizer, question: str) -> str:
    """The likeliest answer to a question."""
    messages = [{"role": "user", "content": question}]
    x = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    out = model.generate(**x, max_new_tokens=30, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    return tokenizer.decode(out[0, x["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def main() -> None:
    """Print the loss, and one answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("chats", type=Path)
    parser.add_argument("adapter", nargs="?")
    parser.add_argument("--without", action="store_true")
    asked = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(asked.adapter or asked.model)
    model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32)
    if asked.adapter and not asked.without:
        model = PeftModel.from_pretrained(model, asked.adapter)
    loss, count = loss_on_answers(model.eval(), tokenizer, asked.chats)
    print(f"loss {loss:.4f} over {count:,} tokens of answers")
    print(answer(model, tokenizer, "What is 12 plus 30?"))


if __name__ == "__main__":
    main()
