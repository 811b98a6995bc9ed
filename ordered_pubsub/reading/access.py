"""How a reader reaches the stages: plain data, so that it can be sent to other processes."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import attrs

from ordered_pubsub.config.addresses import Address
from ordered_pubsub.config.files import check_files, token_of
from ordered_pubsub.config.reading import load
from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.config.tls import client_context
from ordered_pubsub.errors import ConfigurationError


@attrs.frozen
class ReaderAccess:
    """Where stages are, and what is shown to them. Its files are read wherever a connection is made."""

    client: ClientSection

    @classmethod
    def of(cls, config: str | None = None, arguments: Mapping[str, Any] | None = None) -> ReaderAccess:
        """As the configuration file, the environment and these arguments say, the last of them first."""
        client = load(config, arguments=dict(arguments or {})).configuration.client
        if not client.sequencer:
            raise ConfigurationError(
                "no stage is named: give sequencer, as in ops://127.0.0.1:7411, or [client] sequencer in the configuration"
            )
        access = cls(client)
        check_files(client)
        for address in client.addresses:
            access.check_token(address)
        return access

    def check_token(self, address: Address) -> None:
        """A token goes nowhere where others could read it."""
        if not address.tls and not address.is_loopback and token_of(self.client):
            raise ConfigurationError(
                f"the token would go to {address} unencrypted, for everybody on the way to read: use opss:// (TLS)"
            )

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where stages are: any of them tells of the others."""
        return self.client.addresses

    @property
    def timeout_s(self) -> float:
        """How long a call waits for its outcome."""
        return self.client.timeout_s

    def token(self) -> str:
        """What shows who it is; empty if nothing does."""
        return token_of(self.client) or ""

    def tls(self) -> ssl.SSLContext:
        """What TLS is spoken with."""
        return client_context(self.client.tls)
