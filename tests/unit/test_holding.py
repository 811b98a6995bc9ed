"""What a client has the ENS bring, and who waits until it does."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from ordered_pubsub.core.client.holding import AGAIN_FIRST_S, AGAIN_MOST_S, Hold, Holding
from ordered_pubsub.core.messages import Keys
from ordered_pubsub.core.trust.inspection import Inspection

KEY = bytes(32)
REFUSED = ("forbidden", "you may not")


@attrs.define
class Client:
    """A holding, with an ENS that does what it is told when it is told."""

    holding: Holding = attrs.field(factory=lambda: Holding(Inspection("s")))
    now: float = 0.0

    def hold(self, name: str, *topics: str, is_lasting: bool = False) -> Hold:
        return self.holding.hold(name, topics, self.now, is_lasting)

    def bring(self, name: str, *topics: str) -> None:
        """Hold topics, and have the ENS bring them."""
        self.hold(name, *topics)
        self.give_keys(*topics)
        self.operate()
        self.finished()

    def give_keys(self, *topics: str, refused: Sequence[str] = ()) -> None:
        self.holding.inspection.given(
            Keys("s", b"system", [(1, 0.0)], {t: [KEY] for t in topics}, 0.0, dict.fromkeys(refused, REFUSED))
        )
        self.holding.keys_came(self.now)

    def operate(self, error: Exception | None = None) -> tuple[bool, list[str]] | None:
        """The next thing at the ENS, which happens at once, or fails."""
        operation = self.holding.next_operation(self.now)
        if operation is None:
            return None
        assert self.holding.next_operation(self.now) is None  # one at a time
        self.holding.done(self.now, error)
        self.holding.check_invariants()
        return operation.subscribes, operation.topics

    def finished(self) -> list[Hold]:
        found, self.holding.finished = self.holding.finished, []
        return found


@pytest.fixture
def client() -> Client:
    return Client()


def test_nothing_is_subscribed_to_before_its_keys_are_here(client: Client) -> None:
    hold = client.hold("one", "a", "b")
    assert client.operate() is None
    client.give_keys("a")
    assert client.operate() is None
    assert client.holding.lacks_keys(["a", "b"])
    client.give_keys("b")
    assert client.operate() == (True, ["a", "b"])
    assert client.finished() == [hold]
    assert hold.is_held


def test_who_waits_for_keys_keeps_nobody_else_waiting(client: Client) -> None:
    client.hold("one", "a")
    other = client.hold("two", "b")
    client.give_keys("b")
    assert client.operate() == (True, ["b"])
    assert client.finished() == [other]


def test_what_the_ens_brings_already_is_held_at_once(client: Client) -> None:
    client.bring("one", "a")
    again = client.hold("two", "a")
    assert client.finished() == [again]
    assert client.operate() is None
    assert list(client.holding.holders("a")) == ["one", "two"]


def test_two_who_wait_for_one_topic_are_served_by_one_operation(client: Client) -> None:
    both = [client.hold("one", "a"), client.hold("two", "a")]
    client.give_keys("a")
    assert client.operate() == (True, ["a"])
    assert client.finished() == both
    assert client.operate() is None


def test_whose_keys_are_refused_is_told_why(client: Client) -> None:
    hold = client.hold("one", "a", "b")
    client.give_keys("a", refused=["b"])
    assert client.finished() == [hold]
    assert (hold.is_held, hold.refusal) == (False, REFUSED)
    client.holding.forget("one", ["a", "b"])
    assert client.operate() is None
    assert client.holding.topics == []


def test_a_topic_is_unsubscribed_from_when_its_last_holder_forgets_it(client: Client) -> None:
    client.hold("one", "a")
    client.hold("two", "a")
    client.give_keys("a")
    client.operate()
    client.holding.forget("one")
    assert client.operate() is None
    client.holding.forget("two", ["a"])
    assert client.operate() == (False, ["a"])
    assert client.holding.topics == []
    assert not client.holding.inspection.is_ready("a")


def test_who_holds_it_again_before_it_is_unsubscribed_from_has_it_still(client: Client) -> None:
    client.bring("one", "a")
    client.holding.forget("one")
    hold = client.hold("two", "a")
    assert client.finished() == [hold]
    assert client.operate() is None
    assert client.holding.inspection.is_ready("a")


def test_who_holds_it_again_while_it_is_unsubscribed_from_waits_until_it_is_back(client: Client) -> None:
    client.bring("one", "a")
    client.holding.forget("one")
    client.holding.next_operation(client.now)
    hold = client.hold("two", "a")
    client.holding.done(client.now)
    assert client.finished() == []
    client.give_keys("a")
    assert client.operate() == (True, ["a"])
    assert client.finished() == [hold]


def test_what_failed_may_have_happened_so_it_is_unsubscribed_from(client: Client) -> None:
    hold, error = client.hold("one", "a"), OSError("away")
    client.give_keys("a")
    client.operate(error)
    assert client.finished() == [hold]
    assert hold.error is error
    client.holding.forget("one")
    assert client.operate() == (False, ["a"])


def test_what_one_could_not_have_another_asks_for_itself(client: Client) -> None:
    first, second = client.hold("one", "a"), client.hold("two", "a")
    client.give_keys("a")
    client.operate(OSError("away"))
    assert client.finished() == [first]
    client.holding.forget("one")
    assert client.operate() == (True, ["a"])
    assert client.finished() == [second]


def test_a_lasting_hold_is_tried_again_after_growing_pauses(client: Client) -> None:
    hold = client.hold("one", "a", is_lasting=True)
    client.give_keys("a")
    pauses = []
    for _ in range(12):
        assert client.holding.next_operation(client.now) is not None
        assert client.holding.next_due is None
        client.holding.done(client.now, OSError("away"))
        assert client.operate() is None
        due = client.holding.next_due
        assert due is not None
        pauses.append(due - client.now)
        client.now = due
    assert pauses[0] == AGAIN_FIRST_S
    assert pauses[-1] == pytest.approx(AGAIN_MOST_S)
    assert client.operate() == (True, ["a"])
    assert client.finished() == [hold]
    assert client.holding.next_due is None


def test_a_lasting_hold_does_not_wait_for_what_is_not_to_come_any_more(client: Client) -> None:
    """Who goes on while the ENS is away may give a topic up before it is back: nobody asks for its keys then."""
    client.hold("one", "a", is_lasting=True)
    client.holding.forget("one", ["a"])
    assert not client.holding.is_changing
    assert client.operate() is None


def test_of_a_lasting_hold_that_gives_up_a_topic_the_others_come(client: Client) -> None:
    hold = client.hold("one", "a", "b", is_lasting=True)
    client.holding.forget("one", ["a"])
    client.give_keys("b")
    assert client.operate() == (True, ["b"])
    assert client.finished() == [hold]
    assert not client.holding.is_changing


def test_a_lasting_hold_whose_keys_are_refused_asks_for_them_again(client: Client) -> None:
    client.hold("one", "a", is_lasting=True)
    client.holding.inspection.take_due()
    client.give_keys(refused=["a"])
    assert client.finished() == []
    client.now = client.holding.next_due or 0.0
    assert client.operate() is None
    assert client.holding.next_due is None  # until the keys come, there is nothing to do
    client.now = 10.0
    client.holding.inspection.now = client.now
    assert [ask.topics for ask in client.holding.inspection.take_due()] == [["a"]]


def test_unsubscribing_is_tried_again(client: Client) -> None:
    client.bring("one", "a")
    client.holding.forget("one")
    assert client.operate(OSError("away")) == (False, ["a"])
    assert client.operate() is None
    client.now = client.holding.next_due or 0.0
    assert client.operate() == (False, ["a"])
    assert client.holding.next_due is None
    assert client.holding.topics == []


def test_what_nobody_waits_for_any_more_is_abandoned(client: Client) -> None:
    hold = client.hold("one", "a")
    client.give_keys("a")
    client.holding.next_operation(client.now)
    assert not client.holding.is_abandoned
    client.holding.give_up(hold)
    client.holding.forget("one", ["a"])
    assert client.holding.is_abandoned
    client.holding.done(client.now, TimeoutError())
    assert client.finished() == []
    assert client.operate() == (False, ["a"])


def test_what_somebody_else_holds_is_not_abandoned(client: Client) -> None:
    hold, other = client.hold("one", "a"), client.hold("two", "a")
    client.give_keys("a")
    client.holding.next_operation(client.now)
    client.holding.give_up(hold)
    client.holding.forget("one", ["a"])
    assert not client.holding.is_abandoned
    client.holding.done(client.now)
    assert client.finished() == [other]


def test_who_forgets_everything_waits_for_nothing(client: Client) -> None:
    client.hold("one", "a")
    client.hold("two", "b")
    client.holding.forget("one")
    client.give_keys("a", "b")
    assert client.operate() == (True, ["b"])
    assert [hold.subscription for hold in client.finished()] == ["two"]
    assert client.holding.topics == ["b"]
