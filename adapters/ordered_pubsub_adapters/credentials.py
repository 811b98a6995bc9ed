"""What the adapters read from files to identify themselves to a broker, and it to them: passwords and certificates.

Files are read when a connection is made, and whoever has a file that cannot be used is told its name and what was expected.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from ordered_pubsub.errors import ConfigurationError

SECRET_BYTES_MAX = 65_536
"""A password file that is longer is some other file."""


def read_secret(where: str, name: str) -> str:
    """The password that a file holds; `where` is the broker, as it is shown in errors."""
    try:
        with Path(name).open("rb") as file:
            secret = file.read(SECRET_BYTES_MAX + 1)
        if len(secret) > SECRET_BYTES_MAX:
            raise ValueError(f"it has more than {SECRET_BYTES_MAX} bytes")
        return secret.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{where}: password_file={name!r} is not UTF-8 text; expected the password alone"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{where}: password_file={name!r} cannot be read: {error}") from error


def make_context(where: str, ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """How to speak TLS: the broker's certificate and name are checked, by the system's authorities or those in `ca`."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ConfigurationError(f"{where}: ca={ca!r} cannot be used; expected certificates in PEM: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None:
        _load_certificate(where, context, cert, key)
    return context


def _load_certificate(where: str, context: ssl.SSLContext, cert: str, key: str | None) -> None:
    """Load what this client shows. A key with a passphrase must not make the process ask for it on the terminal."""
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except OSError as error:
        raise ConfigurationError(
            f"{where}: cert={cert!r} with key={key or cert!r} cannot be used; expected a certificate and its key in PEM, the key "
            f"without passphrase: {error}"
        ) from error
