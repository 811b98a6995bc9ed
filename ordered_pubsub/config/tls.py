"""What a client speaks TLS with, and how keys are read: here and at a stage."""

from __future__ import annotations

import ssl

from ordered_pubsub.config.schema import ClientTls
from ordered_pubsub.errors import ConfigurationError


def client_context(section: ClientTls | None) -> ssl.SSLContext:
    """Made anew for each connection, so that renewed files are used; without a section, by the machine's authorities."""
    try:
        made = ssl.create_default_context(cafile=None if section is None else section.ca)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"tls: ca={section and section.ca!r} cannot be used: {error}; expected a PEM file"
        ) from error
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if section is not None and section.cert is not None:
        load_key(made, section.cert, section.key)
    return made


def load_key(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    """Read a certificate and its key. One with a passphrase is refused: OpenSSL would ask for it on somebody's terminal."""
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"tls: cert={cert!r}, key={key or cert!r} cannot be used: {error}; expected PEM files, the key belonging to the "
            "certificate and without passphrase"
        ) from error
