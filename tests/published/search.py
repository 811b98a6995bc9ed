"""Random schedules, and which of them leave somebody waiting for ever.

A `Draw` says nothing about an algorithm: it is a topology, what is published, and a row of choices
that decides what happens next. So one and the same draw can be given to another implementation.

How to read `Draw.choices`: all publications are requested before the first step. At each step make
the list of what can be delivered next, in this order:

1. the oldest request of each topic that has one waiting, by topic, lowest number first;
2. the oldest message of each link (from a topic's manager to another's) that has one under way,
   by sender, then receiver, lowest number first.

Step number i delivers the entry with the index `choices[i] % len(list)`. There are as many choices
as publications times topics: enough where a publication visits no manager twice.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from attrs import frozen

from published.algorithm import Cycles, Sequencer, stuck_subscribers

ANY_INDEX = 840
"""The choices are below it. It can be divided by 1 to 8, so no short list is preferred unfairly."""


@frozen
class Draw:
    topics: tuple[int, ...]
    """1 is the highest rank."""

    subscriptions: dict[str, tuple[int, ...]]

    publications: tuple[int, ...]
    """The topics of the publications, in the order of their requests."""

    choices: tuple[int, ...]


def draw(seed: int) -> Draw:
    """3 to 5 topics, 3 to 5 subscriptions to 2, 3 or 4 of them, 1 or 2 publications on each."""
    rng = random.Random(seed)
    topics = tuple(range(1, rng.randint(3, 5) + 1))
    subscriptions = {
        f"s{i}": tuple(sorted(rng.sample(topics, rng.randint(2, min(4, len(topics))))))
        for i in range(rng.randint(3, 5))
    }
    publications = [topic for topic in topics for _ in range(rng.randint(1, 2))]
    rng.shuffle(publications)
    steps = len(publications) * len(topics)
    choices = tuple(rng.randrange(ANY_INDEX) for _ in range(steps))
    return Draw(topics, subscriptions, tuple(publications), choices)


def interleave(drawn: Draw, group_threshold: int) -> Sequencer:
    """The published algorithm, as the choices say, until nothing is under way."""
    sequencer = Sequencer.of(drawn.topics, drawn.subscriptions, group_threshold)
    for topic in drawn.publications:
        sequencer.request(topic)
    choices = iter(drawn.choices)
    while deliverable := sequencer.deliverable():
        sequencer.deliver(deliverable[next(choices) % len(deliverable)])
    return sequencer


def one_at_a_time(drawn: Draw, group_threshold: int) -> Sequencer:
    """The same publications, each brought to its end before the next is requested."""
    sequencer = Sequencer.of(drawn.topics, drawn.subscriptions, group_threshold)
    for topic in drawn.publications:
        sequencer.request(topic)
        while deliverable := sequencer.deliverable():
            (only,) = deliverable
            sequencer.deliver(only)
    return sequencer


@frozen
class Found:
    """A schedule that `run` can follow again, and who is stuck at its end, in which cycle."""

    seed: int
    schedule: tuple[str, ...]
    stuck: Cycles


def search(seeds: Iterable[int], group_threshold: int) -> Iterator[Found]:
    """The seeds whose schedule leaves a subscriber waiting for ever."""
    for seed in seeds:
        drawn = draw(seed)
        sequencer = interleave(drawn, group_threshold)
        if stuck := stuck_subscribers(drawn.subscriptions, sequencer.published):
            yield Found(seed, tuple(sequencer.steps), stuck)
