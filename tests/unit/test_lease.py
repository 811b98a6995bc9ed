"""A publisher uses its numbers as long as its lease holds, and says what is at the ENS until that is known."""

from __future__ import annotations

from ordered_pubsub.core.liveness.lease import ASKS_MAX, SAID_MAX, SAY_S, Lease
from ordered_pubsub.core.messages import LeaseRenewal, LeaseReply, TopicRange


def lease() -> Lease:
    return Lease("p", lease_s=10.0)


def said(one: Lease, now: float) -> LeaseRenewal:
    handed = one.take_due(now)
    assert handed is not None
    return handed


def test_a_number_may_be_used_for_half_of_the_lease_after_it_was_asked_for() -> None:
    assert lease().holds(0, 100.0, 104.9)
    assert not lease().holds(0, 100.0, 105.0)


def test_a_word_that_was_answered_renews_it_from_when_it_was_sent() -> None:
    one = lease()
    one.numbered(0, 1, 100.0)
    handed = said(one, 103.0)
    assert not one.holds(0, 100.0, 106.0)
    one.leased(LeaseReply("p", handed.serial, 0, []), 103.5)
    assert one.holds(0, 100.0, 107.9)
    assert not one.holds(0, 100.0, 108.0)
    assert not one.holds(1, 100.0, 106.0)


def test_a_word_that_comes_too_late_renews_nothing_of_what_came_before() -> None:
    """In between, the owner may have taken it for void."""
    one = lease()
    one.numbered(0, 1, 100.0)
    handed = said(one, 105.0)
    one.leased(LeaseReply("p", handed.serial, 0, []), 105.0)
    assert not one.holds(0, 100.0, 105.0)
    assert one.holds(0, 100.1, 105.0)
    late = said(one, 111.0)
    one.leased(LeaseReply("p", late.serial, 0, []), 111.0)
    assert not one.holds(0, 105.0, 111.0)
    assert one.holds(0, 106.1, 111.0)
    assert one.holds(0, 106.1, 115.9)


def test_what_is_at_the_ens_is_said_to_its_owner_until_it_is_known() -> None:
    one = lease()
    one.numbered(2, 1, 0.0)
    one.handed(1)
    handed = said(one, SAY_S)
    assert (handed.sequence, handed.ranks) == (1, [2])
    assert said(one, 2 * SAY_S).sequence == 1
    one.leased(LeaseReply("p", handed.serial, 2, []), SAY_S)
    assert one.take_due(3 * SAY_S) is None
    assert one.next_due is None


def test_everything_up_to_the_first_that_is_not_at_the_ens_is_said() -> None:
    one = lease()
    for sequence in (1, 2, 3, 3):
        one.numbered(0, sequence, 0.0)
    for sequence in (1, 3):
        one.handed(sequence)
    assert said(one, 1.0).sequence == 1
    one.handed(2)
    assert said(one, 2.0).sequence == 2
    one.handed(3)
    assert said(one, 3.0).sequence == 3


def test_as_long_as_something_is_not_at_the_ens_the_lease_is_renewed() -> None:
    one = lease()
    one.numbered(0, 1, 0.0)
    for now in range(1, 100):
        one.leased(LeaseReply("p", said(one, float(now)).serial, 0, []), float(now))
        assert one.holds(0, 0.0, now + 4.0)


def test_an_owner_says_what_of_that_is_void() -> None:
    one = lease()
    one.numbered(0, 1, 0.0)
    one.numbered(1, 1, 0.0)
    spans = [TopicRange("a", 1, 3), TopicRange("a", 4, 6), TopicRange("b", 1, 1)]
    for rank, span in zip((0, 0, 1), spans, strict=True):
        one.ask(rank, span, 20.0)
    handed = said(one, 20.0)
    assert (handed.asks, sorted(handed.ranks)) == (spans, [0, 1])
    answer = one.leased(LeaseReply("p", handed.serial, 0, [TopicRange("a", 3, 4)]), 20.0)
    assert answer == {spans[0]: (20.0, [TopicRange("a", 3, 4)]), spans[1]: (20.0, [TopicRange("a", 3, 4)])}
    assert one.leased(LeaseReply("p", handed.serial, 0, []), 20.0) == {}
    assert one.leased(LeaseReply("p", handed.serial, 1, []), 20.0) == {spans[2]: (20.0, [])}


def test_an_answer_to_what_was_never_said_is_nothing() -> None:
    one = lease()
    one.ask(0, TopicRange("a", 1, 1), 0.0)
    assert one.leased(LeaseReply("p", 9, 0, []), 0.0) == {}


def test_much_is_asked_for_in_pieces() -> None:
    one = lease()
    for number in range(2 * ASKS_MAX):
        one.ask(0, TopicRange("a", number, number), 0.0)
    first = said(one, 0.0)
    assert len(first.asks) == ASKS_MAX
    one.leased(LeaseReply("p", first.serial, 0, []), 0.0)
    assert len(said(one, SAY_S).asks) == ASKS_MAX


def test_words_that_nobody_answers_are_forgotten() -> None:
    one = lease()
    one.numbered(0, 1, 0.0)
    for now in range(1, 10 * SAID_MAX):
        said(one, float(now))
    assert len(one._sent) == SAID_MAX


def test_words_that_were_on_their_way_for_long_do_not_hide_a_gap() -> None:
    """They were said in time, and all answered at once much later: the owner may not have heard them in time either."""
    one = lease()
    one.numbered(0, 1, 100.0)
    words = [said(one, 100.0 + second) for second in range(1, 40)]
    for word in words:
        one.leased(LeaseReply("p", word.serial, 0, []), 140.0)
    assert not one.holds(0, 100.0, 140.0)
    assert one.holds(0, 135.1, 140.0)


def test_what_is_used_in_pieces_hides_nothing_that_came_later() -> None:
    one = lease()
    one.numbered(0, 3, 0.0)
    one.numbered(0, 10, 0.0)
    one.numbered(0, 3, 0.0)
    for sequence in (3, 3):
        one.handed(sequence)
    one.leased(LeaseReply("p", said(one, 1.0).serial, 0, []), 1.0)
    one.handed(10)
    assert said(one, 2.0).sequence == 10


def test_a_stage_that_says_another_time_is_believed() -> None:
    """A longer one is for numbers that are asked for from then on: the owner of earlier ones may have had the shorter."""
    one = lease()
    one.change_time(4.0, 100.0)
    assert not one.holds(0, 99.0, 101.0)
    assert one.holds(0, 100.0, 101.9)
    one.change_time(20.0, 102.0)
    assert not one.holds(0, 101.0, 103.0)
    assert one.holds(0, 102.0, 111.9)
    assert not one.holds(0, 102.0, 112.0)
    assert one.lease_s == 20.0
