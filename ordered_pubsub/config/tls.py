"""What a client speaks TLS with."""

from __future__ import annotations

import ssl

from ordered_pubsub.config.schema import ClientTls


def client_context(section: ClientTls | None) -> ssl.SSLContext:
    """Made anew for each connection, so that renewed files are used; without a section, by the machine's authorities."""
    made = ssl.create_default_context(cafile=None if section is None else section.ca)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if section is not None and section.cert is not None:
        made.load_cert_chain(section.cert, section.key)
    return made
