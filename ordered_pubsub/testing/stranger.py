"""Somebody whom a stage knows, and whom nobody can trust: says what cannot be, and what is not for it to say.

It is at home at one stage, under an identity of its own. Nothing that it says may change anything for others: what it asks for
and must not have is refused, and no stage is told by another one what that one refuses (`check_stages`).
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.checking import COUNT_MAX, POSITION_MAX, SERIAL_MAX
from ordered_pubsub.core.filters import TEXT_LENGTH_MAX
from ordered_pubsub.core.messages import (
    EPOCH_MAX,
    VERSION_MAX,
    Acked,
    Answer,
    AskKeys,
    ChangeAsk,
    Chunk,
    FromSubscriber,
    KeepAlive,
    LeaseRenewal,
    Locate,
    Nack,
    NackRange,
    NotArrivedCounts,
    Progress,
    PublishAsk,
    Refusal,
    Request,
    SeenReply,
    TopicRange,
    VoidAsk,
)
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.testing.world import Babble

if TYPE_CHECKING:
    from ordered_pubsub.testing.simulation import Simulation

IDENTITY = "stranger"
STAY_S = 1.0
SAYS = 8
"""How much it says, and asks for, each time."""
EXTREMES = (
    0,
    1,
    2,
    7,
    COUNT_MAX - 1,
    COUNT_MAX,
    COUNT_MAX + 1,
    POSITION_MAX,
    EPOCH_MAX,
    EPOCH_MAX + 1,
    VERSION_MAX,
    SERIAL_MAX,
    SERIAL_MAX + 1,
    -1,
)
"""Numbers at the edges of what can be."""
SAID: tuple[type[Any], ...] = (
    Nack,
    Progress,
    Acked,
    KeepAlive,
    LeaseRenewal,
    SeenReply,
    VoidAsk,
    Locate,
    AskKeys,
    NotArrivedCounts,
)


@attrs.define(eq=False)
class Stranger:
    """One visit."""

    simulation: Simulation
    babble: Babble
    session: str
    sequence: int = 0
    unwanted: dict[int, str] = attrs.field(factory=dict)
    """requests that must be refused: sequence → what they are"""

    def come(self) -> None:
        """Come, say all of it, and go again."""
        simulation, random = self.simulation, Random(f"babble {self.babble.chance}")
        host, topics = simulation.stages[self.babble.stage], simulation.world.topics
        host.handle("babble", lambda driver: driver.client_is_here(self.session, IDENTITY))
        for _ in range(SAYS):
            said = draw_said(random, self.session, topics)
            if isinstance(said, Acked):
                theirs = random.choice([said.subscription, *simulation.record.subscriptions])
                said = replace(said, subscription=theirs)
            simulation.trace("%s says %s", self.session, said)
            host.handle("babble", partial(self._say, said))
            self._ask(*self._draw_ask(random, random.choice(topics)))
        simulation.after(STAY_S, host.handle, "babble", lambda driver: driver.client_is_gone(self.session))

    def _say(self, said: FromSubscriber, driver: Driver) -> None:
        driver.handle_subscriber(self.session, said, self.simulation.now, IDENTITY)

    def _draw_ask(self, random: Random, topic: str) -> tuple[PublishAsk | ChangeAsk, str]:
        """Something that it must not have, and what it is."""
        is_kept = topic in self.simulation.world.kept
        mine, theirs = f"{self.session}/1", random.choice([*self.simulation.record.subscriptions, "nobody's"])
        return random.choice(
            (
                (PublishAsk(topic, 1, not is_kept, () if is_kept else (Chunk(1, b"\x90"),)), "another level"),
                (PublishAsk(topic, random.choice((0, -1, COUNT_MAX)), False), "no batch"),
                (ChangeAsk(mine, (topic,), opens=1, start={topic: random.choice((-1, COUNT_MAX + 1))}), "no start"),
                (ChangeAsk(mine, (topic,), opens=random.choice((-1, EPOCH_MAX + 1))), "no epoch"),
                (ChangeAsk(mine, (topic,), opens=random.choice((2, 50, EPOCH_MAX))), "another epoch than the first"),
                (ChangeAsk(theirs, opens=random.choice((1, 2, 3))), "what another identity has begun"),
                (
                    ChangeAsk(theirs, ends=True, opens=random.choice((1, 2, 3))),
                    "the end of what another identity has begun",
                ),
                (ChangeAsk(mine, (topic,), weight=7), "no weight"),
                (ChangeAsk(mine, (topic,), where={topic: "x" * (TEXT_LENGTH_MAX + 1)}), "no filter"),
                (ChangeAsk("", (topic,)), "no id"),
            )
        )

    def _ask(self, part: PublishAsk | ChangeAsk, what: str) -> None:
        simulation, host = self.simulation, self.simulation.stages[self.babble.stage]
        self.sequence += 1
        self.unwanted[self.sequence] = what
        # Whether the one before was taken it does not know: this one is the first of an epoch of its own.
        request = Request(self.session, self.sequence, self.sequence, 0, 0, (part,), IDENTITY)
        simulation.trace("%s asks for %s", self.session, part)
        host.handle("babble", lambda driver: driver.handle_request(request, host.wall_clock))

    def answered(self, answer: Answer | Refusal) -> None:
        """A stage has answered: it must not have done what it was asked for."""
        if isinstance(answer, Answer):
            what = self.unwanted.get(answer.sequence, "what nobody asked for")
            self.simulation.record.violation("I13", f"{self.session} was given what it must not have: {what}")


def check_stages(simulation: Simulation) -> None:
    """No stage was told by another one what it had to refuse."""
    for host in simulation.stages:
        for peer, (count, reason) in host.driver.unfit.items() if host.driver is not None else ():
            simulation.record.violation("I13", f"stage {host.rank} dropped {count} messages of stage {peer}: {reason}")


# -- what cannot be, or can just be ---------------------------------------------------------------------------------------


def draw_said(random: Random, session: str, topics: list[str]) -> FromSubscriber:
    """Something that a client may say, or may not, at the edge of what can be."""
    mine, kind = f"{session}/{random.choice('12')}", random.choice(SAID)
    spans = [TopicRange(random.choice(topics), *_draw_stretch(random)) for _ in range(random.randrange(3))]
    if kind is Nack:
        return Nack(mine, [NackRange(span.topic, span.first, span.last, random.random() < 0.5) for span in spans])
    if kind is Progress:
        return Progress(mine, draw_clock(random, topics), random.random() < 0.5, random.choice(EXTREMES))
    if kind is Acked:
        serial, version, position = (random.choice(EXTREMES) for _ in range(3))
        return Acked(mine, session, serial, version, draw_clock(random, topics), position)
    if kind is KeepAlive:
        return KeepAlive(session, random.choice(EXTREMES))
    if kind is LeaseRenewal:
        ranks = random.choice(([], [0], [1], [0, 1], [-1], [0, 0]))
        return LeaseRenewal(session, random.choice(EXTREMES), random.choice(EXTREMES), ranks, spans)
    if kind is SeenReply:
        return SeenReply(
            random.choice(EXTREMES), random.randrange(2), [session], [_draw_stretch(random) for _ in spans]
        )
    if kind is VoidAsk:
        return VoidAsk(session, spans)
    if kind is NotArrivedCounts:
        return NotArrivedCounts(session, {"tag": random.choice(EXTREMES)})
    if kind is AskKeys:
        return AskKeys(session, [span.topic for span in spans], random.choice(EXTREMES))
    at = random.choice((0.0, 1e6, -1e300, float("inf"), float("nan")))
    return Locate(session, random.choice(EXTREMES), list(dict.fromkeys(span.topic for span in spans)), at)


def draw_clock(random: Random, topics: list[str]) -> dict[str, int]:
    """A clock of a few topics, which may be none."""
    return {random.choice(topics): random.choice(EXTREMES) for _ in range(random.randrange(3))}


def _draw_stretch(random: Random) -> tuple[int, int]:
    first, last = sorted((random.choice(EXTREMES), random.choice(EXTREMES)))
    return first, last
