"""Metric families, samples, and the text in which Prometheus reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MetricKind = Literal["gauge", "counter"]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """All time series of one name."""

    name: str
    help: str
    kind: MetricKind = "gauge"
    labels: tuple[str, ...] = ()
    source: str = ""
    """Where the value is read."""

    def sample(self, value: float, *labels: str) -> MetricSample:
        """A sample; label values are in the order of `labels`."""
        return MetricSample(self, float(value), labels)


@dataclass(frozen=True, slots=True)
class MetricSample:
    """The value of one time series."""

    family: MetricFamily
    value: float
    labels: tuple[str, ...]

    @property
    def series(self) -> str:
        """Name and labels: `loss{run="demo-1"}`."""
        pairs = zip(self.family.labels, self.labels, strict=True)
        inside = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)
        return f"{self.family.name}{{{inside}}}" if inside else self.family.name


def exposition(samples: Iterable[MetricSample]) -> str:
    r"""The samples in the text format of Prometheus, version 0.0.4, each family in one block.

    Of two samples with the same name and labels the first counts, because Prometheus refuses all samples otherwise.
    Source: https://prometheus.io/docs/instrumenting/exposition_formats/

    >>> up = MetricFamily("up", "The target answers.", labels=("job",))
    >>> exposition([up.sample(1, "a"), up.sample(0, 'b"')])
    '# HELP up The target answers.\n# TYPE up gauge\nup{job="a"} 1\nup{job="b\\""} 0\n'
    """
    blocks: dict[MetricFamily, dict[str, float]] = {}
    for sample in samples:
        blocks.setdefault(sample.family, {}).setdefault(sample.series, sample.value)
    return "".join(_block(family, series) for family, series in blocks.items())


def _block(family: MetricFamily, series: dict[str, float]) -> str:
    text = family.help.replace("\\", r"\\").replace("\n", " ")
    lines = [f"# HELP {family.name} {text}", f"# TYPE {family.name} {family.kind}"]
    lines += [f"{name} {_number(value)}" for name, value in series.items()]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
