"""Who has a name: the keeper's side, whatever order things come in."""

from __future__ import annotations

import asyncio
from collections.abc import Container

import attrs
import pytest

from ordered_pubsub.core.messages import ANYBODY, Named
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.naming import NameTable
from ordered_pubsub.core.stage.storage import MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.server.doors.claims import CLAIM_S, SETTLE_S, Claims
from ordered_pubsub.server.doors.names import NameKeeper
from ordered_pubsub.wire.protocol import Claim, Claimed, NamesGranted

HERE, THERE, ELSEWHERE = 0, 1, 2


def claim(session: str = "desk#1", identity: str = "trader", **fields: bool) -> Claim:
    return Claim("desk", session, identity, **fields)


# -- the keeper -------------------------------------------------------------------------------------------------------


def test_a_name_is_given_once() -> None:
    names = NameKeeper()

    assert names.claim(claim(), HERE) == ""
    assert "the name 'desk' is in use by another client" in names.claim(claim("desk#2"), HERE)
    assert names.holders["desk"].session == "desk#1"


def test_only_who_is_the_same_is_told_who_has_it() -> None:
    names = NameKeeper()
    names.claim(claim(), HERE)

    assert "of identity 'trader'" in names.claim(claim("desk#2"), HERE)
    assert "trader" not in names.claim(claim("desk#2", identity="stranger"), HERE)


def test_a_session_takes_its_name_along_to_another_home() -> None:
    names = NameKeeper()
    names.claim(claim(), HERE)

    assert names.claim(claim(), THERE) == ""
    names.release(claim(), HERE)  # the home that it has left notices
    assert names.holders["desk"].home == THERE


def test_only_its_home_gives_a_name_back() -> None:
    names = NameKeeper()
    names.claim(claim(), HERE)
    names.release(claim("desk#2"), HERE)
    names.release(claim(), THERE)
    assert "desk" in names.holders

    names.release(claim(), HERE)

    assert not names.holders


def test_a_home_that_is_back_keeps_what_it_says_and_no_more() -> None:
    names = NameKeeper()
    names.claim(claim(), THERE)
    names.claim(Claim("gone", "gone#1", "trader"), THERE)
    names.claim(Claim("other", "other#1", "trader"), ELSEWHERE)

    assert names.restate([claim()], THERE) == [""]

    assert list(names.holders) == ["desk", "other"]


def test_a_keeper_that_has_forgotten_hears_who_has_its_names() -> None:
    names = NameKeeper()

    assert names.restate([claim()], THERE) == [""]

    assert "in use" in names.claim(claim("desk#2"), HERE)


def test_a_home_that_has_not_noticed_yet_does_not_take_a_name_from_where_its_client_is() -> None:
    names = NameKeeper()
    names.claim(claim(), HERE)
    names.claim(claim(), THERE)

    assert names.restate([claim()], HERE) == [""]

    assert names.holders["desk"].home == THERE


def test_a_home_that_was_away_does_not_get_back_what_another_client_has_now() -> None:
    names = NameKeeper()
    names.claim(claim("desk#2"), HERE)

    (refusal,) = names.restate([claim()], THERE)

    assert "in use" in refusal
    assert names.holders["desk"].session == "desk#2"


# -- the home ---------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Guest:
    """A client with a name."""

    session: str
    name: str | None = "desk"
    identity_name: str = "trader"
    left: list[str] = attrs.field(factory=list)
    is_given_its_name: bool = False
    is_known: bool = False

    def become_known(self) -> None:
        self.is_known = True

    def leave(self, code: str, reason: str) -> None:
        self.left.append(code)


@attrs.define(eq=False)
class Way:
    """A link that notes what is sent on it."""

    is_up: bool = True
    sent: list[object] = attrs.field(factory=list)

    def send(self, message: object) -> None:
        if self.is_up:
            self.sent.append(message)


@attrs.define(eq=False)
class Home:
    """The names of one home stage, whose other stage keeps every name that is asked for."""

    way: Way = attrs.field(factory=Way)
    inside: list[object] = attrs.field(factory=list)
    claims: Claims = attrs.field(init=False)
    keeper: int = 1

    def __attrs_post_init__(self) -> None:
        topology = Topology((StageSpec("s0"), StageSpec("s1")))
        self.keeper = topology.registrar("desk")
        self.claims = Claims(
            1 - self.keeper,
            topology,
            {self.keeper: self.way},
            self.inside.append,
            is_new_system=True,  # type: ignore[arg-type]
            table=NameTable,
            give=lambda claim, in_use: ("", ""),
        )


@pytest.fixture
async def home() -> Home:
    return Home()


async def test_a_client_is_let_in_when_its_name_is_granted(home: Home) -> None:
    guest = Guest("desk#1")
    home.claims.client_came(guest, resumes=False)
    assert home.inside == []

    home.claims.handle_claimed(Claimed("desk", "desk#1", ""))

    assert home.inside == [guest]


async def test_a_client_whose_name_is_refused_is_sent_away(home: Home) -> None:
    guest = Guest("desk#1")
    home.claims.client_came(guest, resumes=False)
    home.claims.handle_claimed(Claimed("desk", "desk#1", "in use", code="name-in-use"))

    assert (home.inside, guest.left) == ([], ["name-in-use"])


async def test_who_resumes_is_let_in_at_once_as_a_guest_until_the_keeper_has_answered(home: Home) -> None:
    guest = Guest("desk#1")
    home.claims.client_came(guest, resumes=True)
    assert (home.inside, guest.is_known) == ([guest], False)

    home.claims.handle_claimed(Claimed("desk", "desk#1", "", "trader"))

    assert (home.inside, guest.is_known) == ([guest], True)


@pytest.mark.parametrize(
    ("session", "identity", "is_known"),
    [
        ("desk#1", "trader", True),
        ("desk#2", "trader", False),
        ("desk#1", "thief", False),
    ],
)
async def test_who_goes_on_under_a_name_that_his_new_home_knows_to_be_his_is_no_guest(
    home: Home, session: str, identity: str, is_known: bool
) -> None:
    """The keeper has told all stages whose it is; so it may be out of reach now."""
    home.claims.handle_claimed(Claimed("desk", "desk#1", "", "trader"))
    home.way.is_up = False
    guest = Guest(session, identity_name=identity)
    home.claims.client_came(guest, resumes=True)
    assert (home.inside, guest.is_known) == ([guest], is_known)


async def test_who_resumes_is_let_in_at_once_and_sent_away_if_the_name_is_another_ones_now(home: Home) -> None:
    guest = Guest("desk#1")
    home.claims.client_came(guest, resumes=True)
    assert home.inside == [guest]

    home.claims.handle_claimed(Claimed("desk", "desk#1", "in use", code="name-in-use"))

    assert guest.left == ["name-in-use"]


async def test_a_claim_without_an_answer_is_made_again_and_given_up_in_the_end(home: Home) -> None:
    guest = Guest("desk#1")
    home.claims.client_came(guest, resumes=False)
    now = asyncio.get_running_loop().time()
    home.claims.sweep(now + 1)
    assert home.way.sent == [claim(), claim()]

    home.claims.sweep(now + CLAIM_S + 1)

    assert guest.left == ["unavailable"]


async def test_of_two_connections_of_a_session_the_older_one_takes_nothing_away_when_it_goes(home: Home) -> None:
    older, newer = Guest("desk#1"), Guest("desk#1")
    home.claims.client_came(older, resumes=False)
    home.claims.client_came(newer, resumes=False)
    home.claims.client_left(older)
    assert home.way.sent == [claim(), claim()]  # and no release

    home.claims.handle_claimed(Claimed("desk", "desk#1", ""))
    assert home.inside == [newer]
    home.claims.client_left(newer)

    assert home.way.sent[-1] == claim(release=True)


async def test_when_a_link_is_there_again_all_its_names_are_said_at_once(home: Home) -> None:
    """Said one by one, somebody else could take one in between."""
    guest, waiting = Guest("desk#1"), Guest("desk#2")
    home.claims.client_came(guest, resumes=False)
    home.claims.handle_claimed(Claimed("desk", "desk#1", ""))
    home.way.is_up = False
    home.claims.client_came(waiting, resumes=False)
    home.way.is_up = True
    home.way.sent.clear()

    home.claims.linked(home.keeper)

    assert home.way.sent == [NamesGranted([claim(resumes=True)]), claim("desk#2")]


async def test_who_is_in_on_its_word_asks_until_there_is_an_answer(home: Home) -> None:
    """A keeper that comes back after a long time is to hear of it."""
    guest = Guest("desk#1")
    home.claims.client_came(guest, resumes=True)
    home.claims.sweep(asyncio.get_running_loop().time() + CLAIM_S + 1)
    home.claims.sweep(asyncio.get_running_loop().time() + CLAIM_S + 2)
    assert home.way.sent == [claim(resumes=True)] * 3

    home.claims.handle_claimed(Claimed("desk", "desk#1", ""))
    home.claims.sweep(asyncio.get_running_loop().time() + CLAIM_S + 3)

    assert (len(home.way.sent), guest.left) == (3, [])


async def test_a_home_does_not_vouch_for_who_is_in_on_its_word(home: Home) -> None:
    guest = Guest("desk#1")
    home.claims.client_came(guest, resumes=True)
    home.way.sent.clear()

    home.claims.linked(home.keeper)

    assert home.way.sent == [NamesGranted([]), claim(resumes=True)]


UNUSED_S = 100.0


@attrs.define(eq=False)
class Keeper:
    """The only stage of a system, with what is on its disk, started again so long ago."""

    journal: MemoryJournal = attrs.field(factory=MemoryJournal)
    most: int = 10
    wall_s: float = 1_000.0
    inside: list[object] = attrs.field(factory=list)
    driver: Driver = attrs.field(init=False)
    claims: Claims = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        topology = Topology((StageSpec("main"),))
        self.driver = Driver.open(0, topology, self.journal)
        self.claims = Claims(
            0,
            topology,
            {THERE: Way()},  # type: ignore[dict-item]
            self.inside.append,  # type: ignore[arg-type]
            is_new_system=False,
            table=lambda: self.driver.stage.state.names,
            give=self.give,
        )

    def give(self, claim: Claim, in_use: Container[str] | None) -> tuple[str, str]:
        named = Named(claim.name, claim.identity, claim.session, self.wall_s)
        return self.driver.stage.gatekeeper.give_name(named, self.most, UNUSED_S, in_use, claim.is_given)

    def settle(self) -> None:
        """What is to be on the disk is there."""
        for name, session in self.driver.flush().named:
            self.claims.handle_given(name, session)

    def is_up_for(self, seconds: float) -> None:
        """Let that much have passed since its start, and everybody ask again."""
        now = asyncio.get_running_loop().time()
        self.claims._started_at = now - seconds
        self.claims.sweep(now)
        self.settle()

    def client_came(self, guest: Guest, resumes: bool = False) -> Guest:
        self.claims.client_came(guest, resumes)
        self.settle()
        return guest

    @property
    def holder(self) -> str | None:
        """The session that has the name."""
        found = self.claims.names.holders.get("desk")
        return None if found is None else found.session


async def test_who_comes_first_has_the_name_and_nobody_is_told_before_it_is_on_disk() -> None:
    keeper, guest = Keeper(), Guest("desk#1")
    keeper.claims.client_came(guest, resumes=False)
    assert keeper.inside == []
    keeper.settle()
    assert (keeper.inside, guest.is_known) == ([guest], True)


@pytest.mark.parametrize("resumes", [True, False])
async def test_after_a_restart_who_had_the_name_has_it_at_once_and_nobody_else(resumes: bool) -> None:
    """Whatever he says, however quick he is, and as long as nobody knows yet who is there."""
    before = Keeper()
    before.client_came(Guest("desk#1"))
    keeper = Keeper(before.journal)
    quick, other = (
        keeper.client_came(Guest("desk#2"), resumes),
        keeper.client_came(Guest("desk#3", identity_name="thief"), resumes),
    )
    assert other.left == ["name-in-use"]
    assert (quick.is_known, keeper.holder) == (False, None)

    owner = keeper.client_came(Guest("desk#1"), resumes=True)
    assert (owner.is_known, keeper.holder) == (True, "desk#1")
    keeper.is_up_for(SETTLE_S)
    assert quick.left == ["name-in-use"]


async def test_another_session_of_its_identity_has_the_name_when_all_homes_could_say_who_is_there() -> None:
    before = Keeper()
    before.client_came(Guest("desk#1"))
    keeper = Keeper(before.journal)
    newcomer = keeper.client_came(Guest("desk#2"))
    keeper.is_up_for(SETTLE_S / 2)
    assert keeper.inside == []
    keeper.is_up_for(SETTLE_S)
    assert (keeper.inside, newcomer.is_known) == ([newcomer], True)


async def test_a_keeper_that_was_started_again_believes_a_home_rather_than_who_says_to_go_on() -> None:
    before = Keeper()
    before.client_came(Guest("desk#1"))
    before.claims.handle_claim(0, claim(release=True))
    before.client_came(Guest("desk#2"))
    keeper = Keeper(before.journal)
    liar = keeper.client_came(Guest("desk#1"), resumes=True)

    keeper.claims.handle_names(THERE, NamesGranted([claim("desk#2", resumes=True)]))
    keeper.is_up_for(SETTLE_S)

    assert keeper.holder == "desk#2"
    assert liar.left == ["name-in-use"]


async def test_a_name_stays_with_its_identity_when_its_client_is_gone() -> None:
    keeper = Keeper()
    first = keeper.client_came(Guest("desk#1"))
    keeper.claims.client_left(first)
    assert keeper.client_came(Guest("desk#2", identity_name="thief")).left == ["name-in-use"]
    assert keeper.client_came(Guest("desk#3")).is_known


async def test_a_name_that_the_configuration_gives_to_an_identity_is_taken_from_who_was_there_first() -> None:
    keeper = Keeper()
    squatter = keeper.client_came(Guest("desk#1", identity_name="squatter"))
    keeper.claims.client_left(squatter)
    assert keeper.client_came(Guest("desk#2", is_given_its_name=True)).is_known
    assert keeper.client_came(Guest("desk#3", identity_name="squatter")).left == ["name-in-use"]


async def test_what_was_everybodys_is_whoevers_comes_first() -> None:
    """There were no identities then, and now there are some."""
    keeper = Keeper()
    first = keeper.client_came(Guest("desk#1", identity_name=ANYBODY))
    keeper.claims.client_left(first)
    assert keeper.client_came(Guest("desk#2")).is_known
    assert keeper.client_came(Guest("desk#3", identity_name="thief")).left == ["name-in-use"]


async def test_an_identity_has_no_more_names_than_it_may_and_loses_those_that_it_does_not_use() -> None:
    keeper = Keeper(most=2)
    guests = [keeper.client_came(Guest(f"{number}#1", f"{number}")) for number in (1, 2)]
    assert all(guest.is_known for guest in guests)
    assert keeper.client_came(Guest("3#1", "3")).left == ["limit"]
    assert keeper.client_came(Guest("4#1", "4", identity_name="another")).is_known
    keeper.claims.client_left(guests[0])
    keeper.is_up_for(SETTLE_S)
    keeper.wall_s += UNUSED_S + 1
    assert keeper.client_came(Guest("5#1", "5")).is_known
    table = keeper.driver.stage.state.names
    assert list(table.names) == ["2", "4", "5"]
    assert table.counts == {"trader": 2, "another": 1}


async def test_a_name_that_a_client_has_is_in_use_however_long_ago_it_got_it() -> None:
    keeper = Keeper(most=1)
    keeper.client_came(Guest("desk#1"))
    keeper.is_up_for(SETTLE_S)
    keeper.wall_s += 8 * UNUSED_S

    assert keeper.client_came(Guest("2#1", "2")).left == ["limit"]
    assert keeper.holder == "desk#1"


async def test_a_name_was_used_until_its_client_left() -> None:
    keeper = Keeper(most=1)
    guest = keeper.client_came(Guest("desk#1"))
    keeper.wall_s += 8 * UNUSED_S
    keeper.claims.client_left(guest)
    keeper.settle()
    keeper = Keeper(keeper.journal, most=1, wall_s=keeper.wall_s + UNUSED_S / 2)
    keeper.is_up_for(SETTLE_S)

    assert keeper.client_came(Guest("2#1", "2")).left == ["limit"]


async def test_a_name_is_taken_from_nobody_before_all_homes_could_say_who_is_there() -> None:
    before = Keeper(most=1)
    before.client_came(Guest("desk#1"))
    keeper = Keeper(before.journal, most=1, wall_s=before.wall_s + 8 * UNUSED_S)
    newcomer = keeper.client_came(Guest("2#1", "2"))
    assert (newcomer.is_known, newcomer.left) == (False, [])
    keeper.claims.handle_names(THERE, NamesGranted([claim("desk#1", resumes=True)]))
    keeper.is_up_for(SETTLE_S)

    assert newcomer.left == ["limit"]
    assert keeper.holder == "desk#1"


async def test_a_name_that_is_used_is_written_down_now_and_then_only() -> None:
    keeper = Keeper()
    for _ in range(10):
        keeper.claims.client_left(keeper.client_came(Guest("desk#1")))
        keeper.settle()
    written = len(keeper.journal.records)
    keeper.wall_s += UNUSED_S / 2
    keeper.claims.client_left(keeper.client_came(Guest("desk#1")))
    keeper.settle()

    assert len(keeper.journal.records) == written + 1


@pytest.mark.parametrize("snapshot", [True, False])
async def test_whose_a_name_is_survives_a_restart(snapshot: bool) -> None:
    keeper = Keeper()
    keeper.client_came(Guest("desk#1"))
    if snapshot:
        keeper.journal.replace(keeper.driver.stage.snapshot())
    table = Keeper(keeper.journal).driver.stage.state.names
    assert table.is_of("desk", "trader", "desk#1")
    assert table.counts == {"trader": 1}
