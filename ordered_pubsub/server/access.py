"""Who somebody is.

An identity is shown by a token, of which only the hash is kept here, or by a certificate that a TLS listener has verified;
what it may do is in its section of the configuration. Where no identities are configured, everybody is `ANYONE`; such a
stage listens on loopback only, unless it was told otherwise by name (`config.checks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import attrs

from ordered_pubsub.config.schema import IdentitySection, Rights

ANYONE = IdentitySection(
    name="anyone",
    allow=Rights(publish=("**",), subscribe=("**",), transact=True, move=True, administer=True, stage=True),
)
"""Everybody, where there are no identities."""


@attrs.frozen
class Access:
    """The identities of a stage."""

    _by_name: Mapping[str, IdentitySection]
    _by_token: Mapping[str, IdentitySection]
    _by_certificate: Mapping[str, IdentitySection]
    is_open: bool
    """whether nobody needs to show anything"""

    @classmethod
    def of(cls, identities: tuple[IdentitySection, ...] | None) -> Access:
        """What the configuration says; None: everybody may do everything."""
        if identities is None:
            return cls({ANYONE.name: ANYONE}, {}, {}, is_open=True)
        return cls(
            {identity.name: identity for identity in identities},
            {digest.lower(): identity for identity in identities for digest in identity.token_sha256},
            {identity.certificate: identity for identity in identities if identity.certificate is not None},
            is_open=False,
        )

    def identify(self, token: str, certificate: Mapping[str, Any] | None) -> IdentitySection | None:
        """Who shows this token, or this verified certificate; None if it is nobody known here."""
        if self.is_open:
            return ANYONE
        if token:
            return self._by_token.get(sha256(token.encode()).hexdigest())
        for name in names_in(certificate):
            if name in self._by_certificate:
                return self._by_certificate[name]
        return None

    def named(self, name: str) -> IdentitySection | None:
        """The identity of that name; None if there is none any more."""
        return self._by_name.get(name)


def names_in(certificate: Mapping[str, Any] | None) -> list[str]:
    """The names that a verified certificate says its holder has: the subject's common name, then the alternative names."""
    if not certificate:
        return []
    subject = [value for entry in certificate.get("subject", ()) for key, value in entry if key == "commonName"]
    return subject + [value for _, value in certificate.get("subjectAltName", ())]
