"""The project's own aims, and whether a measurement meets them.

They are about ratios to the plain client measured beside it, so they mean something on any machine; only the one about numbers
is absolute.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ordered_pubsub.bench.results import BenchOutcome, Series, Spread


@attrs.frozen
class Aim:
    """What is aimed at, for one kind of set-up and variant."""

    kind: str
    variant: str
    figure: str
    """rate or p50: as many times the plain client's"""
    bound: float

    @property
    def is_least(self) -> bool:
        """Whether more is better."""
        return self.figure == "rate"

    def is_met(self, ratio: float) -> bool:
        """Whether a ratio is good enough."""
        return ratio >= self.bound if self.is_least else ratio <= self.bound


AIMS = (
    *(Aim(kind, "single", "rate", 0.5) for kind in ("mqtt", "jetstream", "rabbitmq")),
    *(Aim(kind, "single", "p50", 4.0) for kind in ("mqtt", "nats", "jetstream", "rabbitmq")),
    Aim("mqtt", "packed", "rate", 4.0),
    Aim("jetstream", "packed", "rate", 4.0),
    Aim("rabbitmq", "packed", "rate", 10.0),
    Aim("nats", "packed", "rate", 0.4),
)
NUMBERS_PER_S = 100_000
"""Numbers that one stage gives in a second, asked for in batches."""


@attrs.frozen
class Judgement:
    """An aim, and what was measured."""

    aim: Aim
    label: str
    ratio: Spread

    @property
    def is_met(self) -> bool:
        """By the median of the rounds."""
        return self.aim.is_met(self.ratio.middle)

    def __str__(self) -> str:
        aim, ratio = self.aim, self.ratio
        wanted = f"{'at least' if aim.is_least else 'at most'} {aim.bound:g} times the plain client's {aim.figure}"
        verdict = "met" if self.is_met else "MISSED"
        return (
            f"{verdict:7}{aim.kind}, {self.label}: {wanted}: {ratio.middle:.2f} [{ratio.least:.2f}..{ratio.most:.2f}]"
        )


def judge(outcome: BenchOutcome) -> list[Judgement]:
    """All aims that a set-up's figures say something about."""
    found = []
    for aim in AIMS:
        for series in _concerned(aim, outcome):
            ratio = outcome.rate_ratio(series) if aim.is_least else outcome.p50_ratio(series)
            if ratio is not None:
                found.append(Judgement(aim, series.variant.label, ratio))
    return found


def _concerned(aim: Aim, outcome: BenchOutcome) -> Sequence[Series]:
    return [series for series in outcome.series if aim.kind == outcome.kind and aim.variant == series.variant.name]
