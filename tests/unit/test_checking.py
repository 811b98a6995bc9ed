"""What can be said at all: the same at every door, so that nobody makes two stages fall out with each other."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from ordered_pubsub.core.checking import (
    COUNT_MAX,
    EPOCH_MAX,
    FILTER_LENGTH_MAX,
    ID_LENGTH_MAX,
    SERIAL_MAX,
    TOPICS_MAX,
    check_message,
    check_request,
)
from ordered_pubsub.core.levels import EXACTLY_ONCE, ORDERED, Levels
from ordered_pubsub.core.messages import (
    Acked,
    AckTaken,
    ChangeAsk,
    Chunk,
    FrameTaken,
    Hello,
    Input,
    Launch,
    LinkAck,
    LinkFrame,
    Locate,
    LogRequest,
    NackRange,
    Operation,
    Pass,
    PeerMessage,
    Progress,
    Publication,
    PublishAsk,
    Relay,
    Request,
    RequestTaken,
)
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.journal import encode_input
from ordered_pubsub.core.stage.storage import MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import JournalDamaged, ProtocolError, UsageError
from ordered_pubsub.testing.stranger import draw_clock, draw_said

TWO = Topology((StageSpec("high", ("h/**",)), StageSpec("low", ("**",))))
LEVELS = Levels((("h/loose", ORDERED), ("loose", ORDERED), ("**", EXACTLY_ONCE)))
TOPICS = ["h/a", "h/loose", "a", "loose"]


class Pair:
    """Two stages, linked, that are told everything at once."""

    def __init__(self) -> None:
        self.journals = [MemoryJournal(), MemoryJournal()]
        self.drivers = [Driver.open(rank, TWO, journal, levels=LEVELS) for rank, journal in enumerate(self.journals)]
        self.broken: list[str] = []
        for rank, driver in enumerate(self.drivers):
            driver.stage.connected(1 - rank)
        self.settle(0.0)

    def settle(self, now: float) -> None:
        for rank in (0, 1, 0, 1, 0, 1):
            driver = self.drivers[rank]
            driver.tick(now, 1e6 + now)
            driver.serve()
            for peer, message in driver.flush().sends:
                self.carry(peer, message, now)

    def carry(self, peer: int, message: PeerMessage, now: float) -> None:
        carried = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=PeerMessage)
        try:
            self.drivers[peer].handle_peer(1 - peer, carried, now)
        except ProtocolError as error:
            self.broken.append(str(error))


def draw_asked(random: Random, session: str, sequence: int) -> Request:
    part: PublishAsk | ChangeAsk
    topic = random.choice(TOPICS)
    if random.random() < 0.5:
        is_kept = LEVELS.is_kept(topic)
        part = PublishAsk(topic, 1, is_kept, (Chunk(1, b"x"),) if is_kept else ())
    else:
        opens = random.choice((0, 0, 1, 2, EPOCH_MAX, EPOCH_MAX + 1, SERIAL_MAX, -1))
        start = random.choice((None, draw_clock(random, TOPICS)))
        where = random.choice(({}, {topic: "n > 1"}, {topic: "x" * (FILTER_LENGTH_MAX + 1)}))
        part = ChangeAsk(f"{session}/{random.choice('12')}", (topic,), (), 2, opens=opens, start=start, where=where)
    return Request(session, 1, sequence, sequence - 1, sequence - 1, (part,))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_client_may_say_no_stage_refuses_what_another_one_makes_of_it(seed: int) -> None:
    random, pair = Random(seed), Pair()
    sessions = [(f"c{index}#0", index % 2) for index in range(4)]
    sequences = dict.fromkeys((session for session, _ in sessions), 0)
    refused = taken = 0
    for session, home in sessions:
        pair.drivers[home].client_is_here(session)
    for step in range(300):
        session, home = random.choice(sessions)
        driver = pair.drivers[home]
        if random.random() < 0.3:
            sequences[session] += 1
            driver.handle_request(draw_asked(random, session, sequences[session]), 1e6)
            if not all(reply.sequence != sequences[session] for reply in driver.stage.effects.replies):
                sequences[session] -= 1  # refused, and not taken
        try:
            driver.handle_subscriber(session, draw_said(random, session, TOPICS), step / 4)
            taken += 1
        except ProtocolError:
            refused += 1
        pair.settle(step / 4)
    assert not pair.broken
    assert [driver.unfit for driver in pair.drivers] == [{}, {}]
    assert taken > 50
    assert refused > 50
    for rank, journal in enumerate(pair.journals):  # and a stage starts again with what it has taken
        again = Driver.open(rank, TWO, journal, levels=LEVELS).stage
        assert again.statistics()["topics"] == pair.drivers[rank].stage.statistics()["topics"]


# -- a stage with a bug ---------------------------------------------------------------------------------------------------

UNFIT: dict[str, PeerMessage] = {
    "numbers below 1": LogRequest([NackRange("h/a", 0, 3)]),
    "more than there can be": LogRequest([NackRange("h/a", 1, COUNT_MAX + 1)]),
    "an acknowledgement of what was not sent": LinkAck(7),
    "a request that cannot be": Relay(1, Request("c", 1, 1, 0, 0, (PublishAsk("h/a", 0),))),
    "a request of a stage itself": Relay(1, Request("@expiring-0", 1, 1, 0, 0, (ChangeAsk("s", ends=True),))),
    "a request for another stage": Relay(1, Request("c", 1, 1, 0, 0, (PublishAsk("a"),))),
    "a time that is none": Locate("c", 1, ["h/a"], float("nan")),
    "a rank of nobody": Relay(2, Request("c", 1, 1, 0, 0, (PublishAsk("h/a"),))),
    "a text without end": Acked("x" * (ID_LENGTH_MAX + 1), "c", 1, 1, {}, 1),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_may_get_lost_and_cannot_be_is_dropped_and_counted(what: str) -> None:
    """The link stays: whoever needs an answer asks again, and everybody else has one."""
    pair = Pair()
    high, before = pair.drivers[0], pair.drivers[0].stage.snapshot()
    high.handle_peer(1, UNFIT[what], 0.0)
    high.handle_peer(1, UNFIT[what], 0.0)
    assert high.unfit[1][0] == 2
    assert high.stage.snapshot() == before
    assert not high.stage.has_effects
    assert 1 in high.stage.peers.greeted


@pytest.mark.parametrize(
    "part",
    [
        Publication("h/a", 0, 1.0),
        Publication("h/a", 1, float("nan")),
        Publication("h/a", 1, 1.0, entries={"h/b": -1}),
        Publication("h/a", 2, 1.0, first=COUNT_MAX),
        Publication("h/a", 1, 1.0, is_kept=True, chunks=(Chunk(50, b"x"),)),
        Publication("h/a", 5, 1.0, is_kept=True),
        Publication("h/a", 2, 1.0, is_kept=True, chunks=(Chunk(2, b"x"), Chunk(0, b"x"))),
        Publication("h/a", 1, 1.0, is_kept=True, chunks=(Chunk(1, b""),)),
        Publication("h/a", 1, 1.0, chunks=(Chunk(1, b"x"),)),
        Publication("h/a", 1, 1.0, first=1, is_kept=True, chunks=(Chunk(1, b"x"),)),
    ],
)
def test_what_must_not_get_lost_and_cannot_be_ends_the_link(part: Publication) -> None:
    pair = Pair()
    before = pair.drivers[0].stage.snapshot()
    with pytest.raises(ProtocolError, match=r"has numbers that cannot be|does not bring the events"):
        pair.drivers[0].handle_peer(1, LinkFrame(1, Pass(Operation("c", 1, 1, 1, 1, 1, 0, [part]))), 0.0)
    with pytest.raises(ProtocolError, match="was asked for by nobody"):
        pair.drivers[0].handle_peer(1, LinkFrame(1, Launch(Operation("", 1, 1, 1, 1, 0, 0, []))), 0.0)
    assert pair.drivers[0].stage.snapshot() == before


def test_events_that_no_stage_may_keep_are_refused_before_they_have_a_number() -> None:
    """A frame ends its link; a request that was relayed may get lost, and no other stage is asked to keep its events."""

    def check(part: Publication | PublishAsk) -> None:
        if any(chunk.data != b"good" for chunk in part.chunks):
            raise ProtocolError("events of nobody")

    pair = Pair()
    high, before = pair.drivers[0], pair.drivers[0].stage.snapshot()
    high.check_events = check
    part = Publication("h/a", 1, 1.0, is_kept=True, chunks=(Chunk(1, b"bad"),))
    with pytest.raises(ProtocolError, match="events of nobody"):
        high.handle_peer(1, LinkFrame(1, Launch(Operation("c", 1, 1, 1, 1, 0, 0, [part]))), 0.0)
    high.handle_peer(1, Relay(1, Request("c", 1, 1, 0, 0, (PublishAsk("h/a", 1, True, (Chunk(1, b"bad"),)),))), 0.0)
    assert high.unfit[1] == (1, "events of nobody")
    assert high.stage.snapshot() == before
    high.handle_peer(1, Relay(1, Request("c", 1, 1, 0, 0, (PublishAsk("h/a", 1, True, (Chunk(1, b"good"),)),))), 0.0)
    assert high.stage.waking.given("h/a") == 1


def test_a_link_that_is_greeted_by_a_stage_with_another_topology_is_not_kept() -> None:
    with pytest.raises(ProtocolError, match="another topology"):
        Pair().drivers[0].handle_peer(1, Hello("other", 0), 0.0)


# -- requests -------------------------------------------------------------------------------------------------------------


def requests() -> Iterator[tuple[Request, str]]:
    ask = PublishAsk("a")
    yield Request("c", 1, 1, 1, 0, (ask,)), "comes after 1"
    yield Request("c", 1, -1, -2, 0, (ask,)), "comes after -2"
    yield Request("c", 1, SERIAL_MAX + 1, 0, 0, (ask,)), "none above"
    yield Request("c", 1, 1, 0, -1, (ask,)), "-1 are done"
    yield Request("c", 0, 1, 0, 0, (ask,)), "not 0"
    yield Request("c", EPOCH_MAX + 1, 1, 0, 0, (ask,)), "an epoch from 1"
    yield Request("@expiring-1#00", 1, 1, 0, 0, (ask,)), "no session is called"
    yield Request("c" * (ID_LENGTH_MAX + 1), 1, 1, 0, 0, (ask,)), "no session is called"
    yield Request("c", 1, 1, 0, 0, (ask,), "i" * (ID_LENGTH_MAX + 1)), "nobody can be who asks"
    for publish, says in (
        (PublishAsk("a", 2, True, (Chunk(1, b"x"),)), "brings 1 of them to be kept; expected all"),
        (PublishAsk("a", 2, True, (Chunk(2, b""),)), "with the bytes of at least one"),
        (PublishAsk("a", 1, False, (Chunk(1, b"x"),)), "expected none"),
        (PublishAsk("a", 3, pieces=(2, 2)), "the pieces of a batch of 3 events"),
        (PublishAsk("a", 3, pieces=(3, 0)), "the pieces of a batch of 3 events"),
        (PublishAsk("a", 2, digests=b"x"), "digests of so many bytes"),
    ):
        yield Request("c", 1, 1, 0, 0, (publish,)), says
    for change, says in (
        (ChangeAsk("", ("a",)), "the id of a subscription"),
        (ChangeAsk("s" * (ID_LENGTH_MAX + 1)), "the id of a subscription"),
        (ChangeAsk("s", opens=EPOCH_MAX + 1), "opened in an epoch"),
        (ChangeAsk("s", opens=-1), "opened in an epoch"),
        (ChangeAsk("s", ("a",), opens=1, start={"a": 1 << 60}), "0 to 549755813888, not 1152921504606846976"),
        (ChangeAsk("s", ("a",), opens=1, start={"a": -1}), "not -1"),
        (ChangeAsk("s", ("a",), opens=1, start={"": 1}), "must not be empty"),
        (ChangeAsk("s", ("a",), where={"a": "x" * (FILTER_LENGTH_MAX + 1)}), "a filter has at most"),
        (ChangeAsk("s", tuple(map(str, range(TOPICS_MAX + 1)))), "added or removed at once"),
        (
            ChangeAsk("s", ("a",), opens=1, start=dict.fromkeys(map(str, range(TOPICS_MAX + 1)), 1)),
            "a clock of at most",
        ),
        (ChangeAsk("s", ("a",), where=dict.fromkeys(map(str, range(TOPICS_MAX + 1)), "n > 1")), "filters of at most"),
        (ChangeAsk("s", ("a",), weight=3), "is 0, 1 or 2, not 3"),
    ):
        yield Request("c", 1, 1, 0, 0, (change,)), says


@pytest.mark.parametrize(
    ("request_", "says"), list(requests()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_request_that_cannot_be_is_refused_with_what_could(request_: Request, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_request(request_)


def test_what_is_said_of_what_can_be_names_the_bounds() -> None:
    with pytest.raises(ProtocolError, match=r"numbers are 1 to 549755813888, counts from 0 on, ranks 0 to 1"):
        check_message(Progress("s", {"a": -1}), 2)


# -- records --------------------------------------------------------------------------------------------------------------


def asked(*parts: PublishAsk | ChangeAsk, sequence: int = 1) -> RequestTaken:
    return RequestTaken(Request("c#0", 1, sequence, 0, 0, parts), 0, 0.0)


RECORDS: list[Input] = [
    asked(ChangeAsk("c//s", ("h/a",), opens=1, start={"h/a": 1 << 60})),
    asked(PublishAsk("h/a", 0)),
    asked(PublishAsk("h/a", 1), sequence=SERIAL_MAX + 1),
    AckTaken(Acked("c//s", "c#0", 1, 1, {"h/a": COUNT_MAX + 5}, 1)),
    FrameTaken(1, 1, Pass(Operation("c", 1, 1, 1, 1, 1, 0, [Publication("a", 2, 1.0, first=COUNT_MAX)]))),
    FrameTaken(1, 1, Pass(Operation("c", 1, 1, 7, 1, 1, 0, []))),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_that_says_what_cannot_be_is_damage(record: Input) -> None:
    """Nothing is journalled that was not looked at: by the same bounds, so that nobody is told such numbers."""
    journal = MemoryJournal()
    Driver.open(0, TWO, journal, levels=LEVELS).flush()
    journal.append([encode_input(record)])
    with pytest.raises(
        JournalDamaged, match=r"record \d of the journal, \w+, cannot take effect \((Usage|Protocol)Error"
    ):
        Driver.open(0, TWO, journal, levels=LEVELS)


def test_a_record_that_cannot_take_effect_is_named() -> None:
    journal = MemoryJournal()
    Driver.open(0, TWO, journal, levels=LEVELS).flush()
    strange = FrameTaken(9, 1, Pass(Operation("c", 1, 1, 1, 1, 1, 0, [])))
    journal.append([encode_input(strange)])
    with pytest.raises(JournalDamaged, match=r"record \d of the journal, FrameTaken, cannot take effect"):
        Driver.open(0, TWO, journal, levels=LEVELS)
