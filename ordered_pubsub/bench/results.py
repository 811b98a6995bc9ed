"""What was measured, and what is made of it: medians over rounds, and ratios between neighbours of the same round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import attrs

from ordered_pubsub.bench.plan import Variant

PROCESSES = ("publisher", "subscriber 1", "subscriber 2", "stage", "broker")


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many percent of all values do not exceed (the nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]


@attrs.frozen
class Spread:
    """A figure over all rounds."""

    middle: float
    """the median"""
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None if there are no values."""
        return cls(median(values), min(values), max(values)) if values else None


@attrs.frozen(kw_only=True)
class Rush:
    """As fast as it goes, once."""

    events: int
    seconds: float
    """from the first publication to the last notification at the slowest subscriber"""
    cpu_ns: dict[str, int | None]
    """of each process"""
    others: float | None = None
    """how many processors were busy with something else meanwhile"""

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds

    def cpu_us(self, process: str) -> float | None:
        """Microseconds of processor time for each event."""
        used = self.cpu_ns.get(process)
        return None if used is None else used / self.events / 1e3


@attrs.frozen(kw_only=True)
class Pace:
    """At a steady rate, once: all latencies, of both subscribers together."""

    events: int
    p50_us: float
    p99_us: float

    @classmethod
    def of(cls, events: int, latencies_ns: Sequence[int]) -> Pace:
        """What these latencies come to."""
        return cls(events=events, p50_us=percentile(latencies_ns, 50) / 1e3, p99_us=percentile(latencies_ns, 99) / 1e3)


@attrs.define
class Series:
    """All rounds of one variant."""

    variant: Variant
    rushes: list[Rush] = attrs.field(factory=list)
    paces: list[Pace] = attrs.field(factory=list)

    @property
    def rate(self) -> Spread | None:
        """Events per second."""
        return Spread.of([rush.rate for rush in self.rushes])

    @property
    def p50_us(self) -> Spread | None:
        """The median latency."""
        return Spread.of([pace.p50_us for pace in self.paces])

    @property
    def p99_us(self) -> Spread | None:
        """The latency that one event in a hundred exceeds."""
        return Spread.of([pace.p99_us for pace in self.paces])

    def cpu_us(self, process: str) -> float | None:
        """Microseconds of a process's time for each event."""
        values = [value for rush in self.rushes if (value := rush.cpu_us(process)) is not None]
        return median(values) if values else None


@attrs.define
class BenchOutcome:
    """All variants of one set-up."""

    kind: str
    title: str
    series: list[Series]
    about: dict[str, Any] = attrs.field(factory=dict)
    """the machine, the versions, the amounts"""

    @property
    def others(self) -> float | None:
        """How many processors were busy with something else, in the median of all rushes."""
        values = [rush.others for series in self.series for rush in series.rushes if rush.others is not None]
        return median(values) if values else None

    @property
    def plain(self) -> Series:
        """What the others are compared with."""
        return next(series for series in self.series if series.variant.is_plain)

    def rate_ratio(self, series: Series) -> Spread | None:
        """How many times the plain client's rate, round by round."""
        return _ratio(series.rushes, self.plain.rushes, lambda rush: rush.rate)

    def p50_ratio(self, series: Series) -> Spread | None:
        """How many times the plain client's median latency, round by round."""
        return _ratio(series.paces, self.plain.paces, lambda pace: pace.p50_us)

    def as_data(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "kind": self.kind,
            "title": self.title,
            "about": self.about,
            "busy_with_others": self.others,
            "variants": [self._series_data(series) for series in self.series],
        }

    def _series_data(self, series: Series) -> dict[str, Any]:
        spreads = {
            "events_per_s": series.rate,
            "rate_ratio": self.rate_ratio(series),
            "p50_us": series.p50_us,
            "p99_us": series.p99_us,
            "p50_ratio": self.p50_ratio(series),
        }
        return {
            "variant": attrs.asdict(series.variant),
            **{name: None if spread is None else attrs.asdict(spread) for name, spread in spreads.items()},
            "cpu_us_per_event": {process: series.cpu_us(process) for process in PROCESSES},
            "rushes": [{**attrs.asdict(rush), "events_per_s": rush.rate} for rush in series.rushes],
            "paces": [attrs.asdict(pace) for pace in series.paces],
        }


def _ratio(ours: Sequence[Any], plain: Sequence[Any], figure: Callable[[Any], float]) -> Spread | None:
    return Spread.of([figure(one) / figure(other) for one, other in zip(ours, plain, strict=False)])
