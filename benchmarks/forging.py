"""Somebody who can write to the broker, and does, beside so many genuine events: nothing wrong is notified, and nothing is lost.

    python benchmarks/forging.py [--brokers mqtt,nats,jetstream,rabbitmq] [--events 26000] [--seed 1]

A stage, a publisher and a subscriber of three topics, on a private broker of each kind. The forger has seen every message,
and writes to the broker beside one in ten of them, before or after it: other content, another number, entries and marks that
make others wait, numbers below 1 and beyond everything, old genuine messages under the next number, messages of another
system, what has no tag, what cannot be read, flipped bits, and packs that would take much memory. Every hundredth genuine
message he takes away and puts a changed one in its place, with a bit of it flipped. Half of the events are published one by
one, half packed.

The exit code is 0 if on every broker the subscriber is notified of exactly what was published, in one order with its numbers,
and no event came later than `LATE_S`: what the broker did not bring is asked for at the log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs
import msgspec
from msgspec.structs import replace

import ordered_pubsub
from ordered_pubsub.adapter import Adapter, Frame, load_adapter
from ordered_pubsub.core.messages import ChangeMark
from ordered_pubsub.core.trust.authenticity import NO_TAG, Stamp, stamp_body
from ordered_pubsub.testing.brokers import Broker, Mosquitto, NatsServer, RabbitMq
from ordered_pubsub.testing.stages import StageProcesses
from ordered_pubsub.wire.event_frames import PACK, PACK_TYPE, STAMP
from ordered_pubsub.wire.pack import PackedBatch, PackedEvent, encode_events, encode_pack
from ordered_pubsub.wire.stamp import decode_stamp, encode_stamp

BROKERS: dict[str, Callable[[], Broker]] = {
    "mqtt": Mosquitto,
    "nats": NatsServer,
    "jetstream": lambda: NatsServer(jetstream=True),
    "rabbitmq": RabbitMq,
}
EVENTS, SEED = 26_000, 1
TOPICS = ("forged/a", "forged/b", "forged/c")
BATCH = 500
LATE_S = 5.0
"""After 2.5 s at most a subscriber knows that there is an event; what it asks then has an answer the first or the second time."""
PATIENCE_S = 300.0
SEEN_MAX = 200


def url_of(kind: str, broker: Broker) -> str:
    """How clients reach a broker."""
    return broker.url + ("?jetstream=FORGED&create=true" if kind == "jetstream" else "")


# -- the forger ---------------------------------------------------------------------------------------------------------


def _restamped(frame: Frame, **changes: Any) -> Frame:
    data = frame.headers[STAMP]
    assert isinstance(data, bytes)
    tag, _, stamp = decode_stamp(data)
    tag = changes.pop("tag", tag)
    stamp = replace(stamp, **changes)
    common = msgspec.msgpack.encode(replace(stamp, number=0, id=""))[:-2]
    return Frame(
        frame.topic,
        frame.payload,
        {**frame.headers, STAMP: encode_stamp(tag, stamp_body(common, stamp.number, stamp.id))},
    )


def _large_pack(topic: str) -> Frame:
    """20,000 events that wait for what will never be: much memory, if they were believed."""
    stamp = Stamp(b"whatever", 1, "p", 1.0, "", False, {TOPICS[0]: 1 << 38}, [ChangeMark("q", 1)] * 16, 10, "")
    events = encode_events([PackedEvent(f"{number}", b"1", "application/json") for number in range(20_000)])
    batch = PackedBatch(b"x" * 16, msgspec.Raw(msgspec.msgpack.encode(stamp)), msgspec.Raw(events))
    return Frame(topic, encode_pack([batch]), {PACK: "1", "content-type": PACK_TYPE})


@attrs.define
class Forger:
    """Forges beside what he sees."""

    random: Random
    others: list[Frame]
    """messages of another system"""
    counts: Counter[str] = attrs.field(factory=Counter)
    _seen: list[Frame] = attrs.field(factory=list)

    def frames(self, frame: Frame) -> list[Frame]:
        """What comes to the broker in the place of a message."""
        self._seen.append(frame)
        del self._seen[:-SEEN_MAX]
        if self.random.random() < 0.01:
            self.counts["taken away, a bit flipped"] += 1
            return [self._flipped(frame)]
        if self.random.random() >= 0.1:
            return [frame]
        forged = self._forge(frame)
        return [forged, frame] if self.random.random() < 0.7 else [frame, forged]

    def _forge(self, frame: Frame) -> Frame:
        old = self.random.choice(self._seen)
        general: dict[str, Callable[[], Frame]] = {
            "payload": lambda: Frame(frame.topic, frame.payload + b" ", frame.headers),
            "moved from another topic": lambda: Frame(frame.topic, old.payload, old.headers),
            "another system": lambda: self._foreign(frame.topic),
            "unreadable": lambda: Frame(frame.topic, b"", {STAMP: b"\x02" + self.random.randbytes(40)}),
            "version 1": lambda: Frame(frame.topic, b"", {STAMP: b"\x01\x97"}),
        }
        if self.random.random() < 0.02:
            general["memory"] = lambda: _large_pack(frame.topic)
        if STAMP in frame.headers:
            number = decode_stamp(frame.headers[STAMP])[2].number  # type: ignore[arg-type]  # ours
            stalling = {TOPICS[self.random.randrange(3)]: (1 << 39) - 1}
            general |= {
                "replace": lambda: _restamped(Frame(frame.topic, b'"REPLACED"', frame.headers), full=True),
                "another number": lambda: _restamped(frame, number=number + self.random.choice((1, -1, 2))),
                "stall by entries": lambda: _restamped(frame, entries=stalling),
                "stall by marks": lambda: _restamped(frame, marks=[ChangeMark("", 0)]),
                "zero": lambda: _restamped(frame, number=0),
                "overflow": lambda: _restamped(frame, number=self.random.choice(((1 << 39) - 1, 1 << 62, -1))),
                "unknown keys": lambda: _restamped(frame, key_epoch=self.random.choice((3, 1 << 40))),
                "keys that cannot be": lambda: _restamped(frame, key_epoch=self.random.choice((0, -1, 1 << 41))),
                "no tag": lambda: _restamped(frame, tag=NO_TAG),
            }
            if STAMP in old.headers:
                general["replay under the next number"] = lambda: _restamped(
                    Frame(frame.topic, old.payload, old.headers), number=number + 1
                )
        name = self.random.choice(list(general))
        self.counts[name] += 1
        return general[name]()

    def _foreign(self, topic: str) -> Frame:
        other = self.random.choice(self.others)
        return Frame(topic, other.payload, other.headers)

    def _flipped(self, frame: Frame) -> Frame:
        stamp = frame.headers.get(STAMP)
        if isinstance(stamp, bytes) and self.random.random() < 0.5:
            return Frame(frame.topic, frame.payload, {**frame.headers, STAMP: self._flip(stamp)})
        return Frame(frame.topic, self._flip(frame.payload), frame.headers)

    def _flip(self, data: bytes) -> bytes:
        changed = bytearray(data)
        changed[self.random.randrange(len(changed))] ^= 1 << self.random.randrange(8)
        return bytes(changed)


def between(adapter: Adapter, change: Callable[[Frame], list[Frame]]) -> Adapter:
    """An adapter behind which somebody changes what is on the broker."""
    publish = adapter.publish

    async def forging(frames: Sequence[Frame]) -> None:
        await publish([one for frame in frames for one in change(frame)])

    adapter.publish = forging  # type: ignore[method-assign]  # he sits on the way
    return adapter


# -- what happens -------------------------------------------------------------------------------------------------------


@attrs.frozen
class Outcome:
    """What became of it on one broker."""

    broker: str
    events: int
    forged: dict[str, int]
    not_arrived: dict[str, int]
    wrong: int
    missing: int
    late_s: float
    took_s: float

    @property
    def holds(self) -> bool:
        """Whether all is as it must be."""
        return not self.wrong and not self.missing and self.late_s <= LATE_S


async def _messages_of_another_system(url: str, folder: Path) -> list[Frame]:
    """Genuine messages of another system."""
    stages, found = StageProcesses(folder, [["**"]]), list[Frame]()
    stages.start()

    def note(frame: Frame) -> list[Frame]:
        found.append(frame)
        return []

    try:
        async with ordered_pubsub.connect(between(load_adapter(url), note), sequencer=stages.addresses) as client:
            for topic in TOPICS:
                await client.publish_many(topic, [f"of another system {number}" for number in range(50)])
    finally:
        stages.kill()
    return found


async def run_one(kind: str, url: str, events: int, seed: int, folder: Path) -> Outcome:
    """Publish so many events through a broker on which somebody forges, and compare."""
    others = await _messages_of_another_system(url, folder / "other")
    forger = Forger(Random(seed), others)
    stages = StageProcesses(folder / "own", [["**"]])
    stages.start()
    started = time.monotonic()
    try:
        single = ordered_pubsub.connect(
            between(load_adapter(url), forger.frames), sequencer=stages.addresses, name="single"
        )
        packing = ordered_pubsub.connect(
            between(load_adapter(url), forger.frames), sequencer=stages.addresses, name="packing", batch_events_max=100
        )
        subscribing = ordered_pubsub.connect(url, sequencer=stages.addresses)
        async with single as one, packing as other, subscribing as reader:
            subscription = await reader.subscribe(*TOPICS)
            sent: dict[tuple[str, int], tuple[str, float]] = {}
            reading = asyncio.create_task(_read(subscription, events, sent))
            for at in range(0, events, BATCH):
                client, topic = (one, other)[at // BATCH % 2], TOPICS[at // BATCH % 3]
                data = [f"{at + number}" for number in range(min(BATCH, events - at))]
                receipts = await client.publish_many(topic, data)
                now = time.monotonic()
                sent.update(((topic, got.number), (text, now)) for got, text in zip(receipts, data, strict=True))
            wrong, got, late_s = await asyncio.wait_for(reading, PATIENCE_S)
            status = reader.status()
    finally:
        stages.kill()
    return Outcome(
        kind,
        events,
        dict(forger.counts),
        status["not_arrived"],
        wrong,
        events - got,
        late_s,
        time.monotonic() - started,
    )


async def _read(
    subscription: Any, events: int, sent: dict[tuple[str, int], tuple[str, float]]
) -> tuple[int, int, float]:
    """How many are wrong, how many there are, and how late the latest one was."""
    got: list[tuple[str, int, Any, str, float]] = []
    numbers: Counter[str] = Counter()
    wrong = 0
    last = time.monotonic()
    while len(got) < events and time.monotonic() < last + 60:
        try:
            event = await asyncio.wait_for(anext(subscription), 60)
        except asyncio.TimeoutError:
            break
        last = time.monotonic()
        numbers[event.topic] += 1
        wrong += event.number != numbers[event.topic] or event.position != len(got) + 1
        got.append((event.topic, event.number, event.data, event.publisher, last))
    late_s = 0.0
    for topic, number, data, publisher, at in got:
        text, published_at = sent.get((topic, number), ("", at))
        wrong += data != text or publisher not in ("single", "packing")
        late_s = max(late_s, at - published_at)
    return wrong, len(got), late_s


def main(argv: Sequence[str] | None = None) -> int:
    """Run it on each broker, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--brokers", default=",".join(BROKERS), help="which ones, separated by commas")
    parser.add_argument("--events", type=int, default=EVENTS, help="on each broker")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", action="store_true", help="print what was found as JSON as well")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.ERROR)
    outcomes: list[Outcome] = []
    print(
        f"{'broker':<10} {'events':>7} {'forged':>7} {'not arrived':>11} {'wrong':>5} {'lost':>5} {'latest':>7} {'took':>6}"
    )
    for kind in arguments.brokers.split(","):
        with BROKERS[kind]() as broker, tempfile.TemporaryDirectory() as folder:
            one = asyncio.run(run_one(kind, url_of(kind, broker), arguments.events, arguments.seed, Path(folder)))
        outcomes.append(one)
        print(
            f"{one.broker:<10} {one.events:>7,} {sum(one.forged.values()):>7,} {sum(one.not_arrived.values()):>11,} "
            f"{one.wrong:>5} {one.missing:>5} {one.late_s:>5.1f} s {one.took_s:>4.0f} s",
            flush=True,
        )
    forged = sum((Counter(one.forged) for one in outcomes), Counter[str]())
    causes = sum((Counter(one.not_arrived) for one in outcomes), Counter[str]())
    print("forged:", ", ".join(f"{name} {count:,}" for name, count in sorted(forged.items())))
    print("not arrived by cause:", ", ".join(f"{name} {count:,}" for name, count in sorted(causes.items())))
    if arguments.json:
        print(json.dumps([attrs.asdict(one) for one in outcomes]))
    return 0 if all(one.holds for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
