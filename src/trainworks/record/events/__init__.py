"""events.jsonl: the events of a run in order, from all its processes."""
