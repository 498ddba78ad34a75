"""Prepared and verified training data, as lines."""

from __future__ import annotations

from collections.abc import Mapping

from trainworks.measure.worker_tasks import PreparedData, VerifiedData
from trainworks.units import format_bytes, format_count, format_duration


def prepared_lines(result: PreparedData, num_sources: int) -> list[str]:
    """Amount, time, folder and fingerprint of prepared data.

    Args:
        result: what the worker counted.
        num_sources: sources of the data.
    """
    amount = f"{result['num_items']:,} images of {result['classes']} classes"
    if result["num_tokens"]:
        amount = f"{format_count(result['num_tokens'])} tokens"
        if result["num_bytes_of_text"]:
            amount += f" of {format_bytes(result['num_bytes_of_text'])} of text"
    where = f"in {result['num_shards']} shards" if result["num_shards"] else f"of {num_sources} sources"
    lines = [f"{amount} {where}, {format_duration(result['seconds'])}"]
    if result["padding_tokens"]:
        lines.append(f"packed: {result['padding_tokens'] / result['num_items']:.2%} of the tokens are filler")
    if result["chats"]:
        lines.append(chat_line(result["chats"]))
    if result["template"]:
        lines.append(f"template     {result['template']}")
    if result["held_out"] and result["held_out_samples"] is not None:
        lines.append(f"held out     {result['held_out']}, {result['held_out_samples']:,} samples")
    return [*lines, f"folder       {result['folder']}", f"fingerprint  {result['fingerprint']}"]


def chat_line(chats: Mapping[str, int]) -> str:
    """Conversations, answer tokens, and what was left out of them."""
    line = f"{chats['conversations']:,} conversations, {chats['answer_tokens']:,} tokens of answers"
    left_out = {"cut at the end": chats["cut"], "dropped": chats["dropped"]}
    return "; ".join([line, *(f"{count:,} {what}" for what, count in left_out.items() if count)])


def verified_lines(result: VerifiedData) -> list[str]:
    """Damaged shards, and a summary."""
    lines = [f"{each['folder']}/{each['shard']}: {each['problem']}" for each in result["damaged"]]
    summary = f"{len(result['damaged'])} damaged" if result["damaged"] else "all as written"
    return [*lines, f"{result['shards']} shards, {format_bytes(result['num_bytes'])}: {summary}"]
