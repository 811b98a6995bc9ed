"""Topics that rest and wake, and what changes leave to do in the tables of groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ordered_pubsub.core.log.retention import LogTrimmer
from ordered_pubsub.core.messages import Done, Durable, Woken
from ordered_pubsub.core.order.clocks import Clocks
from ordered_pubsub.core.order.groups import Groups
from ordered_pubsub.core.stage._resting import LastNumbers, Resting
from ordered_pubsub.core.stage._waking import Waking
from ordered_pubsub.core.stage.stage import Stage
from simulation.mutants.mutant import Mutant, nothing


def _no_number(numbers: LastNumbers, topic: str) -> int:
    return 0


def _on_disk_only(numbers: LastNumbers, topic: str) -> int:
    return numbers.shelf.number(topic)


def _wake_unsaid(waking: Waking, parts: Iterable[Any]) -> None:
    """It is woken, and the journal does not say so."""
    before = len(waking.context.effects.journal)
    _wake(waking, parts)
    del waking.context.effects.journal[before:]


_wake = Waking.wake


def _wake_what_comes(stage: Stage, message: Durable) -> Iterable[Any]:
    """What waits until a change is done is forgotten."""
    return [] if isinstance(message, Done) else _concerned(stage, message)


_concerned = Stage._concerned


def _rest_at_once(resting: Resting, topic: str) -> bool:
    """Whatever subscriptions hold it, or follow a change of it."""
    state = resting.stage.state
    return topic not in state.kept or resting.shelf.floor(topic) >= state.kept[topic]


def _named_by_nobody(retention: LogTrimmer, topic: str) -> bool:
    return False


def _take_woken_unmarked(waking: Waking, event: Woken) -> None:
    _take_woken(waking, event)
    for topic in event.numbers:
        waking.context.state.marks.pop(topic, None)


_take_woken = Waking.take_woken


def _always_still(resting: Resting, topic: str, candidate: object) -> bool:
    """Whoever has begun to hold it in the meantime."""
    return topic in resting.stage.state.clocks.numbers or topic in resting.stage.state.groups.owed


def _logged_or_not(resting: Resting, topic: str) -> bool:
    groups, clocks = resting.stage.state.groups, resting.stage.state.clocks
    return topic in clocks.numbers and topic not in groups.held and topic not in groups.reach


def _see_if_counted(clocks: Clocks, topic: str, number: int, groups: Groups) -> None:
    """Only of what has been counted already."""
    if topic in clocks.seen:
        clocks.see(topic, number)


def _prune_what_is_owed(clocks: Clocks, topics: Iterable[str], groups: Groups) -> None:
    for topic in topics:
        if topic not in groups.filled:
            for table in (clocks.visited, clocks.own_changed, clocks.lower_changed, clocks.seen):
                table.pop(topic, None)


def _wanted_if_settled(groups: Groups, topic: str) -> bool:
    return topic in groups.filled or topic in groups.owed_to


MUTANTS = (
    Mutant("begin-again", "a topic that rested goes on after its last number", ((LastNumbers, "number", _no_number),)),
    Mutant(
        "not-yet-there",
        "… also if that is only on its way to the disk",
        ((LastNumbers, "number", _on_disk_only),),
        "used-while-put-down",
    ),
    Mutant(
        "wake-unsaid",
        "what wakes a topic is in the journal before what needs it",
        ((Waking, "wake", _wake_unsaid),),
        "woken-then-crashed",
    ),
    Mutant(
        "wake-what-comes",
        "a topic is woken for a change as well that has waited for its turn",
        ((Stage, "_concerned", _wake_what_comes),),
        "waits-while-resting",
    ),
    Mutant("rest-held", "no topic rests that somebody holds", ((Resting, "_may_rest", _rest_at_once),)),
    Mutant(
        "rest-needed",
        "no topic rests of which a registrar knows somebody who needs it, or is gaining it",
        ((LogTrimmer, "is_named", _named_by_nobody),),
        "left-and-late",
    ),
    Mutant(
        "rest-gained",
        "what was gained while the registrars were asked does not rest",
        ((Resting, "_is_still_idle", _always_still), (Resting, "_drop_touched", nothing)),
    ),
    Mutant("rest-logged", "no topic rests of which the log has something", ((Resting, "_may_rest", _logged_or_not),)),
    Mutant(
        "wake-unmarked",
        "whoever has a change under way waits for its outcome before the first event of a topic that rested",
        ((Waking, "take_woken", _take_woken_unmarked),),
        "left-without-outcome",
    ),
    Mutant(
        "see-again",
        "what passes is counted from the change on that lets it enter a group",
        ((Clocks, "passes", _see_if_counted),),
    ),
    Mutant(
        "prune-owed",
        "the count of a topic is not forgotten while it is owed",
        ((Clocks, "prune", _prune_what_is_owed),),
    ),
    Mutant(
        "row-later",
        "what changes have left to do in the row of a topic is done before its next event",
        ((Stage, "_settle", nothing),),
    ),
    Mutant(
        "due-uncounted",
        "a topic about which something is due is counted as it passes",
        ((Groups, "is_wanted", _wanted_if_settled),),
        "due-when-read-again",
    ),
)
