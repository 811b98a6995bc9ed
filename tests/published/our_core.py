"""Our core on the schedules of the published algorithm: one stage per topic, the topic's number its rank.

Two `pairwise` subscriptions put topics into a group, as the paper's default does; one `total` one does, as in its causal
variant. The ENS is reliable; nothing fails; no subscription changes.
"""

from __future__ import annotations

from collections import deque
from random import Random

from attrs import define, field

from ordered_pubsub.core.messages import (
    Answer,
    ChangeAsk,
    LinkAck,
    PeerMessage,
    Publication,
    PublishAsk,
    Request,
)
from ordered_pubsub.core.messages import Change as ChangePart
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.core.topology import StageSpec, Topology
from published.search import Draw

Subscriptions = dict[str, tuple[int, ...]]


@define(eq=False)
class Line:
    """Stages with FIFO links that deliver when they are told to."""

    stages: list[Stage]
    deliveries: dict[str, Delivery]
    links: dict[tuple[int, int], deque[PeerMessage]] = field(factory=dict)
    requests: dict[int, deque[Request]] = field(factory=dict)
    published: list[Arrival] = field(factory=list)
    asked: int = 0

    @classmethod
    def of(cls, topics: tuple[int, ...], subscriptions: Subscriptions, group_threshold: int) -> Line:
        """Stages that know each other, and subscriptions that have begun."""
        topology = Topology(tuple(StageSpec(f"stage-{t}", (f"t{t}",)) for t in topics))
        stages = [Stage.restore(rank, topology, None, []) for rank in range(len(topics))]
        order = "pairwise" if group_threshold == 2 else "total"
        line = cls(stages, {name: Delivery(name, order=order) for name in subscriptions})
        for stage in stages:
            for peer in stage.state.links:
                stage.connected(peer)
        line.deliver_all()
        for name, held in subscriptions.items():
            ask = ChangeAsk(name, tuple(f"t{t}" for t in held), (), 2 if order == "total" else 1)
            line.deliveries[name].change_asked()
            line.stages[0].handle_request(Request(name, 1, 1, 0, 0, (ask,)), 0.0)
            line.deliver_all()
        return line

    def request(self, topic: int) -> None:
        """Somebody wants to publish."""
        self.asked += 1
        request = Request(f"p{self.asked}", 1, 1, 0, 0, (PublishAsk(f"t{topic}"),))
        self.requests.setdefault(topic, deque()).append(request)

    def collect(self) -> None:
        """Put what the stages want to send on the links; what is complete goes to the ENS."""
        for stage in self.stages:
            effects = stage.take_effects()
            for peer, message in effects.sends:
                if not isinstance(message, LinkAck):
                    self.links.setdefault((stage.rank, peer), deque()).append(message)
            for answer in effects.replies:
                assert isinstance(answer, Answer)
                self._answered(answer)

    def _answered(self, answer: Answer) -> None:
        for part in answer.parts:
            if isinstance(part, Publication):
                self.published.append(Arrival(part.topic, part.first, part.entries, part.marks))
            elif isinstance(part, ChangePart):
                self.deliveries[part.subscription].change_settled(part)

    def deliverable(self) -> list[tuple[int, int]]:
        """Waiting requests as (topic, 0), then links as (sender, receiver), in the documented order."""
        requests = sorted((topic, 0) for topic, queue in self.requests.items() if queue)
        # A sender of a link is written one higher, as topics are, so that requests and links cannot be mistaken.
        links = sorted((source + 1, target + 1) for (source, target), queue in self.links.items() if queue)
        return requests + links

    def deliver(self, what: tuple[int, int]) -> None:
        """Let one stage handle the oldest request or message there."""
        first, second = what
        if second == 0:
            self.stages[first - 1].handle_request(self.requests[first].popleft(), 0.0)
        else:
            message = self.links[(first - 1, second - 1)].popleft()
            self.stages[second - 1].handle_peer(first - 1, message, 0.0)
        self.collect()

    def deliver_all(self) -> None:
        """Until nothing is under way."""
        self.collect()
        while deliverable := self.deliverable():
            self.deliver(deliverable[0])


def interleave(drawn: Draw, group_threshold: int) -> Line:
    """Our core, as the choices of a draw say, then until nothing is under way."""
    line = Line.of(drawn.topics, drawn.subscriptions, group_threshold)
    for topic in drawn.publications:
        line.request(topic)
    choices = iter(drawn.choices)
    while deliverable := line.deliverable():
        line.deliver(deliverable[next(choices, 0) % len(deliverable)])
    return line


def follow(topics: tuple[int, ...], subscriptions: Subscriptions, group_threshold: int, schedule: list[str]) -> Line:
    """A schedule of the published algorithm, as far as our line lets it: operations pass every stage, in FIFO order."""
    line = Line.of(topics, subscriptions, group_threshold)
    for step in schedule:
        manager, verb, event = step.split()[:3]
        stage = int(manager[2:])
        if verb == "creates":
            line.request(stage)
            line.deliver((stage, 0))
        else:
            _bring_up(line, int(event[1:].split(".")[0]), stage)
    line.deliver_all()
    return line


def _bring_up(line: Line, topic: int, stage: int) -> None:
    """Deliver what is on the links between a topic's stage and a higher one, which brings its event there."""
    for sender in range(topic, stage, -1):
        while line.links.get((sender - 1, sender - 2)):
            line.deliver((sender, sender - 1))


def notify_all(line: Line, random: Random) -> tuple[dict[str, list[tuple[str, int]]], list[str]]:
    """Give all events to all subscribers, to each in another order: who was notified of what, and who is stuck."""
    notified: dict[str, list[tuple[str, int]]] = {}
    stuck = []
    for name, delivery in line.deliveries.items():
        for arrival in random.sample(line.published, len(line.published)):
            if arrival.topic in delivery.topics:
                delivery.receive(arrival)
        notified[name] = [(n.arrival.topic, n.arrival.number) for n in delivery.take_ready()]
        if delivery.buffered:
            stuck.append(name)
    return notified, stuck
