"""The "multistage sequencer", as published, without I/O.

Baldoni, Bonomi, Platania, Querzoni: "Efficient Notification Ordering for Geo-Distributed Pub/Sub
Systems". Figures and lines below are those of the supplemental material, sections those of the
article. It is here because it can get stuck: without faults, on FIFO links, with a reliable ENS
and without subscription changes, subscribers can wait for ever for each other's events. A test of
our own core that this algorithm passes as well shows nothing.

What is left out: subscription changes (figures 4 and 5). Subscriptions are known to all topic
managers before the run, all numbers begin at 0, so there are no dummy events.

Where the pseudo-code leaves a choice, the reading that helps the algorithm is taken:

* `isNext` (section 1, used by figure 3, lines 10 and 20) compares only entries of topics that the
  subscriber holds, and asks for `<=` where the text asks for equality. What is next under the
  strict reading is next under this one, and stays so until it is notified, so whoever is stuck
  here is stuck under the strict reading too.
* The pair that `isNext` calls the last one is that of the event's own topic (section 3.4).
* Figure 3, line 14 (and 25) stores the subscriber's own value again; the timestamp's is meant.
* Figure 2(b), line 08 says `ts` where `ev_ts` is meant.
* Figure 1 gives a topic that nobody holds an empty group; definition 1 puts the topic itself in.
* `LLC` has pairs for lower topics of the own group only, as its definition in section 1 says; an
  entry of another topic that passes by (figure 2(b), lines 15-17) is not kept. It could not be
  used: a created timestamp has no place for it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from attrs import define, field, frozen

Timestamp = dict[int, int | None]
"""Topic -> number; None is the paper's bottom: not filled in yet."""

Subscriptions = Mapping[str, Sequence[int]]

Cycles = dict[str, tuple[str, ...]]
"""Stuck subscriber -> the cycle of waiting that it cannot leave."""

Link = tuple[str, str]
"""(sender, receiver), e.g. ("TM4", "TM3") or, from the publisher of topic 4, ("p4", "TM4")."""


@frozen
class CreatePubTs:
    """Figure 2(a), line 04."""

    event_id: str
    publisher: str


@frozen
class FillInPubTs:
    """Figure 2(b), lines 12 and 23."""

    timestamp: Timestamp
    event_id: str
    publisher: str


@frozen
class EventTs:
    """Figure 2(b), lines 10 and 21."""

    timestamp: Timestamp
    event_id: str


Message = CreatePubTs | FillInPubTs | EventTs


@frozen
class Event:
    """What the ENS carries: the event with its completed timestamp (figure 2(a), line 08)."""

    event_id: str
    topic: int
    timestamp: dict[int, int]

    @property
    def number(self) -> int:
        return self.timestamp[self.topic]


def sequencing_group(topic: int, subscriptions: Subscriptions, threshold: int) -> tuple[int, ...]:
    """Figure 1: the topics that at least `threshold` subscriptions hold together with `topic`.

    The threshold is 2 in figure 1, line 04, and 1 in the causal variant (section 4, "Ordering
    Features").
    """
    external_subs = [set(topics) for topics in subscriptions.values() if topic in topics]
    candidates = set().union(*external_subs)
    together = {other: sum(other in sub for sub in external_subs) for other in candidates}
    return tuple(sorted({topic} | {t for t, count in together.items() if count >= threshold}))


def preceding(timestamp: Timestamp, topic: int) -> int | None:
    """`next` of section 1: the nearest topic of higher rank in the timestamp. 1 is the highest."""
    return max((other for other in timestamp if other < topic), default=None)


@define
class TopicManager:
    """Figure 2(b). A message in, (destination, message) out."""

    topic: int
    group: tuple[int, ...]
    lc: int = 0
    llc: dict[int, int] = field()

    @llc.default
    def _lower_topics_of_the_group(self) -> dict[int, int]:
        return {other: 0 for other in self.group if other > self.topic}

    def create(self, message: CreatePubTs) -> tuple[str, Message]:
        """Lines 01-13."""
        timestamp: Timestamp = dict.fromkeys(self.group)
        timestamp.update(self.llc)
        self.lc += 1
        timestamp[self.topic] = self.lc
        return self._forward(timestamp, message.event_id, message.publisher)

    def fill_in(self, message: FillInPubTs) -> tuple[str, Message]:
        """Lines 14-24."""
        for topic, number in message.timestamp.items():
            if topic in self.llc and number is not None:
                self.llc[topic] = max(self.llc[topic], number)
        timestamp = message.timestamp | {self.topic: self.lc}
        return self._forward(timestamp, message.event_id, message.publisher)

    def _forward(self, timestamp: Timestamp, event_id: str, publisher: str) -> tuple[str, Message]:
        """Lines 08-13 and 19-24: this is the jump, over every topic that is not in the group."""
        destination = preceding(timestamp, self.topic)
        if destination is None:
            return publisher, EventTs(timestamp, event_id)
        return f"TM{destination}", FillInPubTs(timestamp, event_id, publisher)


@define
class Subscriber:
    """Figure 3, lines 09-26."""

    subs: frozenset[int]
    sub_lc: dict[int, int] = field()
    to_deliver: list[Event] = field(factory=list)
    notified: list[str] = field(factory=list)

    @sub_lc.default
    def _nothing_notified(self) -> dict[int, int]:
        return dict.fromkeys(sorted(self.subs), 0)

    def ens_notify(self, event: Event) -> None:
        """Lines 09-19, then 20-26 as long as they apply."""
        if event.topic not in self.subs:
            return
        self.to_deliver.append(event)
        while following := next((e for e in self.to_deliver if self.is_next(e)), None):
            self.to_deliver.remove(following)
            self._notify(following)

    def is_next(self, event: Event) -> bool:
        """`isNext`, in the kind reading."""
        is_successor = event.number == self.sub_lc[event.topic] + 1
        return is_successor and not self._lacking_topics(event)

    def wait_cycle(self) -> tuple[str, ...]:
        """Events of which each waits for the next, and the last for the first; () if none waits.

        The first waiting event of each topic can only wait for other topics' events. The ENS has
        brought them all, so they wait themselves: following them must come back.
        """
        if not self.to_deliver:
            return ()
        heads = {e.topic: e for e in self.to_deliver if e.number == self.sub_lc[e.topic] + 1}
        walk = [heads[min(heads)]]
        while (lacking := heads[self._lacking_topics(walk[-1])[0]]) not in walk:
            walk.append(lacking)
        return tuple(event.event_id for event in walk[walk.index(lacking) :])

    def _lacking_topics(self, event: Event) -> list[int]:
        """The other topics of which an event must be notified before this one."""
        others = (topic for topic in self.sub_lc if topic != event.topic)
        return [topic for topic in others if event.timestamp.get(topic, 0) > self.sub_lc[topic]]

    def _notify(self, event: Event) -> None:
        """Lines 11-16 and 22-26."""
        self.notified.append(event.event_id)
        for topic, number in self.sub_lc.items():
            self.sub_lc[topic] = max(number, event.timestamp.get(topic, 0))


@define
class Sequencer:
    """All topic managers and the FIFO links between them and the publishers.

    Every topic has one publisher: who asks makes no difference to a topic manager.
    """

    managers: dict[str, TopicManager]
    links: dict[Link, deque[Message]] = field(factory=dict)
    requested: dict[int, int] = field(factory=dict)
    published: list[Event] = field(factory=list)
    steps: list[str] = field(factory=list)

    @classmethod
    def of(cls, topics: Iterable[int], subscriptions: Subscriptions, threshold: int) -> Sequencer:
        groups = {topic: sequencing_group(topic, subscriptions, threshold) for topic in topics}
        return cls({f"TM{topic}": TopicManager(topic, group) for topic, group in groups.items()})

    def request(self, topic: int) -> None:
        """Figure 2(a), lines 01-04."""
        self.requested[topic] = self.requested.get(topic, 0) + 1
        message = CreatePubTs(f"e{topic}.{self.requested[topic]}", f"p{topic}")
        self._send(f"p{topic}", f"TM{topic}", message)

    def deliverable(self) -> list[Link]:
        """Links with a message under way: publishers' first, then managers', each by topic."""
        busy = [link for link, messages in self.links.items() if messages]
        return sorted(busy, key=lambda link: (link[0].startswith("TM"), link))

    def deliver(self, link: Link) -> str:
        """Hand over the link's oldest message; the step in words, with what comes out of it."""
        message = self.links[link].popleft()
        manager = self.managers[link[1]]
        if isinstance(message, CreatePubTs):
            destination, answer = manager.create(message)
            step = f"{link[1]} creates {message.event_id}"
        else:
            assert isinstance(message, FillInPubTs)
            destination, answer = manager.fill_in(message)
            assert isinstance(answer, FillInPubTs | EventTs)
            in_order = dict(sorted(answer.timestamp.items()))
            step = f"{link[1]} passes {message.event_id} -> {in_order}"
        self._send(link[1], destination, answer)
        self.steps.append(step)
        return step

    def _send(self, sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, EventTs):
            self._ens_publish(message)
        else:
            self.links.setdefault((sender, receiver), deque()).append(message)

    def _ens_publish(self, message: EventTs) -> None:
        """Figure 2(a), lines 05-09, at once: how late an event is, is up to the ENS anyway."""
        timestamp = {t: n for t, n in sorted(message.timestamp.items()) if n is not None}
        assert len(timestamp) == len(message.timestamp)
        topic = int(message.event_id.removeprefix("e").partition(".")[0])
        self.published.append(Event(message.event_id, topic, timestamp))


def notify_all(subscriptions: Subscriptions, events: Iterable[Event]) -> dict[str, Subscriber]:
    """A reliable ENS: every event, in the order given, to every subscriber.

    What a subscriber is left with does not depend on the order, see `isNext` above.
    """
    subscribers = {name: Subscriber(frozenset(subs)) for name, subs in subscriptions.items()}
    for event in events:
        for subscriber in subscribers.values():
            subscriber.ens_notify(event)
    return subscribers


def stuck_subscribers(subscriptions: Subscriptions, events: Iterable[Event]) -> Cycles:
    """Who waits for ever, and in which cycle."""
    subscribers = notify_all(subscriptions, events)
    return {name: s.wait_cycle() for name, s in subscribers.items() if s.to_deliver}


def in_words(cycle: Sequence[str]) -> str:
    """("e1.1", "e4.1") -> "e1.1 waits for e4.1, e4.1 waits for e1.1"."""
    followers = [*cycle[1:], *cycle[:1]]
    return ", ".join(f"{a} waits for {b}" for a, b in zip(cycle, followers, strict=True))


@frozen
class Outcome:
    published: tuple[Event, ...]
    """In the order in which the timestamps were completed."""

    stuck: Cycles


STEP = re.compile(r"(?P<manager>TM\d+) (creates|passes) (?P<event_id>e(?P<topic>\d+)\.\d+)")


class ImpossibleStep(Exception):
    """The schedule asks for what the algorithm or its FIFO links do not do."""


def follow(sequencer: Sequencer, step: str) -> None:
    """One step of a schedule, e.g. "TM4 creates e4.1" or "TM1 passes e4.1 -> {1: 0, 4: 1}"."""
    parsed = STEP.match(step)
    if parsed is None:
        raise ImpossibleStep(f"cannot read {step!r}")
    if parsed[2] == "creates":
        sequencer.request(int(parsed["topic"]))
    heads = {link: sequencer.links[link][0] for link in sequencer.deliverable()}
    for link, message in heads.items():
        if link[1] == parsed["manager"] and message.event_id == parsed["event_id"]:
            happened = sequencer.deliver(link)
            if happened != step:
                raise ImpossibleStep(f"expected {step!r}, but {happened!r}")
            return
    raise ImpossibleStep(f"expected {step!r}, but next on the links are {heads}")


def run(subscriptions: Subscriptions, group_threshold: int, schedule: Iterable[str]) -> Outcome:
    """Follow a schedule to its end, then let the ENS bring everything to everybody.

    Raises ImpossibleStep where a step cannot be taken or ends in another timestamp than the
    schedule says, and where the schedule ends with messages under way.
    """
    steps = list(schedule)
    topics = {topic for subs in subscriptions.values() for topic in subs}
    topics |= {int(topic) for topic in re.findall(r"e(\d+)\.", " ".join(steps))}
    sequencer = Sequencer.of(sorted(topics), subscriptions, group_threshold)
    for step in steps:
        follow(sequencer, step)
    if under_way := sequencer.deliverable():
        raise ImpossibleStep(f"the schedule ends with messages on {under_way}")
    stuck = stuck_subscribers(subscriptions, sequencer.published)
    return Outcome(tuple(sequencer.published), stuck)
