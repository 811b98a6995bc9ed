"""Where a stage is: what is an address, and what is said of what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.config.addresses import Address, parse_address, parse_listen
from ordered_pubsub.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ops://127.0.0.1:7411", Address("127.0.0.1", 7411)),
        ("opss://stage-1.example:1", Address("stage-1.example", 1, tls=True)),
        ("OPS://Stage_1", Address("Stage_1", 7411)),
        ("ops://[::1]:65535", Address("::1", 65535)),
        ("ops://[2001:DB8:0::1]", Address("2001:db8::1", 7411)),
        ("ops://stage.example.:80", Address("stage.example.", 80)),
    ],
)
def test_an_address_has_a_scheme_a_host_and_perhaps_a_port(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http://a:1", "http:// is not a stage's scheme; a stage is at ops://, or at opss:// with TLS"),
        ("a:7411", "it has no scheme; write ops://a:7411, or opss:// for TLS"),
        ("ops://", "nobody can be reached there; name the host"),
        ("ops://:7411", "nobody can be reached there"),
        ("ops://0.0.0.0:7411", "nobody can be reached there"),
        ("ops://[::]", "nobody can be reached there"),
        ("ops://a:0", "port 0 means any free one, and only a listener can ask for that"),
        ("ops://a:", "a colon and a port from 1 to 65535"),
        ("ops://a:65536", "a colon and a port from 1 to 65535"),
        ("ops://a:x", "a colon and a port"),
        ("ops://a:+1", "a colon and a port"),
        ("ops://a:\u0661", "a colon and a port"),
        ("ops://a:1/x", "nothing comes after the port"),
        ("ops://a?x=1", "nothing comes after the port"),
        ("ops://::1:7411", "an IPv6 address stands in brackets, as in [::1]:7411"),
        ("ops://[::1", "its bracket does not end"),
        ("ops://[]:1", "what stands in brackets is not an IPv6 address"),
        ("ops://[127.0.0.1]:1", "what stands in brackets is not an IPv6 address"),
        ("ops://[::1]x", "a colon and a port"),
        ("ops://256.1.1.1:1", "256.1.1.1 is not an IPv4 address"),
        ("ops://1:1", "1 is not an IPv4 address"),
        ("ops://a b:1", "a host is a name of ASCII letters"),
        ("ops://-a:1", "a host is a name of ASCII letters"),
        ("ops://a..b:1", "a host is a name of ASCII letters"),
        ("ops://münchen:1", "a host is a name of ASCII letters"),
        ("ops://" + "a." * 130 + "a", "a host is a name of ASCII letters"),
        ("", "it has no scheme"),
        (7, "it is not a text"),
    ],
)
def test_what_is_no_address_is_said(text: object, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_address(text)
    assert says in str(caught.value)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="an address has no user and no password") as caught:
        parse_address("ops://user:secret@a:1")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7411", Address("127.0.0.1", 7411)),
        ("0.0.0.0", Address("0.0.0.0", 7411)),
        (":0", Address("127.0.0.1", 0)),
        (":7412", Address("127.0.0.1", 7412)),
        ("[::]:1", Address("::", 1)),
        ("localhost:1", Address("localhost", 1)),
    ],
)
def test_a_listener_without_a_host_is_at_loopback(text: str, address: Address) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ops://127.0.0.1:1", "it has no scheme here: write '127.0.0.1:1', and a tls table for TLS"),
        ("", "it is not a text such as '127.0.0.1:7411'"),
        ("a:b", "a colon and a port"),
        ("::1", "an IPv6 address stands in brackets"),
    ],
)
def test_what_is_no_listener_is_said(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_listen(text)
    assert says in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST."])
def test_loopback_is_known(host: str) -> None:
    assert Address(host).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "stage-1", "localhost.example", "::ffff:10.0.0.1"])
def test_what_others_may_reach_is_not_loopback(host: str) -> None:
    assert not Address(host).is_loopback


@pytest.mark.parametrize(
    ("one", "two", "overlap"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("10.0.0.1:1", "10.0.0.2:1", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("Stage:1", "stage:1", True),
    ],
)
def test_two_listeners_need_two_ports_or_two_addresses(one: str, two: str, overlap: bool) -> None:
    assert parse_listen(one).overlaps(parse_listen(two)) is overlap
    assert parse_listen(two).overlaps(parse_listen(one)) is overlap


HOSTS = st.ip_addresses().map(str) | st.from_regex(r"[a-z_][a-z0-9_-]{0,20}(\.[a-z0-9-]{1,9}){0,2}", fullmatch=True)


@given(HOSTS, st.integers(0, 65535))
def test_a_listener_is_written_as_it_is_read(host: str, port: int) -> None:
    address = Address(host, port)

    assert parse_listen(address.host_and_port) == address


@given(HOSTS, st.integers(1, 65535), st.booleans())
def test_an_address_is_written_as_it_is_read(host: str, port: int, tls: bool) -> None:
    address = Address(host, port, tls)
    if not address.is_everywhere:
        assert parse_address(str(address)) == address


@given(st.text() | st.text(alphabet="ops:/[]@.0127 a?#%", max_size=30))
def test_whatever_the_text_nothing_but_a_configuration_error_is_raised(text: str) -> None:
    for parse in (parse_address, parse_listen):
        try:
            assert parse(text).host
        except ConfigurationError:
            continue
