"""A system is founded once, by its highest stage; the others learn which it is, and stay with it."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.messages import AskKeys, Hello, Keys, NewEpoch, PublishAsk, Request, Secrets
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.storage import MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.core.trust.keys import founded
from ordered_pubsub.errors import SystemMismatch

TWO = Topology((StageSpec("high", ("h",)), StageSpec("low", ("l",))))
REQUEST = Request("c", 1, 1, 0, 0, (PublishAsk("l"),))


def opened(rank: int, journal: MemoryJournal | None = None, name: bytes = b"system-1") -> Driver:
    driver = Driver.open(rank, TWO, journal or MemoryJournal(), founding=founded(name, bytes([rank]) * 32, 0.0))
    driver.stage.peers.unconfirmed = {}
    return driver


def link(high: Driver, low: Driver, until: int = 10) -> None:
    """Connect two stages, and carry what they say until they say no more."""
    for driver, peer in ((high, 1), (low, 0)):
        driver.stage.connected(peer)
    carry(high, low, until)


def carry(high: Driver, low: Driver, rounds: int = 10) -> None:
    for _ in range(rounds):
        for source, target, rank in ((high, low, 0), (low, high, 1)):
            for _, message in source.flush().sends:
                target.handle_peer(rank, message, 0.0)


def test_the_highest_stage_founds_the_system_and_the_other_learns_it() -> None:
    high, low = opened(0), opened(1, name=b"system-2")
    link(high, low)

    assert high.stage.state.keys.system == low.stage.state.keys.system == b"system-1"
    assert high.stage.state.keys.secret == low.stage.state.keys.secret


def test_a_stage_that_knows_no_system_takes_nothing() -> None:
    low = opened(1)
    low.handle_request(REQUEST, 0.0)

    assert not low.stage.is_open
    assert not low.flush().journal[1:]


def test_a_stage_goes_on_with_its_system_after_a_restart() -> None:
    journal = MemoryJournal()
    high, low = opened(0), opened(1, journal)
    link(high, low)
    low.flush()

    assert opened(1, journal, b"system-3").stage.state.keys == high.stage.state.keys


def test_a_system_is_founded_once() -> None:
    journal = MemoryJournal()
    opened(0, journal).flush()

    assert opened(0, journal, b"system-2").stage.state.keys.system == b"system-1"


def test_stages_of_two_systems_do_not_link() -> None:
    high, low = opened(0), opened(1)
    link(high, low)
    other = opened(0, name=b"system-2")
    other.stage.connected(1)
    low.stage.connected(0)
    (hello,) = (message for _, message in other.flush().sends if isinstance(message, Hello))

    with pytest.raises(
        SystemMismatch, match=f"system {b'system-2'.hex()}.*of system {b'system-1'.hex()}.*give it its own"
    ):
        low.handle_peer(0, hello, 0.0)
    assert 0 not in low.stage.peers.greeted


def test_only_the_highest_stage_gives_keys() -> None:
    high, low = opened(0), opened(1)
    link(high, low)

    before = high.stage.state.keys
    high.handle_peer(1, Secrets(founded(b"system-2", bytes(32), 0.0)), 0.0)

    assert high.stage.state.keys == before


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rotation_that_any_stage_wants_reaches_all(rank: int) -> None:
    high, low = opened(0), opened(1)
    link(high, low)
    (high, low)[rank].rotate_keys()
    for _ in range(3):
        low.tick(0.0, 0.0)
        carry(high, low)
        high.tick(0.0, 0.0)
        carry(high, low)

    assert high.stage.state.keys.epoch == low.stage.state.keys.epoch == 2


def lasting(driver: Driver, now: float, wall_s: float) -> list[int]:
    """The epochs whose keys a stage gives at a time."""
    driver.tick(now, wall_s)
    driver.flush()
    driver.handle_subscriber("c", AskKeys("c", ["h"]), now)
    ((_, keys),) = driver.flush().tells
    assert isinstance(keys, Keys)
    return [epoch for epoch, _ in keys.epochs]


def test_a_revoked_epoch_is_over_for_good_also_after_restarts() -> None:
    journal = MemoryJournal()
    high = opened(0, journal)
    high.rotate_keys(revokes=True)
    assert lasting(high, 0.0, 1_000.0) == [1, 3, 4]
    assert lasting(opened(0, journal), 0.0, 1_059.0) == [1, 3, 4]
    assert lasting(opened(0, journal), 0.0, 1_061.0) == [3, 4]
    assert lasting(opened(0, journal), 0.0, 1_000.0) == [3, 4]


def test_what_is_left_of_an_epoch_is_counted_from_its_end_and_not_from_a_restart() -> None:
    journal = MemoryJournal()
    high = opened(0, journal)
    high.rotate_keys(revokes=True)
    lasting(high, 0.0, 1_000.0)
    again = opened(0, journal)
    again.tick(0.0, 1_050.0)
    again.flush()
    again.handle_subscriber("c", AskKeys("c", ["h"]), 0.0)
    ((_, keys),) = again.flush().tells

    assert isinstance(keys, Keys)
    assert keys.epochs[0] == (1, 10.0)


def test_a_wall_clock_that_goes_back_makes_no_epoch_last_longer() -> None:
    high = opened(0)
    high.rotate_keys(revokes=True)
    lasting(high, 0.0, 1_000.0)

    assert lasting(high, 61.0, 500.0) == [3, 4]


def test_a_wall_clock_that_jumps_ends_no_epoch() -> None:
    """What is under way on a topic without a log, and tagged by it, would be lost for good."""
    high = opened(0)
    high.rotate_keys(revokes=True)
    assert lasting(high, 0.0, 1_000.0) == [1, 3, 4]
    assert lasting(high, 1.0, 5_000.0) == [1, 3, 4]
    high.rotate_keys(revokes=True)
    assert lasting(high, 2.0, 9_000.0) == [1, 3, 5, 6]
    assert lasting(high, 60.0, 9_000.0) == [3, 5, 6]


def test_the_other_stages_hear_that_an_epoch_is_over() -> None:
    journal = MemoryJournal()
    high, low = opened(0), opened(1, journal)
    link(high, low)
    high.rotate_keys(revokes=True)
    high.tick(0.0, 0.0)
    carry(high, low)
    assert list(low.stage.state.keys.old) == [1]
    high.tick(61.0, 61.0)
    carry(high, low)

    assert opened(1, journal).stage.state.keys == high.stage.state.keys
    assert not low.stage.state.keys.old


def test_a_stage_that_missed_a_rotation_asks() -> None:
    high, low = opened(0), opened(1)
    link(high, low)
    high.rotate_keys(revokes=True)
    high.tick(0.0, 0.0)
    high.flush()  # what it says is lost
    low.tick(100.0, 0.0)
    carry(high, low)

    assert low.stage.state.keys.epoch == 3


def test_clients_hear_of_another_epoch() -> None:
    high = opened(0)
    high.client_is_here("c")
    high.tick(0.0, 0.0)
    high.flush()
    high.rotate_keys()
    high.tick(1.0, 1.0)

    assert ("c", NewEpoch("c", 2)) in high.flush().tells


def test_a_client_gets_the_keys_of_now_and_of_next() -> None:
    high = opened(0)
    high.tick(0.0, 0.0)
    high.flush()
    high.handle_subscriber("c", AskKeys("c", ["h", "l"]), 0.0)

    ((_, keys),) = high.flush().tells
    assert isinstance(keys, Keys)
    assert ([epoch for epoch, _ in keys.epochs], {t: len(k) for t, k in keys.keys.items()}) == (
        [1, 2],
        {"h": 2, "l": 2},
    )
    assert keys.age_s == 0.0


def test_a_stage_says_how_long_ago_it_has_heard_of_the_epochs() -> None:
    high, low = opened(0), opened(1)
    link(high, low)
    low.tick(1_000.0, 0.0)
    low.flush()
    low.handle_subscriber("c", AskKeys("c", ["h"]), 0.0)

    ((_, keys),) = low.flush().tells
    assert isinstance(keys, Keys)
    assert keys.age_s == 1_000.0
