"""One client: the changes of its subscriptions, and what it says again on each connection."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ordered_pubsub.core.client.batches import UnkeptBatches
from ordered_pubsub.core.client.locating import Search
from ordered_pubsub.core.client.machine import ClientMachine
from ordered_pubsub.core.client.outbox import Outbox
from ordered_pubsub.core.client.session import Session
from ordered_pubsub.core.client.subscription import (
    ASKED,
    FAILED,
    HOLDING,
    QUEUED,
    REFUSED,
    REOPEN_S,
    SETTLED,
    ClientSubscription,
)
from ordered_pubsub.core.liveness.lease import Lease
from ordered_pubsub.core.liveness.lifeline import Lifeline
from ordered_pubsub.core.messages import (
    VERSION_MAX,
    Answer,
    AskKeys,
    Change,
    ChangeAsk,
    KeepAlive,
    Keys,
    Locate,
    Located,
    Progress,
    Refusal,
    Resume,
    find_change,
)
from ordered_pubsub.core.order.registrar import OPENINGS_MAX, WRONG_EPOCH
from ordered_pubsub.core.recovery.missing import Missing
from ordered_pubsub.core.subscriber.best_effort import BestEffort
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.core.subscriber.subscriber import Subscriber
from ordered_pubsub.core.subscriber.subscriber_log import SubscriberLog
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.core.trust.inspection import Inspection
from ordered_pubsub.errors import Closed, SessionExpired, UsageError

TOPICS = tuple("abcdef")


@attrs.define
class Client:
    """A machine, with an ENS that does at once what it is told, if it `answers`."""

    machine: ClientMachine = attrs.field(
        factory=lambda: ClientMachine(
            Session("s", Topology((StageSpec("one", ("**",)),))),
            Inspection("s"),
            Lifeline("s"),
            Outbox(UnkeptBatches(Lease("s"), lambda topic: 0)),
            report_s=0.0,
        )
    )
    answers: bool = True

    def begin(self, name: str, is_named: bool = False) -> ClientSubscription:
        missing = Missing(lambda topic: True)
        delivery = Delivery(name, missing=missing)
        log = SubscriberLog(delivery, missing, lambda topic: 0, lambda topic, item: [])
        subscription = ClientSubscription(name, delivery, Subscriber(log, "s", is_named), self.machine, 2, is_named)
        self.machine.begin(subscription)
        return subscription

    def do(self) -> None:
        """What the machine says of the ENS."""
        while self.answers and self.machine.holding.next_operation(self.machine.now) is not None:
            self.machine.operation_done()
        self.machine.check_invariants()

    def asks(self) -> list[ChangeAsk]:
        """The changes that the stage was asked for since the last time."""
        self.do()
        sends, self.machine.session.sends = self.machine.session.sends, []
        return [ask for request in sends if (ask := find_change(request.parts)) is not None]

    def settle(self, sequence: int, *parts: Any) -> None:
        self.machine.answers([Answer("s", 1, sequence, list(parts))])
        for subscription in self.machine.touched:
            subscription.take_ready()
        self.do()

    def refuse(self, sequence: int, code: str, opened: int = 0) -> None:
        self.machine.answers([Refusal("s", 1, sequence, code, "because", opened=opened)])
        self.do()

    def said(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.machine.says if isinstance(message, kind)]


@pytest.fixture
def client() -> Client:
    client = Client()
    client.machine.inspection.hold(TOPICS)
    client.machine.take_keys(Keys("s", b"system", [(1, 0.0)], {topic: [bytes(32)] for topic in TOPICS}, 0.0))
    client.machine.connected()
    client.machine.says.clear()
    return client


def settled(version: int, old: str, new: str, **more: Any) -> Change:
    return Change("s/1", version, tuple(old), tuple(new), 2, False, dict.fromkeys({*old, *new}, 0), **more)


def begun(client: Client, topics: str = "a") -> ClientSubscription:
    subscription = client.begin("s/1")
    subscription.change(topics)
    assert len(client.asks()) == 1
    client.settle(1, settled(1, "", topics))
    return subscription


def test_a_change_is_asked_for_when_the_ens_brings_what_it_adds(client: Client) -> None:
    client.answers = False
    subscription = client.begin("s/1")
    change = subscription.change("ab", where="n > 1")
    assert (change.state, client.asks()) == (HOLDING, [])
    client.answers = True
    (ask,) = client.asks()
    assert (ask.add, ask.remove, ask.where) == (("a", "b"), (), {"a": "n > 1", "b": "n > 1"})
    assert change.state == ASKED
    client.settle(1, settled(1, "", "ab"))
    assert (change.state, subscription.buffer.topics) == (SETTLED, ["a", "b"])


def test_changes_are_made_one_after_the_other_and_asked_for_in_their_order(client: Client) -> None:
    subscription = begun(client)
    client.answers = False
    changes = [subscription.change("b"), subscription.change("c", "b"), subscription.change(ends=True)]
    assert [change.state for change in changes] == [HOLDING, QUEUED, QUEUED]
    client.answers = True
    assert [(ask.add, ask.remove, ask.ends) for ask in client.asks()] == [
        (("b",), (), False),
        (("c",), ("b",), False),
        ((), ("a", "c"), True),
    ]


def test_many_changes_that_need_nothing_of_the_ens_are_asked_for_at_once(client: Client) -> None:
    subscription = begun(client)
    for _ in range(3_000):
        subscription.change("a")
    assert len(subscription.unasked) == 0


def test_what_it_does_not_hold_cannot_be_removed(client: Client) -> None:
    subscription = begun(client)
    change = subscription.change((), "b")
    assert change.state == FAILED
    assert isinstance(change.error, UsageError)
    assert "does not hold 'b'; it holds 'a'" in str(change.error)
    assert client.asks() == []


def test_what_ends_cannot_be_changed_any_more(client: Client) -> None:
    subscription = begun(client)
    subscription.change(ends=True)
    late = subscription.change("b")
    assert isinstance(late.error, Closed)
    client.refuse(2, "limit")
    assert subscription.change("b").state != FAILED


def test_who_waits_no_longer_takes_a_change_back_that_was_not_asked_for(client: Client) -> None:
    subscription = begun(client)
    client.answers = False
    first, second = subscription.change("b"), subscription.change("c")
    client.machine.holding.next_operation(0.0)
    subscription.give_up(first)
    assert (first.state, second.state) == (FAILED, HOLDING)
    assert client.machine.holding.is_abandoned
    client.machine.operation_done(TimeoutError())
    client.answers = True
    assert [ask.add for ask in client.asks()] == [("c",)]
    client.settle(2, settled(2, "a", "ac"))
    assert client.machine.holding.topics == ["a", "c"]


def test_what_was_asked_for_happens_whether_somebody_waits_or_not(client: Client) -> None:
    subscription = begun(client)
    change = subscription.change("b")
    assert len(client.asks()) == 1
    subscription.give_up(change)
    client.settle(2, settled(2, "a", "ab"))
    assert (change.state, subscription.buffer.topics) == (SETTLED, ["a", "b"])


def test_a_refused_change_leaves_everything_as_it_was(client: Client) -> None:
    subscription = begun(client)
    change = subscription.change("b", "a")
    client.asks()
    client.refuse(2, "forbidden")
    subscription.take_ready()
    client.do()
    assert change.state == REFUSED
    assert (list(subscription.wanted), client.machine.holding.topics) == (["a"], ["a"])


def test_one_that_others_have_opened_is_opened_in_the_epoch_after_that(client: Client) -> None:
    subscription = client.begin("n//book", is_named=True)
    change = subscription.change("a", opens=1)
    opens = []
    for sequence in range(1, OPENINGS_MAX + 1):
        (ask,) = client.asks()
        opens.append(ask.opens)
        client.refuse(sequence, WRONG_EPOCH, opened=ask.opens + 1)
    assert opens == [1, 3, 5, 7, 9]
    assert (change.state, client.asks()) == (REFUSED, [])


def test_one_whose_namesake_has_just_ended_is_begun_after_a_while(client: Client) -> None:
    subscription = client.begin("n//book", is_named=True)
    change = subscription.change("a", opens=1)
    client.asks()
    client.refuse(1, "ended")
    assert (change.state, client.asks()) == (QUEUED, [])
    assert client.machine.next_due == pytest.approx(REOPEN_S)
    client.machine.now = REOPEN_S
    client.machine.tick()
    (ask,) = client.asks()
    assert (ask.opens, ask.add) == (1, ("a",))


def test_one_that_goes_on_has_the_ens_bring_what_it_holds_until_it_does(client: Client) -> None:
    subscription = client.begin("n//book", is_named=True)
    subscription.change((), opens=1)
    client.asks()
    client.answers = False
    first = settled(1, "", "ab")
    resume = Resume(0, (), {"a": 0, "b": 0}, 0, None, {}, [first])
    client.settle(1, Change("n//book", 2, ("a", "b"), ("a", "b"), 2, False, {"a": 0, "b": 0}, resume))
    assert client.machine.holding.next_operation(0.0) is not None
    client.machine.operation_done(OSError("away"))
    client.machine.check_invariants()
    client.machine.now, client.answers = client.machine.next_due or 0.0, True
    client.do()
    assert client.machine.holding.topics == ["a", "b"]
    assert list(subscription.wanted) == ["a", "b"]


def test_one_that_stops_asks_for_its_end_after_all_that_it_has_asked_for(client: Client) -> None:
    subscription = begun(client)
    subscription.change("b")
    client.asks()
    subscription.stop()
    (ask,) = client.asks()
    assert (ask.remove, ask.ends) == (("a", "b"), True)
    assert client.machine.holding.topics == []
    assert client.machine.subscriptions == {}
    assert [follows.subscription for follows in client.said(Progress)] == ["s/1"]


def test_a_best_effort_one_that_stops_says_that_it_is_over(client: Client) -> None:
    """Its registrar remembers one that has ended until it is heard that its client needs nothing more of it."""
    subscription = ClientSubscription("s/1", BestEffort("s/1", 10, 1.0), None, client.machine, 2)
    client.machine.begin(subscription)
    subscription.stop()
    assert [(said.subscription, said.version) for said in client.said(Progress)] == [("s/1", VERSION_MAX)]


def test_one_that_was_never_asked_for_and_stops_asks_for_nothing(client: Client) -> None:
    client.answers = False
    subscription = client.begin("s/1")
    change = subscription.change("a")
    subscription.stop()
    client.answers = True
    assert client.asks() == []
    assert isinstance(change.error, Closed)
    assert client.machine.holding.topics == []


def test_one_with_a_name_that_stops_lives_on(client: Client) -> None:
    subscription = client.begin("n//book", is_named=True)
    subscription.change("a", opens=1)
    client.asks()
    subscription.stop()
    assert client.asks() == []


def test_one_that_is_cut_off_ends_by_that(client: Client) -> None:
    subscription = begun(client)
    client.machine.now = 200.0
    client.machine.tick()
    assert client.machine.failed == [subscription]
    assert isinstance(subscription.error, SessionExpired)
    assert [ask.ends for ask in client.asks()] == [True]


def test_one_that_is_cut_off_while_it_is_taking_takes_nothing_any_more(client: Client) -> None:
    """Time has passed without a tick: what is ready may come in another order for others."""
    subscription = begun(client)
    client.machine.arrived({"s/1": [Arrival("a", 1, {})]})
    client.machine.now = 200.0

    assert subscription.take_ready() == []
    assert client.machine.failed == [subscription]
    assert isinstance(subscription.error, SessionExpired)
    assert subscription.take_ready() == []


def test_on_each_connection_everything_is_said_again(client: Client) -> None:
    begun(client)
    gone = client.begin("s/2")
    gone.stop()
    client.machine.disconnected()
    subscription = client.begin("s/3")
    subscription.change("b")
    assert client.asks() == []
    assert client.machine.says == []
    client.machine.now = 1.0
    client.machine.connected()
    assert [ask.subscription for ask in client.asks()] == ["s/3"]
    assert len(client.said(KeepAlive)) == 1
    assert {ask for message in client.said(AskKeys) for ask in message.topics} == set(TOPICS)
    assert [(said.subscription, said.is_all) for said in client.said(Progress)] == [
        ("s/1", True),
        ("s/3", True),
        ("s/2", True),
    ]


def test_without_a_stage_nothing_is_due(client: Client) -> None:
    """Else the time would be told again and again for keys that nobody can be asked for."""
    client.machine.disconnected()
    client.machine.inspection.hold(["another"])
    assert client.machine.next_due is None
    client.machine.connected()
    assert client.machine.next_due is not None


def test_an_answer_that_comes_twice_is_taken_once(client: Client) -> None:
    subscription = client.begin("s/1")
    subscription.change("a")
    client.asks()
    client.settle(1, settled(1, "", "a"))
    client.machine.finished.clear()
    client.settle(1, settled(1, "", "a"))
    assert client.machine.finished == []


# -- where topics were ------------------------------------------------------------------------------------------------------


def located(search: Search, **numbers: int) -> Located:
    """What the stages say to it."""
    return Located("s", search.serial, numbers)


def test_where_topics_were_is_asked_until_it_is_known_of_all_of_them() -> None:
    """An answer may be lost, come twice, or tell of some topics only."""
    client = Client()
    machine = client.machine
    machine.connected()
    machine.says.clear()

    search = machine.locate(["a", "b"], 5.0)
    assert machine.says == [Locate("s", search.serial, ["a", "b"], 5.0)]
    machine.says.clear()
    for answer in (located(search, a=3), located(search, a=4, c=9), Located("s", 77, {"b": 1})):
        machine.hear(answer)
    assert (machine.found, machine.next_due) == ([], search.due_at)

    machine.now = search.due_at
    machine.tick()
    assert [said for said in machine.says if isinstance(said, Locate)] == [Locate("s", search.serial, ["b"], 5.0)]
    machine.hear(located(search, b=7))
    machine.hear(located(search, b=8))
    assert (machine.found, search.numbers) == ([search], {"a": 3, "b": 7})


def test_who_has_given_up_to_know_where_topics_were_asks_no_more() -> None:
    """And without a stage nothing is asked, until there is one."""
    client = Client()
    machine = client.machine
    search, other = machine.locate(["a"], 5.0), machine.locate(["b"], 5.0)
    assert (machine.says, machine.next_due) == ([], None)

    machine.locating.give_up(search)
    machine.connected()
    machine.now += 10.0
    machine.tick()
    assert [said for said in machine.says if isinstance(said, Locate)] == [Locate("s", other.serial, ["b"], 5.0)]
