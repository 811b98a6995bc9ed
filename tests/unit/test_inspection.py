"""What the broker brings is judged before it arrives."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from ordered_pubsub.core.log.shelf import ENDLESS
from ordered_pubsub.core.messages import EPOCH_MAX, VERSION_MAX, AskKeys, ChangeMark, NewEpoch, Rotate, SystemKeys
from ordered_pubsub.core.trust import inspection as module
from ordered_pubsub.core.trust.authenticity import NO_TAG, Stamp, digest_of, head_of, keyed, tag_of, topic_key
from ordered_pubsub.core.trust.inspection import ARRIVED, WAIT, Inspection
from ordered_pubsub.core.trust.keys import KeyKeeper, Security, founded, rotated

KEYS = founded(b"system-1", bytes(range(32)), 0.0)
STAMP = Stamp(KEYS.system, 1, "p", 1.5, "", False, {"u": 3}, [ChangeMark("s", 1)], 7, "id")
CONTENT = b"content"


def tag(stamp: Stamp, keys: SystemKeys = KEYS, topic: str = "t") -> bytes:
    head = head_of(msgspec.msgpack.encode(stamp), stamp.id)
    return tag_of(keyed(topic_key(keys.secret, stamp.key_epoch, topic)), head, digest_of(CONTENT))


def judged(inspection: Inspection, stamp: Stamp, tagged: bytes | None = None, topic: str = "t") -> str:
    head = head_of(msgspec.msgpack.encode(stamp), stamp.id)
    return inspection.judge(topic, tag(stamp, topic=topic) if tagged is None else tagged, stamp, head, CONTENT)


def ready(keys: SystemKeys = KEYS, has_tags: bool = True, keeper: KeyKeeper | None = None) -> Inspection:
    """One that has the keys of a topic."""
    inspection = Inspection("c", has_tags)
    inspection.hold(["t"])
    give(inspection, keys, keeper)
    return inspection


def give(inspection: Inspection, keys: SystemKeys, keeper: KeyKeeper | None = None) -> list[object]:
    keeper = keeper or KeyKeeper(0, Security(inspection.has_tags))
    return inspection.given(keeper.give(AskKeys("c", ["t"]), keys, inspection.now))


def test_what_a_stage_has_tagged_arrives() -> None:
    assert judged(ready(), STAMP) == ARRIVED


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"system": b"system-2"}, "system"),
        ({"number": 0}, "number"),
        ({"number": -1}, "number"),
        ({"number": ENDLESS}, "number"),
        ({"entries": {"u": ENDLESS}}, "impossible"),
        ({"entries": {"u": 0}}, "impossible"),
        ({"marks": [ChangeMark("s", VERSION_MAX + 1)]}, "impossible"),
        ({"marks": [ChangeMark("s", -1)]}, "impossible"),
        ({"marks": [ChangeMark(f"s{n}", 1) for n in range(17)]}, "impossible"),
        ({"key_epoch": 0}, "epoch"),
        ({"key_epoch": -1}, "epoch"),
        ({"key_epoch": EPOCH_MAX + 1}, "epoch"),
        ({"key_epoch": (1 << 64) - 1}, "epoch"),
    ],
)
def test_what_cannot_be_has_not_arrived_whoever_has_tagged_it(change: dict[str, object], cause: str) -> None:
    assert judged(ready(), replace(STAMP, **change), b"x" * 16) == cause


@pytest.mark.parametrize(("tagged", "cause"), [(b"x" * 16, "tag"), (NO_TAG, "untagged"), (b"short", "untagged")])
def test_what_no_stage_has_tagged_has_not_arrived(tagged: bytes, cause: str) -> None:
    assert judged(ready(), STAMP, tagged) == cause


def test_without_tags_a_number_that_can_be_arrives() -> None:
    assert judged(ready(has_tags=False), STAMP, NO_TAG) == ARRIVED


def test_without_tags_another_system_on_the_topic_is_noticed() -> None:
    inspection = ready(has_tags=False)
    judged(inspection, replace(STAMP, system=b"system-2"), NO_TAG)

    assert inspection.mixed == "t"


def test_with_tags_another_system_on_the_topic_is_none_of_its_business() -> None:
    inspection = ready()
    judged(inspection, replace(STAMP, system=b"system-2"))

    assert not inspection.mixed


# -- keys -------------------------------------------------------------------------------------------------------------


def test_nothing_is_asked_for_before_a_topic_is_held() -> None:
    inspection = Inspection("c")

    assert (inspection.take_due(), inspection.next_due) == ([], None)


def test_keys_are_asked_for_again_until_they_are_there() -> None:
    inspection = Inspection("c", now=10.0)
    inspection.hold(["t"])
    asked = [inspection.take_due(), inspection.take_due()]
    inspection.now = 11.5
    asked.append(inspection.take_due())
    give(inspection, KEYS)
    inspection.now = 20.0

    assert asked == [[AskKeys("c", ["t"])], [], [AskKeys("c", ["t"])]]
    assert inspection.take_due() == []
    assert inspection.is_ready("t")


def test_a_thousand_topics_go_into_a_message() -> None:
    inspection = Inspection("c")
    inspection.hold([f"t{number}" for number in range(2_500)])

    assert [len(ask.topics) for ask in inspection.take_due()] == [1_000, 1_000, 500]


def test_a_refusal_is_no_key_and_is_not_asked_about_again() -> None:
    inspection = Inspection("c")
    inspection.hold(["t"])
    refused = KeyKeeper(0).give(AskKeys("c", []), KEYS, 0.0)
    inspection.given(replace(refused, refused={"t": ("forbidden", "no")}))
    inspection.now = 100.0

    assert inspection.refusal("t") == ("forbidden", "no")
    assert not inspection.is_ready("t")
    assert inspection.take_due() == []


def test_after_a_regular_rotation_nothing_waits() -> None:
    inspection = ready()
    later = rotated(KEYS, 0.0, 3600.0, revokes=False)

    assert judged(inspection, replace(STAMP, key_epoch=later.epoch)) == ARRIVED


def test_a_revocation_leaves_out_the_epoch_whose_key_was_given() -> None:
    inspection = ready()
    later = rotated(KEYS, 0.0, 3600.0, revokes=True)

    assert judged(inspection, replace(STAMP, key_epoch=later.epoch)) == WAIT


def test_what_waits_for_a_key_is_judged_again_when_it_is_there() -> None:
    inspection = ready()
    inspection.wait("t", 3, 10, "it")

    assert inspection.take_due() == [AskKeys("c", ["t"], 3)]
    assert give(inspection, rotated(KEYS, 0.0, 3600.0, revokes=True)) == ["it"]
    assert inspection.counts == {}


def test_what_is_of_no_epoch_has_not_arrived_once_a_stage_has_heard_that_later() -> None:
    """A stage that has heard of the epochs before it came does not know of one that began in between."""
    inspection, keeper = ready(), KeyKeeper(1)
    inspection.now = 10.0
    inspection.wait("t", 9, 10, "it")
    counted = []
    for heard_at, now in ((float("-inf"), 10.0), (9.9, 16.0), (14.9, 24.0), (15.0, 24.0)):
        keeper.heard_at, inspection.now = heard_at, now
        assert give(inspection, KEYS, keeper) == []
        counted.append(inspection.counts.get("epoch", 0))

    assert counted == [0, 0, 0, 1]


def test_the_highest_stage_knows_all_epochs() -> None:
    inspection = ready()
    inspection.wait("t", 9, 10, "it")
    inspection.now = 4.9
    give(inspection, KEYS)
    assert inspection.counts == {}
    inspection.now = 5.0
    give(inspection, KEYS)
    assert inspection.counts == {"epoch": 1}


def test_what_waits_for_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES", 0)
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 100)
    inspection = ready()
    for number in range(5):
        inspection.wait("t", 3, 40, number)
    inspection.wait("t", 3, 90, "large")
    inspection.wait("t", 3, 101, "too large")

    assert inspection.counts == {"epoch": 6}
    assert give(inspection, rotated(KEYS, 0.0, 3600.0, revokes=True)) == ["large"]
    assert inspection._waiting_bytes == 0


def test_what_is_forged_on_some_topics_takes_no_room_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 100 * module.WAITING_BYTES)
    inspection = Inspection("c")
    inspection.hold(["t", "u", "v"])
    for number in range(20):
        inspection.wait("t", 3, 0, number)
    for _ in range(1_000):
        inspection.wait("u", 3, 0, "forged")
        inspection.wait("v", 3, 0, "forged")

    assert give(inspection, rotated(KEYS, 0.0, 3600.0, revokes=True)) == list(range(20))


def test_what_waits_is_asked_for_without_a_look_at_other_topics() -> None:
    """Whoever can write to the broker says how often."""
    inspection = Inspection("c")
    inspection.hold(["t", *(f"t{number}" for number in range(10_000))])
    inspection.take_due()
    looked_at: list[str] = []
    monitored = inspection._topics

    class Watched(dict[str, object]):
        def __iter__(self) -> Iterator[str]:
            for topic in super().__iter__():
                looked_at.append(topic)
                yield topic

        def items(self) -> object:
            looked_at.extend(super().__iter__())
            return super().items()

        values = items

    inspection._topics = Watched(monitored)  # type: ignore[assignment]
    for _ in range(10):
        inspection.wait("t", 3, 0, "forged")
        assert inspection.take_due() == []
        assert inspection.next_due == module.ASK_AGAIN_S

    assert looked_at == []


def test_what_older_keys_have_tagged_is_good_for_a_while() -> None:
    keeper, later = KeyKeeper(0), rotated(KEYS, 0.0, 100.0, revokes=False)
    inspection = ready(later, keeper=keeper)
    inspection.now = 99.0
    good = judged(inspection, STAMP)
    inspection.now = 101.0

    assert (good, judged(inspection, STAMP)) == (ARRIVED, "epoch")


def test_what_is_released_is_asked_for_no_more() -> None:
    inspection = ready()
    inspection.wait("t", 3, 10, "it")
    inspection.release(["t"])

    assert inspection.take_due() == []
    assert not inspection.is_ready("t")


# -- what is said -----------------------------------------------------------------------------------------------------


def test_of_each_topic_and_cause_something_is_said_once_a_minute() -> None:
    inspection = ready()
    for _ in range(5):
        inspection.not_arrived("t", "tag")
    inspection.not_arrived("u", "tag")
    first = [(note.topic, note.events) for note in inspection.take_notes()]
    inspection.now = 61.0
    inspection.not_arrived("t", "tag", 2)

    assert first == [("t", 1), ("u", 1)]
    assert [(note.topic, note.events) for note in inspection.take_notes()] == [("t", 6)]
    assert inspection.counts == {"tag": 8}


def test_what_is_remembered_of_what_was_said_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAID_MAX", 10)
    inspection = ready()
    for number in range(100):
        inspection.not_arrived(f"t{number}", "tag")

    assert len(inspection._said) == 10


# -- the keeper -------------------------------------------------------------------------------------------------------


def test_keys_are_rotated_when_they_are_as_old_as_the_configuration_says() -> None:
    keeper = KeyKeeper(0, Security(rotate_every_s=100.0))

    assert keeper.take_due(KEYS, 99.0) is None
    assert keeper.take_due(KEYS, 100.0) == Rotate(1)


def test_a_rotation_that_was_wanted_twice_happens_once() -> None:
    keeper = KeyKeeper(0)
    keeper.want(KEYS, revokes=True)
    keeper.want(KEYS, revokes=False)

    assert keeper.take_due(KEYS, 0.0) == Rotate(1, revokes=True)
    assert keeper.take_due(KEYS, 0.0) is None


def test_a_stage_asks_for_a_rotation_until_it_has_happened() -> None:
    keeper = KeyKeeper(1)
    keeper.want(KEYS, revokes=True)
    asked = [ask for _ in range(2) for ask in keeper.take_asks(KEYS, 0.0) if isinstance(ask, Rotate)]
    later = keeper.take_asks(rotated(KEYS, 0.0, 1.0, revokes=True), 0.0)

    assert asked == [Rotate(1, revokes=True)] * 2
    assert later == []


def test_clients_are_told_of_an_epoch_once() -> None:
    keeper = KeyKeeper(0)

    assert keeper.take_news(KEYS, ["c"]) == [("c", NewEpoch("c", 1))]
    assert keeper.take_news(KEYS, ["c"]) == []


def test_a_revocation_shortens_what_older_keys_are_good_for() -> None:
    keys = rotated(rotated(KEYS, 0.0, 3600.0, revokes=False), 0.0, 3600.0, revokes=True)

    assert (keys.epoch, keys.old) == (4, {1: 60.0, 2: 60.0})


def test_what_is_left_of_older_epochs_is_not_made_longer_by_another_one() -> None:
    keeper, keys, old = KeyKeeper(0), KEYS, []
    for now in (0.0, 70.0, 110.0):
        keeper.note(keys, now, now)
        keys = rotated(replace(keys, old=keeper.left(keys, now)), now, 100.0, revokes=False)
        keeper.note(keys, now)
        old.append(keys.old)

    assert old == [{1: 100.0}, {1: 30.0, 2: 100.0}, {2: 60.0, 3: 100.0}]


def test_the_older_epochs_that_are_remembered_are_bounded() -> None:
    keys = KEYS
    for _ in range(50):
        keys = rotated(keys, 0.0, 1e9, revokes=False)

    assert list(keys.old) == list(range(43, 51))


def test_a_secret_is_in_no_text() -> None:
    keeper = KeyKeeper(0)

    assert repr(KEYS.secret) not in repr(KEYS)
    assert repr(keeper.give(AskKeys("c", ["t"]), KEYS, 0.0)).count("\\x") == 0
