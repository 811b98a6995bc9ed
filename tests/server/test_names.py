"""Who has a name: the keeper's side, whatever order things come in."""

from __future__ import annotations

import asyncio

import attrs
import pytest

from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.server.claims import CLAIM_S, SETTLE_S, VOUCH_S, Claims
from ordered_pubsub.server.names import Names
from ordered_pubsub.wire.protocol import Claim, Claimed
from ordered_pubsub.wire.protocol import Names as NamesMessage

HERE, THERE, ELSEWHERE = 0, 1, 2


def claim(session: str = "desk#1", identity: str = "trader", **fields: bool) -> Claim:
    return Claim("desk", session, identity, **fields)


# -- the keeper -------------------------------------------------------------------------------------------------------


def test_a_name_is_given_once() -> None:
    names = Names()

    assert names.claim(claim(), HERE) == ""
    assert "the name 'desk' is in use by another client" in names.claim(claim("desk#2"), HERE)
    assert names.holders["desk"].session == "desk#1"


def test_only_who_is_the_same_is_told_who_has_it() -> None:
    names = Names()
    names.claim(claim(), HERE)

    assert "of identity 'trader'" in names.claim(claim("desk#2"), HERE)
    assert "trader" not in names.claim(claim("desk#2", identity="stranger"), HERE)


def test_a_session_takes_its_name_along_to_another_home() -> None:
    names = Names()
    names.claim(claim(), HERE)

    assert names.claim(claim(), THERE) == ""
    names.release(claim(), HERE)  # the home that it has left notices
    assert names.holders["desk"].home == THERE


def test_only_its_home_gives_a_name_back() -> None:
    names = Names()
    names.claim(claim(), HERE)
    names.release(claim("desk#2"), HERE)
    names.release(claim(), THERE)
    assert "desk" in names.holders

    names.release(claim(), HERE)

    assert not names.holders


def test_a_home_that_is_back_keeps_what_it_says_and_no_more() -> None:
    names = Names()
    names.claim(claim(), THERE)
    names.claim(Claim("gone", "gone#1", "trader"), THERE)
    names.claim(Claim("other", "other#1", "trader"), ELSEWHERE)

    assert names.restate([claim()], THERE) == [""]

    assert list(names.holders) == ["desk", "other"]


def test_a_keeper_that_has_forgotten_hears_who_has_its_names() -> None:
    names = Names()

    assert names.restate([claim()], THERE) == [""]

    assert "in use" in names.claim(claim("desk#2"), HERE)


def test_a_home_that_has_not_noticed_yet_does_not_take_a_name_from_where_its_client_is() -> None:
    names = Names()
    names.claim(claim(), HERE)
    names.claim(claim(), THERE)

    assert names.restate([claim()], HERE) == [""]

    assert names.holders["desk"].home == THERE


def test_a_home_that_was_away_does_not_get_back_what_another_client_has_now() -> None:
    names = Names()
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
        )


@pytest.fixture
async def home() -> Home:
    return Home()


async def test_a_client_is_let_in_when_its_name_is_granted(home: Home) -> None:
    guest = Guest("desk#1")
    home.claims.come(guest, resumes=False)
    assert home.inside == []

    home.claims.handle_claimed(Claimed("desk", "desk#1", ""))

    assert home.inside == [guest]


async def test_a_client_whose_name_is_refused_is_sent_away(home: Home) -> None:
    guest = Guest("desk#1")
    home.claims.come(guest, resumes=False)
    home.claims.handle_claimed(Claimed("desk", "desk#1", "in use"))

    assert (home.inside, guest.left) == ([], ["name-in-use"])


async def test_who_resumes_is_let_in_at_once_and_sent_away_if_the_name_is_another_ones_now(home: Home) -> None:
    guest = Guest("desk#1")
    home.claims.come(guest, resumes=True)
    assert home.inside == [guest]

    home.claims.handle_claimed(Claimed("desk", "desk#1", "in use"))

    assert guest.left == ["name-in-use"]


async def test_a_claim_without_an_answer_is_made_again_and_given_up_in_the_end(home: Home) -> None:
    guest = Guest("desk#1")
    home.claims.come(guest, resumes=False)
    now = asyncio.get_running_loop().time()
    home.claims.sweep(now + 1)
    assert home.way.sent == [claim(), claim()]

    home.claims.sweep(now + CLAIM_S + 1)

    assert guest.left == ["unavailable"]


async def test_of_two_connections_of_a_session_the_older_one_takes_nothing_away_when_it_goes(home: Home) -> None:
    older, newer = Guest("desk#1"), Guest("desk#1")
    home.claims.come(older, resumes=False)
    home.claims.come(newer, resumes=False)
    home.claims.gone(older)
    assert home.way.sent == [claim(), claim()]  # and no release

    home.claims.handle_claimed(Claimed("desk", "desk#1", ""))
    assert home.inside == [newer]
    home.claims.gone(newer)

    assert home.way.sent[-1] == claim(release=True)


async def test_when_a_link_is_there_again_all_its_names_are_said_at_once(home: Home) -> None:
    """Said one by one, somebody else could take one in between."""
    guest, waiting = Guest("desk#1"), Guest("desk#2")
    home.claims.come(guest, resumes=False)
    home.claims.handle_claimed(Claimed("desk", "desk#1", ""))
    home.way.is_up = False
    home.claims.come(waiting, resumes=False)
    home.way.is_up = True
    home.way.sent.clear()

    home.claims.linked(home.keeper)

    assert home.way.sent == [NamesMessage([claim(resumes=True)]), claim("desk#2")]


async def test_who_is_in_on_its_word_asks_until_there_is_an_answer(home: Home) -> None:
    """A keeper that comes back after a long time is to hear of it."""
    guest = Guest("desk#1")
    home.claims.come(guest, resumes=True)
    home.claims.sweep(asyncio.get_running_loop().time() + CLAIM_S + 1)
    home.claims.sweep(asyncio.get_running_loop().time() + CLAIM_S + 2)
    assert home.way.sent == [claim(resumes=True)] * 3

    home.claims.handle_claimed(Claimed("desk", "desk#1", ""))
    home.claims.sweep(asyncio.get_running_loop().time() + CLAIM_S + 3)

    assert (len(home.way.sent), guest.left) == (3, [])


async def test_a_home_does_not_vouch_for_who_is_in_on_its_word(home: Home) -> None:
    guest = Guest("desk#1")
    home.claims.come(guest, resumes=True)
    home.way.sent.clear()

    home.claims.linked(home.keeper)

    assert home.way.sent == [NamesMessage([]), claim(resumes=True)]


@attrs.define(eq=False)
class Keeper:
    """The only stage of a system, started again so long ago."""

    inside: list[object] = attrs.field(factory=list)
    claims: Claims = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        topology = Topology((StageSpec("main"),))
        self.claims = Claims(0, topology, {THERE: Way()}, self.inside.append, is_new_system=False)  # type: ignore[arg-type,dict-item]

    def is_up_for(self, seconds: float) -> None:
        """Let that much have passed since its start, and everybody ask again."""
        now = asyncio.get_running_loop().time()
        self.claims._started_at = now - seconds
        self.claims.sweep(now)

    @property
    def holder(self) -> str | None:
        """The session that has the name."""
        found = self.claims.names.holders.get("desk")
        return None if found is None else found.session


async def test_a_keeper_that_was_started_again_hears_who_goes_on_before_newcomers() -> None:
    keeper, newcomer, owner = Keeper(), Guest("desk#2"), Guest("desk#1")
    keeper.claims.come(newcomer, resumes=False)
    keeper.claims.come(owner, resumes=True)
    keeper.is_up_for(VOUCH_S)
    keeper.is_up_for(SETTLE_S)

    assert keeper.inside == [owner]
    assert newcomer.left == ["name-in-use"]


async def test_a_keeper_that_was_started_again_believes_a_home_rather_than_who_says_to_go_on() -> None:
    keeper, liar = Keeper(), Guest("desk#2")
    keeper.claims.come(liar, resumes=True)
    assert keeper.holder is None

    keeper.claims.handle_names(THERE, NamesMessage([claim(resumes=True)]))
    keeper.is_up_for(VOUCH_S)

    assert keeper.holder == "desk#1"
    assert liar.left == ["name-in-use"]


async def test_a_keeper_that_was_started_again_hears_newcomers_in_the_end() -> None:
    keeper, newcomer = Keeper(), Guest("desk#2")
    keeper.claims.come(newcomer, resumes=False)
    keeper.is_up_for(VOUCH_S)
    assert keeper.inside == []

    keeper.is_up_for(SETTLE_S)

    assert keeper.inside == [newcomer]
