"""Write questions.jsonl: sums, each with the right result and another one."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path


def main(folder: Path, count: int = 100) -> None:
    """Write the questions into a folder."""
    draw = random.Random(6)
    lines = []
    for _ in range(count):
        left, right, off = draw.randint(0, 49), draw.randint(0, 49), draw.randint(1, 30)
        choices = [f"{left + right}.", f"{left + right + off}."]
        lines.append(json.dumps({"question": f"{left} plus {right} is", "choices": choices, "label": 0}) + "\n")
    (folder / "questions.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
