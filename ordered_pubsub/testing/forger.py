"""Somebody who can write to the ENS of a simulation, and does: other content, other places, what was genuine once or elsewhere.

He has seen everything that was ever published. He has no keys, unless he is a subscriber himself: then he tags what he
forges, and only tries to make others wait, since nothing is known against other content from him.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import attrs
import msgspec
from msgspec.structs import replace

from ordered_pubsub.core.log.shelf import ENDLESS
from ordered_pubsub.core.messages import EPOCH_MAX, ChangeMark, SystemKeys
from ordered_pubsub.core.trust.authenticity import (
    Stamp,
    digest_of,
    head_of,
    keyed,
    stamp_body,
    tag_of,
    topic_key,
)
from ordered_pubsub.testing.network import Carried
from ordered_pubsub.wire.stamp import decode_body

SEEN_MAX = 100
IMPOSSIBLE = (-1, 0, EPOCH_MAX + 1, (1 << 64) - 1)
"""Epochs that no keys can have, and that can be written all the same."""


@attrs.define(eq=False)
class Forger:
    """Forges beside what is genuine."""

    chance: Random
    topics: list[str]
    share: float
    """how likely it is that something forged comes beside a message"""
    keys: SystemKeys
    """those of the system"""
    others: SystemKeys
    """those of another system on the same broker"""
    is_subscriber: bool = False
    """whether he has the keys"""
    has_tags: bool = True
    """whether the system has any"""
    forged: dict[str, int] = attrs.field(factory=dict)
    """kind → how many"""
    _seen: list[Carried] = attrs.field(factory=list)

    def forge(self, carried: Carried, subscriptions: Sequence[str]) -> list[Carried]:
        """What comes to a client's subscriptions beside a message, and before it."""
        self._seen.append(carried)
        del self._seen[:-SEEN_MAX]
        if self.chance.random() >= self.share:
            return []
        kinds = KINDS if self.has_tags and not self.is_subscriber else STALLS if self.has_tags else UNTAGGED
        name, subscription = self.chance.choice(list(kinds)), self.chance.choice([*subscriptions, "nobody/1"])
        forged = kinds[name](self, carried, decode_body(carried.body), subscription)
        self.forged[name] = self.forged.get(name, 0) + 1
        return [self._tagged(forged) if self.is_subscriber and name != "foreign" else forged]

    def forge_late(self, carried: Carried) -> Carried | None:
        """What comes to a client right after a message, from somebody who has the keys: the first event's content."""
        if not self.is_subscriber or self.chance.random() >= self.share:
            return None
        found = msgspec.msgpack.decode(carried.content)
        content = [0] * len(found) if isinstance(found, list) else 0
        self.forged["late"] = self.forged.get("late", 0) + 1
        return self._tagged(replace(carried, content=msgspec.msgpack.encode(content)))

    def _tagged(self, carried: Carried) -> Carried:
        stamp = decode_body(carried.body)
        key = keyed(topic_key(self.keys.secret, stamp.key_epoch, carried.topic))
        return replace(carried, tag=tag_of(key, head_of(carried.body, stamp.id), digest_of(carried.content)))

    # -- kinds --------------------------------------------------------------------------------------------------------

    def content(self, carried: Carried, stamp: Stamp, subscription: str) -> Carried:
        """Another event's content."""
        found = msgspec.msgpack.decode(carried.content)
        other = self.chance.choice(self._seen)
        if isinstance(found, int):
            return replace(carried, content=msgspec.msgpack.encode(found + 1 if found % 2 == 0 else found - 1))
        return replace(carried, content=other.content)

    def number(self, carried: Carried, stamp: Stamp, subscription: str) -> Carried:
        """A genuine event in another place."""
        number = self.chance.choice((stamp.number + 1, max(1, stamp.number - 1), 1 << 30, 0, -1, ENDLESS))
        return _written(carried, replace(stamp, number=number))

    def entries(self, carried: Carried, stamp: Stamp, subscription: str) -> Carried:
        """One that waits for what will never be."""
        other = self.chance.choice(self.topics)
        return _written(
            carried, replace(stamp, entries={**stamp.entries, other: self.chance.choice((1 << 20, 1 << 38))})
        )

    def marks(self, carried: Carried, stamp: Stamp, subscription: str) -> Carried:
        """One that waits for a change that was never asked for, too."""
        mark = ChangeMark(subscription, self.chance.choice((1000, 1 << 30)))
        return _written(carried, replace(stamp, marks=[*stamp.marks, mark]))

    def replayed(self, carried: Carried, stamp: Stamp, subscription: str) -> Carried:
        """An old genuine one under the next number."""
        old = self.chance.choice(self._seen)
        return _written(replace(old, topic=carried.topic), replace(decode_body(old.body), number=stamp.number))

    def moved(self, carried: Carried, stamp: Stamp, subscription: str) -> Carried:
        """A genuine one, unchanged, on another topic."""
        return replace(self.chance.choice(self._seen), topic=carried.topic)

    def foreign(self, carried: Carried, stamp: Stamp, subscription: str) -> Carried:
        """A genuine one of another system."""
        theirs = _written(carried, replace(stamp, system=self.others.system, entries={}, marks=[]))
        key = keyed(topic_key(self.others.secret, stamp.key_epoch, carried.topic))
        other = replace(theirs, content=self.chance.choice(self._seen).content)
        return replace(other, tag=tag_of(key, head_of(other.body, stamp.id), digest_of(other.content)))

    def future(self, carried: Carried, stamp: Stamp, subscription: str) -> Carried:
        """One of an epoch that there is not, and perhaps cannot be."""
        epoch = self.chance.choice((stamp.key_epoch + self.chance.randint(2, 9), EPOCH_MAX, *IMPOSSIBLE))
        return _written(carried, replace(stamp, key_epoch=epoch))

    def bits(self, carried: Carried, stamp: Stamp, subscription: str) -> Carried:
        """A bit is another one."""
        name = self.chance.choice(("tag", "body", "content"))
        data = bytearray(getattr(carried, name))
        if data:
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        if name == "tag":
            return replace(carried, tag=bytes(data))
        return replace(carried, body=bytes(data)) if name == "body" else replace(carried, content=bytes(data))


def _written(carried: Carried, stamp: Stamp) -> Carried:
    """With another stamp, under the tag that there was."""
    common = msgspec.msgpack.encode(replace(stamp, number=0, id=""))[:-2]
    return replace(carried, body=stamp_body(common, stamp.number, stamp.id))


Kind = Callable[[Forger, Carried, Stamp, str], Carried]
STALLS: dict[str, Kind] = {"entries": Forger.entries, "marks": Forger.marks}
UNTAGGED: dict[str, Kind] = {**STALLS, "foreign": Forger.foreign}
KINDS: dict[str, Kind] = {
    **STALLS,
    "content": Forger.content,
    "number": Forger.number,
    "replayed": Forger.replayed,
    "moved": Forger.moved,
    "foreign": Forger.foreign,
    "future": Forger.future,
    "bits": Forger.bits,
}
