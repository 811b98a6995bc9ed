"""The keys of a system: founded once, turned now and then, and given to who may subscribe.

The highest stage founds the system when it starts for the first time, on an identity and a secret that its caller has drawn.
It decides when another epoch of keys begins: after a while (`rotate_every_s`), when an operator wants it, and when somebody
has lost a right to subscribe. The other stages learn all that from it, and journal it. Nothing is taken by a stage before it
knows the system.

A client has the keys of the epoch that is used, of the next one, and of those before it that are still good. So it needs not
ask in the moment in which a regular rotation happens. One that revokes passes over the next epoch, which somebody may know
who must not.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.messages import AskKeys, AskSecrets, Keys, NewEpoch, Rotate, SystemKeys
from ordered_pubsub.core.trust.authenticity import topic_key

OLD_KEYS_VALID_S = 3600.0
REVOKED_VALID_S = 60.0
"""After a revocation, what was tagged before is good for no longer than this."""
OLD_EPOCHS_MAX = 8
ASK_S = 5.0
"""So often a stage asks the highest one whether there are other keys."""
TOPICS_ASKED_MAX = 1_000
"""Topics whose keys a client may ask for in one message."""


@attrs.frozen
class Security:
    """How the events of a system are made authentic; the same at all stages."""

    tags: bool = True
    """whether there are tags; without, whoever writes to the broker is believed"""
    rotate_every_s: float | None = None
    """after so long another epoch of keys begins; None: only when it is wanted"""
    old_keys_valid_s: float = OLD_KEYS_VALID_S
    """how long what was tagged by older keys is good"""


PLAIN = Security()


def founded(system: bytes, secret: bytes, wall_s: float) -> SystemKeys:
    """The keys of a system that begins."""
    return SystemKeys(system, secret, 1, wall_s)


def rotated(keys: SystemKeys, wall_s: float, valid_s: float, revokes: bool) -> SystemKeys:
    """The keys of the next epoch, or of the one after it if somebody may know the next who must not.

    Validity is a duration, from the beginning of the epoch that is used: the clocks of two machines say nothing to each other.
    So `keys.old` is to say for how long what those epochs tagged is good from now on (`KeyKeeper.left`).
    """
    most_s = min(valid_s, REVOKED_VALID_S) if revokes else valid_s
    old = {epoch: min(left_s, most_s) if revokes else left_s for epoch, left_s in keys.old.items()}
    old[keys.epoch] = most_s
    for epoch in list(old)[:-OLD_EPOCHS_MAX]:
        del old[epoch]
    return SystemKeys(keys.system, keys.secret, keys.epoch + 1 + revokes, wall_s, old)


@attrs.define(eq=False)
class KeyKeeper:
    """What one stage says of keys. Soft state only: the keys themselves are the stage's, in its journal."""

    rank: int
    security: Security = PLAIN
    heard_at: float = float("-inf")
    """when the highest stage was heard last"""
    _asked_at: float = float("-inf")
    _told_epoch: int = 0
    """what the clients here were told of last"""
    _ends: dict[int, float] = attrs.field(factory=dict)
    """earlier epoch → when it is not good any more, counted from when this stage learned of its end, or was started"""
    _knows_past: bool = False
    """whether what had passed before the start is known, as far as it ever will be"""
    _wanted: Rotate | None = None
    """a rotation that the highest stage has not decided yet"""

    def want(self, keys: SystemKeys, revokes: bool) -> None:
        """Another epoch is wanted; what was wanted and has not happened yet is the same one."""
        revokes = revokes or (self._wanted is not None and self._wanted.revokes)
        self._wanted = Rotate(keys.epoch, revokes)

    def take_due(self, keys: SystemKeys, wall_s: float) -> Rotate | None:
        """At the highest stage: the rotation that is due now, if there is one."""
        wanted, self._wanted = self._wanted, None
        if not keys.epoch:
            return None
        every_s = self.security.rotate_every_s
        is_due = every_s is not None and wall_s >= keys.begun_at + every_s
        return Rotate(keys.epoch) if wanted is None and is_due else wanted

    def take_asks(self, keys: SystemKeys, now: float) -> list[AskSecrets | Rotate]:
        """At the others: what to ask the highest stage."""
        asks: list[AskSecrets | Rotate] = []
        if now >= self._asked_at + ASK_S or not keys.epoch:
            self._asked_at = now
            asks.append(AskSecrets(keys.epoch))
        if self._wanted is not None:
            if keys.epoch > self._wanted.epoch:
                self._wanted = None
            else:
                asks.append(self._wanted)
        return asks

    def take_news(self, keys: SystemKeys, sessions: Iterable[str]) -> list[tuple[str, NewEpoch]]:
        """What the clients here are to be told, if another epoch has begun."""
        if self._told_epoch == keys.epoch:
            return []
        self._told_epoch = keys.epoch
        return [(session, NewEpoch(session, keys.epoch)) for session in sessions]

    def note(self, keys: SystemKeys, now: float, wall_s: float | None = None) -> None:
        """See until when older epochs are good.

        The highest stage, by whose wall clock an epoch has begun, knows by that also what had passed before it was started. After
        that a wall clock says nothing: where nobody keeps the events, one that jumps would make those void that are under way.
        """
        passed_s = 0.0
        if wall_s is not None and not self._knows_past:
            self._knows_past, passed_s = True, max(0.0, wall_s - keys.begun_at)
        ends = self._ends
        self._ends = {
            epoch: min(ends.get(epoch, float("inf")), now + max(0.0, good_s - passed_s))
            for epoch, good_s in keys.old.items()
        }

    def left(self, keys: SystemKeys, now: float) -> dict[int, float]:
        """For how long earlier epochs are good from now on, as it was noted, of those that are."""
        return {epoch: self._ends[epoch] - now for epoch in keys.old if self._ends[epoch] > now}

    def without_old(self, keys: SystemKeys, now: float) -> SystemKeys | None:
        """The keys without those epochs that are over, as it was noted; None if none is."""
        old = {epoch: good_s for epoch, good_s in keys.old.items() if self._ends[epoch] > now}
        return replace(keys, old=old) if len(old) < len(keys.old) else None

    def give(self, ask: AskKeys, keys: SystemKeys, now: float) -> Keys:
        """The keys that a client asks for; its rights were judged before."""
        self.note(keys, now)
        epochs = list(self.left(keys, now).items())
        epochs += [(keys.epoch, 0.0), (keys.epoch + 1, 0.0)]
        given: dict[str, list[bytes]] = {}
        if self.security.tags:
            given = {topic: [topic_key(keys.secret, epoch, topic) for epoch, _ in epochs] for topic in ask.topics}
        return Keys(ask.session, keys.system, epochs, given, 0.0 if self.rank == 0 else now - self.heard_at)
