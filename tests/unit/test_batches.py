"""What is left of a batch of which some is void: pieces that are handed over, each with the tags that are still whole."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.client.batches import Batch, UnkeptBatches
from ordered_pubsub.core.client.session import Outcome, Queued
from ordered_pubsub.core.liveness.lease import Lease
from ordered_pubsub.core.messages import Publication, TopicRange
from ordered_pubsub.core.trust.authenticity import TAG_BYTES

FIRST, COUNT = 7, 6
TAGS = [bytes([index]) * TAG_BYTES for index in range(COUNT)]


def left_of(pieces: tuple[int, ...], *voids: tuple[int, int]) -> list[Batch]:
    """What is left of a batch whose events were tagged in these pieces; one by one, if there are none."""
    batches = UnkeptBatches(Lease("s", 30.0), lambda topic: 0)
    tags = b"".join(TAGS[: len(pieces) or COUNT])
    part, items = Publication("t", COUNT, 0.0, FIRST, pieces=pieces, tags=tags), list(range(FIRST, FIRST + COUNT))
    batches.numbered([(part, items)], Outcome(1, Queued(["t"], [items]), [part], None, None, 0.0), 0.0)
    _, left = batches.settled(part, items, 0.0, [TopicRange("t", first, last) for first, last in voids], 1.0)
    return left


def test_each_piece_has_its_own_events_and_their_tags() -> None:
    before, behind = left_of((), (9, 10))

    assert [(before[0].first, before[1]), (behind[0].first, behind[1])] == [(7, [7, 8]), (11, [11, 12])]
    assert (before[0].tags, behind[0].tags) == (b"".join(TAGS[:2]), b"".join(TAGS[4:]))


@pytest.mark.parametrize("void", [(9, 9), (10, 10)])
def test_what_shares_a_tag_of_which_some_is_void_has_none(void: tuple[int, int]) -> None:
    """Subscribers see together what shares a tag, or not at all; so it is never void in part, unless an owner lies."""
    left = left_of((2, 2, 2), void)

    assert [(part.pieces, part.tags) for part, items in left if items[0] == 7] == [
        ((2,), TAGS[0]) if void == (9, 9) else ((3,), b"")
    ]
    assert [(part.pieces, part.tags) for part, items in left if items[-1] == 12] == [
        ((3,), b"") if void == (9, 9) else ((2,), TAGS[2])
    ]


def test_what_shares_a_tag_and_is_whole_keeps_it() -> None:
    (before, _), (behind, _) = left_of((2, 2, 2), (9, 10))

    assert [(before.pieces, before.tags), (behind.pieces, behind.tags)] == [((2,), TAGS[0]), ((2,), TAGS[2])]
