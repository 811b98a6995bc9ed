"""Where a stage is: `ops://host:port`, and `opss://host:port` with TLS.

A listener's address has no scheme (`0.0.0.0:7411`), since its `tls` table says how it is spoken to. Its host may be left out
and is then loopback: nothing is opened to others by leaving something out. IPv6 stands in brackets.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

import attrs

from ordered_pubsub.config.kinds import shown
from ordered_pubsub.errors import ConfigurationError

DEFAULT_PORT = 7411
LOOPBACK = "127.0.0.1"
SCHEMES = {"ops": False, "opss": True}
"""→ whether it is TLS"""

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)
_HOST_LENGTH_MAX = 253
_PORT = re.compile(r":[0-9]{1,5}", re.ASCII)
_PORT_MAX = 65535


@attrs.frozen
class Address:
    """A host and a port, and whether TLS is spoken there."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False

    def __str__(self) -> str:
        return f"{'opss' if self.tls else 'ops'}://{self.host_and_port}"

    @property
    def host_and_port(self) -> str:
        """As a listener's address is written."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A name is taken for one that others reach, but for `localhost`."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower().rstrip(".") == "localhost"

    @property
    def is_everywhere(self) -> bool:
        """Whether it stands for all the addresses of a machine: to listen at, not to be reached at."""
        try:
            return ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def overlaps(self, other: Address) -> bool:
        """Whether one machine could not listen at both."""
        if self.port != other.port or self.port == 0:
            return False
        return self.host.lower() == other.host.lower() or self.is_everywhere or other.is_everywhere


def parse_address(text: object) -> Address:
    """The address of a stage that is to be reached: `ops://stage-1:7411`."""
    if not isinstance(text, str):
        raise _not_one(text, "it is not a text")
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise _not_one(text, f"it has no scheme; write ops://{text}, or opss:// for TLS")
    if scheme.lower() not in SCHEMES:
        raise _not_one(text, f"{scheme}:// is not a stage's scheme; a stage is at ops://, or at opss:// with TLS")
    host, port = _split(text, rest)
    address = Address(host, port, SCHEMES[scheme.lower()])
    if not host or address.is_everywhere:
        raise _not_one(text, "nobody can be reached there; name the host, as in ops://stage-1:7411")
    if not port:
        raise _not_one(text, "port 0 means any free one, and only a listener can ask for that")
    return address


def parse_listen(text: object) -> Address:
    """The address that a listener is bound to: `127.0.0.1:7411`, or `:7411` for loopback; port 0 takes a free one."""
    if not isinstance(text, str) or not text:
        raise _not_one(text, "it is not a text such as '127.0.0.1:7411'")
    if "://" in text:
        raise _not_one(text, f"it has no scheme here: write {text.partition('://')[2]!r}, and a tls table for TLS")
    host, port = _split(text, text)
    return Address(host or LOOPBACK, port)


def _split(text: str, rest: str) -> tuple[str, int]:
    if "@" in rest:
        raise _not_one(text, "an address has no user and no password, since a client shows a token; write host:port")
    if any(sign in rest for sign in "/?#"):
        raise _not_one(text, "nothing comes after the port")
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket:
            raise _not_one(text, "its bracket does not end")
        try:
            return str(IPv6Address(host)), _read_port(text, tail)
        except ValueError:
            raise _not_one(text, "what stands in brackets is not an IPv6 address") from None
    if rest.count(":") > 1:
        raise _not_one(text, "an IPv6 address stands in brackets, as in [::1]:7411")
    host, separator, port = rest.partition(":")
    return _read_host(text, host), _read_port(text, separator + port)


def _read_port(text: str, tail: str) -> int:
    if not tail:
        return DEFAULT_PORT
    if not _PORT.fullmatch(tail) or int(tail[1:]) > _PORT_MAX:
        raise _not_one(text, f"what comes after the host is a colon and a port from 1 to {_PORT_MAX}")
    return int(tail[1:])


def _read_host(text: str, host: str) -> str:
    if not host:
        return ""
    if host.replace(".", "").isdigit():
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise _not_one(text, f"{host} is not an IPv4 address") from None
    if not _HOST.fullmatch(host) or len(host) > _HOST_LENGTH_MAX:
        raise _not_one(text, "a host is a name of ASCII letters, digits, '-' and '.', or an IP address")
    return host


def _not_one(text: object, why: str) -> ConfigurationError:
    return ConfigurationError(f"{shown(text)} is not an address: {why}")
