"""Which topics a client has the ENS bring, for which of its subscriptions; and who waits until it does.

Nothing that comes on a topic can be judged without its keys, so they are here before it is subscribed to at the ENS. Then:

| a topic is | until | then it is |
| --- | --- | --- |
| without keys | the stage has given them, or says why not | absent; or whoever waits is told why |
| absent | its turn comes to be subscribed to | doubtful |
| doubtful, held | the ENS has answered | active; or doubtful still, and whoever waits is told, or it is tried again |
| active | nobody holds it, and its turn comes to be unsubscribed from | doubtful |
| doubtful, held by nobody | the ENS has answered | absent; or doubtful still, and it is tried again |

There is one operation at the ENS at a time (`next_operation`, `done`). One that nobody waits for any more `is_abandoned`, so
that an ENS which never answers for one topic keeps others waiting no longer than somebody waits for that.

INVARIANT: a topic that a subscription wants (`ClientSubscription.wanted`) is active, or waited for.
INVARIANT: what is active or doubtful, and held by nobody, is in `_left` or under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from ordered_pubsub.core.trust.inspection import Inspection

AGAIN_FIRST_S, AGAIN_MOST_S = 0.05, 5.0
"""So long after it has failed something is tried again, at first and in the end."""


@attrs.define(slots=True)
class Pause:
    """When to try again what has failed."""

    until: float = float("-inf")
    _next_s: float = AGAIN_FIRST_S

    def begin(self, now: float) -> None:
        """It has failed."""
        self.until, self._next_s = now + self._next_s, min(2 * self._next_s, AGAIN_MOST_S)

    def is_over(self, now: float) -> bool:
        """Whether it may be tried again; then there is nothing more to wait for."""
        if now < self.until:
            return False
        self.until = float("-inf")
        return True

    def end(self) -> None:
        """It has not."""
        self.until, self._next_s = float("-inf"), AGAIN_FIRST_S


@attrs.define(eq=False)
class Hold:
    """A subscription waits until the ENS brings some topics."""

    subscription: str
    topics: tuple[str, ...]
    is_lasting: bool = False
    """whether it is tried again when it has failed, until its topics are forgotten"""
    is_held: bool = False
    error: Exception | None = None
    """why the ENS does not bring them"""
    refusal: tuple[str, str] | None = None
    """why the stage does not give their keys: a code and a reason"""
    pause: Pause = attrs.field(factory=Pause)


@attrs.frozen(eq=False)
class EnsOperation:
    """What the ENS is to do: begin to bring these topics, or end it."""

    subscribes: bool
    topics: list[str]
    hold: Hold | None = None
    """what waits for it, of one that subscribes"""


@attrs.define(eq=False)
class Holding:
    """The topics of one client."""

    inspection: Inspection
    finished: list[Hold] = attrs.field(factory=list)
    """holds that have an outcome; the caller empties it"""
    under_way: EnsOperation | None = None
    _holders: dict[str, dict[str, bool]] = attrs.field(factory=dict)
    """topic → the subscriptions to which it is to come"""
    _held_by: dict[str, dict[str, bool]] = attrs.field(factory=dict)
    """the same by subscription"""
    _active: dict[str, bool] = attrs.field(factory=dict)
    _doubtful: dict[str, bool] = attrs.field(factory=dict)
    _left: dict[str, bool] = attrs.field(factory=dict)
    """topics that may have to be unsubscribed from"""
    _waiting: dict[Hold, bool] = attrs.field(factory=dict)
    _pause: Pause = attrs.field(factory=Pause)
    """before topics are unsubscribed from, if that has failed"""

    def hold(self, subscription: str, topics: Sequence[str], now: float, is_lasting: bool = False) -> Hold:
        """Let everything that is published on these topics from some time on come to a subscription.

        When that has begun, or cannot, the hold is `finished`. Until `forget`, what comes of them goes to the subscription.
        """
        hold = Hold(subscription, tuple(topics), is_lasting)
        for topic in topics:
            self._holders.setdefault(topic, {})[subscription] = True
            self._held_by.setdefault(subscription, {})[topic] = True
        self.inspection.now = now
        self.inspection.hold(self._lacking(hold))
        self._waiting[hold] = True
        self._look(hold, now)
        return hold

    def give_up(self, hold: Hold) -> None:
        """Nobody waits for it any more. What is not to come must be forgotten, too."""
        self._waiting.pop(hold, None)

    def forget(self, subscription: str, topics: Iterable[str] | None = None) -> None:
        """Let nothing more of these topics come to a subscription, or nothing at all."""
        mine = self._held_by.get(subscription, {})
        if topics is None:
            topics = list(mine)
            for hold in [hold for hold in self._waiting if hold.subscription == subscription]:
                self.give_up(hold)
        for topic in topics:
            if mine.pop(topic, None) is None:
                continue
            del self._holders[topic][subscription]
            if not self._holders[topic]:
                del self._holders[topic]
                if topic in self._active or topic in self._doubtful:
                    self._left[topic] = True
                else:
                    self.inspection.release([topic])
        if not mine:
            self._held_by.pop(subscription, None)
        for hold in [hold for hold in self._waiting if hold.is_lasting and hold.subscription == subscription]:
            if not self._lacking(hold):  # what it has waited for is not to come any more
                self.give_up(hold)

    def holders(self, topic: str) -> Iterable[str]:
        """The subscriptions to which a topic is to come."""
        return self._holders.get(topic, ())

    @property
    def topics(self) -> list[str]:
        """Those that somebody holds, or that the ENS may bring."""
        return list({**self._holders, **self._active, **self._doubtful})

    def keys_came(self, now: float) -> None:
        """The stage has given keys, or refused them."""
        for hold in list(self._waiting):
            self._look(hold, now)

    def lacks_keys(self, topics: Iterable[str]) -> bool:
        """Whether the stage has not given the keys of some topics that are to be held."""
        return any(topic in self._holders and not self.inspection.is_ready(topic) for topic in topics)

    # -- at the ENS ---------------------------------------------------------------------------------------------------

    def next_operation(self, now: float) -> EnsOperation | None:
        """What to have the ENS do now, if there is anything; its outcome is told by `done`."""
        if self.under_way is not None:
            return None
        for hold in self._waiting:
            if not hold.pause.is_over(now):
                continue
            topics = self._lacking(hold)
            if any(self.inspection.refusal(topic) is not None for topic in topics):
                self.inspection.now = now
                self.inspection.hold(topics)  # it may be allowed by now
            elif all(map(self.inspection.is_ready, topics)):
                self.under_way = EnsOperation(True, topics, hold)
                self._doubtful.update(dict.fromkeys(topics, True))
                return self.under_way
        if self._left and self._pause.is_over(now):
            unheld = [topic for topic in self._left if topic not in self._holders]
            self._left.clear()
            if unheld:
                self.inspection.release(unheld)
                for topic in unheld:
                    self._active.pop(topic, None)
                    self._doubtful[topic] = True
                self.under_way = EnsOperation(False, unheld)
        return self.under_way

    def done(self, now: float, error: Exception | None = None) -> None:
        """What was under way at the ENS has happened; or it may have, and this went wrong."""
        operation, self.under_way = self.under_way, None
        assert operation is not None
        if error is None:
            for topic in operation.topics:
                del self._doubtful[topic]
            if operation.subscribes:
                self._active.update(dict.fromkeys(operation.topics, True))
        self._left.update((topic, True) for topic in self._needless(operation, error is None))
        if not operation.subscribes:
            self._pause.end() if error is None else self._pause.begin(now)
        elif error is None:
            self.keys_came(now)  # others may have waited for the same topics
        elif operation.hold is not None and operation.hold in self._waiting:
            self._failed(operation.hold, error, now)

    def _needless(self, operation: EnsOperation, is_done: bool) -> list[str]:
        """What the ENS may bring after it, and nobody holds."""
        topics = operation.topics if operation.subscribes or not is_done else []
        return [topic for topic in topics if topic not in self._holders]

    def _failed(self, hold: Hold, error: Exception, now: float) -> None:
        if hold.is_lasting:
            hold.pause.begin(now)
        else:
            hold.error = error
            self._finish(hold)

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits any more for what the ENS is asked to bring: its answer need not be waited for."""
        operation = self.under_way
        if operation is None or not operation.subscribes or operation.hold in self._waiting:
            return False
        return not any(topic in hold.topics for hold in self._waiting for topic in operation.topics)

    @property
    def is_changing(self) -> bool:
        """Whether something is under way at the ENS, or waits to be."""
        return self.under_way is not None or bool(self._waiting) or bool(self._left)

    @property
    def next_due(self) -> float | None:
        """When `next_operation` should be called again, if nothing comes until then."""
        if self.under_way is not None:
            return None
        pauses = [hold.pause for hold in self._waiting] + ([self._pause] if self._left else [])
        return min((pause.until for pause in pauses if pause.until > float("-inf")), default=None)

    def _lacking(self, hold: Hold) -> list[str]:
        mine = self._held_by.get(hold.subscription, {})
        return [topic for topic in dict.fromkeys(hold.topics) if topic in mine and topic not in self._active]

    def _look(self, hold: Hold, now: float) -> None:
        """It may have its outcome."""
        lacking = self._lacking(hold)
        if not lacking:
            hold.is_held = True
            self._finish(hold)
            return
        refusal = next((found for topic in lacking if (found := self.inspection.refusal(topic)) is not None), None)
        if refusal is None:
            return
        if hold.is_lasting:
            hold.pause.begin(now)
        else:
            hold.refusal = refusal
            self._finish(hold)

    def _finish(self, hold: Hold) -> None:
        del self._waiting[hold]
        self.finished.append(hold)

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if what is written at the top does not hold."""
        for topic, holders in self._holders.items():
            assert holders, f"{topic} is held by nobody"
            assert all(topic in self._held_by[name] for name in holders), (
                f"{topic} is held by {list(holders)}, says one table"
            )
        for topic in {**self._active, **self._doubtful}:
            assert not (topic in self._active and topic in self._doubtful), f"{topic} is active and doubtful"
            under_way = self.under_way is not None and topic in self.under_way.topics
            assert topic in self._holders or topic in self._left or under_way, f"nobody will unsubscribe from {topic}"

    def check_brought(self, topics: Iterable[str]) -> None:
        """Raise an `AssertionError` if the ENS does not bring these, and nobody waits for that."""
        for topic in topics:
            waits = any(topic in hold.topics for hold in self._waiting)
            assert topic in self._active or waits, f"the ENS is not asked to bring {topic}"
