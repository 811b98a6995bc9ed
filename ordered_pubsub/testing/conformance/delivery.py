"""Checks of who gets what: from when on, until when, in which order and how often."""

from __future__ import annotations

import asyncio
from collections import Counter

from ordered_pubsub.adapter import Frame
from ordered_pubsub.testing.conformance.peers import Peer, exchange, fresh_topic, numbered, opened
from ordered_pubsub.testing.conformance.subject import Subject, check, expect

SUBSCRIPTIONS = 20
MANY_FRAMES = 5_000
MANY_TOPICS = 500
TOPICS = 8
FRAMES_OF_EACH = 200


def expect_order(receiver: Peer, frames: list[Frame]) -> None:
    """All frames of one topic have come for the first time in the order in which they were published."""
    came = list(dict.fromkeys(receiver.payloads(frames[0].topic)))
    for place, (frame, payload) in enumerate(zip(frames, came, strict=True)):
        expect(
            payload == frame.payload,
            f"in place {place} of topic {frame.topic!r}, {frame.payload[:20]!r} was published and {payload[:20]!r} came",
        )


@check(
    "everything that is published after subscribe() has returned arrives",
    promise="`subscribe` returns when the subscription is active: everything that anybody publishes after that arrives.",
    when=lambda subject: not subject.capabilities.loses,
)
async def subscribe_returns_when_active(subject: Subject) -> None:
    """By another connection, at once, many times."""
    async with opened(subject, 2) as (publisher, receiver):
        for _ in range(SUBSCRIPTIONS):
            frames = numbered(fresh_topic(), 3)
            await receiver.subscribe(frames[0].topic)
            await exchange(publisher, [receiver], frames)


@check(
    "every subscriber of a topic gets each of its frames, its publisher too, and nobody else gets any",
    promise="Let the frames of these topics come, too.",
)
async def every_subscriber_gets_every_frame(subject: Subject) -> None:
    """It is not a queue, from which each frame goes to one of them."""
    async with opened(subject, 3) as (one, two, other):
        frames, others = numbered(fresh_topic(), 50), numbered(fresh_topic(), 1)
        await one.subscribe(frames[0].topic)
        await two.subscribe(frames[0].topic)
        await other.subscribe(others[0].topic)
        await exchange(one, [one, two], frames)
        await exchange(one, [other], others)
        expect(not other.payloads(frames[0].topic), "a frame came to a connection that had not subscribed to its topic")


@check(
    "one connection can hold several topics, subscribed to in one call and in several",
    promise="Let the frames of these topics come, too.",
)
async def topics_add_up(subject: Subject) -> None:
    """A later call takes nothing away from an earlier one."""
    async with opened(subject, 2) as (publisher, receiver):
        topics = [fresh_topic(str(number)) for number in range(TOPICS)]
        await receiver.subscribe(*topics[:5])
        await receiver.subscribe(*topics[5:])
        await exchange(publisher, [receiver], [Frame(topic, topic.encode()) for topic in topics])


@check("hundreds of topics can be subscribed to in one call", promise="Let the frames of these topics come, too.")
async def many_topics(subject: Subject) -> None:
    """And published on, one after the other and in one call."""
    async with opened(subject, 2) as (publisher, receiver):
        frames = [Frame(fresh_topic(str(number)), b"%d" % number) for number in range(MANY_TOPICS)]
        await receiver.subscribe(*(frame.topic for frame in frames))
        await exchange(publisher, [receiver], frames)


@check("calls with nothing in them do nothing, and return", promise="Hand frames over, in this order.")
async def empty_calls_do_nothing(subject: Subject) -> None:
    """A client may have nothing left to say when its turn comes."""
    async with opened(subject, 2) as (publisher, receiver):
        frames = numbered(fresh_topic(), 3)
        await receiver.subscribe(frames[0].topic)
        for peer in (publisher, receiver):
            await peer.publish([])
            await peer.subscribe()
            await peer.within(peer.adapter.unsubscribe([]), "unsubscribe() of nothing did not return")
        await exchange(publisher, [receiver], frames)


@check(
    "a topic that was subscribed to twice is as one that was subscribed to once",
    promise="a frame may arrive more than once",
    when=lambda subject: not subject.capabilities.duplicates,
)
async def subscribing_twice_is_subscribing_once(subject: Subject) -> None:
    """A client does so after it was cancelled while it subscribed."""
    async with opened(subject, 2) as (publisher, receiver):
        frames, fence = numbered(fresh_topic(), 20), numbered(fresh_topic(), 1)
        await receiver.subscribe(frames[0].topic)
        await receiver.subscribe(frames[0].topic, fence[0].topic)
        await exchange(publisher, [receiver], frames)
        await exchange(publisher, [receiver], fence)
        expect_no_repeats(receiver)


@check(
    "nothing that is published after unsubscribe() has returned arrives, and other topics go on",
    promise="Let no more frames of these topics come.",
)
async def unsubscribe_stops(subject: Subject) -> None:
    """Until the topic is subscribed to again. Topics that were not held may be named."""
    async with opened(subject, 2) as (publisher, receiver):
        left, kept = fresh_topic("left"), fresh_topic("kept")
        await receiver.subscribe(left, kept)
        await exchange(publisher, [receiver], [Frame(left, b"before"), Frame(kept, b"before")])
        await receiver.adapter.unsubscribe([left, fresh_topic("never held")])
        await publisher.publish([Frame(left, b"meanwhile")])
        await exchange(publisher, [receiver], [Frame(kept, b"meanwhile")])
        await receiver.subscribe(left)
        await exchange(publisher, [receiver], [Frame(left, b"after"), Frame(kept, b"after")])
        expect(b"meanwhile" not in receiver.payloads(left), "a frame came of a topic that was unsubscribed from")


@check(
    "the frames of a topic arrive in the order in which they were published",
    promise="frames of one topic may arrive in another order than they were published in",
    when=lambda subject: not subject.capabilities.reorders and not subject.capabilities.loses,
)
async def a_topic_is_fifo(subject: Subject) -> None:
    """Over several calls of publish(), of sizes that differ."""
    async with opened(subject, 2) as (publisher, receiver):
        topic = fresh_topic()
        frames = [Frame(topic, b"%d" % number + b"." * (number * 7919 % 4_000)) for number in range(1_000)]
        await receiver.subscribe(topic)
        for first, last in ((0, 1), (1, 10), (10, 11), (11, 400), (400, 1_000)):
            await publisher.publish(frames[first:last])
        await receiver.receive(frames)
        expect_order(receiver, frames)


@check(
    "as long as nothing breaks, each frame arrives once",
    promise="a frame may arrive more than once",
    when=lambda subject: not subject.capabilities.duplicates and not subject.capabilities.loses,
)
async def nothing_is_repeated(subject: Subject) -> None:
    """To two subscribers, one of whom publishes."""
    async with opened(subject, 2) as (one, two):
        frames, fence = numbered(fresh_topic(), 1_000), numbered(fresh_topic(), 1)
        for peer in (one, two):
            await peer.subscribe(frames[0].topic, fence[0].topic)
        await exchange(one, [one, two], frames)
        await exchange(one, [one, two], fence)
        for peer in (one, two):
            expect_no_repeats(peer)


def expect_no_repeats(receiver: Peer) -> None:
    """Each frame has come once."""
    counts = Counter((frame.topic, frame.payload) for frame in receiver.frames)
    (topic, payload), most = counts.most_common(1)[0]
    expect(most == 1, f"the frame {payload[:40]!r} on {topic!r} came {most} times")


@check(
    "thousands of frames in one call of publish() all arrive",
    promise="Hand frames over, in this order.",
)
async def many_frames_at_once(subject: Subject) -> None:
    """A full pipeline of a client is 10,000."""
    async with opened(subject, 2) as (publisher, receiver):
        frames = numbered(fresh_topic(), MANY_FRAMES)
        await receiver.subscribe(frames[0].topic)
        await exchange(publisher, [receiver], frames)
        if not subject.capabilities.reorders and not subject.capabilities.loses:
            expect_order(receiver, frames)


@check(
    "publish() of several topics at the same time works, each topic in its order",
    promise="Called again for another topic before it has returned for the first",
)
async def topics_are_published_side_by_side(subject: Subject) -> None:
    """As a client does, with one call per topic under way."""
    async with opened(subject, 2) as (publisher, receiver):
        batches = [numbered(fresh_topic(str(number)), FRAMES_OF_EACH) for number in range(TOPICS)]
        await receiver.subscribe(*(frames[0].topic for frames in batches))
        await asyncio.gather(*(publisher.publish(frames) for frames in batches))
        for frames in batches:
            await receiver.receive(frames, publisher)
            if not subject.capabilities.reorders and not subject.capabilities.loses:
                expect_order(receiver, frames)
