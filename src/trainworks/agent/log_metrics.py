"""Metrics in the output of a user's own program: which lines name a loss, and of which step.

A line counts only if the whole of it is metrics: names with numbers, counters such as `[10/500]`, times and rates,
after a time stamp and a level. A sentence is never a metric, nor is a setting, a best value or a summary. Forms:
`loss: 2.1`, nanoGPT, torchtitan, torchtune, Megatron, timm, Keras, tqdm, rich, Hugging Face's dictionaries, JSON, CSV.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from trainworks.record.metrics import Reading

_LONGEST_LINE = 4000
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
_STAMP = re.compile(
    r"(?:(?:(?!loss)[^=|]){0,90}?(?:\|\s*)?\b(?:INFO|DEBUG|NOTICE)\b[\])]?[\s|:\-\]]*"
    r"(?:[\w.]*(?:__\w+__|\.py)(?:(?::[\w.<>]+)*:\d+)?[\s|:\-\]]+|[\w.]+:(?=[\w\[{]))?"
    r"|\[(?=[^\]]*[A-Za-z:])(?![^\]]*(?:step|iter|epoch|loss)\b)[^\]=]{1,60}\]:?\s*"
    r"|\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?[\s|:\-]*|\d\d:\d\d:\d\d(?:[.,]\d+)?\s+"
    r"|[ID]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] |\(\w+ pid=\d+\) |={2,}> )",
    re.IGNORECASE,
)
"""Beginning of a line of a logger: all up to a level and a module, `[rank0]:`, date and time, glog's, Ray's; `==> `."""
_NUMBER = r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?(?![\d.])|[-+]?(?:nan|inf(?:inity)?)\b"
_CLOCK = r"\d+:\d\d(?::\d\d)?(?:\.\d+)?(?![\w:])"
_ATTACHED = r"%|/?[A-Za-zµ]{1,8}(?:/[A-Za-z]{1,8})?\b"
_SPACED = r"\s(?:%|ms|s|secs?|seconds|[KMGT]i?B|(?:it|tok|tokens|samples|images|examples)/s(?:ec)?)(?!\w)"
_UNIT = rf"(?:{_ATTACHED}|(?![A-Za-z0-9]))(?:{_SPACED})?"
_AMOUNT = rf"(?:{_NUMBER}){_UNIT}"
_NESTED = rf"(?:\s*\(\s*{_AMOUNT}(?:[,;/]\s*{_AMOUNT})*\s*\))?"
_HELD_OUT = r"val(?:id(?:ation)?)?|eval(?:uation)?|test"
_KIND = rf"train(?:ing)?|{_HELD_OUT}"
_WORD = rf"(?:end of )?(?:(?:{_KIND}|lm|avg|average|total|batch|grad|gradient|learning|global)[ _])?[A-Za-z_][\w@./]*"
_ELEMENT = re.compile(
    r"(?P<gap>(?:[\s,;|•·*()\-]|\[[=>.\-# ]+\]|[━╸╺█▏▎▍▌▋▊▉]|:(?=\s))+)"
    rf"|(?P<scope>{_KIND})(?: set| loop)?\s*:(?!\s*\d)"
    rf"|(?:(?P<counted>{_WORD})\s*[:=#]?\s*)?[\[(]?\s*(?P<n>\d+)\s*(?:/|\bof\b)\s*(?P<total>\d+)(?![\d.])"
    r"(?:\s*\(\s*[\d.]+%\s*\))?(?:\s*[\])])?(?:\s(?:batches|steps|iterations|samples)\b)?"
    r"|(?:(?P<key>[A-Za-z_|][\w@./|\-]*(?: [A-Za-z_][\w@./\-]*){0,5}(?: \([^()\d]{1,12}\))?)\s*[:=]\s*"
    rf"(?:{_CLOCK}|\[\s*(?P<listed>{_NUMBER})\s*\]|\((?P<share>{_NUMBER})%\)"
    rf"|(?P<value>{_NUMBER})(?P<unit>{_UNIT}){_NESTED}))"
    rf"|(?P<word>{_WORD})\s*#?\s+(?P<spaced>{_NUMBER})(?P<spaced_unit>{_UNIT}){_NESTED}"
    r"|\[\s*(?:(?P<outer>\d+)\s*,\s*)?(?P<inner>\d+)\]"
    rf"|(?:{_CLOCK}|(?:{_NUMBER})(?={_ATTACHED}|{_SPACED}){_UNIT}){_NESTED}",
    re.IGNORECASE,
)
_BAR = re.compile(
    r"(?P<before>[^%]*?)\s*\d+%\|[^|]*\|\s*(?P<n>\d+)/(?P<total>\d+)\s*\[[\d:?]+<[^,\]]*,[^,\]]*(?:,\s*(?P<after>.*))?\]"
)
_OTHER_BAR = re.compile(r"val|test|predict|sanity|map|load|fetch|generat|token|filter|shard|dataset", re.IGNORECASE)
_OF_TRAINING = r"(?:(?:train|training|lm|avg|average|mean|running|batch|total|ce|cross entropy|nll) )*"
_OF_HELD_OUT = rf"(?:{_HELD_OUT}|held out) (?:set )?{_OF_TRAINING}"
_FIELDS = {
    "setting": r"(?:num |max )?(?:train )?(?:epochs|steps)|num (?:workers|layers)|seed|batch size|(?:train )+runtime",
    "loss": rf"{_OF_TRAINING}loss(?: step)?",
    "eval_loss": rf"{_OF_HELD_OUT}loss(?: epoch)?",
    "eval_accuracy": rf"{_OF_HELD_OUT}(?:acc|accuracy)(?: epoch)?",
    "eval_runtime": rf"{_OF_HELD_OUT}runtime",
    "step": r"(?:train )?(?:global )?step|iter|iteration|it|batch|update|num updates|optimizer step",
    "epoch": r"(?:train |end of )?epoch|train",
    "lr": r"(?:train )?(?:lr|learning rate)",
    "grad_norm": r"(?:train )?(?:grad norm|gradient norm|gnorm)|optim total grad norm",
}
"""Names of metrics. Beside a setting a loss is a setting, too, or belongs to the summary of Hugging Face's Trainer."""


@cache
def _field(name: str) -> str | None:
    plain = re.sub(r"[\s_./\-]+", " ", name.lower()).strip()
    return next((field for field, names in _FIELDS.items() if re.fullmatch(names, plain)), None)


def reading_of(values: Mapping[str, float]) -> Reading | None:
    """The metrics among named numbers; None if they name no loss or held-out accuracy, or beside it a setting.

    >>> reading_of({"train/loss": 2.5, "train/learning_rate": 1e-4, "ppl": 12.2})
    {'loss': 2.5, 'lr': 0.0001}
    >>> reading_of({"loss": 1.0, "batch_size": 32})
    """
    found: Reading = {}
    for name, value in values.items():
        if (field := _field(name)) is not None:
            found.setdefault(field, value)
    is_metric = not found.keys().isdisjoint(("loss", "eval_loss", "eval_accuracy"))
    return found if is_metric and "setting" not in found else None


def read_line(text: str) -> Reading | None:
    """The metrics of one line that names a loss or a held-out accuracy; None for any other line.

    >>> read_line("iter 100: loss 2.3021, time 120.50ms, mfu 3.41%")
    {'step': 100.0, 'loss': 2.3021}
    >>> read_line("resumed from step 100, loss 2.31")
    """
    text = _ESCAPES.sub("", text).rstrip()
    if not any(name in text.lower() for name in ("loss", "acc")) or len(text) > _LONGEST_LINE:
        return None
    line = "" if text.startswith(("-", "+", "*", "#", ">")) else text.strip()  # an item of a list, or a difference
    while stamp := _STAMP.match(line):
        line = line[stamp.end() :]
    if line.startswith("{"):
        with suppress(ValueError):
            numbers = dict(_numbers(written := json.loads(line)))
            found = reading_of(numbers)
            return found if found and ("step" in found or len(numbers) == len(written)) else None
        line = re.sub(r"['\"{}]", "", line) if line.endswith("}") else ""
    found = _pairs_reading(line)
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
    if element["n"] and _field(f"test {element['counted']}") == "eval_accuracy":
        return element["counted"], int(element["n"]) / max(1, int(element["total"])), ""
    name, number = element["key"] or element["word"], element["value"] or element["spaced"] or element["listed"]
    if name and element["share"]:
        return name, float(element["share"]), "%"
    if not name or not number:
        return None
    return name, float(number.replace(",", "")), (element["unit"] or element["spaced_unit"] or "").strip()


def _pairs_reading(text: str) -> Reading | None:
    elements = _elements(text)
    values, place, scope = dict[str, float](), _place(elements), ""
    for each in elements:
        scope = f"{each['scope']} " if each["scope"] else scope
        name, value, unit = _amount(each) or ("", 0.0, "")
        is_loss = "loss" in name.lower()
        is_scoped = is_loss or _field(f"test {name}") == "eval_accuracy"
        if name and _field(name) != "epoch" and not (is_loss and unit):
            values.setdefault(scope + name if is_scoped else name, value / 100 if unit == "%" else value)
    found = reading_of(values)
    # Beside a counter the loss of an evaluation is the mean so far.
    is_part = scope.lower().startswith(("val", "eval", "test")) and "total" in place
    return None if found is None or is_part else found | place


def _place(elements: Iterable[re.Match[str]]) -> Reading:
    place: Reading = {}
    for each in elements:
        amount = _amount(each)
        if each["n"] and (field := _field(each["counted"] or "step")) in ("step", "epoch"):
            place |= {field: float(each["n"])} | ({"total": float(each["total"])} if field == "step" else {})
        elif each["outer"]:  # `[1,  2000]`
            place |= {"epoch": float(each["outer"]), "step": float(each["inner"])}
        elif each["inner"] and "epoch" in place:
            place.setdefault("step", float(each["inner"]))
        elif amount and _field(amount[0]) == "epoch":
            place.setdefault("epoch", amount[1])  # `Epoch: 10, Train: 0.9` has one
    return place


def _bar_reading(text: str) -> tuple[Reading, bool] | None:
    """Where tqdm's bar of a training stands, with the metrics beside it, and whether these name a loss; else None."""
    bar = _BAR.search(_ESCAPES.sub("", text)) if "%|" in text else None
    if bar is None or _OTHER_BAR.search(bar["before"]):
        return None
    parts = re.split(r"[|,]", re.sub(r"['{}]", "", f"{bar['before']},{bar['after'] or ''}"))
    amounts = [amount for part in parts for each in _elements(part.strip(" :")) if (amount := _amount(each))]
    found = reading_of({name: value for name, value, unit in amounts if not unit}) or {}
    return found | {"step": float(bar["n"]), "total": float(bar["total"])}, bool(found)


@dataclass(eq=False)
class LogReader:
    """Reads the output of a program piece by piece, and numbers its readings by step.

    A reading without a step has that of the progress bar, else its epoch, else its number among those of this start.
    Steps grow within one start of the program though its counter begins again with every epoch. A regular expression,
    with groups for the fields of a reading, replaces all forms that are known.
    """

    pattern: str | None = None
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

    def begin(self) -> None:
        """Another start of the program: its counters begin anew, and what was cut off does not count."""
        self._rest, self._bar, self._waiting, self._columns = "", None, None, []
        self._before, self._last, self._count, self._at = 0.0, {}, 0, 0.0

    def read(self, text: str, *, last: bool = False, whole: bool = True) -> list[Reading]:
        """The readings of complete lines, with their steps; in the `last` call a line without an end may be `whole`."""
        *lines, self._rest = re.split(r"[\r\n]+", self._rest[-_LONGEST_LINE:] + text)
        found = [
            reading for line in (*lines, self._rest if last and whole else "") if line for reading in self._take(line)
        ]
        return [each for each in (*found, *(self._let_go() if last else ())) if each["step"] >= 0]

    def _take(self, line: str) -> Iterator[Reading]:
        if self.pattern is not None:
            match = re.search(self.pattern, line)
            with suppress(ValueError):  # not a number
                said = {name: float(value) for name, value in match.groupdict().items() if value} if match else {}
                yield from (self._placed(said),) if said else ()
        elif (bar := _bar_reading(line)) is not None:
            reading, has_loss = bar
            before = self._bar or reading
            is_over = before["step"] >= before["total"] and not self._last  # it was of something before the training
            if self._bar is None or is_over or before["total"] == reading["total"] or has_loss:
                self._bar = reading
            yield from self._let_go()
            yield from (self._placed(reading),) if has_loss else ()
        elif (found := self._table_row(line) or read_line(line)) is not None:
            yield from self._let_go()
            if "step" in found or self._bar is None:
                yield self._placed(found)
            else:  # the bar counts over all epochs
                self._waiting = {name: value for name, value in found.items() if name != "epoch"}

    def _let_go(self) -> Iterator[Reading]:
        if self._waiting is not None and self._bar is not None:
            yield self._placed(self._waiting | {name: self._bar[name] for name in ("step", "total")})
        self._waiting = None

    def _table_row(self, line: str) -> Reading | None:
        """A row below a header such as `epoch,step,train_loss`, with commas, tabs or columns of spaces."""
        cells = re.split(r"\s*,\s*|\t+|\s{2,}", line.strip())
        if len(cells) > 1 and not any(re.search(r"\d|[^\w ./@\-]", cell) for cell in cells):
            self._columns = cells if {"step", "epoch"} & (reading_of(dict.fromkeys(cells, 1.0)) or {}).keys() else []
        if len(cells) != len(self._columns) or not all(re.fullmatch(f"{_NUMBER}|", cell, re.I) for cell in cells):
            return None
        return reading_of({name: float(cell) for name, cell in zip(self._columns, cells, strict=True) if cell})

    def _placed(self, reading: Reading) -> Reading:
        """The reading with its step; an evaluation without one has that of the reading before."""
        is_evaluation = "step" not in reading and "loss" not in reading
        step = self._at if is_evaluation and self._at else self._step_of(reading)
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
            self._before += last.get("total", reached)  # the counter began again
        return step + self._before
