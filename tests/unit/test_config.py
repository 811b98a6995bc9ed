"""What a configuration file, the environment and arguments say, and what is said when they do not fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.client.settings import Settings, check_name
from ordered_pubsub.config import lines
from ordered_pubsub.config.dumping import common, differences, dump
from ordered_pubsub.config.kinds import NAME, redacted, shown
from ordered_pubsub.config.reading import DEFAULT_FILE, FILE_BYTES_MAX, load, parse, read_tables, read_text
from ordered_pubsub.config.records import keys_of
from ordered_pubsub.config.schema import (
    ClientSection,
    Configuration,
    IdentitySection,
    LimitsSection,
    Retention,
    Rights,
    StageSection,
)
from ordered_pubsub.errors import ConfigurationError, NotOffered

HASH = "ab" * 32
TOKEN = "a-token-that-is-long-enough-to-be-one"


def refusal(text: str, name: str = "o.toml") -> str:
    """Why a text is refused."""
    with pytest.raises(ConfigurationError) as caught:
        read_text(text, name)
    return str(caught.value)


def load_refusal(*args: Any, **options: Any) -> str:
    """Why `load` refuses."""
    with pytest.raises(ConfigurationError) as caught:
        load(*args, **options)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder in which no file is found by chance."""
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = DEFAULT_FILE) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


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


def test_the_settings_of_a_client_have_the_defaults_that_connect_has() -> None:
    defaults = {field.name: field.default for field in attrs.fields(Settings) if field.name != "serializer"}

    assert defaults == {name: getattr(ClientSection(), name) for name in defaults}


@pytest.mark.parametrize("name", ["desk-1", "x" * 128, "ümläut", "", " x", "x ", "x" * 129, "a\nb", 7, None])
def test_a_name_fits_where_it_fits_connect(name: Any) -> None:
    try:
        fits = bool(check_name(name))
    except ConfigurationError:
        fits = False

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
    "store", ["", "sqlite", "sqlite:", "sqlite://a.db", "sqlite:////a", "sqlite:///", "sqlite::memory:", "redis:x", "a\n"]
)
def test_what_is_no_store_is_refused(store: str) -> None:
    with pytest.raises(ConfigurationError, match="store is 'sqlite:///absolute/path', 'sqlite:relative/path' or 'memory'"):
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
    ("age", "seconds"), [("90s", 90), ("30min", 1800), ("12h", 43_200), ("1d", 86_400), ("2w", 1_209_600), (5, 5), (0.5, 0.5)]
)
def test_an_age_is_seconds_or_has_a_unit(age: Any, seconds: float) -> None:
    assert Retention(keep_age=age, max_age="4w").keep_age_s == seconds


@pytest.mark.parametrize(
    ("size", "count"), [("1B", 1), ("10GB", 10**10), ("64MiB", 2**26), ("2kB", 2000), ("1TiB", 2**40), (7, 7)]
)
def test_a_size_is_bytes_or_has_a_unit(size: Any, count: int) -> None:
    assert Retention(max_bytes=size).max_size == count


@pytest.mark.parametrize("age", ["", "1", "1 d", "d", "-1d", 0, -1, True, float("nan"), float("inf"), 10**400, [], "1mo"])
def test_what_is_no_age_is_refused(age: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_age is seconds above 0"):
        Retention(max_age=age)


@pytest.mark.parametrize("size", ["", "1", "1 GB", "GB", 0, -1, True, 1.5, 10**30, [], "0GB", "1gb"])
def test_what_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_bytes is a number of bytes above 0"):
        Retention(max_bytes=size)


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

    assert not any(identity.may(right, "x") for right in ("publish", "subscribe", "transact", "move", "administer", "stage"))


def test_deny_wins() -> None:
    identity = IdentitySection(
        name="a", allow=Rights(publish=("a/**",), transact=True), deny=Rights(publish=("a/b",), transact=True)
    )

    assert identity.may("publish", "a/c")
    assert not identity.may("publish", "a/b")
    assert not identity.may("transact")


def test_a_right_about_topics_needs_a_topic() -> None:
    assert not IdentitySection(name="a", allow=Rights(publish=("**",))).may("publish")


# -- errors say where, what and what else -----------------------------------------------------------------------------


def test_a_bad_value_names_file_line_key_and_what_fits() -> None:
    text = '[[stage]]\nname = "a"\n\n[[stage]]\n# a comment\nname = "b"\ndurability = "fsyn"\n'

    assert refusal(text) == (
        "o.toml, line 7: stage[1].durability='fsyn' does not fit; durability is one of \"fsync\", \"os\", \"none\" "
        "(did you mean 'fsync')"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[clint]", "line 1: clint is unknown; did you mean 'client'; known here: client, stage"),
        ('[client]\nname = "x"\nnam = 1', "line 3: client.nam is unknown; did you mean 'name'; known here: ens, "),
        ('[client]\nlisten = "x"', "line 2: client.listen is unknown; 'listen' belongs into [[stage]]; known here"),
        ("[limits]\ntopics = 1", "'topics' belongs into the top of the file, before any table or [[stage]] or [[group]]"),
        ('"a b" = 1', "line 1: 'a b' is unknown"),
        ("[[stage]]\n", "line 1: stage[0] has no 'name'; name is 1 to 64 letters"),
        ('[stage]\nname = "a"', "line 1: stage=(a table) does not fit; stage is a list of tables (each begins with [[stage]]"),
        ("[[client]]", "line 1: client=[(a table)] does not fit; client is a table (it begins with [client]"),
        ("client = 3", "line 1: client=3 does not fit; client is a table"),
        ("stage = [1]", "line 1: stage[0]=1 does not fit; stage is a table"),
        ("limits.connections_max = true", "limits.connections_max=true does not fit; connections_max is a whole number"),
        ('[[stage]]\nname = "a"\ntopics = ["a", "b//c"]', "line 3: stage[0].topics[1]='b//c' does not fit; topics is a list"),
        ('[[stage]]\nname = "a"\ntopics = "a"', "stage[0].topics='a' does not fit; topics is a list of topic patterns"),
        ('[[stage]]\nname = "a/b"', "stage[0].name='a/b' does not fit; name is 1 to 64 letters, digits, '-', '_' and '.'"),
        ('[client]\nens = "h:1883"', "client.ens='h:1883' does not fit; ens is the URL of a broker"),
        ('[client]\nsequencer = ["ops://a", "http://b"]', "client.sequencer[1]='http://b' does not fit"),
        ('[[topic]]\npattern = "a*"', "topic[0].pattern='a*' does not fit"),
        ('[[group]]\ntopics = ["a"]', "group[0].topics=['a'] does not fit; topics is a list of two or more topics"),
        ('[[group]]\ntopics = ["a", "*"]', "group[0].topics[1]='*' does not fit"),
        ('[[identity]]\nname = "a"\nallow = { publsh = [] }', "line 3: identity[0].allow.publsh is unknown; did you mean 'publish'"),
        ("topics = 1979-05-27", "topics=datetime.date(1979, 5, 27) does not fit"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(text: str, says: str) -> None:
    assert says in refusal(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[limits", "o.toml is not valid TOML: "),
        ("a = 1\na = 2", "o.toml is not valid TOML: "),
        ("a = " + "9" * 5000, "o.toml is not valid TOML: "),
        ("a = " + "[" * 100_000, "o.toml is "),
        ("stage = [{ name = 0x" + "f" * 5000 + " }]", "stage[0].name=(a number that is too large to be shown) does not fit"),
        ("limits.connections_max = 0x" + "f" * 5000, "limits.connections_max=(a number that is too large to be shown) does not"),
    ],
)  # fmt: skip
def test_what_is_no_toml_is_said(text: str, says: str) -> None:
    assert says in refusal(text)


def test_a_token_in_the_file_is_refused_and_not_shown() -> None:
    said = refusal(f'[client]\ntoken = "{TOKEN}"')

    assert said.startswith("o.toml, line 2: client.token is not written here")
    assert "token_file" in said
    assert TOKEN not in said


def test_a_token_in_the_place_of_its_hash_is_not_shown() -> None:
    said = refusal(f'[[identity]]\nname = "a"\ntoken_sha256 = "{TOKEN}"')

    assert f"identity[0].token_sha256[0] ({len(TOKEN)} characters, not shown) does not fit" in said
    assert TOKEN not in said


@pytest.mark.parametrize(
    "text",
    [
        '[client]\nens = ["mqtt://user:secret@h"]',
        '[client]\nens = "mqtt ://user:secret@h"',
        '[client]\nens = "mqtt://h?password=secret x"',
        '[client]\nsequencer = "ops://user:secret@h"',
        '[[client]]\nens = "mqtt://user:secret@h"',
        '[client]\npasword = "secret"',
    ],
)
def test_a_password_is_never_shown(text: str) -> None:
    assert "secret" not in refusal(text)


@pytest.mark.parametrize(
    ("url", "shows"),
    [
        ("nats://h:1", "nats://h:1"),
        ("nats://token@h", "nats://***@h"),
        ("nats://u:p@ss/w@h", "nats://***@h"),
        ("mqtt://h?qos=1&password=x&y=2", "mqtt://h?qos=1&password=***&y=2"),
        ("nats://h?Auth_Token=x", "nats://h?Auth_Token=***"),
        ("a@b", "a@b"),
    ],
)
def test_what_may_be_a_password_is_replaced(url: str, shows: str) -> None:
    assert redacted(url) == shows


def test_whatever_is_shown_is_short() -> None:
    for value in ("x" * 500, "x" * 10**6, ["y" * 500] * 500, [[[[["z"]]]]] * 50, 10**4000, 10**9999, b"0" * 999):
        assert len(shown(value)) < 700


def test_the_representation_of_a_configuration_shows_no_secret() -> None:
    client = ClientSection(ens="mqtt://user:secret@h", token=TOKEN)

    assert "secret" not in repr(client)
    assert TOKEN not in repr(client)


def test_a_record_that_is_made_by_hand_is_checked_as_well() -> None:
    with pytest.raises(ConfigurationError, match="listen='x:y' does not fit; listen is an address to listen at"):
        StageSection(name="a", listen="x:y")


# -- lines ------------------------------------------------------------------------------------------------------------


def test_the_line_of_each_key_is_found() -> None:
    text = '''\
# a comment
topics = "open"

[client]
  sequencer = [
    "ops://a",  # = [
    "ops://b",
  ]
name = """
[limits]
"""
tls.ca = "x"
tls = 1
'''.replace("tls = 1\n", "")
    found = lines.find_lines(text)

    assert found["topics",] == 2
    assert found["client",] == 4
    assert found["client", "sequencer", 1] == 5
    assert found["client", "name"] == 9
    assert found["client", "tls", "ca"] == 12
    assert ("limits",) not in found


def test_tables_within_lists_are_counted() -> None:
    text = '[[stage]]\nname = "a"\n[stage.tls]\ncert = "c"\n[["stage"]] # two\r\n\r\nname = "b"\n[ stage . tls ]\nkey = "k"\n'
    found = lines.find_lines(text)

    assert found["stage", 0, "tls", "cert"] == 4
    assert found["stage", 1] == 5
    assert found["stage", 1, "name"] == 7
    assert found["stage", 1, "tls", "key"] == 9


def test_after_a_very_long_statement_no_lines_are_known_and_none_is_wrong() -> None:
    text = "topics = 1\nstage = [\n" + "# x\n" * 200 + "]\nlimits = 2\n"

    assert lines.find_lines(text) == {("topics",): 1}
    assert refusal(text.replace("topics = 1", "")) == "o.toml: limits=2 does not fit; limits is a table"


@given(st.lists(st.sampled_from(["[client]", "[[stage]]", "[stage.tls]", "a = 1", "a.b = [\n1,\n]", 'c = """\n[x]\n"""', ""])))
def test_a_line_that_is_found_is_where_its_statement_begins(statements: list[str]) -> None:
    text = "\n".join(statements)
    try:
        parse(text)
    except ConfigurationError:
        return
    rows = text.split("\n")
    for path, line in lines.find_lines(text).items():
        words = rows[line - 1]
        assert any(part in words for part in path if isinstance(part, str)), (path, line)


# -- later releases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[client]\ndelivery = "exactly-once"', "line 2: client.delivery='exactly-once' is not available yet"),
        ('[[topic]]\npattern = "**"\ndelivery = "exactly-once"', "line 3: topic[0].delivery='exactly-once' is not available yet"),
        ('[[group]]\ntopics = ["a", "b"]', "line 1: group[0] is not available yet"),
    ],
)  # fmt: skip
def test_what_a_later_release_brings_is_read_and_refused_by_name(text: str, says: str) -> None:
    read_text(text)
    write(text)

    with pytest.raises(NotOffered) as caught:
        load(environ={})
    assert says in str(caught.value)


def test_what_a_later_release_brings_is_checked_already() -> None:
    retention = 'topic = [{ pattern = "**", delivery = "exactly-once", retention = { keep_age = "1x" } }]'

    assert "topic[0].retention.keep_age='1x' does not fit" in refusal(retention)


# -- files, environment, arguments ------------------------------------------------------------------------------------


def test_no_file_is_fine() -> None:
    loaded = load(environ={})

    assert loaded.path is None
    assert loaded.configuration == Configuration()


def test_a_file_in_the_current_folder_is_found() -> None:
    write('client.name = "a"')

    assert (load(environ={}).path, load(environ={}).configuration.client.name) == (DEFAULT_FILE, "a")


def test_an_argument_names_another_file_than_the_environment_and_that_another_than_the_folder() -> None:
    write('client.name = "folder"')
    environ = {"ORDERED_PUBSUB_CONFIG": str(write('client.name = "environment"', "e.toml"))}
    argument = str(write('client.name = "argument"', "a.toml"))

    assert load(argument, environ).configuration.client.name == "argument"
    assert load(None, environ).configuration.client.name == "environment"


def test_arguments_go_over_the_environment_and_that_over_the_file() -> None:
    write('[client]\nname = "file"\ntimeout_s = 1\nttl_s = 1')
    loaded = load(
        environ={"ORDERED_PUBSUB_TIMEOUT_S": "2", "ORDERED_PUBSUB_TTL_S": "2"}, arguments={"ttl_s": 3, "name": None}
    )
    client = loaded.configuration.client

    assert (client.name, client.timeout_s, client.ttl_s) == ("file", 2, 3)
    assert loaded.environment == (
        ("ORDERED_PUBSUB_TIMEOUT_S", "client.timeout_s"),
        ("ORDERED_PUBSUB_TTL_S", "client.ttl_s"),
    )


def test_every_key_of_the_client_has_a_variable() -> None:
    environ = {
        "ENS": "nats://h", "SEQUENCER": "ops://a, ops://b:1", "NAME": "n", "DELIVERY": "ordered", "TOKEN": TOKEN,
        "TOKEN_FILE": "t", "TLS_CA": "ca", "TLS_CERT": "cert", "TLS_KEY": "key", "UNORDERED": "deliver", "LINGER_S": "0.5",
        "BATCH_EVENTS_MAX": "9", "TIMEOUT_S": "1.5", "PIPELINE_EVENTS_MAX": "1", "PIPELINE_BYTES_MAX": "2",
        "PAYLOAD_BYTES_MAX": "3", "QUEUE_EVENTS_MAX": "4", "QUEUE_BYTES_MAX": "5", "BUFFER_EVENTS_MAX": "6", "TTL_S": "7",
    }  # fmt: skip
    client = load(environ={f"ORDERED_PUBSUB_{key}": value for key, value in environ.items()}).configuration.client

    assert {key for key in keys_of(ClientSection) if getattr(client, key) == getattr(ClientSection(), key)} == set()
    assert client.sequencer == ("ops://a", "ops://b:1")
    assert client.tls is not None
    assert (client.tls.ca, client.tls.cert, client.tls.key) == ("ca", "cert", "key")
    assert (client.linger_s, client.batch_events_max, client.ttl_s) == (0.5, 9, 7)


def test_a_part_of_a_table_can_be_changed() -> None:
    write('client.tls = { ca = "ca", cert = "a", key = "a.key" }')
    environ = {"ORDERED_PUBSUB_TLS_CERT": "b", "ORDERED_PUBSUB_TLS_KEY": "b.key"}
    tls = load(environ=environ, arguments={"tls": {"key": "c.key"}}).configuration.client.tls

    assert tls is not None
    assert (tls.ca, tls.cert, tls.key) == (os.path.abspath("ca"), "b", "c.key")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TIMEOUT_S", "soon", "ORDERED_PUBSUB_TIMEOUT_S: client.timeout_s='soon' does not fit; timeout_s is a number of seconds"),
        ("TTL_S", "nan", "ORDERED_PUBSUB_TTL_S: client.ttl_s=nan does not fit"),
        ("QUEUE_EVENTS_MAX", "1.5", "client.queue_events_max='1.5' does not fit; queue_events_max is a whole number from 1 on"),
        ("SEQUENCER", "ops://a,b", "ORDERED_PUBSUB_SEQUENCER: client.sequencer[1]='b' does not fit"),
        ("TIMOUT_S", "1", "ORDERED_PUBSUB_TIMOUT_S is unknown; did you mean 'ORDERED_PUBSUB_TIMEOUT_S'; known are "),
        ("PORT", "7411", "ORDERED_PUBSUB_PORT is unknown"),
        ("CLIENT_ENS", "x", "ORDERED_PUBSUB_CLIENT_ENS is unknown"),
    ],
)  # fmt: skip
def test_a_bad_variable_is_named(name: str, value: str, says: str) -> None:
    assert says in load_refusal(environ={f"ORDERED_PUBSUB_{name}": value})


def test_a_bad_token_in_the_environment_is_not_shown() -> None:
    said = load_refusal(environ={"ORDERED_PUBSUB_TOKEN": "secret"})

    assert "ORDERED_PUBSUB_TOKEN: client.token (6 characters, not shown) does not fit" in said
    assert "secret" not in said


def test_an_empty_variable_is_not_set() -> None:
    assert load(environ={"ORDERED_PUBSUB_NAME": "", "ORDERED_PUBSUB_CONFIG": ""}).configuration == Configuration()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SEEDS", "60"),
        ("TEST_BROKER", "x"),
        ("SERVICE_HOST", "10.0.0.1"),
        ("SERVICE_PORT", "7411"),
        ("SERVICE_PORT_OPS", "7411"),
        ("PORT", "tcp://10.0.0.1:7411"),
        ("PORT_7411_TCP", "tcp://10.0.0.1:7411"),
        ("PORT_7411_TCP_PORT", "7411"),
        ("PORT_7411_TCP_ADDR", "10.0.0.1"),
        ("EU_SERVICE_HOST", "10.0.0.1"),
        ("EU_PORT", "tcp://10.0.0.1:7411"),
    ],
)
def test_variables_that_are_not_meant_for_clients_change_nothing(name: str, value: str) -> None:
    loaded = load(environ={f"ORDERED_PUBSUB_{name}": value})

    assert (loaded.configuration, loaded.environment) == (Configuration(), ())


def test_the_environment_is_that_of_the_process_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERED_PUBSUB_NAME", "me")

    assert load().configuration.client.name == "me"
    assert load(environ={}).configuration.client.name is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"timeout_s": -1}, "argument timeout_s: client.timeout_s=-1 does not fit"),
        ({"tiemout_s": 1}, "argument 'tiemout_s' is unknown; did you mean 'timeout_s'"),
        ({"token": TOKEN}, "argument 'token' is unknown; did you mean 'token_file'"),
        ({"tls": {"caa": "x"}}, "argument tls: client.tls.caa is unknown; did you mean 'ca'"),
        ({"tls": 1}, "argument tls: client.tls=1 does not fit; tls is a table"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, Any], says: str) -> None:
    said = load_refusal(environ={}, arguments=arguments)

    assert says in said
    assert TOKEN not in said


def test_what_is_in_the_way_of_a_variable_is_what_is_refused() -> None:
    write("client = 3")

    assert load_refusal(environ={"ORDERED_PUBSUB_NAME": "x"}) == (
        f"{DEFAULT_FILE}, line 1: client=3 does not fit; client is a table"
    )


def test_paths_begin_at_the_folder_of_the_file() -> None:
    path = write(
        '[client]\ntoken_file = "t"\ntls.ca = "/abs/ca"\n[[stage]]\nname = "a"\nstore = "sqlite:x.db"\n'
        'tls = { cert = "c", key = "k" }\n[[stage]]\nname = "b"\nlisten = ":7412"',
        "folder/o.toml",
    )
    configuration, folder = load(str(path), {}).configuration, os.path.abspath("folder")
    first, second = configuration.stage

    assert configuration.client.token_file == f"{folder}/t"
    assert configuration.client.tls is not None
    assert configuration.client.tls.ca == "/abs/ca"
    assert (first.store_path, second.store_path) == (f"{folder}/x.db", f"{folder}/ordered_pubsub-b.db")
    assert first.tls is not None
    assert (first.tls.cert, first.tls.key) == (f"{folder}/c", f"{folder}/k")


def test_the_store_of_the_stage_that_nobody_names_is_beside_the_file_too() -> None:
    (stage,) = load(str(write("", "folder/o.toml")), {}).configuration.stages

    assert stage.store_path == os.path.abspath("folder/ordered_pubsub-main.db")


def test_paths_of_the_environment_and_of_arguments_begin_where_the_process_is() -> None:
    path = str(write('client.token_file = "t"', "folder/o.toml"))

    assert load(path, {"ORDERED_PUBSUB_TOKEN_FILE": "e"}).configuration.client.token_file == "e"
    assert load(path, {}, {"token_file": Path("a")}).configuration.client.token_file == "a"


def test_a_file_that_is_named_must_be_there() -> None:
    for said in (load_refusal("x.toml", {}), load_refusal(None, {"ORDERED_PUBSUB_CONFIG": "x.toml"})):
        assert said.startswith("the configuration 'x.toml' cannot be read: No such file or directory; name another file")


def test_a_pipe_is_not_waited_for() -> None:
    os.mkfifo("p")

    assert load_refusal("p", {}) == "the configuration 'p' is not a file"


def test_a_folder_is_no_configuration() -> None:
    assert "is not a file" in load_refusal(os.getcwd(), {}) or "Is a directory" in load_refusal(os.getcwd(), {})


def test_a_file_that_is_not_utf_8_is_refused() -> None:
    Path("x.toml").write_bytes(b"a = '\xff'")

    assert "is not UTF-8" in load_refusal("x.toml", {})


def test_a_file_that_is_too_large_is_refused() -> None:
    write("#" * (FILE_BYTES_MAX + 1), "x.toml")

    assert f"has more than {FILE_BYTES_MAX} bytes" in load_refusal("x.toml", {})


def test_a_password_that_everybody_can_read_is_warned_of() -> None:
    write('client.ens = "mqtt://u:secret@h"').chmod(0o644)
    (note,) = load(environ={}).notes

    assert "line 1: client.ens holds a password, and everybody on this machine can read it" in note
    assert load(environ={"ORDERED_PUBSUB_ENS": "mqtt://u:secret@h"}).notes == ()
    Path(DEFAULT_FILE).chmod(0o600)
    assert load(environ={}).notes == ()


def test_a_file_that_everybody_can_write_is_warned_of() -> None:
    write("").chmod(0o666)

    assert "can be written by everybody" in load(environ={}).notes[0]


# -- showing and comparing --------------------------------------------------------------------------------------------


def test_a_dump_has_every_key_and_no_secret() -> None:
    configuration = Configuration(
        client=ClientSection(ens="mqtt://u:secret@h", token=TOKEN), identity=[IdentitySection(name="a", token_sha256=HASH)]
    )
    plain = dump(configuration)

    assert list(plain) == list(keys_of(Configuration))
    assert list(plain["client"]) == list(keys_of(ClientSection))
    assert plain["client"]["token"] == "***"
    assert plain["client"]["ens"] == "mqtt://***@h"
    assert plain["identity"][0]["token_sha256"] == [HASH[:8] + "..."]
    assert plain["stage"][0]["name"] == "main"
    assert "secret" not in str(plain)


COMMON = '''\
topics = "listed"
[[stage]]
name = "a"
topics = ["x/**"]
[[stage]]
name = "b"
listen = ":7412"
[[topic]]
pattern = "**"
delivery = "exactly-once"
retention.keep_age = "1d"
[[group]]
topics = ["p", "q"]
'''


def compare(ours: str, theirs: str) -> str:
    return differences(common(read_text(ours)), common(read_text(theirs)))


def test_stages_may_differ_in_what_is_their_own() -> None:
    assert compare(COMMON, COMMON.replace(":7412", ":7413") + '[client]\nname = "x"\n[limits]\nconnections_max = 1') == ""


def test_a_day_is_24_hours() -> None:
    assert compare(COMMON, COMMON.replace('"1d"', '"24h"')) == ""


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('"listed"', '"open"', "topics is 'listed' (line 1) here and 'open' (line 1) there"),
        ('"x/**"', '"y/**"', "stage[0].topics is ['x/**'] (line 4) here and ['y/**'] (line 4) there"),
        ('name = "b"', '\nname = "c"', "stage[1].name is 'b' (line 6) here and 'c' (line 7) there"),
        ('pattern = "**"', 'pattern = "x"', "topic[0].pattern is '**' (line 9) here and 'x' (line 9) there"),
        ('"1d"', '"2d"', "topic[0].retention is [86400.0, None, 604800.0, None] (line 11) here and [172800.0, "),
        ('[[group]]\ntopics = ["p", "q"]\n', "", "group[0].topics is ['p', 'q'] (line 13) here and nothing there"),
    ],
)
def test_two_that_differ_say_in_which_key_and_line(before: str, after: str, says: str) -> None:
    assert compare(COMMON, COMMON.replace(before, after)).startswith(says)


def test_stages_in_another_order_differ() -> None:
    one, two = ('[[stage]]\nname = "{}"\nlisten = ":1"\n[[stage]]\nname = "{}"'.format(*names) for names in ("ab", "ba"))

    assert "stage[0].name is 'a' (line 2) here and 'b' (line 2) there" in compare(one, two)


def test_of_many_differences_some_are_said_and_the_others_counted() -> None:
    many = "".join(f'[[topic]]\npattern = "t{number}"\n' for number in range(20))

    assert compare(many, "").endswith("; and 55 more")


def test_what_both_have_in_common_does_not_depend_on_a_file() -> None:
    assert differences(common(Configuration()), common(read_text("# nothing"))) == ""


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN | st.fixed_dictionaries({"stage": PLAIN, "lines": PLAIN, "topic": st.lists(PLAIN, max_size=3)}))
def test_whatever_another_stage_sends_is_a_difference_in_few_words(theirs: Any) -> None:
    said = differences(common(read_text(COMMON)), theirs)

    assert said
    assert len(said) < 20_000


# -- whatever comes ---------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["ops://a:1", "opss://[::1]", "127.0.0.1:0", "0.0.0.0:1", "**", "a/*", "sqlite:x", "memory", "fsync", "none", "1d", "1GB",
     "exactly-once", "listed", "refuse", "nats://u:p@h", HASH, "desk-1", "", "\x00", "\ud800", "[", "a" * 300]
)  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.recursive(
    WORDS | st.text(max_size=20) | st.booleans() | st.floats() | st.integers() | st.just(10**4000) | st.dates() | st.none(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


def tables(record: type) -> st.SearchStrategy[Any]:
    """Tables that are nearly right: known keys, with what fits somewhere."""
    optional = {}
    for key, kind in keys_of(record).items():
        inner = VALUES if kind.section is None else tables(kind.section)
        optional[key] = VALUES | inner | st.lists(inner, max_size=3)
    known = st.fixed_dictionaries({}, optional=optional)
    return known | st.builds(lambda one, two: one | two, known, st.dictionaries(st.text(max_size=9), VALUES, max_size=1))


@given(tables(Configuration))
def test_whatever_the_tables_nothing_but_a_configuration_error_is_raised(given_tables: dict[str, Any]) -> None:
    try:
        configuration = read_tables(given_tables)
    except ConfigurationError as error:
        assert len(str(error)) < 3_000
    else:
        assert dump(configuration)
        assert differences(common(configuration), common(configuration)) == ""


@given(st.text() | st.lists(st.sampled_from([*COMMON.splitlines(), "[client]", 'name = "é"', "x = [", "]", '"""'])).map("\n".join))
def test_whatever_the_text_nothing_but_a_configuration_error_is_raised(text: str) -> None:
    try:
        read_text(text)
    except ConfigurationError as error:
        assert str(error)
