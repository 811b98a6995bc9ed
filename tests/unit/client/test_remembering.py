"""What a client remembers of topics is bounded."""

from __future__ import annotations

from ordered_pubsub.client.remembering import REMEMBERED_MAX, Remembered


def test_what_was_put_into_it_first_is_forgotten_first() -> None:
    remembered: Remembered[str, bool] = Remembered()
    for number in range(REMEMBERED_MAX + 10):
        remembered[f"topic-{number}"] = True
    assert (len(remembered), next(iter(remembered))) == (REMEMBERED_MAX, "topic-10")


def test_what_is_set_again_takes_no_room() -> None:
    remembered: Remembered[int, int] = Remembered()
    for number in range(REMEMBERED_MAX):
        remembered[number] = 0
    remembered[5] = 1
    assert (len(remembered), remembered[0], remembered[5]) == (REMEMBERED_MAX, 0, 1)
