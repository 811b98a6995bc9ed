"""URLs of brokers are read, or refused with a reason; what may be a password is never shown."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.errors import ConfigurationError
from ordered_pubsub_adapters.urls import (
    CONNECT_TIMEOUT_S,
    SECRET_BYTES_MAX,
    BrokerUrl,
    UrlRules,
    one_of,
    read_url,
    seconds,
    text,
    whole,
)

RULES = UrlRules(
    ports={"mqtt": 1883, "mqtts": 8883},
    encrypted=("mqtts",),
    parameters={"qos": whole(0, 2), "mode": one_of("a", "b"), "pause_s": seconds(0.5, 10), "name": text},
)
PATHS = UrlRules(ports={"amqp": 5672}, has_path=True)
SECRET = "s3cret-Word"


def read(url: str) -> BrokerUrl:
    return read_url(url, RULES)


def refusal(url: str, rules: UrlRules = RULES) -> str:
    with pytest.raises(ConfigurationError) as raised:
        read_url(url, rules)
    return str(raised.value)


# -- what is read ---------------------------------------------------------------------------------------------------------


def test_a_url_with_everything() -> None:
    url = read("MQTTS://me:p%40ss%2Fw%25@one:1,[::1]:2,three?qos=2&ca=/x/ca+1.pem&connect_timeout_s=2.5")

    assert (url.scheme, url.is_encrypted) == ("mqtts", True)
    assert url.hosts == (("one", 1), ("::1", 2), ("three", 8883))
    assert (url.user, url.password) == ("me", "p@ss/w%")
    assert url.parameters == {"qos": 2, "ca": "/x/ca+1.pem", "connect_timeout_s": 2.5}
    assert (url.get("qos"), url.get("mode", "otherwise"), url.connect_timeout_s) == (2, "otherwise", 2.5)


def test_a_url_with_nothing_has_the_scheme_s_port_and_defaults() -> None:
    url = read("mqtt://broker")

    assert url.hosts == (("broker", 1883),)
    assert (url.user, url.password, url.path, url.parameters) == (None, None, None, {})
    assert url.connect_timeout_s == CONNECT_TIMEOUT_S
    assert url.read_password() is None
    assert url.tls_context() is None


@pytest.mark.parametrize(
    ("url", "path"), [("amqp://h", None), ("amqp://h/", ""), ("amqp://h/a%2Fb", "a/b"), ("amqp://h//", "/")]
)
def test_a_path_is_decoded_where_there_may_be_one(url: str, path: str | None) -> None:
    assert read_url(url, PATHS).path == path


@pytest.mark.parametrize(
    ("url", "user", "password"),
    [
        ("mqtt://me@h", "me", None),
        ("mqtt://me:@h", "me", ""),
        ("mqtt://:word@h", None, "word"),
        ("mqtt://me:a:b@h", "me", "a:b"),
        ("mqtt://me:a@b@h", "me", "a@b"),
        ("mqtt://m%C3%A9:%C3%A9@h", "mé", "é"),
    ],
)
def test_users_and_passwords(url: str, user: str | None, password: str | None) -> None:
    assert (read(url).user, read(url).password) == (user, password)


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(user=WORDS, password=WORDS, name=WORDS)
def test_whatever_is_percent_encoded_comes_back(user: str, password: str, name: str) -> None:
    url = read(f"mqtt://{quote(user, '')}:{quote(password, '')}@h?name={quote(name, '')}")

    assert (url.user, url.password, url.get("name")) == (user, password, name)


# -- what is refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h", "expected a URL mqtt:// or mqtts://"),
        ("mqtt:/h", "expected a URL"),
        ("mqtt", "expected a URL"),
        ("", "expected a URL"),
        ("mqtt://", "expected host or host:port"),
        ("mqtt://:1883", "expected host or host:port"),
        ("mqtt://h,,i", "expected host or host:port"),
        ("mqtt://[::1", "expected host or host:port"),
        ("mqtt://::1", "expected host or host:port"),
        ("mqtt://h:", "a port is a whole number from 1 to 65535"),
        ("mqtt://h:0", "a port is a whole number from 1 to 65535"),
        ("mqtt://h:65536", "a port is a whole number from 1 to 65535"),
        ("mqtt://h:1e3", "a port is a whole number from 1 to 65535"),
        ("mqtt://h:²", "a port is a whole number from 1 to 65535"),
        ("mqtt://h/path", "there is a path behind the host"),
        ("mqtt://h#x", "there is a '#'"),
        ("mqtt://a b", "no spaces"),
        ("mqtt://h\n", "no spaces and no control characters"),
        ("mqtt://100%@h", "'%' stands before two hexadecimal digits"),
        ("mqtt://%FF@h", "the user is not UTF-8"),
        ("mqtt://h?name=%FF", "name is not UTF-8"),
        ("mqtt://h?qos=3", "qos='3' does not fit; qos is a whole number from 0 to 2"),
        ("mqtt://h?qos=", "qos='' does not fit"),
        ("mqtt://h?qos=-1", "qos is a whole number from 0 to 2"),
        ("mqtt://h?qos=1&qos=1", "qos is given twice; leave one out"),
        ("mqtt://h?mode=c", "mode is one of a, b"),
        ("mqtt://h?pause_s=nan", "pause_s is seconds from 0.5 to 10"),
        ("mqtt://h?pause_s=0.1", "pause_s is seconds from 0.5 to 10"),
        ("mqtt://h?name=", "name is a text that is not empty"),
        (
            "mqtt://h?QoS=1",
            "there is no parameter 'QoS'; there are qos, mode, pause_s, name, ca, cert, key, password_file",
        ),
        ("mqtt://h?ca=ca.pem", "ca is for encrypted connections, and mqtt:// is none"),
        ("mqtts://h?key=k.pem", "key belongs to a certificate"),
        ("mqtts://h?ca=", "ca is the name of a file"),
        ("mqtt://u:p@h?password_file=x", "there is a password and a password_file; leave one out"),
    ],
)
def test_what_does_not_fit_is_refused(url: str, reason: str) -> None:
    assert reason in refusal(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:{}@h",
        "mqtt://me:{}@h:x",
        "mqtt://me:{}@h/path",
        "mqtt://me:{}@h?qos=9",
        "mqtt://me:{}@h?what=1",
        "mqtt://me:{}@h?{}",
        "mqtt://me:{}@h?{}=1",
        "mqtt://me:{}/x@h",
        "mqtt://me:x/{}@h",
        "mqtt://me:{}?x@h",
        "mqtt://me:x?{}@h",
        "mqtt://me:{}#x@h",
        "mqtt://me:x#{}@h",
        "mqtt://me:{}@h:1?password_file=x",
        "mqtt://{}@h:x",
        "mqtt://me:{} @h",
        "mqtt://me:%{}@h",
        "mqtt://me:%FF{}@h",
    ],
)
def test_no_message_shows_a_password(url: str) -> None:
    """Not even of one whose marks are not encoded, so that it ends up elsewhere; nor a token in the place of the user."""
    assert SECRET not in refusal(url.format(SECRET, SECRET))


def test_a_url_that_was_read_shows_no_password() -> None:
    url = read(f"mqtt://me:{SECRET}@h:1?name=x")

    assert url.shown == "mqtt://me:***@h:1"
    assert SECRET not in repr(url)


# -- files ------------------------------------------------------------------------------------------------------------------


def url_with(name: str, path: Path, more: str = "") -> BrokerUrl:
    return read(f"mqtts://me@h?{name}={quote(str(path), '')}{more}")


@pytest.mark.parametrize(
    ("content", "password"), [(b"word\n", "word"), (b"w d", "w d"), ("wörd\r\n".encode(), "wörd"), (b"", "")]
)
def test_a_password_is_read_from_its_file(tmp_path: Path, content: bytes, password: str) -> None:
    path = tmp_path / "a file"
    path.write_bytes(content)

    assert url_with("password_file", path).read_password() == password


def test_a_password_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "word"
    path.write_text("old")
    url = url_with("password_file", path)
    path.write_text("new")

    assert url.read_password() == "new"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"\xff", "is not UTF-8 text"),
        (b"x" * (SECRET_BYTES_MAX + 1), "more than 65536 bytes"),
    ],
)
def test_a_password_file_that_does_not_fit_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "word"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigurationError, match=f"password_file='.*word'.*{reason}"):
        url_with("password_file", path).read_password()


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate, its key, and the same key with a passphrase."""
    folder = tmp_path_factory.mktemp("pem")
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    commands = [
        [*new, "-keyout", "key", "-out", "cert"],
        ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", "key", "-out", "locked"],
    ]
    for command in commands:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def test_a_context_checks_the_broker_and_speaks_nothing_older_than_tls_1_2(pem: Path) -> None:
    context = url_with("ca", pem / "cert").tls_context()

    assert context is not None
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(context.get_ca_certs()) == 1


def test_a_context_shows_the_client_s_certificate(pem: Path) -> None:
    assert url_with("cert", pem / "cert", f"&key={quote(str(pem / 'key'))}").tls_context() is not None


@pytest.mark.parametrize("file", ["missing", "key"])
def test_an_authority_that_cannot_be_used_is_named(pem: Path, file: str) -> None:
    with pytest.raises(ConfigurationError, match=f"ca='.*{file}' cannot be used: .*; expected a PEM file"):
        url_with("ca", pem / file).tls_context()


@pytest.mark.parametrize("key", ["missing", "cert", "locked"])
def test_a_key_that_cannot_be_used_is_named(pem: Path, key: str) -> None:
    """A key with a passphrase does not make the process wait for somebody at a terminal."""
    url = url_with("cert", pem / "cert", f"&key={quote(str(pem / key))}")

    with pytest.raises(ConfigurationError, match=f"cert='.*cert', key='.*{key}' cannot be used"):
        url.tls_context()
