"""What is fuzzed without a stage, and is written by people: configurations, patterns, URLs and filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import Random

from fuzz.mutation import TEXTS, mutate_text, mutate_value
from ordered_pubsub.adapter import load_adapter
from ordered_pubsub.config.dumping import common, differences, dump
from ordered_pubsub.config.reading import read_text
from ordered_pubsub.core.filters import Filter
from ordered_pubsub.core.topics import check_pattern, check_topic, matches
from ordered_pubsub.errors import ConfigurationError, FilterError, NotOffered, TopicError

CONFIGURATION = """
topics = "open"
insecure_allow_plaintext = true
[client]
ens = "nats://user:password@broker:4222"
sequencer = ["ops://127.0.0.1:7411", "opss://[::1]:7412"]
name = "desk-1"
delivery = "ordered"
timeout_s = 60
batch_events_max = 10
linger_s = 0.01
tls = { ca = "ca.pem", cert = "desk.pem", key = "desk.key" }
[[stage]]
name = "eu"
listen = "127.0.0.1:7411"
advertise = "ops://stage-1:7411"
topics = ["eu/**", "*/x"]
store = "sqlite:///var/lib/eu.db"
durability = "fsync"
http = ":7412"
tls = { cert = "eu.pem", key = "eu.key", client_ca = "ca.pem" }
[[stage]]
name = "us"
listen = "127.0.0.1:7421"
[[topic]]
pattern = "ticks/**"
delivery = "ordered"
[[topic]]
pattern = "**"
delivery = "exactly-once"
retention = { keep_age = "1d", max_bytes = "10GB" }
[[group]]
topics = ["trades", "quotes"]
[[identity]]
name = "desk-1"
token_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
allow = { publish = ["orders/**"], subscribe = ["**"], administer = true }
deny = { subscribe = ["private/**"] }
[limits]
payload_bytes_max = 1048576
connections_max = 10_000
authentication_s = 5.0
"""
_TOML = ["[", "]", "[[", "]]", "{", "}", '"', "'", '"""', "=", ",", ".", "\n", "#", "true", "1e999", "0x", "inf", "nan"]
CONFIGURATION_WORDS = [
    *re.findall(r"[\w.:/*\[\]-]+", CONFIGURATION),
    *_TOML,
    "1979-05-27",
    "9" * 5_000,
    "[" * 500,
    "\\u0000",
]


def configuration(random: Random) -> None:
    """`config.reading.read_text`, and what shows and compares what was read"""
    text = mutate_text(random, CONFIGURATION, CONFIGURATION_WORDS)
    try:
        found = read_text(text)
    except ConfigurationError:
        return
    dump(found)
    plain = common(found)
    differences(plain, plain | {"topics": "x"})
    differences(plain, mutate_value(random, {**plain, "lines": {}}))


_LEVELS = ("a", "b", "*", "**", "a", "**", "x*", "", "é")


def topic_matching(random: Random) -> None:
    """`core.topics`: what matches is what a regular expression of the same meaning matches"""
    pattern, topic = ("/".join(random.choices(_LEVELS, k=random.randrange(1, 9))) for _ in range(2))
    if random.random() < 0.2:
        pattern, topic = (mutate_text(random, text, TEXTS) for text in (pattern, topic))
    try:
        check_pattern(pattern)
        check_topic(topic)
    except TopicError:
        return
    assert matches(pattern, topic) == _matches(pattern, topic), (pattern, topic)


def _matches(pattern: str, topic: str) -> bool:
    """By definition: the first level is taken by the first level, or `**` takes none, or one more."""
    wanted, given = pattern.split("/"), topic.split("/")
    reached = {0}
    for level in wanted:
        if level == "**":
            reached = set(range(min(reached), len(given) + 1)) if reached else set()
        else:
            reached = {at + 1 for at in reached if at < len(given) and level in ("*", given[at])}
    return len(given) in reached


PASSWORD = "pa55w0rd-which-nobody-may-see"
URLS = (
    f"mqtt://user:{PASSWORD}@127.0.0.1:1883?qos=1",
    f"mqtts://user:{PASSWORD}@broker.example?ca=ca.pem",
    f"nats://user:{PASSWORD}@127.0.0.1:4222,127.0.0.1:4223?jetstream=EVENTS",
    f"tls://{PASSWORD}@broker.example:4222",
    f"amqp://user:{PASSWORD}@127.0.0.1:5672/%2F?connect_timeout_s=5",
    f"amqps://user:{PASSWORD}@[::1]:5671/vhost",
    "memory://name?reorder=0.3&duplicate=0.1&lose=0.1&delay_s=0.02&seed=7",
)
_URL_WORDS = [
    "://",
    "/",
    "?",
    "#",
    "@",
    ":",
    ",",
    "&",
    "=",
    "%",
    "%00",
    "%2F",
    "[",
    "]",
    "::1",
    "99999",
    "\n",
    "\x00",
    "mqtt",
    "é",
]


def ens_urls(random: Random) -> None:
    """URLs of adapters: what is wrong with them is said, and a password in them is not"""
    url = mutate_text(random, random.choice(URLS), _URL_WORDS)
    said = ""
    try:
        load_adapter(url)
    except (ConfigurationError, NotOffered) as error:
        said = str(error)
    is_elsewhere = url.count(PASSWORD) > 1 or f"{PASSWORD}@" not in url  # where it is no password
    assert PASSWORD not in said or is_elsewhere, (url, said)


FILTERS = (
    "symbol = 'ACME' and price > 100 and venue in ('X', 'Y', 3)",
    "price between -1.5 and 2e3 and price != 7 and price exists",
    """path prefix '/eu/' and order."last-name" = 'O''Hara'""",
    """headers.trace exists and headers."x-trace" prefix 'eu-'""",
    'live = true AND "headers".x in (1, false) and "a.b" <= 10',
    "price >= 1 and price <= 1 and order.price < 5",
)
_FILTER_WORDS = [
    *re.findall(r"[\w.]+|[<>=!]+|'[^']*'|\"[^\"]*\"|[(),]", " ".join(FILTERS)),
    *(
        "'",
        '"',
        "''",
        '""',
        "or",
        "not",
        "IN",
        "And",
        "between",
        "headers",
        "headers.",
        ".",
        "-",
        "1e999",
        "1e308",
        "é",
        "\x00",
    ),
    *(
        "\ud800",
        "\ud7ff",
        "\U0001f600",
        "'\uffff'",
        "9" * 641,
        "(" * 500,
        " and x exists" * 70,
        ", 1" * 1_100,
        "a." * 20,
    ),
    *("'" + "x" * 4_000 + "'", "1.0000000000000001", "1", "1.0", "-0", "prefix ''", "\u00a0", "\n"),
]
"""What filters are made of, and what they must not be made of, or not in such a number."""
_DATA = {"symbol": "ACME", "price": 150, "venue": "X", "path": "/eu/x", "live": True, "a.b": 9.5}
_DATA |= {"order": {"price": 7, "last-name": "O'Hara"}, "headers": {"x": 1}}
_HEADERS: Mapping[str, bytes | str] = {"trace": "1", "x-trace": b"eu-17"}


def filters(random: Random) -> None:
    """`core.filters`: it is read, or refused with the place; as it is written itself, it is the same; matching never fails"""
    text = " and ".join(random.sample(FILTERS, random.choice((1, 1, 2, 3))))
    if random.random() < 0.9:
        text = mutate_text(random, text, _FILTER_WORDS)
    found, refusal = _parsed(text)
    if found is None:
        assert _says_where(refusal), (text, refusal)
        return
    again = Filter.parse(str(found))
    assert (again, str(again)) == (found, str(found)), text
    assert (found.covers(again), found.overlaps(again)) == (True, True), text
    data, headers = mutate_value(random, _DATA), _HEADERS if random.random() < 0.7 else {}
    assert found.matcher(data, headers) is again.matcher(data, headers), (text, data)


def _parsed(text: str) -> tuple[Filter | None, str]:
    """A filter, or why there is none."""
    try:
        return Filter.parse(text), ""
    except FilterError as error:
        return None, str(error)


def _says_where(refusal: str) -> bool:
    """Whether a caret is below the text; what is too long as a whole has no such place."""
    if "are allowed: compare fewer values" in refusal:
        return True
    *_, shown, pointer = ["", *refusal.split("\n")]
    return pointer.strip() == "^" and 4 <= pointer.index("^") <= len(shown)


TARGETS: Mapping[str, Callable[[Random], None]] = {
    "configuration": configuration,
    "topic-matching": topic_matching,
    "ens-urls": ens_urls,
    "filters": filters,
}
