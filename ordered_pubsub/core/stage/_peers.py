"""The other stages of the line: who is connected and has the same topology, and what is under way to each.

Theory of operation
===================
Nothing is taken from a peer before its greeting (`Hello`), which says on which topology it runs, of which system it is, and how
much of the link each side has on its disk. Who has another topology, or is of another system, or whose journal has lost something
that the other side has, is refused there.

An edited topology holds only when all stages were seen to have it (`confirm`): until then this stage is not open, and takes no
request and no frame. Each stage offers it only if it loses no topic by that, and has its offer in its journal. So when all
have it no topic can have moved, and none can go back to another topology without having that one confirmed by all.

Durable messages are numbered and kept by the `Link` of a peer until that has acknowledged them. They are sent as far as its
window allows, and once more, from the oldest on: on each connection, and when no acknowledgement has come for `RESEND_AFTER_S`.
What was taken is acknowledged with the effects of taking it, so not before it is on disk (`take_acks`).

The highest stage knows what the keys of the system are made of, and tells the others; who does not know it asks.
"""

from __future__ import annotations

import attrs

from ordered_pubsub.core.messages import (
    AskSecrets,
    Durable,
    Founded,
    Hello,
    Launch,
    LinkAck,
    OnTheLine,
    Pass,
    PeerMessage,
    Publication,
    Rotated,
    Secrets,
    SystemKeys,
    TopologyOffered,
)
from ordered_pubsub.core.stage._context import Context
from ordered_pubsub.core.stage._links import FRAMES_UNDER_WAY_MAX
from ordered_pubsub.errors import NotOwner, ProtocolError, SystemMismatch

RESEND_AFTER_S = 1.0


@attrs.define(eq=False)
class Peers:
    """The other stages, as one knows them. Their links are a part of its state."""

    context: Context
    greeted: dict[int, bool] = attrs.field(factory=dict)
    """peers that are connected and have the same topology"""
    unconfirmed: dict[int, bool] = attrs.field(factory=dict)
    """peers that have not been seen with this topology since it was changed; nothing is taken before they were"""
    needs_system: bool = False
    """whether nothing is taken before it is known of which system this stage is a part"""
    owed_acks: dict[int, bool] = attrs.field(factory=dict)
    """peers of which frames have come since they were told how many were taken"""
    _resend_at: dict[int, float] = attrs.field(factory=dict)
    _said: dict[int, int] = attrs.field(factory=dict)
    """for each peer that is greeted, the last frame that was sent on this connection"""

    # -- greeting -----------------------------------------------------------------------------------------------------

    def connected(self, peer: int) -> None:
        """A connection to a peer is there; nothing is taken from it before its greeting."""
        self.disconnected(peer)
        context = self.context
        link, system = context.state.links[peer], context.state.keys.system
        hello = Hello(context.topology.fingerprint, link.received, system, link.known_received)
        context.effects.sends.append((peer, hello))

    def disconnected(self, peer: int) -> None:
        """The connection to a peer is gone."""
        self.greeted.pop(peer, None)
        self._said.pop(peer, None)

    def greet(self, peer: int, hello: Hello) -> None:
        """A peer says on which topology it runs, and what it has of the link. Raises if it must not be connected."""
        context, who = self.context, f"stage {self.context.name_of(peer)}"
        context.topology.check_same(hello.fingerprint, who)
        self._check_system(peer, hello.system)
        link = context.state.links[peer]
        link.check(hello.received, hello.acknowledged, who)
        self.confirm(peer)
        self.greeted[peer] = True
        link.acknowledged(hello.received)
        self._say_again(peer)

    def _check_system(self, peer: int, system: bytes) -> None:
        """Refuse a stage of another system: its store is not one of this line."""
        own = self.context.state.keys.system
        if own and system and own != system:
            raise SystemMismatch(
                f"stage {self.context.name_of(peer)} is a part of system {system.hex()}, and stage "
                f"{self.context.name_of(self.context.rank)} of system {own.hex()}: one of them runs on a store that was made in "
                "another system, or anew; give it its own"
            )

    # -- all have the same topology -----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether requests and frames are taken."""
        return not self.unconfirmed and (not self.needs_system or self.context.state.keys.epoch > 0)

    def offer(self) -> None:
        """Run under this topology: it is in the journal before any peer hears of it."""
        state = self.context.state
        if state.topology != self.context.topology.dump():
            self._take_offer(is_confirmed=False)
        if not state.confirmed:
            self.unconfirmed = dict.fromkeys(state.links, True)
            self.confirm(self.context.rank)

    def confirm(self, peer: int) -> None:
        """A stage has this topology, too."""
        self.unconfirmed.pop(peer, None)
        if not self.unconfirmed and not self.context.state.confirmed:
            self._take_offer(is_confirmed=True)

    def _take_offer(self, is_confirmed: bool) -> None:
        self.context.take(TopologyOffered(self.context.rank, self.context.topology.dump(), is_confirmed))

    # -- frames -------------------------------------------------------------------------------------------------------

    def send(self, peer: int, message: Durable) -> None:
        """Send a message that must arrive: now, if there is room for it on this connection, else when there is."""
        link = self.context.state.links[peer]
        frame = link.number(message)
        if self._said.get(peer) == frame.number - 1 and frame.number - link.known_received <= FRAMES_UNDER_WAY_MAX:
            self._said[peer] = frame.number
            self.context.effects.sends.append((peer, frame))

    def owe_ack(self, peer: int) -> None:
        """A frame has come: the peer is to be told how far its frames were taken, also if it is none that was missing."""
        self.owed_acks[peer] = True

    def take_acks(self) -> list[tuple[int, PeerMessage]]:
        """What to tell the peers about their frames, when what was taken of them is on disk."""
        acks, self.owed_acks = self.owed_acks, {}
        return [(peer, LinkAck(self.context.state.links[peer].received)) for peer in acks]

    def acknowledged(self, peer: int, ack: LinkAck) -> None:
        """A peer says how many frames it has on its disk."""
        link = self.context.state.links[peer]
        if ack.received > link.sent:
            raise ProtocolError(
                f"stage {self.context.name_of(peer)} acknowledges frame {ack.received}; {link.sent} were sent to it"
            )
        link.acknowledged(ack.received)
        self._resend_at.pop(peer, None)
        self._say_on(peer)

    def _say_again(self, peer: int) -> None:
        """Send what the peer has not acknowledged once more, from the oldest on."""
        self._said[peer] = self.context.state.links[peer].known_received
        self._say_on(peer)

    def _say_on(self, peer: int) -> None:
        """Send what was not sent on this connection, as far as the window allows; acknowledgements make it go on."""
        link = self.context.state.links[peer]
        frames = link.window(max(self._said[peer], link.known_received))
        if frames:
            self._said[peer] = frames[-1].number
            self.context.effects.sends.extend((peer, frame) for frame in frames)

    def tick(self, now: float) -> None:
        """Send again what a connected peer has not acknowledged for a while."""
        for peer, link in self.context.state.links.items():
            if not link.outbox or peer not in self.greeted:
                self._resend_at.pop(peer, None)
            elif now >= self._resend_at.setdefault(peer, now + RESEND_AFTER_S):
                self._resend_at[peer] = now + RESEND_AFTER_S
                self._say_again(peer)

    def check_message(self, peer: int, message: OnTheLine) -> None:
        """Refuse an operation that must not come from this peer, or does not belong on the line here."""
        topology, rank = self.context.topology, self.context.rank
        if not isinstance(message, (Launch, Pass)):
            return
        operation = message.operation
        if isinstance(message, Pass) and peer != rank + 1:
            raise ProtocolError(
                f"stage {peer} passed an operation to stage {rank}: only the neighbour below, {rank + 1}, does that"
            )
        if operation.top > rank:
            raise NotOwner(
                f"operation {operation.identity} ends at stage {operation.top}, below stage {rank}: it does not belong here"
            )
        for part in operation.parts:
            if isinstance(part, Publication) and not part.first and topology.owner(part.topic) > rank:
                raise NotOwner(
                    f"operation {operation.identity} publishes on {part.topic!r} without a number, but its owner, stage "
                    f"{self.context.name_of(topology.owner(part.topic))}, is below this one"
                )

    # -- what the keys are made of ------------------------------------------------------------------------------------

    def hear_secrets(self, peer: int, message: Secrets | AskSecrets) -> None:
        """The highest stage says what the keys are made of, or is asked."""
        if peer not in self.greeted:
            return
        context, keys = self.context, self.context.state.keys
        if isinstance(message, AskSecrets):
            if context.rank == 0 and keys.epoch:
                context.effects.sends.append((peer, Secrets(keys)))
            return
        if peer != 0:
            raise ProtocolError(f"stage {peer} gives keys: only the highest one does")
        self._check_system(peer, message.keys.system)
        if not keys.epoch:
            context.take(Founded(message.keys))
        elif message.keys.epoch >= keys.epoch and message.keys != keys:
            context.take(Rotated(message.keys))

    def rotate(self, keys: SystemKeys) -> None:
        """Begin another epoch of keys, or end earlier ones, and tell the others. Who does not hear of it asks."""
        self.context.take(Rotated(keys))
        self.context.effects.sends += [(peer, Secrets(keys)) for peer in self.greeted]
