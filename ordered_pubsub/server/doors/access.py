"""Who somebody is.

An identity is shown by a token, of which only the hash is kept here, or by a certificate that a TLS listener has verified;
what it may do is in its section of the configuration. Where no identities are configured, everybody is `ANYONE`; such a
stage listens on loopback only, unless it was told otherwise by name (`config.checks`).

What was shown is kept for as long as the connection lasts (`Proof`, without the token itself), and looked at again whenever
the identities are read again: who would not be let in any more does not stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import attrs

from ordered_pubsub.config.schema import IdentitySection, Rights
from ordered_pubsub.core.messages import ANYBODY

ANYONE = IdentitySection(
    name=ANYBODY,
    names=("*",),
    allow=Rights(
        publish=("**",), subscribe=("**",), transact=True, manage=("*",), move=True, administer=True, stage=True
    ),
)
"""Everybody, where there are no identities."""


@attrs.frozen
class Proof:
    """What somebody has shown."""

    token_sha256: str = attrs.field(default="", repr=False)
    """the hash of a token; empty if there was none"""
    names: tuple[str, ...] = ()
    """what a verified certificate calls its holder"""

    @classmethod
    def of(cls, token: str, certificate: Mapping[str, Any] | None) -> Proof:
        """What a greeting's token and the connection's certificate prove."""
        return cls(sha256(token.encode()).hexdigest() if token else "", names_in(certificate))


@attrs.frozen
class Access:
    """The identities of a stage."""

    _by_token: Mapping[str, IdentitySection]
    _by_certificate: Mapping[str, IdentitySection]
    is_open: bool
    """whether nobody needs to show anything"""

    @classmethod
    def of(cls, identities: tuple[IdentitySection, ...] | None) -> Access:
        """What the configuration says; None: everybody may do everything."""
        if identities is None:
            return cls({}, {}, is_open=True)
        return cls(
            {digest.lower(): identity for identity in identities for digest in identity.token_sha256},
            {identity.certificate: identity for identity in identities if identity.certificate is not None},
            is_open=False,
        )

    def is_somebodys(self, name: str) -> bool:
        """Whether a client's name is kept for some identity."""
        return any(identity.has_name(name) for identity in (*self._by_token.values(), *self._by_certificate.values()))

    def identify(self, proof: Proof) -> IdentitySection | None:
        """Who this is; None if it is nobody known here, or if a certificate names more than one identity."""
        if self.is_open:
            return ANYONE
        if proof.token_sha256:
            return self._by_token.get(proof.token_sha256)
        known = {name: self._by_certificate[name] for name in proof.names if name in self._by_certificate}
        return next(iter(known.values())) if len(known) == 1 else None


def names_in(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names that a verified certificate says its holder has: the subject's common name, then the alternative names."""
    if not certificate:
        return ()
    subject = [value for entry in certificate.get("subject", ()) for key, value in entry if key == "commonName"]
    others = [value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str)]
    return (*subject, *others)


def has_lost_keys(before: tuple[IdentitySection, ...] | None, now: tuple[IdentitySection, ...] | None) -> bool:
    """Whether somebody has keys, perhaps, that he could not get any more: he has lost a right to subscribe, or what he shows is
    no proof any more, since it was stolen.
    """
    if has_lost_subscribe(before, now):
        return True
    proofs = {identity.name: _proofs_of(identity) for identity in now or ()}
    return bool(now) and any(
        identity.allow.subscribe and not _proofs_of(identity) <= proofs[identity.name] for identity in before or ()
    )


def _proofs_of(identity: IdentitySection) -> set[tuple[str, str]]:
    tokens = {("token", digest.lower()) for digest in identity.token_sha256}
    return tokens if identity.certificate is None else tokens | {("certificate", identity.certificate)}


def has_lost_subscribe(before: tuple[IdentitySection, ...] | None, now: tuple[IdentitySection, ...] | None) -> bool:
    """Whether somebody may perhaps not subscribe any more to what he could: he may have keys that he must not use longer.

    In doubt yes: patterns that are written in another way count as others.
    """
    if now is None:
        return False
    if before is None:
        return True
    rights = {identity.name: identity for identity in now}
    for identity in before:
        after = rights.get(identity.name)
        allowed = set() if after is None else set(after.allow.subscribe)
        denied = set() if after is None else set(after.deny.subscribe)
        if not (allowed.issuperset(identity.allow.subscribe) and denied.issubset(identity.deny.subscribe)):
            return True
    return False
