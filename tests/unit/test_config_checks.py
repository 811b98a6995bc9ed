"""What does not fit together is refused, and what is perhaps not meant is said."""

from __future__ import annotations

import json
from itertools import product

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.config.advice import find_advice
from ordered_pubsub.config.checks import stages_to_serve
from ordered_pubsub.config.covering import covers
from ordered_pubsub.config.kinds import shown
from ordered_pubsub.config.reading import read_text
from ordered_pubsub.core.liveness.times import Times
from ordered_pubsub.core.topics import matches
from ordered_pubsub.errors import ConfigurationError

HASH = "ab" * 32
OTHER = "cd" * 32
TLS = 'tls = { cert = "c", key = "k" }\n'
IDENTITY = f"""\
[[identity]]
name = "i"
token_sha256 = "{HASH}"
allow = {{ publish = ["**"], subscribe = ["**"], stage = true }}
"""


def stage(name: str = "a", **keys: str) -> str:
    lines = [f'{key} = "{value}"' for key, value in ({"name": name} | keys).items()]
    return "\n".join(["[[stage]]", *lines, ""])


def refusal(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_text(text)
    return str(caught.value)


# -- who can reach a stage --------------------------------------------------------------------------------------------

OPEN = ["0.0.0.0:7411", "[::]:7411", "10.0.0.1:7411", "stage-1:7411"]


@pytest.mark.parametrize("listen", OPEN)
def test_a_stage_that_others_can_reach_must_know_whom_it_lets_in(listen: str) -> None:
    said = refusal(stage(listen=listen) + TLS)

    assert said.startswith(
        f"line 3: stage[0].listen='{listen}' can be reached from other machines, and no [[identity]] says"
    )
    assert "insecure_allow_anyone" in said


@pytest.mark.parametrize("listen", OPEN)
def test_a_stage_that_others_can_reach_must_speak_tls(listen: str) -> None:
    said = refusal(stage(listen=listen) + IDENTITY)

    assert "tokens would travel there without TLS" in said
    assert "insecure_allow_plaintext" in said


@pytest.mark.parametrize("listen", OPEN)
def test_with_identities_and_tls_it_may_be_reached(listen: str) -> None:
    assert read_text(stage(listen=listen) + TLS + IDENTITY).stage[0].listen == listen


def test_an_empty_list_of_identities_lets_it_be_reached_since_nobody_gets_in() -> None:
    assert not read_text("identity = []\n" + stage(listen="0.0.0.0:1") + TLS).is_anyone_let_in


def test_everybody_is_let_in_only_by_name() -> None:
    assert read_text("insecure_allow_anyone = true\n" + stage(listen="0.0.0.0:1")).is_anyone_let_in


def test_tokens_travel_in_the_clear_only_by_name() -> None:
    assert read_text("insecure_allow_plaintext = true\n" + stage(listen="0.0.0.0:1") + IDENTITY).stage


GATEWAY = "ops://gateway.example:7411"


def test_where_others_reach_a_stage_tokens_travel_in_the_clear_only_by_name() -> None:
    said = refusal(stage(advertise=GATEWAY) + IDENTITY)

    assert said.startswith(
        f"line 3: stage[0].advertise='{GATEWAY}' is where others reach the stage, and tokens would travel there without TLS: "
    )
    assert "insecure_allow_plaintext" in said
    assert read_text("insecure_allow_plaintext = true\n" + stage(advertise=GATEWAY) + IDENTITY).stage


def test_a_stage_dials_another_one_with_its_token_in_the_clear_only_by_name() -> None:
    """Whoever the other one knows: that is said in its own file."""
    text = stage(advertise=GATEWAY) + stage("b", listen=":1", token_file="b.token")

    assert f"line 3: stage[0].advertise='{GATEWAY}'" in refusal(text)
    assert "(that of stage 'b' is shown there)" in refusal(text)
    assert read_text("insecure_allow_plaintext = true\n" + text).stage


@pytest.mark.parametrize(
    "text",
    [
        stage(advertise="opss://gateway.example") + IDENTITY,
        stage(advertise="ops://localhost:1") + IDENTITY,
        stage(advertise=GATEWAY) + TLS + IDENTITY,
        "identity = []\n" + stage(advertise=GATEWAY),
        stage(token_file="a.token") + stage("b", listen=":1", advertise=GATEWAY),  # the first one does not dial
    ],
)
def test_where_no_token_can_be_read_others_may_reach_a_stage(text: str) -> None:
    assert read_text(text).stage


def test_plaintext_by_name_lets_nobody_in_who_is_not_known() -> None:
    assert "no [[identity]]" in refusal("insecure_allow_plaintext = true\n" + stage(listen="0.0.0.0:1"))


def test_letting_everybody_in_does_not_go_with_identities() -> None:
    assert refusal("insecure_allow_anyone = true\n" + IDENTITY).startswith(
        "line 1: insecure_allow_anyone lets everybody do"
    )


# -- stages -----------------------------------------------------------------------------------------------------------


def test_two_stages_have_two_names() -> None:
    assert "line 4: stage[1].name='a' is the name of stage[0] already" in refusal(stage() + stage(listen=":1"))


def test_two_stages_listen_at_two_addresses() -> None:
    said = refusal(stage() + stage("b"))

    assert "stage[1].listen='127.0.0.1:7411' is where stage[0] (a) listens already" in said
    assert "advertise" in said


def test_on_two_machines_two_stages_may_listen_at_one_address() -> None:
    text = stage(advertise="ops://one") + stage("b", advertise="ops://two")

    assert [str(one.advertised) for one in read_text(text).stages] == ["ops://one:7411", "ops://two:7411"]


def test_two_stages_are_not_reached_at_one_address() -> None:
    text = stage(listen=":1", advertise="ops://one") + stage("b", listen=":2", advertise="ops://one:7411")

    assert "line 8: stage[1].advertise='ops://one:7411' is where stage[0] (a) is reached already" in refusal(text)


def test_a_stage_is_not_reached_where_another_listens() -> None:
    text = stage(listen=":1") + stage("b", listen=":2", advertise="ops://127.0.0.1:1")

    assert "stage[1].advertise='ops://127.0.0.1:1' is where stage[0] (a) is reached already" in refusal(text)


@pytest.mark.parametrize("listen", ["0.0.0.0:1", ":0"])
def test_of_several_stages_each_says_where_it_is(listen: str) -> None:
    text = "insecure_allow_anyone = true\n" + stage() + stage("b", listen=listen)

    assert f"line 4: stage[1].advertise is needed: the other stages cannot reach listen='{listen}'" in refusal(text)


def test_a_single_stage_needs_not_say_where_it_is() -> None:
    assert read_text("insecure_allow_anyone = true\n" + stage(listen="0.0.0.0:1")).stage


def test_memory_is_not_durable() -> None:
    said = refusal(stage(store="memory", durability="fsync"))

    assert "line 4: stage[0].durability='fsync' cannot be given by store='memory'" in said


def test_health_is_not_where_clients_are() -> None:
    assert "line 3: stage[0].http is where the stage listens for clients" in refusal(stage(http=":7411"))


# -- stages in one process --------------------------------------------------------------------------------------------


def test_all_stages_are_served_or_the_one_that_is_named() -> None:
    configuration = read_text(stage() + stage("b", listen=":1"))

    assert [one.name for one in stages_to_serve(configuration)] == ["a", "b"]
    assert [one.name for one in stages_to_serve(configuration, "b")] == ["b"]


def test_a_stage_that_is_not_there_is_not_served() -> None:
    with pytest.raises(ConfigurationError, match="there is no stage 'x' in the configuration; there are a, b"):
        stages_to_serve(read_text(stage() + stage("b", listen=":1")), "x")


def test_stages_for_two_machines_are_not_served_by_one_process() -> None:
    configuration = read_text(stage(advertise="ops://one") + stage("b", advertise="ops://two"))

    with pytest.raises(
        ConfigurationError, match=r"stage 'b' cannot have listen='127\.0\.0\.1:7411' in one process with stage 'a'"
    ):
        stages_to_serve(configuration)
    assert stages_to_serve(configuration, "b")


def test_stages_in_one_process_have_a_store_each() -> None:
    configuration = read_text(stage(store="sqlite:x/../y.db") + stage("b", listen=":1", store="sqlite:y.db"))

    with pytest.raises(ConfigurationError, match=r"stages 'a' and 'b' have one store, 'y\.db'"):
        stages_to_serve(configuration)


def test_two_stages_may_both_be_in_memory() -> None:
    configuration = read_text(stage(store="memory") + stage("b", listen=":1", store="memory"))

    assert len(stages_to_serve(configuration)) == 2


def test_one_stage_can_listen_elsewhere() -> None:
    (one,) = stages_to_serve(read_text(""), listen=":7500")

    assert (one.name, one.address.port) == ("main", 7500)


def test_several_stages_cannot_listen_at_one_address() -> None:
    with pytest.raises(ConfigurationError, match="is for one stage, and the configuration has 2"):
        stages_to_serve(read_text(stage() + stage("b", listen=":1")), listen=":7500")


@pytest.mark.parametrize(
    ("text", "says"),
    [("", r"no \[\[identity\]\] says who may connect"), (IDENTITY, "tokens would travel there without TLS")],
)
def test_listening_elsewhere_opens_nothing_that_the_file_would_not_open(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        stages_to_serve(read_text(text), listen="0.0.0.0:7411")


def test_where_nobody_can_listen_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="listen='x:y' does not fit"):
        stages_to_serve(read_text(""), listen="x:y")


# -- the rest ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('client.tls = { cert = "c" }', "client.tls has no 'key': a certificate and its private key come together"),
        ('client.tls = { key = "k" }', "client.tls has no 'cert'"),
        ("client.linger_s = 0.1", "client.linger_s lets events wait for others to share a message with"),
        ('topics = "listed"', "topics='listed' lets only those topics exist that a [[topic]] names"),
        ('topic = [{ pattern = "**", delivery = "ordered", retention = {} }]',
         "topic[0].retention is for topics with delivery='exactly-once'"),
        ('group = [{ topics = ["a", "b"] }, { topics = ["c", "a"] }]', "group[1].topics[1]='a' is in group[0] already"),
        ('group = [{ topics = ["a", "a"] }]', "group[0].topics[1]='a' is in group[0] already"),
        ('identity = [{ name = "a" }]', "identity[0] (a) has neither token_sha256 nor certificate"),
        ("limits = { frame_bytes_max = 65536 }", "limits.frame_bytes_max=65536 is less than payload_bytes_max=1048576"),
        ("limits = { buffered_bytes_max = 65536 }", "limits.buffered_bytes_max=65536 is less than frame_bytes_max=4194304"),
        ("limits = { unauthenticated_bytes_max = 9000000 }", "is less than unauthenticated_bytes_max=9000000"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(text: str, says: str) -> None:
    said = refusal(text)

    assert said.startswith("line 1: ")
    assert says in said


@pytest.mark.parametrize(
    ("retention", "says"),
    [
        ('keep_age = "2w"', "keeps for at least '2w' and for at most '1w'"),
        ('keep_bytes = "2GB", max_bytes = "1GB"', "keeps at least '2GB' and at most '1GB'"),
    ],
)
def test_retention_does_not_keep_more_than_it_may(retention: str, says: str) -> None:
    assert says in refusal(f'topic = [{{ pattern = "**", delivery = "exactly-once", retention = {{ {retention} }} }}]')


@pytest.mark.parametrize(
    ("key", "unfit", "fit"),
    [
        ("session_ttl", ("29s", 0, "2d", "5 min", True), {"30s": 30.0, 45.5: 45.5, "1d": 86_400.0}),
        ("named_ttl", ("59min", -1, "53w"), {"1h": 3_600.0, 86_400: 86_400.0, "52w": 31_449_600.0}),
        ("lease", ("4s", 4.9, "61min", [30]), {"5s": 5.0, 7: 7.0, "1h": 3_600.0}),
    ],
)
def test_the_times_of_a_system_have_their_bounds(
    key: str, unfit: tuple[object, ...], fit: dict[str | float, float]
) -> None:
    for value in unfit:
        said = refusal(f"[times]\n{key} = {json.dumps(value)}")
        assert f"line 2: times.{key}={shown(value)} does not fit; {key} is seconds, or a text such as" in said
    for fitting, seconds in fit.items():
        times = read_text(f"[times]\n{key} = {json.dumps(fitting)}").times.values
        assert times == attrs.evolve(Times(), **{f"{key}_s": seconds})


def test_a_subscription_with_a_name_is_kept_as_long_as_one_without() -> None:
    said = refusal('[times]\nsession_ttl = "2h"\nnamed_ttl = "1h"')

    assert "times.named_ttl='1h' is less than session_ttl='2h'" in said


def test_retention_without_a_bound_keeps_what_it_is_told() -> None:
    text = 'topic = [{ pattern = "**", delivery = "exactly-once", retention = { keep_bytes = "2GB" } }]'

    assert read_text(text).topic[0].retention is not None


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (f'name = "i"\ntoken_sha256 = "{OTHER}"', "identity[1].name='i' is the name of identity[0] already"),
        (f'name = "j"\ntoken_sha256 = ["{OTHER}", "{HASH}"]', "identity[1].token_sha256 has a hash that belongs to identity[0]"),
        (f'name = "j"\ntoken_sha256 = "{HASH.upper()}"', "identity[1].token_sha256 has a hash that belongs to identity[0]"),
        (f'name = "j"\ntoken_sha256 = ["{OTHER}", "{OTHER}"]', "identity[1].token_sha256 has a hash that belongs to identity[1]"),
        ('name = "j"\ncertificate = "c"\n[[identity]]\nname = "k"\ncertificate = "c"', "identity[2].certificate='c' belongs to"),
    ],
)  # fmt: skip
def test_a_token_a_name_and_a_certificate_are_of_one_identity(second: str, says: str) -> None:
    said = refusal(IDENTITY + "[[identity]]\n" + second)

    assert says in said
    assert HASH not in said


def test_two_tokens_are_for_changing_one() -> None:
    identities = read_text(f'identity = [{{ name = "a", token_sha256 = ["{HASH}", "{OTHER}"] }}]').identity

    assert identities is not None
    assert identities[0].token_sha256 == (HASH, OTHER)


# -- advice -----------------------------------------------------------------------------------------------------------


def test_a_plain_configuration_needs_no_advice() -> None:
    two = 'topics = ["a/**"]\ntoken_file = "t"\n'

    assert find_advice(read_text("")) == ()
    assert find_advice(read_text(stage() + two + stage("b", listen=":1") + two.replace("a", "b", 1) + IDENTITY)) == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("insecure_allow_anyone = true", "insecure_allow_anyone: whoever reaches a stage may do everything"),
        ("insecure_allow_plaintext = true", "insecure_allow_plaintext: who can listen on the network can read tokens"),
        (stage(store="memory"), "stage[0] (a): store = 'memory' forgets everything when the stage ends"),
        (stage(durability="none"), "stage[0] (a): durability = 'none' loses numbers in a crash"),
        (stage(durability="os"), "stage[0] (a): durability = 'os' survives a crash of the stage"),
        (stage(http="0.0.0.0:1"), "stage[0] (a): http = '0.0.0.0:1' shows health and metrics to everybody"),
        ("identity = []", "identity = []: nobody can connect"),
        (f'identity = [{{ name = "a", token_sha256 = "{HASH}" }}]', "identity[0] (a) may do nothing"),
        (
            'identity = [{ name = "a", certificate = "c", allow = { move = true } }]',
            "identity[0] (a) has only a certificate, and no stage has tls.client_ca",
        ),
        (
            f'[[identity]]\nname = "a"\ntoken_sha256 = "{HASH}"\nallow.publish = ["a/b"]\ndeny.publish = ["a/*"]',
            "identity[0].allow.publish[0] = 'a/b' allows nothing: deny.publish has 'a/*'",
        ),
        (
            'topic = [{ pattern = "a/**" }, { pattern = "a/*/b" }]',
            "topic[1].pattern = 'a/*/b' never matches: topic[0].pattern = 'a/**' comes first",
        ),
        ('topics = "listed"\ntopic = [{ pattern = "**/**" }]', "topic[0].pattern = '**/**' lists every topic"),
        (
            'stage = [{ name = "a", topics = ["**"] }, { name = "b", listen = ":1", topics = ["x"] }]',
            "stage[1].topics[0] = 'x' owns nothing more: stage[0].topics[0] = '**' comes first",
        ),
        (
            stage(token_file="t") + stage("b", listen=":1", token_file="t") + IDENTITY.replace(", stage = true", ""),
            "no identity has allow = { stage = true }, so the stages cannot link",
        ),
        (
            stage(token_file="t") + stage("b", listen=":1") + IDENTITY,
            "stage[1] (b) has neither token_file nor tls, so no other stage lets it link",
        ),
        (
            "insecure_allow_anyone = true\n" + stage(listen="0.0.0.0:1", advertise="ops://one") + stage("b"),
            "stage[1] (b) is reached at ops://127.0.0.1:7411, so only from its own machine",
        ),
    ],
)
def test_what_is_perhaps_not_meant_is_said(text: str, says: str) -> None:
    assert [note for note in find_advice(read_text(text)) if note.startswith(says)]


def test_two_patterns_of_one_stage_may_overlap() -> None:
    assert find_advice(read_text('stage = [{ name = "a", topics = ["**", "x"] }]')) == ()


# -- covering ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("**", "a/*/b", True),
        ("a/**", "a", True),
        ("a/**", "b/**", False),
        ("*", "a", True),
        ("a", "*", False),
        ("*/**", "**/*", True),
        ("**/*", "**", True),  # no topic has no level
        ("**/a/**", "a/*/**", True),
        ("**/a/**", "**", False),
        ("*/*", "**", False),
        ("**/a", "**/*/a", True),
        ("**/*/a", "**/a", False),
    ],
)
def test_one_pattern_covers_another(wide: str, narrow: str, expected: bool) -> None:
    assert covers(wide, narrow) is expected


PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=4).map("/".join)
TOPICS = ["/".join(levels) for length in range(1, 7) for levels in product("abz", repeat=length)]


@given(PATTERNS, PATTERNS)
def test_covering_is_what_all_short_topics_say(wide: str, narrow: str) -> None:
    """Six levels tell any two patterns of four apart, and one level that is in neither."""
    counterexample = next((topic for topic in TOPICS if matches(narrow, topic) and not matches(wide, topic)), None)

    assert covers(wide, narrow) is (counterexample is None), counterexample


def many_places(count: int) -> tuple[str, str]:
    """Two patterns of which the first covers the second, after looking at about 2**count sets of places."""
    return "**/a" + "/*" * count, "/".join(["**/a"] * count) + "/*" * count


def test_patterns_that_take_very_many_steps_are_given_up() -> None:
    assert covers(*many_places(5))
    assert not covers(*many_places(30))
