"""Names, patterns, and who owns what."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.core.topics import TOPIC_LENGTH_MAX, check_pattern, check_topic, matches
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import ConfigurationError, TopicError, TopologyMismatch


@pytest.mark.parametrize(
    "name", ["a", "eu/trades", "x" * TOPIC_LENGTH_MAX, "ümläut/日本", "with space", "$SYS", "a.b", "#", "+"]
)
def test_a_valid_topic_is_returned_as_it_is(name: str) -> None:
    assert check_topic(name) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "must not be empty"),
        ("x" * (TOPIC_LENGTH_MAX + 1), "has 256 characters; at most 255"),
        ("a\nb", r"control character \('\\n'\) at place 2"),
        ("a\x00", "control character"),
        ("a\x7f", "control character"),
        ("a\x9f", "control character"),
        ("a\ud800", "control character"),
        ("/a", "empty level"),
        ("a/", "empty level"),
        ("a//b", "empty level"),
        ("a/*", "patterns are not accepted here yet"),
        (7, "a topic is a text, not int"),
        (None, "a topic is a text, not NoneType"),
    ],
)
def test_a_bad_topic_is_refused_with_what_is_wrong(name: object, says: str) -> None:
    with pytest.raises(TopicError, match=says):
        check_topic(name)


@pytest.mark.parametrize(
    ("pattern", "says"), [("a*", "mixes"), ("**b/c", "mixes"), ("", "empty"), ("a//*", "empty level")]
)
def test_a_bad_pattern_is_refused_with_what_is_wrong(pattern: str, says: str) -> None:
    with pytest.raises(TopicError, match=says):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("*", "a", True),
        ("*", "a/b", False),
        ("**", "a/b/c", True),
        ("a/**", "a", True),
        ("a/**", "a/b/c", True),
        ("a/*/c", "a/b/c", True),
        ("a/*/c", "a/c", False),
        ("**/c", "a/b/c", True),
        ("**/b/**/d", "a/b/b/c/d", True),
        ("**/b/**/d", "a/c/d", False),
    ],
)
def test_one_star_is_one_level_and_two_are_any_number(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected


def _as_regex(pattern: str) -> str:
    """Another way to say the same: levels with a slash behind each."""
    return "".join(
        {"*": "[^/]+/", "**": "(?:[^/]+/)*"}.get(level, re.escape(level) + "/") for level in pattern.split("/")
    )


@given(
    st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=6).map("/".join),
    st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=7).map("/".join),
)
def test_matching_agrees_with_a_regular_expression(pattern: str, topic: str) -> None:
    assert matches(pattern, topic) == bool(re.fullmatch(_as_regex(pattern), topic + "/"))


@pytest.mark.parametrize("stretch", ["a/" * 60 + "b", "*/" * 60 + "b", "a/*/" * 20 + "b", "*/a/" * 30 + "*/b"])
def test_no_pattern_is_expensive_to_match(stretch: str) -> None:
    """This takes a millisecond; what tries places again and again would take hours."""
    patterns = [("**/" * stars + stretch)[-TOPIC_LENGTH_MAX:].lstrip("/") for stars in (1, 30)]
    topic = "a/" * 127 + "a"
    assert not any(matches(pattern, topic) for pattern in patterns * 20)


def test_the_first_stage_with_a_matching_pattern_owns_a_topic() -> None:
    topology = Topology((StageSpec("eu", ("eu/**",)), StageSpec("us", ("us/**", "eu/x")), StageSpec("rest", ("**",))))
    assert [topology.owner(topic) for topic in ("eu/x", "us/a/b", "other")] == [0, 1, 2]


def test_a_topic_without_a_pattern_is_hashed_to_the_same_stage_everywhere() -> None:
    topologies = [Topology(tuple(StageSpec(name) for name in ("a", "b", "c"))) for _ in range(2)]
    owners = [[topology.owner(f"t{n}") for n in range(300)] for topology in topologies]
    assert owners[0] == owners[1]
    assert all(70 < owners[0].count(rank) < 130 for rank in range(3))


def test_rendezvous_hashing_moves_only_what_the_new_stage_gets() -> None:
    three = Topology(tuple(StageSpec(name) for name in ("a", "b", "c")))
    four = Topology(tuple(StageSpec(name) for name in ("a", "b", "c", "d")))
    moved = [t for t in (f"t{n}" for n in range(300)) if three.owner(t) != four.owner(t)]
    assert {four.owner(topic) for topic in moved} == {3}


def test_two_topologies_have_the_same_fingerprint_only_if_they_are_the_same() -> None:
    one = Topology((StageSpec("a", ("x",)), StageSpec("b")))
    same = Topology.load(one.dump())
    others = [
        Topology((StageSpec("a"), StageSpec("b", ("x",)))),
        Topology((StageSpec("b"), StageSpec("a", ("x",)))),
        Topology((StageSpec("a", ("x", "b")),)),
    ]
    assert same.fingerprint == one.fingerprint
    one.check_same(same.fingerprint, "b")
    for other in others:
        with pytest.raises(TopologyMismatch, match="stage 'b' has another topology"):
            one.check_same(other.fingerprint, "stage 'b'")


def test_a_stage_that_would_lose_a_topic_is_told_which_and_how_to_give_it_back() -> None:
    before = Topology((StageSpec("a", ("x", "y")), StageSpec("b")))
    after = Topology((StageSpec("a", ("x",)), StageSpec("b", ("y",))))
    after.check_still_owned(0, before, ["x"])
    with pytest.raises(TopologyMismatch, match=r"topic 'y'.*give 'y' back to 'a' by a pattern"):
        after.check_still_owned(0, before, ["x", "y"])
    with pytest.raises(TopologyMismatch, match="put the stages back into that order"):
        Topology((StageSpec("b"), StageSpec("a", ("x", "y")))).check_still_owned(0, before, [])


@pytest.mark.parametrize("stages", [(), (StageSpec("a"), StageSpec("a"))])
def test_a_topology_without_stages_or_with_two_of_one_name_is_refused(stages: tuple[StageSpec, ...]) -> None:
    with pytest.raises(ConfigurationError):
        Topology(stages)


def test_a_stage_with_a_bad_pattern_or_no_name_is_refused() -> None:
    with pytest.raises(TopicError):
        StageSpec("a", ("x*",))
    with pytest.raises(ConfigurationError):
        StageSpec("")
