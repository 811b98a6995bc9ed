"""One stage, and all that is connected to it.

    listener ──> Doorstep ──┬─> ClientConnection ──> Node (the stage) <── PeerLink <─┐
                            └──────────────────────────────────────────────────────┴── dialled links

This is where the parts meet: who comes in, names and where they are kept, what the other stages are told, what can be changed
while it runs, and how it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container
from contextlib import suppress
from typing import Any

import attrs

from ordered_pubsub.config.files import check_files, token_of
from ordered_pubsub.config.kinds import NAME
from ordered_pubsub.config.schema import Configuration, IdentitySection, LimitsSection, StageSection
from ordered_pubsub.core.messages import ANYBODY
from ordered_pubsub.core.order.registrar import EXPIRING
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.errors import ConfigurationError, JournalDamaged, JournalError, UnavailableError
from ordered_pubsub.server.doors.access import Access, Proof, has_lost_keys
from ordered_pubsub.server.doors.admission import Admission, Visitor
from ordered_pubsub.server.doors.claims import Claims
from ordered_pubsub.server.doors.clients import ClientConnection
from ordered_pubsub.server.doors.rules import Rules
from ordered_pubsub.server.doors.tls import StageTlsContexts
from ordered_pubsub.server.links.agreement import Common, Disagreement
from ordered_pubsub.server.links.peers import PeerLink
from ordered_pubsub.server.stage.node import Node
from ordered_pubsub.server.store.shelf import plainly
from ordered_pubsub.server.store.store import Store, open_store
from ordered_pubsub.supervision import Backoff, Repeated, Supervisor
from ordered_pubsub.wire.channel import Channel
from ordered_pubsub.wire.protocol import VERSION, Claim, ClientGreeting, PeerGreeting, Welcome, encode
from ordered_pubsub.wire.sessions import NAMELESS, is_proven
from ordered_pubsub.wire.tasks import end_task

_log = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
MEND_FIRST_S, MEND_MOST_S = 0.5, 15.0
"""Pauses between attempts to use a store again that has failed."""
SWEEP_S = 1.0
ANSWER_S = 1.0
"""How long those who have asked may wait for their answers when the stage is to stop."""
NAME_SHOWN_MAX = 40


@attrs.frozen
class Renewal:
    """What can be changed while a stage runs."""

    identities: tuple[IdentitySection, ...] | None
    limits: LimitsSection
    tls: StageTlsContexts
    token: str = attrs.field(repr=False)


@attrs.define(eq=False)
class Server:
    """A stage as others see it."""

    configuration: Configuration
    rank: int
    token: str = attrs.field(repr=False)
    """what it shows to the other stages"""
    room: int = 1 << 62
    """so many connections this process has files for"""
    node: Node = attrs.field(init=False)
    doors: Admission = attrs.field(init=False)
    claims: Claims = attrs.field(init=False)
    links: dict[int, PeerLink] = attrs.field(factory=dict)
    port: int = 0
    """where it listens, once it does"""
    _common: Common = attrs.field(init=False)
    _rules: Rules = attrs.field(init=False)
    _clients: dict[ClientConnection, bool] = attrs.field(factory=dict)
    _listener: asyncio.Server | None = None
    _supervisor: Supervisor = attrs.field(init=False)
    _sweeping: Repeated | None = None
    failed: asyncio.Future[None] = attrs.field(init=False)
    """fails when the stage cannot go on by itself"""
    _mending: asyncio.Task[None] | None = None

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
        self._common = Common.of(configuration)
        self._supervisor = Supervisor(
            f"stage {section.name}", self._fail, "Start it again, and report this with its log"
        )
        tls = StageTlsContexts.of(section.tls)
        self.failed = asyncio.get_running_loop().create_future()
        store = self._open_node()
        self._rules = Rules(
            configuration.limits,
            configuration.is_listed,
            self.status,
            lambda identity, channel: self.doors.sent(identity, channel),
        )
        access = Access.of(configuration.identity)
        self.doors = Admission(configuration.limits, access, tls, self._admit_client, self._admit_peer, room=self.room)
        for rank, stage in enumerate(configuration.stages):
            if rank != self.rank:
                dialled = stage.advertised if rank < self.rank else None
                self.links[rank] = PeerLink(
                    rank, stage.name, dialled, self, self._greeting, self._common, lambda: self.doors.tls.client
                )
        self.node.neighbours.update(self.links)
        self.claims = Claims(
            self.rank,
            self.topology,
            self.links,
            self._let_in,
            store.is_new,
            lambda: self.node.driver.stage.state.names,
            self._give_name,
        )
        try:
            await self._listen()
        except BaseException:
            await self.node.close()
            raise
        for link in self.links.values():
            link.start()
        self._mending = self._supervisor.must(self._mend_for_ever(), "mending the store")
        self._sweeping = self._supervisor.every(SWEEP_S, self._sweep, "looking who is still there")

    def _open_node(self) -> Store:
        """Start the stage from what its store holds."""
        configuration, section = self.configuration, self.section
        store = open_store(section.store_path, section.durability, section.name)
        try:
            self.node = Node(
                self.rank,
                configuration.topology,
                store,
                configuration.policies,
                configuration.times.values,
                configuration.levels,
                configuration.security.values,
            )
        except BaseException:
            store.close(None)
            raise
        self._set_quotas()
        self.node.driver.telling.is_clogged = lambda peer: self.links[peer].is_clogged
        self.node.neighbours.update(self.links)
        self.node.on_named = lambda name, session: self.claims.handle_given(name, session)
        return store

    # -- a store that fails -------------------------------------------------------------------------------------------

    async def _mend_for_ever(self) -> None:
        """When the store fails, as on a full disk, let nobody in, and start again from it as soon as it can be used."""
        while True:
            await asyncio.wait((self.node.failed,))
            if self.node.failed.cancelled():
                return
            error = self.node.failed.exception()
            if not isinstance(error, JournalError) or isinstance(error, JournalDamaged):
                self._fail(error)
                return
            await self._mend(error)

    def _fail(self, error: BaseException | None) -> None:
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)

    async def _mend(self, error: JournalError) -> None:
        backoff = Backoff(MEND_FIRST_S, MEND_MOST_S)
        self._shut_out(error)
        with suppress(JournalError):
            await self.node.close()
        while True:
            await backoff.pause()
            try:
                self._open_node()
            except JournalDamaged:
                raise
            except JournalError as again:
                if str(again) != str(error):
                    self._shut_out(again)
                error = again
            else:
                break
        self.doors.trouble = ""
        for link in self.links.values():
            link.break_off("this stage has started again")
        _log.warning("stage %s: its store can be used again, and it goes on from there", self.section.name)

    def _shut_out(self, error: JournalError) -> None:
        """Send everybody away, who may be a stranger; where the store is, and more of what it has, is in the log."""
        reason = plainly(error)
        reason = f" ({reason})" if reason else ""
        trouble = f"this stage cannot use its store{reason}, and goes on by itself when it can again; its log says more"
        _log.error("stage %s: it cannot use its store, and goes on when it can again: %s", self.section.name, error)
        self.doors.trouble = trouble
        for connection in list(self._clients):
            connection.leave("unavailable", trouble)

    async def _listen(self) -> None:
        address = self.section.address
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self.doors.channel, address.host, address.port)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UnavailableError(
                f"stage {self.section.name!r} cannot listen at {address.host_and_port}: {reason}; is another one running there? "
                "Stop that one, or change `listen`"
            ) from error
        self.port = self._listener.sockets[0].getsockname()[1]

    def _greeting(self) -> PeerGreeting:
        return PeerGreeting(VERSION, self.rank, self.token, self._common.digest)

    def _welcome(self) -> Welcome:
        times = self.configuration.times.values
        return Welcome(
            VERSION,
            self.section.name,
            self.topology.dump(),
            HEARTBEAT_S,
            self.configuration.limits.payload_bytes_max,
            [str(stage.advertised) for stage in self.configuration.stages if stage.advertised is not None],
            self.configuration.limits.frame_bytes_max,
            self.configuration.levels.dump(),
            times.session_ttl_s,
            times.lease_s,
            self.configuration.security.tags,
        )

    # -- clients ------------------------------------------------------------------------------------------------------

    def _admit_client(self, channel: Channel, greeting: ClientGreeting, visitor: Visitor) -> None:
        """A client has greeted as somebody known. It is in when its session is proven and its name is its own."""
        rejection = None if greeting.name is None else self._unfit_name(greeting.name, visitor.identity)
        if rejection is not None:
            self.doors.reject(channel, *rejection)
            return
        if not is_proven(greeting.session, greeting.secret, greeting.name):
            self.doors.reject(channel, "denied", "the secret that was shown is not that of the session")
            return
        there = self.node.askers.get(greeting.session)
        known = self.node.driver.stage.state.requests.sessions.get(greeting.session)
        owner = None if known is None else known.identity
        if isinstance(there, ClientConnection):
            owner = there.identity_name
        if owner not in (None, ANYBODY, visitor.identity.name):
            self.doors.reject(
                channel, "denied", f"session {greeting.session!r} is another identity's: begin one of your own"
            )
            return
        connection = ClientConnection(
            channel, greeting.session, greeting.name, visitor, self.node, self._rules, self._client_gone
        )
        channel.owner = connection
        self._clients[connection] = True
        if greeting.name is None:
            self._let_in(connection)
        else:
            self.claims.client_came(connection, greeting.resumes)

    def _unfit_name(self, name: str, identity: IdentitySection) -> tuple[str, str] | None:
        """Why a client may not be called so, if it may not: a code and a reason."""
        shown = name[:NAME_SHOWN_MAX]
        if not NAME.test(name) or f"{name}-".startswith((NAMELESS, EXPIRING)):
            return (
                "bad-greeting",
                f"the name {shown!r} does not fit; a name is {NAME.fits}, and does not begin with {NAMELESS!r} or {EXPIRING!r}",
            )
        if identity.has_name(name):
            return None
        if identity.names:
            return (
                "denied",
                f"clients of identity {identity.name!r} may be called {', '.join(identity.names)}, not {shown!r}",
            )
        if self.doors.access.is_somebodys(name):
            return "denied", f"the name {shown!r} is kept for another identity than {identity.name!r} (`names`)"
        return None

    def _give_name(self, claim: Claim, in_use: Container[str] | None) -> tuple[str, str]:
        most = self.configuration.limits.names_per_identity_max
        return self.node.give_name(claim.name, claim.identity, claim.session, most, in_use, claim.is_given)

    def _let_in(self, client: ClientConnection) -> None:
        older = self.node.askers.get(client.session)
        if isinstance(older, ClientConnection) and older is not client:
            older.leave("unavailable", "the same session has come again on another connection")
        self.node.askers[client.session] = client
        self.node.client_is_here(client.session, client.identity_name)
        client.welcome(encode(self._welcome()))

    def _client_gone(self, connection: ClientConnection) -> None:
        self._clients.pop(connection, None)
        if self.node.askers.get(connection.session) is connection:
            del self.node.askers[connection.session]
            self.node.client_is_gone(connection.session)
        if connection.name is not None:
            self.claims.client_left(connection)

    # -- other stages -------------------------------------------------------------------------------------------------

    def _admit_peer(self, channel: Channel, greeting: PeerGreeting, visitor: Visitor) -> None:
        """A stage has greeted as somebody known."""
        name, link = visitor.identity.name, self.links.get(greeting.rank)
        if not visitor.identity.may("stage", "" if link is None else link.name):
            which = f"as stage {link.name!r}" if link is not None and visitor.identity.allow.stage else "as a stage"
            self.doors.reject(channel, "denied", f"identity {name!r} may not link {which}: it needs the right 'stage'")
            return
        if link is None or greeting.rank < self.rank:
            self.doors.reject(
                channel, "mismatch", f"a stage of rank {greeting.rank} does not dial the one of rank {self.rank}"
            )
        elif greeting.digest != self._common.digest:
            channel.owner = disagreement = Disagreement(channel, self._common, link.note)
            disagreement.begin()
        else:
            link.accept(channel, self._welcome(), visitor.proof)

    def connected(self, peer: int) -> None:
        """The link to a stage is there: go on where it broke, and tell it of the names that it keeps."""
        self.node.connected(peer)
        self.claims.linked(peer)

    # -- while it runs ------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """See who is still there."""
        now = asyncio.get_running_loop().time()
        for link in self.links.values():
            link.check_alive(now, HEARTBEAT_S)
        for connection in list(self._clients):
            silent_s = 0.0 if connection.channel.is_paused else now - connection.channel.heard_at
            if silent_s > 3 * HEARTBEAT_S:
                connection.channel.abort(f"nothing was heard for {silent_s:.0f} s")
            elif connection.is_late(now):
                connection.leave(
                    "limit", f"a frame did not come to its end within {self._rules.limits.frame_s:g} s (limits.frame_s)"
                )
            elif silent_s > HEARTBEAT_S and connection.is_in:
                connection.ask_for_a_sign()
        self.claims.sweep(now)

    def prepare(self, configuration: Configuration) -> Renewal:
        """Read what a configuration that was read again says of identities, limits, certificates and the stage's token.

        Raises, and changes nothing, if something does not fit.
        """
        found = [stage for stage in configuration.stages if stage.name == self.section.name]
        if not found:
            raise ConfigurationError(f"there is no stage {self.section.name!r} in the configuration any more")
        section = found[0]
        check_files(section)
        if (section.tls is None) != (self.section.tls is None):
            raise ConfigurationError(f"stage {section.name!r}: whether it has `tls` can be changed by a restart only")
        return Renewal(
            configuration.identity, configuration.limits, StageTlsContexts.of(section.tls), token_of(section) or ""
        )

    def renew(self, renewal: Renewal) -> None:
        """Take over what was prepared.

        Who is connected goes on with the rights that it has now, or is disconnected if it would not be let in any more.
        """
        if has_lost_keys(self.configuration.identity, renewal.identities):
            self.node.rotate_keys(revokes=True)
        self.configuration = attrs.evolve(self.configuration, identity=renewal.identities, limits=renewal.limits)
        self.token = renewal.token
        self._rules.limits = renewal.limits
        self._rules.judged.clear()
        self._set_quotas()
        doors = self.doors
        doors.access, doors.limits, doors.tls = Access.of(renewal.identities), renewal.limits, renewal.tls
        for connection in list(self._clients):
            identity = doors.access.identify(connection.visitor.proof)
            if identity is None or identity.name != connection.identity_name:
                connection.leave("denied", f"{connection.identity_name!r} may not be connected any more as it was")
            elif connection.name is not None and (unfit := self._unfit_name(connection.name, identity)) is not None:
                connection.leave(*unfit)
            else:
                connection.become(identity)
        for link in self.links.values():
            link.judge(doors.access)

    def health(self) -> dict[str, Any]:
        """What everybody may know of this stage."""
        reason = self.doors.trouble or self.node.why_not_ready
        return {"stage": self.section.name, "ready": not reason, "reason": reason}

    def may_administer(self, token: str) -> bool:
        """Whether this is the token of somebody who may see and change what belongs to others."""
        identity = None if self.doors.access.is_open else self.doors.access.identify(Proof.of(token, None))
        return identity is not None and identity.may("administer")

    def _set_quotas(self) -> None:
        """What each identity may take up."""
        quotas, stages = self.configuration.quotas, len(self.topology.stages)
        self.node.driver.stage.gatekeeper.quotas = quotas
        # Each stage keeps so much of an identity; and all that all of them keep may be at home at one.
        self.node.driver.hosting.followed_max = lambda identity: quotas.of(identity).held * stages

    def status(self) -> dict[str, Any]:
        """What this stage is doing, as plain data."""
        return {
            **self.node.status(),
            "topology": self.topology.dump(),
            "trouble": self.doors.trouble,
            "connections": self.doors.total,
            "rejected_connections": self.doors.rejected,
            "healed": self._supervisor.healed + sum(link.healed for link in self.links.values()),
            "links": {link.name: "up" if link.is_up else link.trouble for link in self.links.values()},
        }

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Take nothing new, finish what was taken, tell everybody, and stop.

        What other stages have not acknowledged yet is not waited for: it is in the store, and comes again.
        """
        if self.doors.is_closing:
            return
        self.doors.is_closing = True
        if self._listener is not None:
            self._listener.close()
        await self.node.answer_the_last(ANSWER_S)
        for connection in list(self._clients):
            connection.leave("draining", f"stage {self.section.name!r} stops; another one may go on")
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._mending is not None:
            await end_task(self._mending)
        self.failed.cancel()
        for link in self.links.values():
            await link.close()
        await self.doors.close("this stage stops")
        await self.node.close()
