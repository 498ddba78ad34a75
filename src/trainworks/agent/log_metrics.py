"""Metrics in the output of a user's own program: which lines name a loss, and of which step.

A line counts only if the whole of it is metrics: names with numbers, counters such as `[10/500]`, times and rates,
after a time stamp and a level. A sentence is never a metric, nor is a setting, a best value or a summary. Forms:
`loss: 2.1`, nanoGPT, torchtitan, torchtune, Megatron, timm, Keras, tqdm, rich, Hugging Face's dictionaries, JSON, CSV,
mmengine, YOLO's tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

from trainworks.agent.metric_names import DECIDING, HELD_OUT, field_of, reading_of
from trainworks.config.track import MetricName
from trainworks.record.metrics import Reading

_LONGEST_LINE = 4000
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
_STAMP = re.compile(
    r"(?:(?:(?!loss)[^=|]){0,90}?(?:\|\s*)?\b(?:INFO|DEBUG|NOTICE)\b[\])]?[\s|:\-\]]*"
    r"(?:[\w.]*(?:__\w+__|\.py)(?:(?::[\w.<>]+)*:\d+)?[\s|:\-\]]+|[\w.]+:(?=[\w\[{])"
    r"|(?:\w+(?:\.\w+)+|train\w*)\s+[-|]\s+)?"
    r"|\[(?=[^\]]*[A-Za-z:])(?![^\]]*(?:step|iter|epoch|loss)\b)[^\]=]{1,60}\]:?\s*"
    r"|\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?[\s|:\-]*|\d\d:\d\d:\d\d(?:[.,]\d+)?\s+"
    r"|[ID]\d{4,8} [\d:.]+ +\d+ (?:\w+ )?[\w.]+:\d+\] |\(\w+ pid=\d+\) |\d{2,7}\t(?=[A-Z])|={2,}> )",
    re.IGNORECASE,
)
"""Beginning of a line of a logger: all up to a level and a module, `[rank0]:`, date and time, glog's, Ray's, a process
id and a tab; `==> `."""
_NUMBER = r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?(?![\d.])|[-+]?(?:nan|inf(?:inity)?)\b"
_CLOCK = r"(?:\d+ days?, )?\d+:\d\d(?::\d\d)?(?:\.\d+)?(?![\w:])"
_ATTACHED = r"%|/?[A-Za-zµ]{1,8}(?:/[A-Za-z]{1,8})?\b"
_RATE = r"(?:it|step|tok|token|word|sample|image|example)s?/s(?:ec)?(?!\s*[:=]?\s*\.?\d)"  # `tokens/s 1000` has a name
_SPACED = rf"\s(?:%|ms|s|secs?|seconds|[KMGT]i?B|{_RATE})(?!\w)"
_UNIT = rf"(?:{_ATTACHED}|(?![A-Za-z0-9]))(?:{_SPACED})?"
_AMOUNT = rf"(?:{_NUMBER}){_UNIT}"
_NESTED = rf"(?:\s*\(\s*{_AMOUNT}(?:[,;/]\s*{_AMOUNT})*\s*\))?"
_KIND = rf"train(?:ing)?|{HELD_OUT}"
_WORD = (
    rf"(?:end of )?(?:(?:{_KIND}|lm|avg|average|total|batch|grad|gradient|learning|global|gpu|cuda|peak|max)[ _])*"
    r"[A-Za-z_][\w@./]*"
)
_ELEMENT = re.compile(
    r"(?P<gap>(?:[\s,;|•·*()\-]|\[[=>.\-# ]+\]|[━╸╺█▏▎▍▌▋▊▉]|:(?=\s))+)"
    rf"|(?P<scope>{_KIND})(?: set| loop)?\s*:(?!\s*\d)"
    rf"|(?:(?P<counted>{_WORD})\s*[:=#]?\s*)?[\[(]?\s*(?P<n>\d+)\s*(?:/|\bof\b)\s*(?P<total>\d+)(?![\d.])"
    r"(?:\s*\(\s*[\d.]+%\s*\))?(?:\s*[\])])?(?:\s(?:batches|steps|iterations|samples)\b)?"
    r"|(?:(?P<key>[A-Za-z_|][\w@./|\-]*(?: [A-Za-z_][\w@./\-]*){0,5}(?: \([^()\d]{1,12}\))?)\s*[:=]\s*"
    rf"(?:{_CLOCK}|\[\s*(?P<listed>{_NUMBER})\s*\]|\((?P<share>{_NUMBER})%\)"
    rf"|(?P<value>{_NUMBER})(?P<unit>{_UNIT}){_NESTED}))"
    rf"|(?:eta|elapsed|remaining|time)\s+{_CLOCK}|(?:step|iter|batch|epoch|data)[ _]time\s+{_AMOUNT}"
    r"|[A-Za-z][\w ]{0,20}:\s*n/?a\b"
    rf"|(?P<word>{_WORD})\s*#?\s+(?P<spaced>{_NUMBER})(?P<spaced_unit>{_UNIT}){_NESTED}"
    r"|\[\s*(?:(?P<outer>\d+)\s*,\s*)?(?P<inner>\d+)\]"
    rf"|(?:{_CLOCK}|(?:{_NUMBER})(?={_ATTACHED}|{_SPACED}){_UNIT}){_NESTED}",
    re.IGNORECASE,
)
_BAR = re.compile(
    r"(?P<before>[^%]*?)\s*\d+%\|[^|]*\|\s*(?P<n>\d+)/(?P<total>\d+)\s*\[[\d:?]+<[^,\]]*,[^,\]]*(?:,\s*(?P<after>.*))?\]"
)
_OTHER_BAR = re.compile(r"val|test|predict|sanity|map|load|fetch|generat|token|filter|shard|dataset", re.IGNORECASE)
_OTHER_FORMS = (
    (rf"\b(?:(?:tf|np|numpy|jnp)\.)?(?:tensor|array|float\d+)\(\[?({_NUMBER})\]?(?:,\s*\w+=[^()]*)?\)", r"\1"),
    (r"\bEpoch\(train\)\s*\[\s*(\d+)\]\s*\[", r"Epoch \1 Iter ["),  # mmengine
    (r"\bIter\(train\)\s*\[", "Iter ["),
    (r"^\[(\d+/\d+)\]\s*\[(\d+/\d+)\]", r"Epoch [\1] Step [\2]"),  # DCGAN
    (r"\bEpoch\s*\[(\d+)\]\s*\((\d+/\d+)\)", r"Epoch \1 Step [\2]"),
    (r"^\[(\d+)\]\s+(?=.*logloss)", r"step \1 "),  # XGBoost, LightGBM
    (r"\b(training|valid\w*)'s (?=\w*logloss)", r"\1 "),
    (r"\bloss train: ([^,]+), val:", r"train loss: \1, val loss:"),  # LitGPT
    (r"(?<=\d ms) \(step\)", ""),
    (r"^(?:valid|test) \| (epoch \d+ \| )(valid|test) on '\w+' subset\b", r"\1\2:"),  # fairseq
    (r"\bD\((?:x|G\(z\))\): [\d.]+(?: / [\d.]+)?", ""),
    (r"\[((?:epoch|step|iter|iteration|batch):?\s*\d+(?:\s*/\s*\d+)?)\]", r"\1 "),
    (rf"\[([A-Za-z]+ loss: {_NUMBER})\]", r"\1 "),
    (
        rf"^((?:(?:{_KIND}) )?loss)(?: \([a-z ]+\))? (?:at|after|for) (step|epoch|iter|iteration|batch) "
        r"(\d+)(?:/\d+)?\s*[:=]\s*(?=[-+.\dni])",
        r"\2 \3 \1: ",
    ),
)
"""What is written in a known form before it is read: pattern and replacement."""
_BOXED = re.compile(rf"\|\s*(?P<name>[A-Za-z][\w ./]*?)\s*\|\s*(?P<value>{_NUMBER})?\s*\|", re.IGNORECASE)
_HEADING = re.compile(rf"\s*({HELD_OUT})(?: error| results?| metrics)?\s*:\s*", re.IGNORECASE)


def _written_plainly(text: str) -> str:
    """A line with its numbers and counters in the known forms."""
    for pattern, replacement in _OTHER_FORMS:
        text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
    return text


def read_line(text: str, names: Mapping[MetricName, str] = MappingProxyType({})) -> Reading | None:
    """The metrics of one line that names a loss or a held-out accuracy; None for any other line.

    >>> read_line("iter 100: loss 2.3021, time 120.50ms, mfu 3.41%")
    {'step': 100.0, 'loss': 2.3021}
    >>> read_line("resumed from step 100, loss 2.31")
    """
    known = ("loss", "acc", "ppl", "perplexity", *map(str.lower, names.values()))
    if len(text) > _LONGEST_LINE or not any(name in text.lower() for name in known):
        return None
    text = _ESCAPES.sub("", text).rstrip()
    line = "" if text.startswith(("-", "+", "*", "#", ">")) else text.strip()  # an item of a list, or a difference
    while stamp := _STAMP.match(line):
        line = line[stamp.end() :]
    line = _written_plainly(line)
    if line.startswith("{"):
        with suppress(ValueError):
            numbers = dict(_numbers(written := json.loads(line)))
            found = reading_of(numbers, names)
            return found if found and ("step" in found or len(numbers) == len(written)) else None
        line = re.sub(r"['\"{}]", "", line) if line.endswith("}") else ""
    found = _pairs_reading(line, names)
    is_placed = found is not None and not found.keys().isdisjoint(("step", "epoch"))
    return found if is_placed or not text[0].isspace() else None  # an indented loss is a setting or a summary


def _numbers(tree: Mapping[str, object], path: str = "") -> Iterator[tuple[str, float]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{path}{name}/")
        elif isinstance(value, int | float):
            yield path + name, float(value)


def _elements(text: str) -> list[re.Match[str]]:
    """The elements of a text that consists of metrics alone; none of any other text."""
    found: list[re.Match[str]] = []
    at = 0
    while at < len(text):
        element = _ELEMENT.match(text, at)
        if element is None or (text[element.end() - 1].isalnum() and text[element.end() : element.end() + 1].isalnum()):
            return []
        found.append(element)
        at = element.end()
    return found


def _amount(element: re.Match[str]) -> tuple[str, float, str] | None:
    """Name, number and unit of an element; None where it has no name and number. A share may be `98/100`."""
    if element["n"] and field_of(f"test {element['counted']}") == "eval_accuracy":
        return element["counted"], int(element["n"]) / max(1, int(element["total"])), ""
    name, number = element["key"] or element["word"], element["value"] or element["spaced"] or element["listed"]
    if name and element["share"]:
        return name, float(element["share"]), "%"
    if not name or not number:
        return None
    return name, float(number.replace(",", "")), (element["unit"] or element["spaced_unit"] or "").strip()


def _pairs_reading(text: str, names: Mapping[MetricName, str]) -> Reading | None:
    elements = _elements(text)
    values, place, scope = dict[str, float](), _place(elements), ""
    for each in elements:
        scope = f"{each['scope']} " if each["scope"] else scope
        name, value, unit = _amount(each) or ("", 0.0, "")
        is_loss = "loss" in name.lower()
        is_scoped = is_loss or field_of(f"test {name}") == "eval_accuracy"
        if name and field_of(name) != "epoch" and not (is_loss and unit):
            values.setdefault(scope + name if is_scoped else name, value / 100 if unit == "%" else value)
    found = reading_of(values, names)
    # Beside a counter the loss of an evaluation is the mean so far.
    is_part = scope.lower().startswith(("val", "eval", "test")) and "total" in place
    is_figure = found is not None and found.keys().isdisjoint(DECIDING)
    return None if found is None or is_part or (is_figure and "step" not in place) else found | place


def _place(elements: Iterable[re.Match[str]]) -> Reading:
    place: Reading = {}
    for each in elements:
        amount = _amount(each)
        if each["n"] and (field := field_of(each["counted"] or "step")) in ("step", "epoch"):
            place |= {field: float(each["n"])} | ({"total": float(each["total"])} if field == "step" else {})
        elif each["outer"]:  # `[1,  2000]`
            place |= {"epoch": float(each["outer"]), "step": float(each["inner"])}
        elif each["inner"] and "epoch" in place:
            place.setdefault("step", float(each["inner"]))
        elif amount and field_of(amount[0]) == "epoch":
            place.setdefault("epoch", amount[1])  # `Epoch: 10, Train: 0.9` has one
    return place


def _bar_reading(text: str, names: Mapping[MetricName, str]) -> tuple[Reading, bool] | None:
    """Where tqdm's bar of a training stands, with the metrics beside it, and whether these name a loss; else None."""
    bar = _BAR.search(_written_plainly(text)) if "%|" in text else None
    if bar is None or _OTHER_BAR.search(bar["before"]):
        return None
    parts = re.split(r"[|,]", re.sub(r"['{}]", "", f"{bar['before']},{bar['after'] or ''}"))
    amounts = [amount for part in parts for each in _elements(part.strip(" :")) if (amount := _amount(each))]
    found = reading_of({name: value for name, value, unit in amounts if not unit}, names) or {}
    return found | {"step": float(bar["n"]), "total": float(bar["total"])}, bool(found)


@dataclass(eq=False)
class LogReader:
    """Reads the output of a program piece by piece, and numbers its readings by step.

    A reading without a step has that of the progress bar, else its epoch, else its number among those of this start.
    Steps grow within one start of the program though its counter begins again with every epoch. A regular expression,
    with groups for the fields of a reading, replaces all forms that are known. `names` are those of `reading_of`.
    """

    pattern: str | None = None
    names: Mapping[MetricName, str] = field(default_factory=dict)
    _rest: str = ""
    _bar: Reading | None = None
    _waiting: Reading | None = None  # without a step, until tqdm draws its bar below the line
    _columns: list[str] = field(default_factory=list)  # of the table
    _first_epoch: float | None = None  # 0 or 1, as the program counts epochs
    _is_global: bool = False  # its counter does not begin again with an epoch
    _before: float = 0.0  # steps of the epochs so far, where no line says which epoch it is
    _last: Reading = field(default_factory=dict)
    _count: int = 0
    _at: float = 0.0
    _trains: bool = False  # it has said a loss of the training
    _box: dict[str, float] = field(default_factory=dict)  # names and values so far, and the group of the next
    _group: str = ""
    _heading: str = ""  # `test: ` below a line that says so
    _evaluated: set[str] | None = None  # what the evaluation at this step has said, before the first loss

    @property
    def counts(self) -> bool:
        """True once the reader has numbered readings of this start itself."""
        return self._count > 0

    def begin(self) -> None:
        """Another start of the program: its counters begin anew, and what was cut off does not count."""
        self._rest, self._bar, self._waiting, self._columns = "", None, None, []
        self._before, self._last, self._count, self._at, self._evaluated = 0.0, {}, 0, 0.0, None
        self._trains = False

    def read(self, text: str, *, last: bool = False, whole: bool = True) -> list[Reading]:
        """The readings of complete lines, with their steps; in the `last` call a line without an end may be `whole`."""
        *lines, self._rest = re.split(r"[\r\n]+", self._rest[-_LONGEST_LINE:] + text)
        found = [
            reading for line in (*lines, self._rest if last and whole else "") if line for reading in self._take(line)
        ]
        return [each for each in (*found, *(self._let_go() if last else ())) if each["step"] >= 0]

    def _take(self, text: str) -> Iterator[Reading]:
        """The readings of a line; what a program prints while a bar stands in the line is one of its own."""
        plain = _ESCAPES.sub("", text)
        bar = _BAR.search(plain) if "%|" in plain else None
        cuts = (0, bar.end(), len(plain)) if bar and plain[bar.end() :].strip() else (0, len(plain))
        for start, end in pairwise(cuts):
            yield from self._taken(plain[start:end])

    def _taken(self, text: str) -> Iterator[Reading]:
        line, heading = self._heading + text.strip() if self._heading else text, _HEADING.fullmatch(text)
        self._heading = f"{heading[1]}: " if heading else ""
        if self.pattern is not None:
            match = re.search(self.pattern, line)
            with suppress(ValueError):  # not a number
                said = {name: float(value) for name, value in match.groupdict().items() if value} if match else {}
                yield from (self._placed(said),) if said else ()
        elif (row := self._boxed(line)) is not None or (row := self._table_row(line)) is not None:
            yield from self._let_go()
            yield from (self._placed(row),) if row else ()
        elif (bar := _bar_reading(line, self.names)) is not None:
            reading, has_loss = bar
            before = self._bar or reading
            is_over = before["step"] >= before["total"] and not self._last  # it was of something before the training
            if self._bar is None or is_over or before["total"] == reading["total"] or has_loss:
                self._bar = reading
            yield from self._let_go()
            yield from (self._placed(reading),) if has_loss else ()
        elif (found := read_line(line, self.names)) is not None:
            waits = "step" not in found and self._bar is not None
            found = {name: value for name, value in found.items() if name != "epoch" or not waits}
            if not waits or not found.keys().isdisjoint(self._waiting or {}):
                yield from self._let_go()
            if waits:  # the bar counts over all epochs
                self._waiting = found | (self._waiting or {})
            else:
                yield self._placed(found)

    def _boxed(self, line: str) -> Reading | None:
        """The metrics of a box of names and values, as stable-baselines3 prints one, at its end; empty in its rows."""
        if (row := _BOXED.fullmatch(line)) is not None:
            if row["value"]:
                self._box[self._group + row["name"]] = float(row["value"])
            else:
                self._group = row["name"] if row["name"].endswith("/") else ""
            return {}
        box, self._box, self._group = self._box, {}, ""
        return reading_of(box, self.names) if box and re.fullmatch(r"\s*-{5,}\s*", line) else None

    def _let_go(self) -> Iterator[Reading]:
        if self._waiting is not None and self._bar is not None:
            yield self._placed(self._waiting | {name: self._bar[name] for name in ("step", "total")})
        self._waiting = None

    def _table_row(self, line: str) -> Reading | None:
        """A row below a header such as `epoch,step,train_loss`, with commas, tabs or columns of spaces.

        A row of YOLO is an epoch, which has a bar of its batches behind it; empty before that bar is full.
        """
        text, *bar = re.split(r":\s+(?=\d+%)", _ESCAPES.sub("", line), maxsplit=1)
        cells = re.split(r"\s*,\s*|\t+|\s{2,}", text.strip())
        if len(cells) > 1 and not any(re.search(r"\d|[^\w ./@\-]", cell) for cell in cells):
            found = reading_of(dict.fromkeys(cells, 1.0), self.names) or {}
            self._columns = cells if {"step", "epoch"} & found.keys() else []
        counted = re.fullmatch(r"(\d+)/(\d+)", cells[0]) if bar else None
        numbers = [counted[1], *(cell.rstrip("GMKB") for cell in cells[1:])] if counted else cells
        if len(cells) != len(self._columns) or not all(re.fullmatch(f"{_NUMBER}|", each, re.I) for each in numbers):
            return None
        values = {name: float(each) for name, each in zip(self._columns, numbers, strict=True) if each}
        row = reading_of(values, self.names)
        if not counted or row is None:
            return row
        del row["epoch"]  # it is the step
        return row | {"step": float(counted[1]), "total": float(counted[2])} if bar[0].startswith("100%") else {}

    def _placed(self, reading: Reading) -> Reading:
        """The reading with its step; an evaluation without one has that of the reading before.

        Before the first loss an evaluation ends where its next value would be the second of its name.
        """
        said, reached = reading.keys() & {"eval_loss", "eval_accuracy"}, self._last.get("step")
        of_known_steps = self._trains and reached is not None and reading.get("epoch", -1.0) == self._last.get("epoch")
        if of_known_steps and "step" not in reading:  # its loss is the mean of the epoch's steps
            reading = {name: value for name, value in reading.items() if name != "loss"}
            if not said:
                return reading | {"step": -1.0}
        # An evaluation that counts its own batches begins below the steps of its epoch.
        counts_itself = of_known_steps and reached is not None and reading.get("step", reached) < reached
        is_evaluation = "loss" not in reading and ("step" not in reading or counts_itself)
        is_same = self._evaluated is not None and self._evaluated.isdisjoint(said)
        is_same &= reading.get("epoch") in (None, self._last.get("epoch"))
        if "loss" in reading and not self._trains:
            self._trains, self._count = True, max(0, int(self._at) - 1)
        step = self._at if is_evaluation and (self._at if self._trains else is_same) else self._step_of(reading)
        self._evaluated = said | (self._evaluated or set() if is_same else set())
        self._at = max(self._at, step)
        return reading | {"step": step}

    def _step_of(self, reading: Reading) -> float:
        """The step; -1 of a reading that comes late, from another process that prints the same."""
        last, epoch, step, total = self._last, reading.get("epoch"), reading.get("step"), reading.get("total")
        if epoch is not None and self._first_epoch is None:
            self._first_epoch = min(1.0, float(int(epoch)))
        self._last = last | reading if step is None else reading
        if step is None:
            self._count += 1
            is_numbered = epoch is not None and epoch.is_integer() and epoch != last.get("epoch")
            return epoch if is_numbered and epoch is not None else float(self._count)
        if epoch is not None and epoch.is_integer() and total:
            self._is_global |= epoch > last.get("epoch", epoch) and step > last.get("step", step)
            return step if self._is_global else step + (epoch - (self._first_epoch or 0.0)) * total
        is_next = epoch is not None and epoch.is_integer() and epoch > last.get("epoch", epoch) and "loss" in reading
        if step < (reached := last.get("step", 0.0)) or (step == reached and is_next):
            if reached / 2 <= step and reached != last.get("total") and not is_next:
                self._last = last
                return -1.0
            self._before += last.get("total", reached + (step == 0))  # the counter began again
        return step + self._before
