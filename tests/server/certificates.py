"""Certificates for tests: an authority, and what it signs, as files."""

from __future__ import annotations

import os
import ssl
from datetime import datetime
from pathlib import Path

import attrs
import trustme


@attrs.frozen
class Certificate:
    """A certificate and its key, in files."""

    cert: str
    key: str


class Authority:
    """Who signs certificates."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.name = name
        self._ca = trustme.CA(organization_name=name)
        self.file = str(folder / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def sign(self, common_name: str, *names: str, file: str = "", not_after: datetime | None = None) -> Certificate:
        """A certificate for somebody, or for a host: its alternative names are `names`, or localhost."""
        made = self._ca.issue_cert(*(names or ("localhost", "127.0.0.1")), common_name=common_name, not_after=not_after)
        cert, key = (str(self.folder / f"{file or f'{self.name}-{common_name}'}.{what}") for what in ("pem", "key"))
        Path(cert).write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        os.close(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600))
        Path(key).write_bytes(made.private_key_pem.bytes())
        return Certificate(cert, key)

    def client_context(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        """For somebody who trusts this authority, and perhaps shows a certificate."""
        context = ssl.create_default_context(cafile=self.file)
        if certificate is not None:
            context.load_cert_chain(certificate.cert, certificate.key)
        return context


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """For a listener."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    return context
