"""One stage, and all that is connected to it.

    listener ──> Doorstep ──┬─> ClientConnection ──> Node (the stage) <── PeerLink <─┐
                            └──────────────────────────────────────────────────────┴── dialled links

This is where the parts meet: who comes in, names and where they are kept, what the other stages are told, what can be changed
while it runs, and how it ends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import attrs

from ordered_pubsub.config.dumping import common, differences
from ordered_pubsub.config.schema import Configuration, IdentitySection, StageSection
from ordered_pubsub.core.messages import PeerMessage
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.server.access import Access
from ordered_pubsub.server.clients import ClientConnection, Rules
from ordered_pubsub.server.doorstep import Doors
from ordered_pubsub.server.names import Names
from ordered_pubsub.server.node import Node
from ordered_pubsub.server.peers import PeerLink
from ordered_pubsub.server.store import open_store
from ordered_pubsub.server.tls import StageTlsContexts
from ordered_pubsub.wire.channel import Channel
from ordered_pubsub.wire.protocol import (
    VERSION,
    Claim,
    Claimed,
    ClientGreeting,
    PeerGreeting,
    Ping,
    Rejected,
    Welcome,
    encode,
)
from ordered_pubsub.wire.sessions import is_proven

_log = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
SWEEP_S = 1.0
DRAIN_S = 5.0
CLAIM_S = 3.0
"""How long a client with a name waits for the stage that keeps it."""

_PING = encode(Ping())


@attrs.define(eq=False)
class _Claiming:
    """A client that waits for its name."""

    connection: ClientConnection
    timer: asyncio.TimerHandle


@attrs.define(eq=False)
class Server:
    """A stage as others see it."""

    configuration: Configuration
    rank: int
    token: str
    """what it shows to the other stages"""
    node: Node = attrs.field(init=False)
    doors: Doors = attrs.field(init=False)
    links: dict[int, PeerLink] = attrs.field(factory=dict)
    names: Names = attrs.field(factory=Names)
    tls: StageTlsContexts = attrs.field(init=False)
    port: int = 0
    """where it listens, once it does"""
    _rules: Rules = attrs.field(init=False)
    _clients: dict[ClientConnection, bool] = attrs.field(factory=dict)
    _claiming: dict[tuple[str, str], _Claiming] = attrs.field(factory=dict)
    _listener: asyncio.Server | None = None
    _sweep_handle: asyncio.TimerHandle | None = None
    _is_closing: bool = False

    @property
    def section(self) -> StageSection:
        """What the configuration says of this stage."""
        return self.configuration.stages[self.rank]

    @property
    def topology(self) -> Topology:
        """Who owns what."""
        return self.node.topology

    # -- the beginning ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the store, listen, and dial. Failed, nothing stays open."""
        configuration, section = self.configuration, self.section
        self.tls = StageTlsContexts(section.tls)
        store = open_store(section.store_path, section.durability, section.name)
        try:
            self.node = Node(self.rank, configuration.topology, store)
        except BaseException:
            store.close(None)
            raise
        self._rules = Rules(configuration.limits, configuration.is_listed, self.status)
        access = Access.of(configuration.identity)
        self.doors = Doors(configuration.limits, access, self._admit_client, self._admit_peer)
        for rank, stage in enumerate(configuration.stages):
            if rank != self.rank:
                dialled = stage.advertised if rank < self.rank else None
                self.links[rank] = PeerLink(rank, stage.name, dialled, self, self._greeting, self.tls.client)
        self.node.neighbours.update(self.links)
        try:
            await self._listen()
        except BaseException:
            await self.node.close()
            raise
        for link in self.links.values():
            link.start()
        self._sweep()

    async def _listen(self) -> None:
        address = self.section.address
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                self.doors.channel,
                address.host,
                address.port,
                ssl=self.tls.server(),
                ssl_handshake_timeout=self.configuration.limits.authentication_s if self.section.tls else None,
            )
        except OSError as error:
            raise OSError(
                f"stage {self.section.name!r} cannot listen at {address.host_and_port}: {error.strerror or error}; is another "
                "one running there? Change `listen`"
            ) from error
        self.port = self._listener.sockets[0].getsockname()[1]

    def _greeting(self) -> PeerGreeting:
        return PeerGreeting(VERSION, self.rank, self.token, common(self.configuration))

    def _welcome(self) -> Welcome:
        return Welcome(
            VERSION,
            self.section.name,
            self.topology.dump(),
            HEARTBEAT_S,
            self.configuration.limits.payload_bytes_max,
            [str(stage.advertised) for stage in self.configuration.stages if not stage.advertised.is_everywhere],
        )

    # -- clients ------------------------------------------------------------------------------------------------------

    def _admit_client(self, channel: Channel, greeting: ClientGreeting, identity: IdentitySection) -> None:
        """A client has greeted as somebody known. It is in when its session is proven and its name is its own."""
        if not is_proven(greeting.session, greeting.secret, greeting.name):
            _reject(channel, "denied", f"the secret is not that of session {greeting.session!r}")
            return
        connection = ClientConnection(
            channel, greeting.session, greeting.name, identity, self.node, self._rules, self._client_gone
        )
        channel.owner = connection
        self._clients[connection] = True
        if greeting.name is None:
            self._let_in(connection)
            return
        if greeting.resumes:  # it had the name before; should another have it now, the keeper will say so
            self._let_in(connection)
        self._claim(connection, greeting.name)

    def _claim(self, connection: ClientConnection, name: str) -> None:
        claim = Claim(name, connection.session, connection.identity.name, release=False)
        loop = asyncio.get_running_loop()
        waiting = _Claiming(connection, loop.call_later(CLAIM_S, self._claim_failed, connection))
        previous = self._claiming.pop((name, connection.session), None)
        if previous is not None:
            previous.timer.cancel()
        self._claiming[name, connection.session] = waiting
        self._tell_keeper(claim)

    def _tell_keeper(self, claim: Claim) -> None:
        keeper = self.topology.registrar(claim.name)
        if keeper == self.rank:
            self.handle_claim(self.rank, claim)
        else:
            self.links[keeper].send(claim)

    def _claim_failed(self, connection: ClientConnection) -> None:
        assert connection.name is not None
        self._claiming.pop((connection.name, connection.session), None)
        if not self._is_in(connection):
            keeper = self.topology.stages[self.topology.registrar(connection.name)].name
            connection.leave(
                "unavailable", f"stage {keeper!r}, which keeps the name {connection.name!r}, cannot be reached now"
            )

    def handle_claim(self, peer: int, claim: Claim) -> None:
        """A home stage claims a name that is kept here, or gives one back."""
        if claim.release:
            self.names.release(claim.name, claim.session, peer)
            return
        refusal = self.names.claim(claim.name, claim.session, claim.identity, peer)
        claimed = Claimed(claim.name, claim.session, refusal)
        if peer == self.rank:
            self.handle_claimed(claimed)
        else:
            self.links[peer].send(claimed)

    def handle_claimed(self, claimed: Claimed) -> None:
        """The keeper of a name has answered."""
        waiting = self._claiming.pop((claimed.name, claimed.session), None)
        if waiting is None:
            return
        waiting.timer.cancel()
        if claimed.refusal:
            waiting.connection.leave("name-in-use", claimed.refusal)
        elif not self._is_in(waiting.connection):
            self._let_in(waiting.connection)

    def _is_in(self, connection: ClientConnection) -> bool:
        return self.node.askers.get(connection.session) is connection

    def _let_in(self, connection: ClientConnection) -> None:
        older = self.node.askers.get(connection.session)
        if isinstance(older, ClientConnection) and older is not connection:
            older.leave("unavailable", "the same session has come again on another connection")
        self.node.askers[connection.session] = connection
        connection.channel.send(encode(self._welcome()))

    def _client_gone(self, connection: ClientConnection) -> None:
        self._clients.pop(connection, None)
        if self._is_in(connection):
            del self.node.askers[connection.session]
        name = connection.name
        if name is None or connection.session in self.node.askers:
            return  # or it has come again on another connection
        waiting = self._claiming.pop((name, connection.session), None)
        if waiting is not None:
            waiting.timer.cancel()
        self._tell_keeper(Claim(name, connection.session, connection.identity.name, release=True))

    # -- other stages -------------------------------------------------------------------------------------------------

    def _admit_peer(self, channel: Channel, greeting: PeerGreeting, identity: IdentitySection) -> None:
        """A stage has greeted as somebody known."""
        link = self.links.get(greeting.rank)
        difference = differences(common(self.configuration), greeting.common)
        if not identity.may("stage"):
            _reject(
                channel, "denied", f"identity {identity.name!r} may not link as a stage: it needs the right 'stage'"
            )
        elif difference:
            _reject(channel, "mismatch", f"the configurations of the two stages differ: {difference}")
        elif link is None or greeting.rank < self.rank:
            _reject(channel, "mismatch", f"a stage of rank {greeting.rank} does not dial the one of rank {self.rank}")
        else:
            link.accept(channel, self._welcome())

    def connected(self, peer: int) -> None:
        """The link to a stage is there: go on where it broke, and tell it of the names that it keeps."""
        self.names.forget(peer)
        self.node.connected(peer)
        for connection in self._clients:
            if connection.name is not None and self.topology.registrar(connection.name) == peer:
                self._claim(connection, connection.name)

    def disconnected(self, peer: int) -> None:
        """The link to a stage is gone."""
        self.node.disconnected(peer)

    def handle_peer(self, peer: int, messages: list[PeerMessage]) -> None:
        """A stage's state machine says something."""
        self.node.handle_peer(peer, messages)

    # -- while it runs ------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """See who is still there."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for link in self.links.values():
            link.check_alive(now, HEARTBEAT_S)
        for connection in list(self._clients):
            silent_s = now - connection.channel.heard_at
            if silent_s > 3 * HEARTBEAT_S:
                connection.channel.abort(f"nothing was heard for {silent_s:.0f} s")
            elif silent_s > HEARTBEAT_S:
                connection.channel.send(_PING)
        self._sweep_handle = loop.call_later(SWEEP_S, self._sweep)

    def reload(self, configuration: Configuration) -> None:
        """Take over the identities and limits of a configuration that was read again, and certificates.

        Who is connected goes on with the rights that it has now, or is disconnected if it is nobody any more.
        """
        self.tls.reload()
        self.configuration = attrs.evolve(
            self.configuration, identity=configuration.identity, limits=configuration.limits
        )
        self.doors.access, self.doors.limits = Access.of(configuration.identity), configuration.limits
        self._rules.limits = configuration.limits
        for connection in list(self._clients):
            identity = self.doors.access.named(connection.identity.name)
            if identity is None:
                connection.leave("denied", f"identity {connection.identity.name!r} is not one of this stage's any more")
            else:
                connection.become(identity)

    def status(self) -> dict[str, Any]:
        """What this stage is doing, as plain data."""
        return {
            **self.node.status(),
            "topology": self.topology.dump(),
            "connections": self.doors.total,
            "rejected_connections": self.doors.rejected,
            "links": {link.name: "up" if link.is_up else link.trouble for link in self.links.values()},
        }

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Take nothing new, finish what was taken, tell everybody, and stop."""
        self.doors.is_closing = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._clients):
            connection.leave("draining", f"stage {self.section.name!r} stops; another one may go on")
        await self.node.rest(DRAIN_S)
        if self._sweep_handle is not None:
            self._sweep_handle.cancel()
        for waiting in self._claiming.values():
            waiting.timer.cancel()
        for link in self.links.values():
            await link.close()
        await self.node.close()


def _reject(channel: Channel, code: str, reason: str) -> None:
    channel.close(reason, encode(Rejected(code, reason)))
