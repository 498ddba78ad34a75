"""Write the data of this example: texts for a tiny base model, conversations, pairs of answers and single answers with
labels to tune it on, some of each held out.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path


def sums(count: int, seed: int) -> list[tuple[int, int]]:
    """Pairs of small numbers."""
    draw = random.Random(seed)
    return [(draw.randint(0, 49), draw.randint(0, 49)) for _ in range(count)]


def chat(left: int, right: int) -> dict[str, list[dict[str, str]]]:
    """A question and its answer."""
    return {
        "messages": [
            {"role": "user", "content": f"What is {left} plus {right}?"},
            {"role": "assistant", "content": f"{left} plus {right} is {left + right}."},
        ]
    }


def pair(left: int, right: int) -> dict[str, object]:
    """A question with a short answer, which is preferred, and with a long one."""
    return {
        "prompt": [{"role": "user", "content": f"What is {left} plus {right}?"}],
        "chosen": f"{left + right}.",
        "rejected": f"{left} plus {right} is {left + right}.",
    }


def answer(left: int, right: int) -> dict[str, object]:
    """A question with one of both answers, and whether it is the short one, which is desirable."""
    both, is_short = pair(left, right), left % 2 == 0
    content = both["chosen" if is_short else "rejected"]
    return {
        "prompt": both["prompt"],
        "completion": [{"role": "assistant", "content": content}],
        "label": is_short,
    }


def main(folder: Path) -> None:
    """Write texts/sums.jsonl, and NAME.jsonl and held-out files of chats, pairs and answers."""
    (folder / "texts").mkdir(parents=True, exist_ok=True)
    texts = [{"text": f"{left} plus {right} is {left + right}. "} for left, right in sums(4_000, seed=1)]
    (folder / "texts" / "sums.jsonl").write_text("".join(json.dumps(each) + "\n" for each in texts))
    for name, record, count, seed in (
        ("chats", chat, 600, 2),
        ("held-out", chat, 100, 3),
        ("pairs", pair, 400, 4),
        ("held-out-pairs", pair, 100, 5),
        ("answers", answer, 400, 6),
        ("held-out-answers", answer, 100, 7),
    ):
        lines = [json.dumps(record(*numbers)) + "\n" for numbers in sums(count, seed)]
        (folder / f"{name}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
