"""Home stages ask their clients for numbers that may be void, and who has not seen them does not use them until it is decided."""

from __future__ import annotations

from ordered_pubsub.core.liveness.sealing import FORGET_S, Rounds
from ordered_pubsub.core.messages import Change, SeenAsk, SeenReply, TopicRange
from ordered_pubsub.core.recovery.missing import Missing
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import STRETCHES_MAX, Delivery

SEAL = SeenAsk("", 3, 1, "a", [(1, 4)])


# -- the home stage -----------------------------------------------------------------------------------------------------


def test_every_client_is_asked_and_their_answers_go_on_as_one() -> None:
    rounds = Rounds()
    assert [ask.session for ask in rounds.ask(SEAL, ["c", "d"], 0.0)] == ["c", "d"]
    rounds.answered(SeenReply(3, 1, ["c"], [(1, 1)]))
    rounds.answered(SeenReply(3, 1, ["d"], [(3, 4)]))
    assert rounds.tick(0.1) == [SeenReply(3, 1, ["c", "d"], [(1, 1), (3, 4)])]
    assert rounds.tick(0.2) == []


def test_who_has_answered_is_not_asked_again_and_is_named_again() -> None:
    rounds = Rounds()
    rounds.ask(SEAL, ["c"], 0.0)
    rounds.answered(SeenReply(3, 1, ["c"], []))
    rounds.tick(0.1)
    assert [ask.session for ask in rounds.ask(SEAL, ["c", "late"], 1.0)] == ["late"]
    assert rounds.tick(1.1) == [SeenReply(3, 1, ["c"], [])]


def test_who_does_not_answer_for_long_is_silent_until_it_does() -> None:
    rounds = Rounds()
    rounds.ask(SEAL, ["c", "d"], 0.0)
    rounds.answered(SeenReply(3, 1, ["d"], []))
    rounds.ask(SEAL, ["c", "late"], 5.0)
    assert rounds.silent(-1.0) == []
    assert rounds.silent(0.0) == ["c"]
    assert rounds.silent(5.0) == ["c", "late"]
    rounds.answered(SeenReply(3, 1, ["c"], []))
    assert rounds.silent(5.0) == ["late"]


def test_another_question_of_the_same_serial_is_asked_anew() -> None:
    """The owner has started again."""
    rounds = Rounds()
    rounds.ask(SEAL, ["c"], 0.0)
    rounds.answered(SeenReply(3, 1, ["c"], []))
    other = SeenAsk("", 3, 1, "a", [(7, 7)])
    assert [ask.session for ask in rounds.ask(other, ["c"], 1.0)] == ["c"]
    assert rounds.tick(1.1) == []


def test_what_an_answer_is_about_is_known_as_long_as_it_is_asked() -> None:
    rounds = Rounds()
    rounds.ask(SEAL, ["c"], 0.0)
    assert rounds.topic(SeenReply(3, 1, ["c"], [])) == "a"
    assert rounds.topic(SeenReply(4, 1, ["c"], [])) is None


def test_a_client_answers_once_and_only_what_it_was_asked() -> None:
    rounds = Rounds()
    rounds.ask(SEAL, ["c"], 0.0)
    rounds.answered(SeenReply(3, 1, ["c"], [(3, 9)]))
    rounds.answered(SeenReply(3, 1, ["c"], [(1, 1)]))
    assert rounds.tick(0.1) == [SeenReply(3, 1, ["c"], [(3, 4)])]


def test_an_answer_to_what_nobody_asks_is_nothing_and_old_questions_are_forgotten() -> None:
    rounds = Rounds()
    rounds.answered(SeenReply(9, 0, ["c"], []))
    rounds.ask(SEAL, ["c"], 0.0)
    rounds.tick(FORGET_S)
    rounds.answered(SeenReply(3, 1, ["c"], []))
    assert rounds.tick(FORGET_S) == []


# -- the subscription ---------------------------------------------------------------------------------------------------


def delivery(start: int = 0) -> Delivery:
    """It holds "a", of which nobody keeps the events."""
    made = Delivery("s", missing=Missing(lambda topic: False))
    made.change_settled(Change("s", 1, (), ("a",), 2, False, {"a": start}))
    return made


def event(number: int) -> Arrival:
    return Arrival("a", number, {})


def silence(first: int, last: int) -> Arrival:
    return Arrival("a", first, {}, last=last)


def numbers(made: Delivery) -> list[int]:
    return [notification.arrival.number for notification in made.take_ready()]


def test_what_was_notified_or_waits_is_seen() -> None:
    made = delivery()
    for number in (1, 2, 4):
        made.receive(event(number))
    assert made.seal("a", [(1, 6)]) == [(1, 2), (4, 4)]
    assert made.withheld == [TopicRange("a", 3, 3), TopicRange("a", 5, 6)]


def test_what_was_there_before_it_began_was_not_seen() -> None:
    made = delivery(start=3)
    made.receive(event(4))
    assert made.seal("a", [(1, 5)]) == [(4, 4)]


def test_what_it_was_notified_of_before_it_left_the_topic_was_seen() -> None:
    made = delivery()
    made.receive(event(1))
    made.change_settled(Change("s", 2, ("a",), (), 2, False, {"a": 1}))
    assert made.seal("a", [(1, 2)]) == [(1, 1)]
    made.change_settled(Change("s", 3, (), ("a",), 2, False, {"a": 5}))
    made.receive(event(6))
    assert made.seal("a", [(1, 6)]) == [(1, 1), (6, 6)]


def test_of_where_it_was_earlier_little_is_remembered() -> None:
    made = delivery()
    for version in range(2, 10 * STRETCHES_MAX, 2):
        number = 3 * version
        made.receive(event(made.clock["a"] + 1))
        made.change_settled(Change("s", version, ("a",), (), 2, False, {"a": made.clock["a"]}))
        made.change_settled(Change("s", version + 1, (), ("a",), 2, False, {"a": number}))
    assert len(made._been["a"]) <= STRETCHES_MAX


def test_what_was_not_seen_is_not_used_before_it_is_decided() -> None:
    made = delivery()
    made.seal("a", [(1, 2)])
    for number in (1, 2, 3):
        made.receive(event(number))
    assert numbers(made) == []
    made.decided("a", [], [(1, 2)])
    assert numbers(made) == [1, 2, 3]
    assert made.withheld == []


def test_what_is_void_is_passed_and_never_used() -> None:
    made = delivery()
    made.seal("a", [(1, 2)])
    made.receive(event(1))
    made.receive(event(3))
    made.decided("a", [silence(1, 2)], [])
    made.receive(event(2))
    (notification,) = made.take_ready()
    assert (notification.arrival.number, notification.position) == (3, 3)


def test_who_was_not_asked_passes_it_as_well() -> None:
    made = delivery()
    made.receive(event(2))
    made.decided("a", [silence(1, 1)], [])
    assert numbers(made) == [2]


def test_part_of_it_may_be_void() -> None:
    made = delivery()
    made.seal("a", [(1, 3)])
    made.decided("a", [silence(2, 2)], [(1, 1), (3, 3)])
    for number in (1, 3):
        made.receive(event(number))
    assert numbers(made) == [1, 3]


def test_a_topic_that_it_has_nothing_to_do_with_is_none_of_its_business() -> None:
    made = delivery()
    assert made.seal("other", [(1, 3)]) == []
    assert made.withheld == []


def test_what_comes_for_a_topic_that_it_is_gaining_is_not_used_either() -> None:
    made = Delivery("s", missing=Missing(lambda topic: False))
    made.change_asked(())
    made.seal("a", [(1, 1)])
    made.receive(event(1))
    made.change_settled(Change("s", 1, (), ("a",), 2, False))
    assert numbers(made) == []
    made.decided("a", [silence(1, 1)], [])
    made.receive(event(2))
    assert numbers(made) == [2]
