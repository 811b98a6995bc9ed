"""What is said of a configuration that does not fit: where it is, what came, and what fits. And never a secret."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.config import lines
from ordered_pubsub.config.dumping import common, differences, dump
from ordered_pubsub.config.kinds import redacted, shown
from ordered_pubsub.config.reading import parse, read_tables, read_text
from ordered_pubsub.config.records import keys_of
from ordered_pubsub.config.schema import (
    ClientSection,
    Configuration,
    StageSection,
)
from ordered_pubsub.errors import ConfigurationError

HASH = "ab" * 32
TOKEN = "a-token-that-is-long-enough-to-be-one"


def refusal(text: str, name: str = "o.toml") -> str:
    """Why a text is refused."""
    with pytest.raises(ConfigurationError) as caught:
        read_text(text, name)
    return str(caught.value)


# -- errors say where, what and what else -----------------------------------------------------------------------------


def test_a_bad_value_names_file_line_key_and_what_fits() -> None:
    text = '[[stage]]\nname = "a"\n\n[[stage]]\n# a comment\nname = "b"\ndurability = "fsyn"\n'

    assert refusal(text) == (
        'o.toml, line 7: stage[1].durability=\'fsyn\' does not fit; durability is one of "fsync", "os", "none" '
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
        ('[[identity]]\nname = "a"\nallow.publsh = []', "line 3: identity[0].allow.publsh is unknown; did you mean 'publish'"),
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


@given(
    st.lists(
        st.sampled_from(["[client]", "[[stage]]", "[stage.tls]", "a = 1", "a.b = [\n1,\n]", 'c = """\n[x]\n"""', ""])
    )
)
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


# -- whatever comes ---------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["ops://a:1", "opss://[::1]", "127.0.0.1:0", "0.0.0.0:1", "**", "a/*", "sqlite:x", "memory", "fsync", "none", "1d", "1GB",
     "exactly-once", "listed", "refuse", "nats://u:p@h", HASH, "desk-1", "", "\x00", "\ud800", "[", "a" * 300]
)  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.recursive(
    WORDS
    | st.text(max_size=20)
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.just(10**4000)
    | st.dates()
    | st.none(),
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
    return known | st.builds(
        lambda one, two: one | two, known, st.dictionaries(st.text(max_size=9), VALUES, max_size=1)
    )


@given(tables(Configuration))
def test_whatever_the_tables_nothing_but_a_configuration_error_is_raised(given_tables: dict[str, Any]) -> None:
    try:
        configuration = read_tables(given_tables)
    except ConfigurationError as error:
        said = str(error)
    else:
        assert differences(common(configuration), common(configuration)) == ""
        said = str(dump(configuration))
    assert 0 < len(said) < 20_000


LINES = [
    "[client]",
    'name = "é"',
    "[[stage]]",
    'name = "a"',
    "[stage.tls]",
    "x = [",
    "]",
    '"""',
    "[[group]]",
    'topics = ["a"]',
]


@given(st.text() | st.lists(st.sampled_from(LINES)).map("\n".join))
def test_whatever_the_text_nothing_but_a_configuration_error_is_raised(text: str) -> None:
    try:
        read_text(text)
    except ConfigurationError as error:
        said = str(error)
    else:
        return
    assert said
