"""TLS as a stage speaks it: 1.2 or later, and certificates that can be replaced while it runs."""

from __future__ import annotations

import ssl

import attrs

from ordered_pubsub.config.schema import StageTls
from ordered_pubsub.errors import ConfigurationError


@attrs.define(eq=False)
class StageTlsContexts:
    """How a stage shows who it is: to those who connect, and to the stages that it dials."""

    section: StageTls | None
    _server: ssl.SSLContext | None = attrs.field(init=False, default=None)
    _client: ssl.SSLContext | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        if self.section is not None:
            self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._client = ssl.create_default_context()
            for context in (self._server, self._client):
                context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.reload()

    def reload(self) -> None:
        """Read the files again: whoever connects from now on sees what they hold now."""
        section = self.section
        if section is None or self._server is None or self._client is None:
            return
        try:
            for context in (self._server, self._client):
                context.load_cert_chain(section.cert, section.key)
            if section.client_ca is not None:
                for context in (self._server, self._client):
                    context.load_verify_locations(section.client_ca)
                self._server.verify_mode = ssl.CERT_OPTIONAL  # who shows none may show a token
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"tls: cert={section.cert!r}, key={section.key!r}, client_ca={section.client_ca!r} cannot be used: {error}; "
                "expected PEM files, the key belonging to the certificate"
            ) from error

    def server(self) -> ssl.SSLContext | None:
        """For the listener; None if it speaks no TLS."""
        return self._server

    def client(self) -> ssl.SSLContext | None:
        """For stages that are dialled. `client_ca` is whom they are trusted by, beside the system's authorities."""
        return self._client or ssl.create_default_context()
