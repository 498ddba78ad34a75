"""Names that programs give their metrics, in what they print and in their trackers, and the metrics that they mean."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from trainworks.config.track import MetricName
from trainworks.record.metrics import FIGURE, Reading

HELD_OUT = r"val(?:id(?:ation)?)?|eval(?:uation)?|test"
"""Pattern of the names of held-out data."""
DECIDING = ("loss", "eval_loss", "eval_accuracy")
"""Fields of which a reading has one, unless it is of figures alone."""
_OF_TRAINING = r"(?:(?:train|training|lm|avg|average|mean|running|batch|total|epoch|ce|cross entropy|nll) )*"
_OF_HELD_OUT = rf"(?:{HELD_OUT}|held out) (?:set )?{_OF_TRAINING}"
_WHOLE = r"(?: (?:total|epoch|avg|average|mean))?"
_LOG_LOSS = r"(?:m|binary |multi )?logloss"
_FIELDS = {
    "setting": r"(?:num |max )?(?:train )?(?:epochs|steps)|num (?:workers|layers)|seed|batch size|(?:train )+runtime",
    "loss": rf"{_OF_TRAINING}loss(?: train| training)?(?: total| step)?|(?:train|training) {_LOG_LOSS}",
    "loss_of_epoch": rf"{_OF_TRAINING}loss(?: train| training)? (?:epoch|avg|average|mean)",
    "eval_loss": rf"{_OF_HELD_OUT}loss{_WHOLE}|{_OF_TRAINING}loss (?:{HELD_OUT}){_WHOLE}"
    rf"|(?:{HELD_OUT})(?: 0)? {_LOG_LOSS}",
    "eval_accuracy": rf"{_OF_HELD_OUT}(?:acc|accuracy)(?: epoch)?|(?:acc|accuracy) (?:{HELD_OUT})(?: epoch)?",
    "perplexity": rf"(?:train|training) {_OF_TRAINING}(?:ppl|perplexity)|(?:ppl|perplexity) train",
    "eval_perplexity": rf"{_OF_HELD_OUT}(?:ppl|perplexity)|(?:ppl|perplexity) (?:{HELD_OUT})",
    "eval_runtime": rf"{_OF_HELD_OUT}runtime",
    "step": r"(?:train |completed |optimizer )?(?:global )?step|iter|iteration|it|batch|update|num updates|training"
    "|time total timesteps",
    "epoch": r"(?:train |end of )?epoch|train",
    "lr": r"(?:train )?(?:lr|learning rate)",
    "grad_norm": r"(?:train )?(?:grad norm|gradient norm|gnorm)|optim total grad norm",
}
"""Names of metrics. Beside a setting a loss is a setting, too, or belongs to the summary of Hugging Face's Trainer."""
_PART = re.compile(r"(?P<set>(?:train|val) )?(?P<part>(?!train|val|test|eval)[a-z]\w*) loss")
_NETWORK = re.compile(r"(?:loss|err) ?(?:d|g|disc|gen|discriminator|generator)|(?:d|g|disc\w*|gen\w*) loss")


def _plain(name: str) -> str:
    return re.sub(r"[\s_./\-]+", " ", name.lower()).strip()


@cache
def field_of(name: str) -> str | None:
    """The field of `Reading`, or of what decides about it, that a name means; None for any other name.

    >>> field_of("train/learning_rate")
    'lr'
    """
    return next((field for field, names in _FIELDS.items() if re.fullmatch(names, _plain(name))), None)


def reading_of(values: Mapping[str, float], names: Mapping[MetricName, str] = MappingProxyType({})) -> Reading | None:
    """The metrics among named numbers; None if they name no loss or held-out accuracy, or beside it a setting.

    A perplexity alone is the loss whose exponential it is. An accuracy above 1 is in percent. The losses of two
    networks, `Loss_D` and `Loss_G`, are figures, because neither is that of the model.

    Args:
        values: by the names that a program gives them.
        names: of the program, by field of the reading; they go first.

    >>> reading_of({"train/loss": 2.5, "train/learning_rate": 1e-4, "ppl": 12.2})
    {'loss': 2.5, 'lr': 0.0001}
    >>> reading_of({"loss": 1.0, "batch_size": 32})
    """
    said: Reading = {field: values[name] for field, name in names.items() if name in values}
    found: Reading = dict(said)
    for name, value in values.items():
        if (field := field_of(name)) is not None and name not in names.values():
            found.setdefault(field, value)
    if "setting" in found and not said:
        return None
    found = _losses_of_parts(values) | _by_metric(found)
    return found if any(name in DECIDING or name.startswith(FIGURE) for name in found) else None


def _by_metric(named: Reading) -> Reading:
    """The metrics alone, each in its unit, from all that has a known name."""
    found = {name: value for name, value in named.items() if name not in _OTHER_FIELDS}
    if "loss_of_epoch" in named:
        found.setdefault("loss", named["loss_of_epoch"])
    for loss, perplexity in (("loss", "perplexity"), ("eval_loss", "eval_perplexity")):
        if named.get(perplexity, 0.0) >= 1.0:
            found.setdefault(loss, math.log(named[perplexity]))
    accuracy = found.pop("eval_accuracy", math.inf)
    return found | ({"eval_accuracy": accuracy / 100 if accuracy > 1.0 else accuracy} if accuracy <= 100.0 else {})


_OTHER_FIELDS = ("setting", "loss_of_epoch", "perplexity", "eval_perplexity")


def _losses_of_parts(values: Mapping[str, float]) -> Reading:
    """The sum of YOLO's `box_loss`, `cls_loss` and others, which is its loss; figures of a GAN's two networks."""
    sums: dict[str, dict[str, float]] = {"train ": {}, "val ": {}}
    for name, value in values.items():
        if match := _PART.fullmatch(_plain(name)):
            sums[match["set"] or "train "][match["part"]] = value
    fields = {"train ": "loss", "val ": "eval_loss"}
    found = {fields[of]: sum(parts.values()) for of, parts in sums.items() if {"box", "cls"} <= parts.keys()}
    networks = {FIGURE + name: value for name, value in values.items() if _NETWORK.fullmatch(_plain(name))}
    return found or (networks if len(networks) > 1 else {})
