"""Authentic events: by its tag a subscriber knows that a stage has numbered just this event, in just this place.

The broker is trusted with nothing. Whoever can write there can publish whatever he likes; but he cannot make a tag:

    key of a topic and epoch    BLAKE2b-256 of epoch and topic, keyed by the system's secret
    digest of an event          BLAKE2b-128 of its id, payload, content type and headers, as a log keeps them
    tag                         BLAKE2b-128 of the stamp and the digest, keyed by the topic's key

A stamp says which system's order it is, and what that order knows of the event. Its last two elements are the number and the
id. What comes before them is the same for all events of a batch but the first, so it is hashed once. The id is not hashed
with the stamp, since the digest has it: the stage that makes the tag need not know it.

Events that are published together share a tag: then the digest is that of all of them, and the id in the stamp is empty.

The stage that a client is at home at makes the tags, when it answers. Everything that a tag is made from is in the answer, so the
same answer always has the same tags, as long as the keys are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from hmac import compare_digest
from typing import Protocol

import msgspec
from msgspec.structs import replace

from ordered_pubsub.core.messages import Answer, ChangeMark, Part, Publication, SystemKeys, Transaction

TAG_BYTES = DIGEST_BYTES = 16
KEY_BYTES = 32
SYSTEM_BYTES = 8
SECRET_BYTES = 32
NO_TAG = bytes(TAG_BYTES)
"""In a stamp of a system that has no tags."""
_PERSON = b"ops topic key"


class Hash(Protocol):
    """What `hashlib` makes."""

    def copy(self) -> Hash:
        """Another one that has hashed the same so far."""

    def update(self, data: bytes, /) -> None:
        """Hash more."""

    def digest(self) -> bytes:
        """Of all that was hashed."""


class Stamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the order says of one event, or of the first of several that share a tag."""

    system: bytes
    key_epoch: int
    publisher: str
    published_at: float
    transaction: str | Transaction
    """of the first event of a part, what takes its place together with it; of the others, only its name; empty: nothing"""
    full: bool
    entries: dict[str, int]
    marks: list[ChangeMark]
    number: int
    id: str


_encode = msgspec.msgpack.Encoder().encode
_ID_AND_NUMBER = len(_encode(0)) + len(_encode(""))
_digest = blake2b(digest_size=DIGEST_BYTES).copy
"""A hash that has hashed nothing: to copy one takes less time than to make one."""
_NO_ENTRIES: dict[str, int] = {}
_NO_MARKS: list[ChangeMark] = []


# -- digests --------------------------------------------------------------------------------------------------------------


def digest_of(content: bytes | memoryview) -> bytes:
    """The digest of an event, or of several together, as they are written in a log."""
    hashed = _digest()
    hashed.update(content)
    return hashed.digest()


def digests_of(contents: Iterable[bytes | msgspec.Raw]) -> bytes:
    """The digests of several, one behind the other."""
    digests: list[bytes] = []
    for content in contents:
        hashed = _digest()
        hashed.update(content)
        digests.append(hashed.digest())
    return b"".join(digests)


def pieces_of(part: Publication) -> Sequence[int]:
    """How many events each piece has."""
    return part.pieces or (1,) * part.count


# -- keys -----------------------------------------------------------------------------------------------------------------


def topic_key(secret: bytes, epoch: int, topic: str) -> bytes:
    """The key by which the events of a topic are tagged in an epoch."""
    data = epoch.to_bytes(8, "big") + topic.encode()
    return blake2b(data, key=secret, digest_size=KEY_BYTES, person=_PERSON).digest()


def keyed(key: bytes) -> Hash:
    """What tags are made with: a hash to be copied."""
    return blake2b(key=key, digest_size=TAG_BYTES)


# -- tags -----------------------------------------------------------------------------------------------------------------


def common_of(part: Publication, index: int) -> bytes:
    """What the stamps of a batch have in common: of the first event, or of any other one."""
    if not index:
        return first_body(part, 0)[:-_ID_AND_NUMBER]
    entries = part.entries if part.full else _NO_ENTRIES
    name = "" if part.transaction is None else part.transaction.id
    stamp = Stamp(
        part.system, part.key_epoch, part.publisher, part.published_at, name, part.full, entries, _NO_MARKS, 0, ""
    )
    return _encode(stamp)[:-_ID_AND_NUMBER]


def first_body(part: Publication, number: int, id: str = "") -> bytes:
    """The stamp of the first event of a batch, without its tag."""
    return _encode(
        Stamp(
            part.system,
            part.key_epoch,
            part.publisher,
            part.published_at,
            part.transaction or "",
            part.full,
            part.entries,
            part.marks,
            number,
            id,
        )
    )


def stamp_body(common: bytes, number: int, id: str = "") -> bytes:
    """The stamp of another event, without its tag."""
    return common + _encode(number) + _encode(id)


def head_of(body: bytes, id: str) -> bytes:
    """What of a stamp is hashed: all but the id."""
    return body[: -len(_encode(id))]


def tag_of(key: Hash, head: bytes, digest: bytes) -> bytes:
    """The tag of one piece."""
    hashed = key.copy()
    hashed.update(head + digest)
    return hashed.digest()


def is_genuine(key: Hash, tag: bytes, head: bytes, content: bytes | msgspec.Raw) -> bool:
    """Whether a stage has made this tag, of just this."""
    digest, hashed = _digest(), key.copy()
    digest.update(content)
    hashed.update(head + digest.digest())
    return compare_digest(hashed.digest(), tag)


def tags_of(part: Publication, key: Hash) -> bytes:
    """The tags of the pieces of a batch, one behind the other."""
    digests, number = part.digests, part.first
    first = tag_of(key, head_of(first_body(part, number), ""), digests[:DIGEST_BYTES])
    if len(digests) == DIGEST_BYTES:
        return first
    tags = [first]
    if digests:
        others = key.copy()
        others.update(common_of(part, 1))
        pieces, at = pieces_of(part), DIGEST_BYTES
        for count in pieces[:-1]:
            number += count
            hashed = others.copy()
            hashed.update(_encode(number) + digests[at : at + DIGEST_BYTES])
            tags.append(hashed.digest())
            at += DIGEST_BYTES
    return b"".join(tags)


KEYS_REMEMBERED_MAX = 10_000


class Tagger:
    """Makes the answers of one stage such that its clients can publish what they asked numbers for."""

    def __init__(self, is_tagging: bool = True) -> None:
        self.is_tagging = is_tagging
        """whether there are tags; else stamps only say which system they are of"""
        self._keys: dict[str, Hash] = {}
        self._epoch = 0

    def answer(self, answer: Answer, keys: SystemKeys) -> Answer:
        """The answer as the client gets it: with tags in the place of digests."""
        parts: list[Part] = []
        has_tagged = False
        for part in answer.parts:
            if isinstance(part, Publication) and part.pieces is not None:
                has_tagged = True
                parts.append(self._tagged(part, answer.transaction, keys))
            else:
                parts.append(part)
        return replace(answer, parts=parts) if has_tagged else answer

    def _tagged(self, part: Publication, transaction: Transaction | None, keys: SystemKeys) -> Publication:
        has_tags = self.is_tagging and bool(part.digests)
        part = replace(part, system=keys.system, key_epoch=keys.epoch if has_tags else 0)  # the stage remembers its own
        if has_tags:
            part.transaction = transaction
            part.tags = tags_of(part, self._key(part.topic, keys))
            part.transaction = None  # all parts have the same, and the answer says it once
        part.digests = b""
        return part

    def _key(self, topic: str, keys: SystemKeys) -> Hash:
        if self._epoch != keys.epoch or len(self._keys) >= KEYS_REMEMBERED_MAX:
            self._keys.clear()
            self._epoch = keys.epoch
        key = self._keys.get(topic)
        if key is None:
            key = self._keys[topic] = keyed(topic_key(keys.secret, keys.epoch, topic))
        return key
