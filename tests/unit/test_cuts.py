"""Where a range may end: what the owners of topics are asked for it, and what comes of their answers."""

from __future__ import annotations

from typing import TypeVar

from ordered_pubsub.core.log.cuts import ROUNDS_MAX, Clock, Search, divide, events_between, first_part, lower

_Found = TypeVar("_Found")
NEEDS = {"a": [0, 0, 0, 2, 2, 4], "b": [0, 1, 1, 3, 3, 3]}
"""topic → what each of its events needs of the other one, as the timestamps say"""


def search(looking: Search[_Found], needs: dict[str, list[int]] = NEEDS) -> tuple[_Found, int]:
    """What is found where everything needs just that; and in how many rounds."""
    rounds = 0
    try:
        ask = next(looking)
        while True:
            rounds += 1
            found: Clock = {}
            for topic, high in ask.clock.items():
                (other,) = set(needs) - {topic}
                low = ask.low.get(topic, 0)
                fits = [number for number in range(low, high + 1) if needs[topic][number - 1] <= ask.clock[other]]
                found[topic] = max([low, *(number for number in fits if number)])
            ask = looking.send(found)
    except StopIteration as over:
        return over.value, rounds


def test_a_clock_is_lowered_until_nothing_in_it_needs_anything_beyond_it() -> None:
    assert search(lower({}, {"a": 6, "b": 6})) == ({"a": 6, "b": 6}, 1)
    assert search(lower({}, {"a": 6, "b": 3})) == ({"a": 5, "b": 3}, 2)
    assert search(lower({}, {"a": 0, "b": 6})) == ({"a": 0, "b": 1}, 2)


def test_what_takes_too_long_to_find_is_not_looked_for_any_longer() -> None:
    needs = {"a": list(range(1, 999)), "b": list(range(2, 1_000))}

    assert search(lower({}, {"a": 500, "b": 500}), needs) == (None, ROUNDS_MAX)


def test_a_range_is_divided_at_cuts_and_ends_with_its_end() -> None:
    end = {"a": 6, "b": 6}
    parts, _ = search(divide({}, end, 3))

    assert parts[-1] == end
    assert len(parts) > 1
    for cut in parts:
        assert search(lower({}, cut))[0] == cut


def test_the_first_part_has_something_however_little_was_wanted() -> None:
    found, _ = search(first_part({}, {"a": 6, "b": 6}, 1))

    assert 0 < events_between({}, found) < 12
