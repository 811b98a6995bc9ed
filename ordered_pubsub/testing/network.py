"""What lies between the machines of a simulation: the ENS, and the connections of stages and clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from ordered_pubsub.core.messages import (
    Answer,
    FromSubscriber,
    Hello,
    LinkFrame,
    PeerMessage,
    Refusal,
    Request,
    ToSession,
)

if TYPE_CHECKING:
    from ordered_pubsub.testing.client_host import ClientHost
    from ordered_pubsub.testing.simulation import Simulation

_peer_encoder = msgspec.msgpack.Encoder()
_peer_decoder = msgspec.msgpack.Decoder(PeerMessage)
_request_decoder = msgspec.msgpack.Decoder(Request)
_answer_decoder = msgspec.msgpack.Decoder(Answer | Refusal)
_from_subscriber = msgspec.msgpack.Decoder(FromSubscriber)
_to_subscriber = msgspec.msgpack.Decoder(ToSession)


def _tag_of(message: msgspec.Struct) -> str:
    """What kind of message this is."""
    return str(message.__struct_config__.tag)


class Carried(msgspec.Struct, frozen=True, gc=False):
    """What the ENS carries: one event, or several that share a tag."""

    topic: str
    tag: bytes
    body: bytes
    """the stamp"""
    content: bytes
    """the index of the event in the record, or those of several"""


@attrs.define(eq=False)
class SimulatedEns:
    """The broker: reorders without bound, repeats, and loses if told to; and forges, if the world has a forger."""

    simulation: Simulation
    subscribers: dict[str, dict[int, bool]] = attrs.field(factory=dict)
    """topic → the clients to which it goes"""
    under_way: int = 0

    def subscribe(self, topic: str, client: int) -> None:
        """From now on every event of the topic goes there, too."""
        self.subscribers.setdefault(topic, {})[client] = True

    def unsubscribe(self, topic: str, client: int) -> None:
        """No more."""
        self.subscribers.get(topic, {}).pop(client, None)

    def forget(self, client: int) -> None:
        """A client's process has died."""
        for clients in self.subscribers.values():
            clients.pop(client, None)

    def publish(self, carried: Carried) -> None:
        """Take responsibility for an event."""
        weather, chance, forger = self.simulation.weather, self.simulation.chance, self.simulation.forger
        for client in list(self.subscribers.get(carried.topic, ())):
            host = self.simulation.clients[client]
            if forger is not None:
                for forged in forger.forge(carried, list(host.machine.holding.holders(carried.topic))):
                    self._carry(host, forged)
            is_deaf = host.ens.deaf_until > self.simulation.now
            if chance.random() < weather.ens_lose or is_deaf:
                continue
            self._carry(host, carried)
            if chance.random() < weather.ens_duplicate:
                self._carry(host, carried)

    def _carry(self, host: ClientHost, carried: Carried) -> None:
        self.under_way += 1
        delay = self.simulation.chance.expovariate(1 / self.simulation.weather.ens_delay_s)
        self.simulation.after(delay, self._arrive, host, host.lives, carried)

    def _arrive(self, host: ClientHost, life: int, carried: Carried) -> None:
        if host.is_dead or life != host.lives:
            self.under_way -= 1
            return  # its process died
        away_until = max(host.paused_until, host.ens.away_until)
        if away_until > self.simulation.now:
            at = away_until + self.simulation.chance.uniform(0, 0.1)
            self.simulation.at(at, self._arrive, host, life, carried)
            return
        self.under_way -= 1
        host.ens.receive(carried)
        late = self.simulation.forger and self.simulation.forger.forge_late(carried)
        if late:
            host.ens.receive(late)


@attrs.define(eq=False)
class Network:
    """Connections between stages, and between clients and their homes."""

    simulation: Simulation
    cuts: dict[tuple[int, int], float] = attrs.field(factory=dict)
    connections: dict[tuple[int, int], int] = attrs.field(factory=dict)
    """a pair of stages → the number of their connection, while there is one"""
    latest: dict[Any, float] = attrs.field(factory=dict)
    counter: int = 0

    # -- stages -------------------------------------------------------------------------------------------------------

    def stage_is_up(self, rank: int) -> None:
        """A stage started: its links connect."""
        for peer in range(self.simulation.world.stages):
            if peer != rank:
                self.connect(min(rank, peer), max(rank, peer))

    def stage_is_down(self, rank: int) -> None:
        """A stage died: its connections break."""
        for pair in [pair for pair in self.connections if rank in pair]:
            self.disconnect(pair)
        for client in self.simulation.clients:
            if client.home == rank:
                client.disconnect()
        for line in list(self.simulation.task_lines.values()):
            if line.rank == rank:
                line.lost()
        for follower in list(self.simulation.followers.values()):
            if follower.home == rank:
                follower.lost()

    def connect(self, one: int, two: int) -> None:
        """Connect two stages if they are up and nothing cuts them off."""
        simulation = self.simulation
        pair = (one, two)
        hosts = simulation.stages[one], simulation.stages[two]
        if pair in self.connections or self.cuts.get(pair, 0.0) > simulation.now:
            return
        if all(host.driver is not None for host in hosts):
            self.counter += 1
            self.connections[pair] = self.counter
            hosts[0].handle("hello", lambda driver: driver.stage.connected(two))
            hosts[1].handle("hello", lambda driver: driver.stage.connected(one))

    def disconnect(self, pair: tuple[int, int]) -> None:
        """Break a connection; it comes back by itself."""
        del self.connections[pair]
        for rank, peer in (pair, pair[::-1]):
            driver = self.simulation.stages[rank].driver
            if driver is not None:
                driver.disconnected(peer)
        self.simulation.after(self.simulation.chance.uniform(0.05, 0.5), self.connect, *pair)

    def cut(self, pair: tuple[int, int], until: float) -> None:
        """Nothing gets through until then."""
        self.cuts[pair] = until
        if pair in self.connections:
            self.disconnect(pair)
        self.simulation.at(until + 0.01, self.connect, *pair)

    def stage_to_stage(self, source: int, target: int, message: PeerMessage) -> None:
        """Carry a message over the link, as badly as the weather is."""
        simulation, weather = self.simulation, self.simulation.weather
        connection = self.connections.get((min(source, target), max(source, target)))
        if connection is None:
            return
        if simulation.chance.random() < weather.link_lose and not isinstance(message, Hello):
            return  # a greeting is not lost: without one there is no connection
        data = _peer_encoder.encode(message)
        copies = 2 if simulation.chance.random() < weather.link_duplicate else 1
        for _ in range(copies):
            at = self._arrival((source, target), weather.link_delay_s, weather.link_reorder)
            simulation.at(at, self._at_stage, source, target, connection, data)

    def _at_stage(self, source: int, target: int, connection: int, data: bytes) -> None:
        if self.connections.get((min(source, target), max(source, target))) != connection:
            return
        message = _peer_decoder.decode(data)
        host = self.simulation.stages[target]
        kind = _tag_of(message.message if isinstance(message, LinkFrame) else message)
        host.handle(kind, lambda driver: driver.handle_peer(source, message, host.wall_clock))

    def _arrival(self, channel: Any, delay_s: float, reorder: float) -> float:
        simulation = self.simulation
        at = simulation.now + delay_s * simulation.chance.uniform(0.5, 2.0)
        if simulation.chance.random() < reorder:
            return at + delay_s * 3
        at = max(at, self.latest.get(channel, 0.0))
        self.latest[channel] = at
        return at

    # -- clients ------------------------------------------------------------------------------------------------------

    def client_to_stage(self, client: ClientHost, request: Request) -> None:
        """A request on its way to the client's home."""
        simulation, weather = self.simulation, self.simulation.weather
        assert client.home is not None
        if simulation.chance.random() < weather.client_lose:
            return
        data = msgspec.msgpack.encode(request)
        at = self._arrival((client.name, "up"), weather.client_delay_s, 0.0)
        simulation.at(at, self._at_home, client, client.connection, client.home, data)

    def _at_home(self, client: ClientHost, connection: int, home: int, data: bytes) -> None:
        if client.connection != connection:
            return
        host = self.simulation.stages[home]
        request = host.taken_in(host.known(_request_decoder.decode(data), client.identity))
        refusal = host.refusal_of(request)
        host.handle("asked", lambda driver: driver.handle_request(request, host.wall_clock, refusal))

    def subscriber_to_stage(self, client: ClientHost, message: FromSubscriber) -> None:
        """What a subscription says to its home; it may get lost."""
        simulation, weather = self.simulation, self.simulation.weather
        assert client.home is not None
        if simulation.chance.random() < weather.client_lose:
            return
        data = msgspec.msgpack.encode(message)
        at = self._arrival((client.name, "up"), weather.client_delay_s, 0.0)
        simulation.at(at, self._said_at_home, client, client.connection, client.home, data)

    def _said_at_home(self, client: ClientHost, connection: int, home: int, data: bytes) -> None:
        if client.connection != connection:
            return
        message, host, now = _from_subscriber.decode(data), self.simulation.stages[home], self.simulation.now
        kind, identity = _tag_of(message), client.identity
        host.handle(kind, lambda driver: driver.handle_subscriber(client.name, message, now, identity))

    def stage_to_subscriber(self, rank: int, session: str, message: ToSession) -> None:
        """What a home says to a subscription; it may get lost."""
        simulation, weather = self.simulation, self.simulation.weather
        follower = simulation.followers.get(session)
        if follower is not None and follower.session == session:
            follower.told(rank, message)
        client = simulation.clients_by_name.get(session)
        if client is None or client.name != session or client.home != rank:
            return
        if simulation.chance.random() < weather.client_lose:
            return
        data = msgspec.msgpack.encode(message)
        at = self._arrival((client.name, "down"), weather.client_delay_s, 0.0)
        simulation.at(at, self._at_subscriber, client, client.connection, data)

    def _at_subscriber(self, client: ClientHost, connection: int, data: bytes) -> None:
        simulation = self.simulation
        if client.connection != connection:
            return
        if client.paused_until > simulation.now:
            simulation.at(client.paused_until, self._at_subscriber, client, connection, data)
            return
        client.handle(_to_subscriber.decode(data))

    def stage_to_client(self, rank: int, answer: Answer | Refusal) -> None:
        """An answer on its way from the client's home."""
        simulation, weather = self.simulation, self.simulation.weather
        stranger = simulation.strangers.get(answer.client)
        if stranger is not None:
            stranger.answered(answer)
        other = simulation.task_lines.get(answer.client) or simulation.followers.get(answer.client)
        if other is not None:
            other.answered(rank, answer)
        client = simulation.clients_by_name.get(answer.client)
        if client is None or client.name != answer.client or client.home != rank:
            return
        if simulation.chance.random() < weather.client_lose:
            return
        data = msgspec.msgpack.encode(answer)
        at = self._arrival((client.name, "down"), weather.client_delay_s, 0.0)
        simulation.at(at, self._at_client, client, client.connection, data)

    def _at_client(self, client: ClientHost, connection: int, data: bytes) -> None:
        simulation = self.simulation
        if client.connection != connection:
            return
        if client.paused_until > simulation.now:
            simulation.at(client.paused_until, self._at_client, client, connection, data)
            return
        client.handle_answer(_answer_decoder.decode(data))
