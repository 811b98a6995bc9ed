"""No two topics share a name, whatever a broker makes of names."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ordered_pubsub.core.topics import TOPIC_LENGTH_MAX, check_topic
from ordered_pubsub.errors import TopicError
from ordered_pubsub_adapters.names import CUT, NameRules, NameTable

MQTT = NameRules(separator="/", special="+#", bytes_max=65_535, reserved=("$",))
NATS = NameRules(separator=".", special="*>", bytes_max=4_096, reserved=("$", "_INBOX"))
AMQP = NameRules(separator=".", special="*#", bytes_max=255)
SHORT = NameRules(separator=".", special="*#", bytes_max=40)
RULES = pytest.mark.parametrize("rules", [MQTT, NATS, AMQP, SHORT], ids=["mqtt", "nats", "amqp", "short"])


def is_topic(text: str) -> bool:
    try:
        check_topic(text)
    except TopicError:
        return False
    return True


# Few characters, those with a meaning for somebody, so that topics nearly meet; and any characters at all.
NEAR = st.text("a/.%$+#>~_25EB \u00a0\u3000\ufffeé", min_size=1, max_size=12)
PREFIXED = st.builds(
    lambda start, rest: start + rest, st.sampled_from(["$SYS", "_INBOX", "%24", "%5F", "%~", "a%2E"]), NEAR
)
LONG = st.builds(lambda size, rest: "é/" * size + rest, st.integers(100, 120), NEAR)
ANY = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=TOPIC_LENGTH_MAX)
TOPICS = st.one_of(NEAR, PREFIXED, LONG, ANY).filter(is_topic)


@RULES
@given(one=TOPICS, other=TOPICS)
@example(one="a.b", other="a/b")
@example(one="a/b", other="a%2Fb")
@example(one="$a", other="%24a")
@example(one="é" * 255, other="é" * 254 + "è")
def test_no_two_topics_share_a_name(rules: NameRules, one: str, other: str) -> None:
    assume(one != other)

    assert rules.name_of(one) != rules.name_of(other)


@RULES
@given(topics=st.lists(TOPICS, unique=True, max_size=30))
def test_no_two_of_many_topics_share_a_name(rules: NameRules, topics: list[str]) -> None:
    assert len({rules.name_of(topic) for topic in topics}) == len(topics)


@RULES
@given(topic=TOPICS)
def test_a_name_has_nothing_that_a_broker_understands_but_its_separators(rules: NameRules, topic: str) -> None:
    name = rules.name_of(topic)

    assert not set(name) & set(rules.special)
    assert len(name.encode()) <= rules.bytes_max
    assert not name.startswith(rules.reserved or ("\x00",))
    if CUT not in name:
        assert name.count(rules.separator) == topic.count("/")


@RULES
@given(topic=TOPICS)
def test_a_name_has_no_empty_level(rules: NameRules, topic: str) -> None:
    assert "" not in rules.name_of(topic).split(rules.separator)


@RULES
@given(
    text=st.text(min_size=1, max_size=50),
    unfit=st.sampled_from("\x00\r\n\t\x1f \x7f\x85\u2028\u00a0\ufdd0\uffff\U0001ffff"),
)
def test_control_characters_white_space_and_non_characters_do_not_cross(
    rules: NameRules, text: str, unfit: str
) -> None:
    """Not even from topics that were never checked."""
    name = rules.name_of((text + unfit + text).encode(errors="ignore").decode())

    assert unfit not in name
    assert not any(character.isspace() or ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in name)
    assert not any(ord(character) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(character) <= 0xFDEF for character in name)


@pytest.mark.parametrize(
    ("rules", "topic", "name"),
    [
        (MQTT, "eu/trades", "eu/trades"),
        (MQTT, "eu/trades.v2", "eu/trades.v2"),
        (MQTT, "Zürich/日本", "Zürich/日本"),
        (MQTT, "a+b/#", "a%2Bb/%23"),
        (MQTT, "$SYS/broker", "%24SYS/broker"),
        (MQTT, "a/$b", "a/$b"),
        (MQTT, "100%", "100%25"),
        (MQTT, "a b", "a%20b"),
        (NATS, "eu/trades.v2", "eu.trades%2Ev2"),
        (NATS, "_INBOX/1", "%5FINBOX.1"),
        (NATS, "a/>", "a.%3E"),
        (AMQP, "eu/trades/#", "eu.trades.%23"),
    ],
)
def test_ordinary_topics_look_the_same_on_the_broker(rules: NameRules, topic: str, name: str) -> None:
    assert rules.name_of(topic) == name


def test_a_name_that_is_too_long_is_cut_between_characters() -> None:
    name = AMQP.name_of("é" * 200)

    assert len(name.encode()) in (254, 255)
    assert name.startswith("é" * 100)
    assert CUT in name


# -- tables --------------------------------------------------------------------------------------------------------------


def test_a_table_knows_the_topics_that_are_subscribed_to() -> None:
    table = NameTable(NATS)

    assert table.subscribe("a/b") == "a.b"
    assert table.topic_of("a.b") == "a/b"
    assert table.subscribed == ["a.b"]


def test_a_table_forgets_topics_that_are_not_subscribed_to_any_more() -> None:
    table = NameTable(NATS)
    table.subscribe("a/b")

    assert table.unsubscribe("a/b") == "a.b"
    assert table.topic_of("a.b") is None
    assert table.subscribed == []


def test_a_table_knows_no_topic_of_a_name_that_is_only_published_on() -> None:
    table = NameTable(NATS)
    table.name_of("a/b")

    assert table.topic_of("a.b") is None


def test_a_table_keeps_few_names_and_all_subscriptions() -> None:
    table = NameTable(MQTT, names_max=3)
    table.subscribe("kept")
    names = [table.name_of(f"topic/{number}+") for number in range(10)]

    assert names == [f"topic/{number}%2B" for number in range(10)]
    assert table.name_of.cache_info().currsize <= 3
    assert table.topic_of("kept") == "kept"
