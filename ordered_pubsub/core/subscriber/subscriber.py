"""What a subscription that misses nothing hears of its topics, and what it says to the stages.

Theory of operation
===================
Events come by the ENS, and what of them is missing by the home stage; both go to the `SubscriberLog`, which knows whose turn it
is. What the application has taken is in its hand until it was handled (`InHand`). The
subscription says, by the home stage,

- how far it is, so that the owners' logs may forget what nobody needs (`report`);
- what it misses, and what it cannot use before an owner has decided about it (`take_due`);
- with a name, what was handled: whoever goes on with it begins behind that (`Acknowledging`). When everything is handled that
  has come, that is everything it has *passed*: also numbers that a filter has left out, and those that never have an event. Else
  a subscription that wants hardly anything would never come any further, and the logs would keep all for it.

    ENS ────── arrived ──┐                     ┌── take_ready ──> the application ── handled ──┐
                         ├──> SubscriberLog ───┤                                               ├──> take_due ──> home stage
    home stage ─ hear ───┘                     └── passed, when nothing is in hand ────────────┘    report

| state | until | hears | says |
| --- | --- | --- | --- |
| beginning | the outcome of its first change | what the ENS brings early, which waits | nothing |
| in the past | it has read up to its place in the order | the logs | how far it is there, what it misses, what was handled |
| in the present | it ends | the ENS, and the logs for what the ENS loses | the same |
| over | its client ends | nothing | what was handled last, once more; that it needs nothing (`Leaving`) |

It is said to end by the stage only if it has a name, whose end others may ask for, or if its rights or its time are over.
What is said may be lost on its way: what has not changed for `said_for_s` is said again, and all of it on a new connection.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import attrs

from ordered_pubsub.core.messages import (
    VERSION_MAX,
    Acked,
    AckSaved,
    AskNews,
    AskVersion,
    Change,
    Ended,
    Nack,
    News,
    Progress,
    Range,
    Recovered,
    TopicHeads,
    ToSubscriber,
    VersionThere,
    VoidAsk,
    VoidDecision,
)
from ordered_pubsub.core.subscriber.acknowledging import ACK_S, Acknowledging, HandledPlace, InHand
from ordered_pubsub.core.subscriber.buffer import Arrival, Notification
from ordered_pubsub.core.subscriber.subscriber_log import SubscriberLog
from ordered_pubsub.errors import AccessDenied, SessionExpired

SAID_FOR_S = 30.0
"""After so long what has not changed is said again: who has forgotten it knows it then."""
LEFT_FIRST_S, LEFT_MOST_S = 30.0, 600.0
"""So often it is said again that a subscription is over, at first and in the end."""
ASK_AGAIN_S = 2.0
"""So long it waits for what others have changed, before it asks again."""
LOOKS_MAX = 100
"""Of so many topics it asks at once which changes have passed their owners."""
LEFT_MAX = 1_000
"""Of so many of them."""

Said = Nack | VoidAsk | Acked | AskNews | AskVersion
"""What it says of its own."""


@attrs.define(eq=False)
class Subscriber:
    """One subscription at its client. Time never goes back."""

    log: SubscriberLog
    session: str
    is_named: bool = False
    """whether it outlives its session, and acknowledges what was handled"""
    said_for_s: float = SAID_FOR_S
    in_hand: InHand = attrs.field(factory=InHand)
    """what the application has taken and not handled, if that matters"""
    acknowledging: Acknowledging | None = attrs.field(init=False)
    """of one with a name"""
    is_over: bool = False
    _said: dict[str, int] = attrs.field(factory=dict)
    """how far it was when it said so last"""
    _said_at: float = float("-inf")
    _passed: int = 0
    """so many numbers it had passed when it began, or when all of them were acknowledged last"""
    _ask_at: float | None = None
    """when to ask what others have changed"""
    _left_up_to: int = 0
    """… and up to which change nothing was being left then"""
    _passed_due_at: float | None = None
    """when to acknowledge what it has passed since, if nothing that was handled is acknowledged before"""

    def __attrs_post_init__(self) -> None:
        self.acknowledging = Acknowledging(self.identity, self.session) if self.is_named else None
        self.log.delivery.changes.is_shared = self.is_named

    @property
    def identity(self) -> str:
        """What it is called."""
        return self.log.delivery.subscription

    # -- what it hears ------------------------------------------------------------------------------------------------

    def arrived(self, arrivals: Sequence[Arrival], now: float) -> None:
        """The ENS has brought events."""
        self.log.set_time(now)
        self.log.arrived(arrivals)

    def begin(self, change: Change, now: float) -> None:
        """The outcome of a change came: it may be the one by which it begins, or goes on."""
        self.log.set_time(now)
        self.log.begin(change)
        if change.resume is not None:
            self._passed, self._left_up_to = self.log.position, self.log.delivery.left_up_to

    def hear(self, message: ToSubscriber | VoidDecision, now: float, is_ens_read: bool = True) -> None:
        """The stage brings what it misses, or says how far its topics are, or it is, or what is void. Raises why it is to end.

        `is_ens_read`: whether all that the ENS has brought was taken, so that what is not here was not brought.
        """
        if self.is_over:
            return
        self.log.set_time(now)
        if isinstance(message, Recovered):
            self.log.handle_log_reply(message.reply)
        elif isinstance(message, TopicHeads):
            self.log.expected(message.counts, is_ens_read)
        elif isinstance(message, VoidDecision):
            self.log.decided(message)
        elif isinstance(message, News):
            self._take_news(message)
        elif isinstance(message, VersionThere):
            self.log.delivery.heard_version(message.topic, message.version)
            self._ask_at = now
        elif not isinstance(message, AckSaved):
            self._hear_the_end(message)
        elif self.acknowledging is not None:
            self.acknowledging.handle_saved(message)

    def _take_news(self, news: News) -> None:
        """Others have changed it."""
        changes = self.log.delivery.changes
        before = changes.version
        for change in news.changes:
            self.log.delivery.change_settled(change, None)
        if changes.version > before:
            self._ask_at = float("-inf")  # so that the registrar knows that it is known here
        elif news.changes and self._ask_at is None:
            self._ask_at = self.log.missing.now + ASK_AGAIN_S

    def look_for_more(self, topics: Sequence[str], now: float) -> None:
        """The ENS brings these topics from now on, and not what came before: their logs say whether there is any."""
        self.log.set_time(now)
        self.log.look_for_more(topics)

    def _hear_the_end(self, ended: Ended) -> None:
        if ended.code == "forbidden":
            raise AccessDenied(f"the stage gives this subscription nothing any more: {ended.reason}")
        if self.is_named or ended.code == "expired":
            raise SessionExpired(f"the stage says: {ended.reason}")

    def seal(self, topic: str, numbers: list[Range], now: float) -> list[Range]:
        """An owner asks which of these numbers were seen; the others are not used until it is decided what they are."""
        self.log.set_time(now)
        return [] if self.is_over else self.log.seal(topic, numbers)

    # -- what it says -------------------------------------------------------------------------------------------------

    def report(self, now: float, is_all: bool = False) -> Progress | None:
        """How far it is, as far as that is news; or all of it, to a stage that knows nothing yet."""
        clock = self.log.needed_after
        said, self._said = self._said, clock
        if is_all or clock.keys() != said.keys() or now > self._said_at + self.said_for_s:
            self._said_at = now
            return Progress(self.identity, clock, True, self.log.delivery.changes.version)
        news = {topic: count for topic, count in clock.items() if said.get(topic) != count}
        return Progress(self.identity, news) if news else None

    def take_due(self, now: float, may_ask: bool = True, has_unread: bool = False) -> list[Said]:
        """What to say now: what it misses, if it may ask for more, and what was handled.

        `has_unread`: whether there are events whose turn has come and that the application has not taken.
        """
        if self.is_over:
            return []
        self.log.set_time(now)
        says: list[Said] = [*self.log.take_due(now)] if may_ask else []
        if self.is_named:
            says += self._ask_of_changes(now)
        acking = self.acknowledging
        if acking is None:
            return says
        if not has_unread:
            self._acknowledge_passed(acking, now)
        acked = acking.take_due(now)
        return says if acked is None else [*says, acked]

    def _ask_of_changes(self, now: float) -> list[Said]:
        """Ask what others have changed, as long as something says that they have."""
        delivery, said = self.log.delivery, list[Said]()
        changes = delivery.changes
        if self._ask_at is None and (changes.lacks or changes.looks):
            self._ask_at = now
        if self._ask_at is None or now < self._ask_at:
            return said
        does_lack = delivery.lacks_changes()
        said.append(AskNews(self.identity, self.session, changes.version))
        said += [AskVersion(self.identity, self.session, topic) for topic in list(changes.looks)[:LOOKS_MAX]]
        self._ask_at = now + ASK_AGAIN_S if does_lack else None
        return said

    def connected(self) -> None:
        """There is a home stage: what a registrar has told before may be lost."""
        if self.is_named:
            self._ask_at = float("-inf")

    def next_due(self, may_ask: bool = True) -> float | None:
        """When `take_due` should be called next, if nothing comes until then; None if there is nothing to say."""
        dues = (
            self.log.next_due if may_ask else None,
            None if self.acknowledging is None else self.acknowledging.next_due,
            self._passed_due_at,
            self._ask_at,
        )
        return min((due for due in dues if due is not None), default=None)

    # -- what was handled ---------------------------------------------------------------------------------------------

    def handled(self, place: HandledPlace | Notification, now: float, at_once: bool = False) -> int:
        """Everything up to this place was handled; return the serial by which that is known to be on disk (`saved`)."""
        acking = self.acknowledging
        assert acking is not None, f"{self.identity} has no name, so nothing of it is ever in anybody's hand"
        return acking.acknowledge(place.left_up_to, place.handled, place.count, now, at_once)

    def _acknowledge_passed(self, acking: Acknowledging, now: float) -> None:
        """If all that has come was handled, so is all that was passed: that is found out now and then, not for each event."""
        log = self.log
        has_begun = log.reads_past or log.delivery.changes.version > 0
        is_news = log.position > self._passed or log.delivery.left_up_to > self._left_up_to  # or others have changed it
        if len(self.in_hand) or not has_begun or not is_news:
            self._passed_due_at = None
            return
        if self._passed_due_at is None:
            self._passed_due_at = now + ACK_S
        due = acking.next_due
        if now >= (self._passed_due_at if due is None else min(due, self._passed_due_at)):
            self._passed, self._left_up_to, self._passed_due_at = log.position, log.delivery.left_up_to, None
            acking.acknowledge(*log.passed, now, at_once=True)

    @property
    def is_acknowledging(self) -> bool:
        """Whether what was handled is to be said, or was said and is not known to be on disk."""
        return self.acknowledging is not None and self.acknowledging.next_due is not None

    @property
    def saved(self) -> int:
        """Up to which serial acknowledgements are on disk."""
        return 0 if self.acknowledging is None else self.acknowledging.saved

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> Acked | None:
        """It hears and says nothing more; but what was handled is to be said, as far as it is not known to be on disk."""
        self.is_over = True
        acking = self.acknowledging
        return None if acking is None or acking.saved >= acking.serial else acking.last


@attrs.define(slots=True)
class _Left:
    pause_s: float
    due_at: float


@attrs.define(eq=False)
class Leaving:
    """Subscriptions of a session that are over: the stages are to know that they need nothing any more.

    Nobody answers that. So it is said again on each connection, and now and then: what a home stage hands on may be lost, too.
    """

    first_s: float = LEFT_FIRST_S
    most_s: float = LEFT_MOST_S
    _left: OrderedDict[str, _Left] = attrs.field(factory=OrderedDict)

    def leave(self, subscription: str, now: float) -> None:
        """A subscription is over."""
        self._left[subscription] = _Left(self.first_s, now)
        if len(self._left) > LEFT_MAX:
            self._left.popitem(last=False)

    def come_again(self, subscription: str) -> None:
        """A subscription of that name has begun: it is not over any more."""
        self._left.pop(subscription, None)

    def connected(self, now: float) -> None:
        """There is a home stage, which has heard nothing yet."""
        for left in self._left.values():
            left.due_at = now

    def take_due(self, now: float) -> list[Progress]:
        """What to say now."""
        due = [(name, left) for name, left in self._left.items() if left.due_at <= now]
        for _, left in due:
            left.due_at, left.pause_s = now + left.pause_s, min(2 * left.pause_s, self.most_s)
        return [Progress(name, {}, True, VERSION_MAX) for name, _ in due]

    def __len__(self) -> int:
        return len(self._left)
