"""URLs of brokers: what the adapters share of reading them.

    scheme://[user[:password]@]host[:port][,host2[:port2]...][/path]?name=value&name=value

Everything between the marks may be percent-encoded, and must be where it contains one of them. Each adapter says with
`UrlRules` which schemes and parameters it knows; the parameters in `COMMON` exist for all of them. What is unknown, given
twice or does not fit is a `ConfigurationError` when the adapter is made, long before a broker is asked. Files are opened only
when a connection is: passwords and certificates may be renewed while the process runs.

A part of a URL that might be a password is never shown. So messages have neither the URL's parameters nor whatever stands
where a password with an unencoded mark would end up.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import attrs

from ordered_pubsub.config.schema import ClientTls
from ordered_pubsub.config.tls import client_context
from ordered_pubsub.errors import ConfigurationError

Reader = Callable[[str], Any]
"""Makes a parameter's value of its text, or raises a `ValueError` that says what fits."""

CONNECT_TIMEOUT_S = 10.0
TIMEOUT_MAX_S = 3600.0
PORT_MAX = 65_535
SECRET_BYTES_MAX = 65_536
"""A password file that is longer is some other file."""

_URL = re.compile(
    r"(?P<scheme>[^:/?#]+)://(?P<authority>[^/?#]*)(?P<path>/[^?#]*)?(\?(?P<query>[^#]*))?(?P<fragment>#.*)?"
)
_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@\s]+))(:(?P<port>[^:]*))?")
_UNFIT = re.compile(r"[\x00-\x20\x7f]")
_ADVICE = "in a user, password, host or path, write / ? # @ : and % as %2F %3F %23 %40 %3A and %25"
_LOOSE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


# -- readers ------------------------------------------------------------------------------------------------------------


def text(value: str) -> str:
    """A reader of any text but none."""
    if not value:
        raise ValueError("a text that is not empty")
    return value


def file_name(value: str) -> str:
    """A reader of the name of a file, which is opened later."""
    if not value or "\x00" in value:
        raise ValueError("the name of a file")
    return value


def one_of(*choices: str) -> Reader:
    """A reader that knows these texts only."""

    def read(value: str) -> str:
        if value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return value

    return read


def whole(least: int, most: int) -> Reader:
    """A reader of whole numbers."""

    def read(value: str) -> int:
        if not (value.isascii() and value.isdigit() and len(value) < 20 and least <= int(value) <= most):
            raise ValueError(f"a whole number from {least} to {most}")
        return int(value)

    return read


def number(least: float, most: float, fits: str) -> Reader:
    """A reader of numbers."""

    def read(value: str) -> float:
        with suppress(ValueError):
            if least <= float(value) <= most:
                return float(value)
        raise ValueError(fits)

    return read


def seconds(least: float, most: float = TIMEOUT_MAX_S) -> Reader:
    """A reader of durations."""
    return number(least, most, f"seconds from {least:g} to {most:g}")


COMMON: Mapping[str, Reader] = {
    "ca": file_name,
    "cert": file_name,
    "key": file_name,
    "password_file": file_name,
    "connect_timeout_s": seconds(0.1),
}
"""Parameters that all brokers have: certificates (PEM), where the password is, how long connecting may take."""
TLS_PARAMETERS = ("ca", "cert", "key")


# -- a URL --------------------------------------------------------------------------------------------------------------


@attrs.frozen
class UrlRules:
    """What an adapter expects of its URLs."""

    ports: Mapping[str, int]
    """the schemes, and the port of each when none is named"""
    encrypted: tuple[str, ...] = ()
    """those of the schemes that stand for TLS"""
    parameters: Mapping[str, Reader] = {}
    """beyond the common ones"""
    has_path: bool = False


@attrs.frozen
class BrokerUrl:
    """A URL that was read."""

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    """names or addresses (IPv6 without brackets), and ports; at least one"""
    shown: str
    """as it may be shown: without password and parameters"""
    is_encrypted: bool = False
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    path: str | None = None
    """decoded and without the first slash; None if there was none"""
    parameters: Mapping[str, Any] = {}

    def get(self, name: str, otherwise: Any = None) -> Any:
        """A parameter's value, as its reader returned it."""
        return self.parameters.get(name, otherwise)

    @property
    def connect_timeout_s(self) -> float:
        """How long connecting may take."""
        return float(self.get("connect_timeout_s", CONNECT_TIMEOUT_S))

    def read_password(self) -> str | None:
        """The password: of the URL, or of the file that it names, which is read anew."""
        name = self.get("password_file")
        if name is None:
            return self.password
        where = f"{self.shown}: password_file={name!r}"
        try:
            with open(name, "rb") as file:
                secret = file.read(SECRET_BYTES_MAX + 1)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{where} cannot be read: {error}") from error
        if len(secret) > SECRET_BYTES_MAX:
            raise ConfigurationError(f"{where} cannot be read: it has more than {SECRET_BYTES_MAX} bytes")
        try:
            return secret.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise ConfigurationError(f"{where} is not UTF-8 text; expected the password alone") from None

    def tls_context(self) -> ssl.SSLContext | None:
        """How to speak TLS with the broker, its certificate and name checked; None if the scheme is not encrypted."""
        if not self.is_encrypted:
            return None
        try:
            return client_context(ClientTls(**{name: self.get(name) for name in TLS_PARAMETERS}))
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.shown}: {error}") from error


def read_url(url: str, rules: UrlRules) -> BrokerUrl:
    """Read a URL by an adapter's rules, or raise a `ConfigurationError` that says what does not fit."""
    match = _URL.fullmatch(url)
    if match is None or match["scheme"].lower() not in rules.ports:
        raise ConfigurationError(
            f"expected a URL {_form(rules)}, and not one that begins with {url.partition(':')[0]!r}"
        )
    scheme = match["scheme"].lower()
    user_info, at, hosts = match["authority"].rpartition("@")
    where = _shown(scheme, user_info, at, hosts, match)
    path = match["path"] or ""
    if _UNFIT.search(url):
        raise ConfigurationError(f"{where}: a URL has no spaces and no control characters; write a space as %20")
    if match["fragment"] or "@" in path:
        raise ConfigurationError(
            f"{where}: expected {_form(rules)}; there is a '#', or an '@' behind the host: {_ADVICE}"
        )
    if path not in ("", "/") and not rules.has_path:
        raise ConfigurationError(
            f"{where}: expected {_form(rules)}; there is a path behind the host. Leave it out, or {_ADVICE}"
        )
    if _LOOSE_PERCENT.search(url):
        raise ConfigurationError(
            f"{where}: '%' stands before two hexadecimal digits; write the character itself as %25"
        )
    user, colon, password = user_info.partition(":")
    found = BrokerUrl(
        scheme=scheme,
        hosts=tuple(_read_host(where, host, rules.ports[scheme]) for host in hosts.split(",")),
        shown=where,
        is_encrypted=scheme in rules.encrypted,
        user=_decode(where, "the user", user) if user else None,
        password=_decode(where, "the password", password) if colon else None,
        path=_decode(where, "the path", path[1:]) if path else None,
        parameters=read_parameters(where, match["query"] or "", {**rules.parameters, **COMMON}),
    )
    _check_together(found)
    return found


def _form(rules: UrlRules) -> str:
    path = "[/path]" if rules.has_path else ""
    names = "=…&".join((*rules.parameters, *COMMON))
    return f"{' or '.join(f'{scheme}://' for scheme in rules.ports)} and [user[:password]@]host[:port]{path}?{names}=…"


def _shown(scheme: str, user_info: str, at: str, hosts: str, match: re.Match[str]) -> str:
    """The URL as it may be shown.

    An `@` behind the hosts may be the end of a password that has an unencoded mark, and a user without a password is a token
    with some brokers.
    """
    if "@" in (match["path"] or "") + (match["query"] or "") + (match["fragment"] or ""):
        return f"{scheme}://…"
    user, colon, _ = user_info.partition(":")
    if "@" in user:
        return f"{scheme}://***@{hosts}"
    return f"{scheme}://{f'{user}:***' if colon else '***' if user else ''}{at}{hosts}"


def _read_host(where: str, text: str, port: int) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"{where}: expected host or host:port, several separated by commas, an IPv6 address as in [::1]:1883"
        )
    name = match["address"] or _decode(where, "the host", match["name"])
    if match["port"] is None:
        return name, port
    try:
        return name, int(whole(1, PORT_MAX)(match["port"]))
    except ValueError as error:
        raise ConfigurationError(f"{where}: a port does not fit; a port is {error}; {_ADVICE}") from None


def read_parameters(where: str, query: str, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """What stands behind the question mark, or a `ConfigurationError` that says which parameter does not fit."""
    values: dict[str, Any] = {}
    for item in filter(None, query.split("&")):
        name, _, value = item.partition("=")
        if name not in readers:
            shown = repr(name) if name.isidentifier() else "of such a name"
            raise ConfigurationError(f"{where}: there is no parameter {shown}; there are {', '.join(readers)}")
        if name in values:
            raise ConfigurationError(f"{where}: {name} is given twice; leave one out")
        value = _decode(where, name, value)
        try:
            values[name] = readers[name](value)
        except ValueError as error:
            raise ConfigurationError(f"{where}: {name}={value!r} does not fit; {name} is {error}") from None
    return values


def _decode(where: str, what: str, text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{where}: {what} is not UTF-8 when its percent signs are decoded") from None


def _check_together(url: BrokerUrl) -> None:
    given = [name for name in TLS_PARAMETERS if name in url.parameters]
    if given and not url.is_encrypted:
        raise ConfigurationError(
            f"{url.shown}: {given[0]} is for encrypted connections, and {url.scheme}:// is none; take the encrypted scheme, "
            f"or leave {given[0]} out"
        )
    if "key" in given and "cert" not in given:
        raise ConfigurationError(f"{url.shown}: key belongs to a certificate; name its file with cert")
    if url.password is not None and "password_file" in url.parameters:
        raise ConfigurationError(f"{url.shown}: there is a password and a password_file; leave one out")
