"""Showing a configuration without its secrets, and comparing those of two stages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.config.dumping import common, differences, dump
from ordered_pubsub.config.reading import read_text
from ordered_pubsub.config.records import keys_of
from ordered_pubsub.config.schema import (
    ClientSection,
    Configuration,
    IdentitySection,
)

HASH = "ab" * 32
TOKEN = "a-token-that-is-long-enough-to-be-one"


# -- showing and comparing --------------------------------------------------------------------------------------------


def test_a_dump_has_every_key_and_no_secret() -> None:
    configuration = Configuration(
        client=ClientSection(ens="mqtt://u:secret@h", token=TOKEN),
        identity=[IdentitySection(name="a", token_sha256=HASH)],
    )
    plain = dump(configuration)

    assert list(plain) == list(keys_of(Configuration))
    assert list(plain["client"]) == list(keys_of(ClientSection))
    assert plain["client"]["token"] == "***"
    assert plain["client"]["ens"] == "mqtt://***@h"
    assert plain["identity"][0]["token_sha256"] == [HASH[:8] + "..."]
    assert plain["stage"][0]["name"] == "main"
    assert "secret" not in str(plain)


COMMON = """\
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
[times]
session_ttl = "2min"
"""


def compare(ours: str, theirs: str) -> str:
    return differences(common(read_text(ours)), common(read_text(theirs)))


def test_stages_may_differ_in_what_is_their_own() -> None:
    assert (
        compare(COMMON, COMMON.replace(":7412", ":7413") + '[client]\nname = "x"\n[limits]\nconnections_max = 1') == ""
    )


def test_a_day_is_24_hours_and_two_minutes_are_120_seconds() -> None:
    assert compare(COMMON, COMMON.replace('"1d"', '"24h"').replace('"2min"', "120")) == ""


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('"listed"', '"open"', "topics is 'listed' (line 1) here and 'open' (line 1) there"),
        ('"x/**"', '"y/**"', "stage[0].topics is ['x/**'] (line 4) here and ['y/**'] (line 4) there"),
        ('name = "b"', '\nname = "c"', "stage[1].name is 'b' (line 6) here and 'c' (line 7) there"),
        ('pattern = "**"', 'pattern = "x"', "topic[0].pattern is '**' (line 9) here and 'x' (line 9) there"),
        ('"1d"', '"2d"', "topic[0].retention is [86400.0, None, 604800.0, None] (line 11) here and [172800.0, "),
        ('[[group]]\ntopics = ["p", "q"]\n', "", "group[0].topics is ['p', 'q'] (line 13) here and nothing there"),
        ('"2min"', '"90s"', "times.session_ttl is 120.0 (line 15) here and 90.0 (line 15) there"),
        ('session_ttl = "2min"', "", "times.session_ttl is 120.0 (line 15) here and 300.0 (line 14) there"),
        (
            "[times]",
            "[times]\nnamed_ttl = '1d'",
            "times.named_ttl is 604800.0 (line 14) here and 86400.0 (line 15) there",
        ),
        ("[times]", "[times]\nlease = 20", "times.lease is 30.0 (line 14) here and 20.0 (line 15) there"),
    ],
)
def test_two_that_differ_say_in_which_key_and_line(before: str, after: str, says: str) -> None:
    assert compare(COMMON, COMMON.replace(before, after)).startswith(says)


def test_stages_in_another_order_differ() -> None:
    one, two = (
        '[[stage]]\nname = "{}"\nlisten = ":1"\n[[stage]]\nname = "{}"'.format(*names) for names in ("ab", "ba")
    )

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
