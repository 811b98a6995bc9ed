"""What fits the keys of a configuration, and what they mean."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ordered_pubsub.config.kinds import NAME
from ordered_pubsub.config.reading import read_text
from ordered_pubsub.config.schema import (
    ClientSection,
    Configuration,
    IdentitySection,
    LimitsSection,
    RetentionSection,
    Rights,
    StageSection,
)
from ordered_pubsub.errors import ConfigurationError

HASH = "ab" * 32


# -- defaults ---------------------------------------------------------------------------------------------------------


def test_nothing_needs_to_be_said() -> None:
    assert read_text("") == Configuration()


def test_without_a_stage_there_is_one_at_loopback() -> None:
    (stage,) = Configuration().stages

    assert (stage.name, str(stage.address), stage.durability) == ("main", "ops://127.0.0.1:7411", "fsync")
    assert stage.store == "sqlite:ordered_pubsub-main.db"


def test_without_identities_everybody_is_let_in() -> None:
    assert Configuration().is_anyone_let_in


def test_an_empty_list_of_identities_lets_nobody_in() -> None:
    configuration = read_text("identity = []")

    assert configuration.identity == ()
    assert not configuration.is_anyone_let_in


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("desk-1", True), ("x" * 128, True), ("ümläut", True),
        ("", False), (" x", False), ("x ", False), ("x" * 129, False), ("a\nb", False), (7, False), (None, False),
    ],
)  # fmt: skip
def test_a_name_is_something_that_can_be_shown_and_sent(name: Any, fits: bool) -> None:
    assert NAME.test(name) is fits


# -- what fits --------------------------------------------------------------------------------------------------------


def test_a_client_is_read() -> None:
    client = read_text(
        'client = { ens = "nats://h", sequencer = "ops://a", name = "n", delivery = "best-effort", unordered = "deliver", '
        'linger_s = 0.01, batch_events_max = 100, timeout_s = 5, buffer_events_max = 7, tls = { ca = "ca.pem" } }'
    ).client

    assert (client.ens, client.name, client.delivery, client.unordered) == ("nats://h", "n", "best-effort", "deliver")
    assert (client.linger_s, client.batch_events_max, client.timeout_s, client.buffer_events_max) == (0.01, 100, 5, 7)
    assert client.tls is not None
    assert client.tls.ca == "ca.pem"


def test_one_address_is_a_list_of_one() -> None:
    assert read_text('client.sequencer = "ops://a"').client.sequencer == ("ops://a",)


def test_tls_is_spoken_to_all_stages_if_there_is_a_table_for_it() -> None:
    client = ClientSection(sequencer=["ops://a", "opss://b"])

    assert [address.tls for address in client.addresses] == [False, True]
    assert [address.tls for address in attrs.evolve(client, tls=read_text("client.tls = {}").client.tls).addresses] == [
        True,
        True,
    ]


def test_stages_are_in_the_order_of_the_file() -> None:
    configuration = read_text(
        '[[stage]]\nname = "b"\ntopics = ["x/**"]\n[[stage]]\nname = "a"\nlisten = ":7412"\ntopics = ["**"]'
    )

    assert [stage.name for stage in configuration.stages] == ["b", "a"]
    assert configuration.topology.owner("x/1") == 0
    assert configuration.topology.owner("y") == 1


@pytest.mark.parametrize(
    ("store", "path"),
    [("sqlite:///var/a.db", "/var/a.db"), ("sqlite:a.db", "a.db"), ("sqlite:b/a.db", "b/a.db"), ("memory", None)],
)
def test_a_store_is_a_file_or_memory(store: str, path: str | None) -> None:
    assert StageSection(name="a", store=store).store_path == path


@pytest.mark.parametrize(
    "store",
    ["", "sqlite", "sqlite:", "sqlite://a.db", "sqlite:////a", "sqlite:///", "sqlite::memory:", "redis:x", "a\n"],
)
def test_what_is_no_store_is_refused(store: str) -> None:
    with pytest.raises(
        ConfigurationError, match="store is 'sqlite:///absolute/path', 'sqlite:relative/path' or 'memory'"
    ):
        StageSection(name="a", store=store)


def test_memory_is_not_durable_and_does_not_say_so() -> None:
    assert StageSection(name="a", store="memory").durability == "none"


def test_a_stage_is_reached_where_it_listens_unless_it_says_otherwise() -> None:
    assert str(StageSection(name="a", listen=":1").advertised) == "ops://127.0.0.1:1"
    assert str(StageSection(name="a", listen=":1", advertise="opss://b:2").advertised) == "opss://b:2"


@pytest.mark.parametrize("listen", ["0.0.0.0:7411", "[::]:7411", "127.0.0.1:0"])
def test_where_nobody_can_be_reached_is_not_said_to_be_where_a_stage_is(listen: str) -> None:
    assert StageSection(name="a", listen=listen).advertised is None


def test_a_stage_with_a_certificate_is_reached_by_tls_whatever_the_scheme() -> None:
    text = 'stage = [{ name = "a", advertise = "ops://b:1", tls = { cert = "c", key = "k" } }]'

    assert str(read_text(text).stage[0].advertised) == "opss://b:1"


@pytest.mark.parametrize(
    ("age", "seconds"),
    [("90s", 90), ("30min", 1800), ("12h", 43_200), ("1d", 86_400), ("2w", 1_209_600), (5, 5), (0.5, 0.5)],
)
def test_an_age_is_seconds_or_has_a_unit(age: Any, seconds: float) -> None:
    assert RetentionSection(keep_age=age, max_age="4w").policy.keep_age_s == seconds


@pytest.mark.parametrize(
    ("size", "count"), [("1B", 1), ("10GB", 10**10), ("64MiB", 2**26), ("2kB", 2000), ("1TiB", 2**40), (7, 7)]
)
def test_a_size_is_bytes_or_has_a_unit(size: Any, count: int) -> None:
    assert RetentionSection(max_bytes=size).policy.max_bytes == count


@pytest.mark.parametrize(
    "age", ["", "1", "1 d", "d", "-1d", 0, -1, True, float("nan"), float("inf"), 10**400, [], "1mo"]
)
def test_what_is_no_age_is_refused(age: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_age is seconds above 0"):
        RetentionSection(max_age=age)


@pytest.mark.parametrize("size", ["", "1", "1 GB", "GB", 0, -1, True, 1.5, 10**30, [], "0GB", "1gb"])
def test_what_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_bytes is a number of bytes above 0"):
        RetentionSection(max_bytes=size)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", 2**63, pytest.param(10**5000, id="huge")])
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="connections_max is a whole number from 1 on"):
        LimitsSection(connections_max=value)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "1", 10**400])
def test_what_is_no_number_of_seconds_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout_s is a number of seconds above 0"):
        ClientSection(timeout_s=value)


def test_larger_payloads_make_room_for_larger_frames() -> None:
    limits = LimitsSection(payload_bytes_max=100 << 20)

    assert limits.payload_bytes_max < limits.frame_bytes_max < limits.buffered_bytes_max


def test_a_hash_may_have_capital_letters() -> None:
    assert IdentitySection(name="a", token_sha256=HASH.upper()).token_sha256 == (HASH,)


def test_the_first_topic_that_matches_holds() -> None:
    configuration = read_text('topic = [{ pattern = "a/**" }, { pattern = "**" }]')

    assert configuration.rule_of("a/b") == configuration.topic[0]
    assert configuration.rule_of("b") == configuration.topic[1]


def test_an_unlisted_topic_may_not_exist_if_topics_are_listed() -> None:
    configuration = read_text('topics = "listed"\ntopic = [{ pattern = "a/**" }]')

    assert configuration.is_listed("a/b")
    assert not configuration.is_listed("b")
    assert attrs.evolve(configuration, topics="open").is_listed("b")


# -- rights -----------------------------------------------------------------------------------------------------------


def test_nothing_is_allowed_that_is_not_said() -> None:
    identity = IdentitySection(name="a", token_sha256=HASH)

    assert not any(
        identity.may(right, "x") for right in ("publish", "subscribe", "transact", "move", "administer", "stage")
    )


def test_deny_wins() -> None:
    identity = IdentitySection(
        name="a", allow=Rights(publish=("a/**",), transact=True), deny=Rights(publish=("a/b",), transact=True)
    )

    assert identity.may("publish", "a/c")
    assert not identity.may("publish", "a/b")
    assert not identity.may("transact")


def test_a_right_about_topics_needs_a_topic() -> None:
    assert not IdentitySection(name="a", allow=Rights(publish=("**",))).may("publish")
