"""TLS as a stage speaks it: 1.2 or later, and certificates that can be replaced while it runs."""

from __future__ import annotations

import ssl

import attrs

from ordered_pubsub.config.schema import StageTls
from ordered_pubsub.config.tls import load_key
from ordered_pubsub.errors import ConfigurationError


@attrs.frozen
class StageTlsContexts:
    """How a stage shows who it is: to those who connect, and to the stages that it dials.

    Files that were replaced are read into new contexts (`of`). One that is in use is never changed: a certificate whose key
    has not arrived yet would leave the listener without any, and an authority that was removed would go on being trusted.
    """

    server: ssl.SSLContext | None
    """for who connects; None if no TLS is spoken"""
    client: ssl.SSLContext
    """for stages that are dialled. `client_ca` is whom they are trusted by, beside the system's authorities"""

    @classmethod
    def of(cls, section: StageTls | None) -> StageTlsContexts:
        """Read the files of a section."""
        client = _limited(ssl.create_default_context())
        if section is None:
            return cls(None, client)
        server = _limited(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        for context in (server, client):
            load_key(context, section.cert, section.key)
            if section.client_ca is not None:
                try:
                    context.load_verify_locations(section.client_ca)
                except (OSError, ValueError) as error:
                    raise ConfigurationError(
                        f"tls: client_ca={section.client_ca!r} cannot be used: {error}; expected a PEM file"
                    ) from error
        if section.client_ca is not None:
            server.verify_mode = ssl.CERT_OPTIONAL  # who shows none may show a token
        return cls(server, client)


def _limited(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context
