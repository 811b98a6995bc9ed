"""Measures the sans-IO core: `python benchmarks/core.py [--output DIR]`.

Prints tables, and writes the raw numbers (`core.json`) and a plot (`core.png`, if matplotlib is there) into DIR. What each
table measures is said in README.md beside this file. A time is processor time, the best of `ROUNDS`; the variants that are
compared take turns, so that a slow moment of the machine does not meet just one of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import count, cycle, islice
from pathlib import Path
from time import process_time
from typing import Any, TypeVar

import msgspec

from ordered_pubsub.core.client.session import Session
from ordered_pubsub.core.messages import Answer, Change, ChangeAsk, Operation, Publication, PublishAsk, Request
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.core.trust.authenticity import NO_TAG, Stamp
from ordered_pubsub.wire.stamp import encode_stamp

ROUNDS = 7
GROUPS = (1, 10, 50, 500)
BATCH = 100
IN_FLIGHT = 64
"""requests of the client without an answer: what `Session` keeps under way at most"""
UNDER_WAY = (1, 8, IN_FLIGHT)
OTHER_TOPICS = (0, 1_000, 100_000)
REQUESTS = 2_000
WAITING = (10, 1_000, 100_000)
STUCK_TOPICS = 10
NOTIFICATIONS = 5_000
SUBSCRIPTIONS = (10, 100, 1_000, 10_000)
CHANGES = 50
MANY_TOPICS = 1_000
STAMPS = 2_000
AIMS = {"single": 20_000, "batch": 500_000}
NOW = 1_700_000_000.0

Row = dict[str, Any]
_Key = TypeVar("_Key")


# -- what is measured ---------------------------------------------------------------------------------------------------


class Client:
    """One client whose pipeline is full: it has the answers up to `IN_FLIGHT` requests ago."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.sequence = 0

    def request(self, part: PublishAsk | ChangeAsk) -> Request:
        """The next request."""
        self.sequence += 1
        done = max(0, self.sequence - 1 - IN_FLIGHT)
        return Request(self.name, 1, self.sequence, self.sequence - 1, done, (part,))

    def change(self, ask: ChangeAsk) -> None:
        """Change a subscription."""
        run(self.stage, [self.request(ask)])


def new_stage() -> Stage:
    """A stage that owns every topic."""
    return Stage.restore(0, Topology(stages=(StageSpec("only"),)), None, [])


def run(stage: Stage, requests: Iterable[Request]) -> None:
    """What a server does with each request, without its disk and its sockets."""
    for request in requests:
        stage.handle_request(request, NOW)
        effects = stage.take_effects()
        assert effects.journal
        assert all(isinstance(reply, Answer) for reply in effects.replies), effects.replies
        assert effects.replies


def run_operations(stage: Stage, requests: Iterable[Request]) -> list[Operation]:
    """The same, with what became of the requests."""
    operations: list[Operation] = []
    for request in requests:
        stage.handle_request(request, NOW)
        operations += stage.take_effects().completed
    return operations


def topic_names(count: int) -> list[str]:
    """Topics as people name them."""
    return [f"market/{number:05}/trades" for number in range(count)]


def timed(work: Callable[[], object]) -> float:
    """How many seconds of a processor some work takes."""
    gc.collect()
    start = process_time()
    work()
    return process_time() - start


def best_in_turns(variants: dict[_Key, Callable[[], float]], rounds: int = ROUNDS) -> dict[_Key, float]:
    """The least time of each variant, which take turns."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for key, measure in variants.items():
            best[key] = min(best[key], measure())
    return best


# -- a. an event at a stage ---------------------------------------------------------------------------------------------


def events_at_stage() -> list[Row]:
    """Time per event at one stage, by the size of the group."""
    keys = [
        (group, pattern, batch)
        for group in GROUPS
        for pattern in ("round-robin", "one topic")
        for batch in ("single", "batch")
    ]
    best = best_in_turns({key: _event_meter(*key) for key in keys})
    return [
        {"group": group, "pattern": pattern, "mode": batch, "us_per_event": best[group, pattern, batch] * 1e6}
        for group, pattern, batch in keys
    ]


def _event_meter(group: int, pattern: str, mode: str) -> Callable[[], float]:
    stage = new_stage()
    client = Client(stage, "publisher")
    topics = topic_names(group)
    client.change(ChangeAsk("reader", add=tuple(topics)))
    run(stage, [client.request(PublishAsk(topic)) for topic in topics])
    events = BATCH if mode == "batch" else 1
    order = cycle(topics if pattern == "round-robin" else topics[:1])

    def measure() -> float:
        requests = [client.request(PublishAsk(topic, events)) for topic in islice(order, REQUESTS)]
        return timed(lambda: run(stage, requests)) / (REQUESTS * events)

    return measure


def events_among_topics() -> list[Row]:
    """Time per single event in a group of 10, by how many other topics the stage has. A mean: none is like another."""
    meters = {others: _event_meter_among(others) for others in OTHER_TOPICS}
    times: dict[int, list[float]] = {others: [] for others in OTHER_TOPICS}
    for _ in range(ROUNDS):
        for others, measure in meters.items():
            times[others].append(measure())
    means = {others: sum(listed) / len(listed) for others, listed in times.items()}
    return [
        {"other_topics": others, "us_per_event": means[others] * 1e6, "ratio": means[others] / means[OTHER_TOPICS[0]]}
        for others in OTHER_TOPICS
    ]


def _event_meter_among(others: int) -> Callable[[], float]:
    stage = new_stage()
    client = Client(stage, "publisher")
    topics = topic_names(10 + others)
    client.change(ChangeAsk("reader", add=tuple(topics[:10])))
    run(stage, [client.request(PublishAsk(topic)) for topic in topics])
    order = cycle(topics[:10])

    def measure() -> float:
        requests = [client.request(PublishAsk(topic)) for topic in islice(order, 20 * REQUESTS)]
        return timed(lambda: run(stage, requests)) / len(requests)

    return measure


def beside_the_aims(events: list[Row]) -> list[Row]:
    """The rates of a group of 10 beside what was aimed at."""
    return [
        {
            "mode": row["mode"],
            "events_per_s": 1e6 / row["us_per_event"],
            "aim": AIMS[row["mode"]],
            "ratio": 1e6 / row["us_per_event"] / AIMS[row["mode"]],
        }
        for row in events
        if row["group"] == 10 and row["pattern"] == "round-robin"
    ]


def publications_at_client() -> list[Row]:
    """Time per single publication at its client's session, by how many requests it keeps under way."""
    best = best_in_turns({under_way: _publication_meter(under_way) for under_way in UNDER_WAY})
    return [
        {"under_way": under_way, "us_per_event": best[under_way] * 1e6, "ratio": best[under_way] / best[UNDER_WAY[0]]}
        for under_way in UNDER_WAY
    ]


def _publication_meter(under_way: int) -> Callable[[], float]:
    session = Session("publisher", new_stage().topology, is_connected=True)
    order = cycle(topic_names(10))
    for topic in islice(order, under_way - 1):
        session.publish(topic, [b""], NOW)

    def publish_and_answer() -> None:
        for topic in islice(order, REQUESTS):
            session.publish(topic, [b""], NOW)
            request = session.sends.pop(0)
            session.handle_answer(Answer(request.client, request.epoch, request.sequence, []), NOW)

    return lambda: timed(publish_and_answer) / REQUESTS


# -- b. a notification --------------------------------------------------------------------------------------------------


def notifications() -> list[Row]:
    """Time per notification, by how many events wait in the buffer."""
    best = best_in_turns({waiting: _notification_meter(waiting) for waiting in WAITING})
    return [
        {"waiting": waiting, "us_per_notification": best[waiting] * 1e6, "ratio": best[waiting] / best[WAITING[0]]}
        for waiting in WAITING
    ]


def _notification_meter(waiting: int) -> Callable[[], float]:
    delivery = _delivery_with(waiting)
    number = 0

    def measure() -> float:
        nonlocal number
        arrivals = _alternating(number, NOTIFICATIONS // 2)
        number += NOTIFICATIONS // 2
        time = timed(lambda: _notify(delivery, arrivals))
        assert delivery.buffered == waiting
        return time / len(arrivals)

    return measure


def _notify(delivery: Delivery, arrivals: list[Arrival]) -> None:
    for arrival in arrivals:
        delivery.receive(arrival)
        assert delivery.take_ready()


def _delivery_with(waiting: int) -> Delivery:
    """A buffer in which events on some topics wait for one that does not come."""
    stuck = [f"stuck/{number}" for number in range(STUCK_TOPICS)]
    topics = ("left", "right", "late", *stuck)
    delivery = Delivery("reader")
    delivery.change_settled(Change("reader", 1, (), topics, 2, False))
    for number in range(1, waiting // STUCK_TOPICS + 1):
        for topic in stuck:
            delivery.receive(Arrival(topic, number, {"late": 1} if number == 1 else {}))
    assert delivery.buffered == waiting
    assert not delivery.take_ready()
    return delivery


def _alternating(start: int, pairs: int) -> list[Arrival]:
    """Events on two topics in turn, with the entries that they have then."""
    arrivals: list[Arrival] = []
    for number in range(start + 1, start + pairs + 1):
        arrivals.append(Arrival("left", number, {"right": number - 1}))
        arrivals.append(Arrival("right", number, {"left": number}))
    return arrivals


# -- c. a change of a subscription --------------------------------------------------------------------------------------


def changes() -> list[Row]:
    """Time per change of 10 topics, by how many other subscriptions there are."""
    meters = {(held, present): _change_meter(held, present) for held in ("spread", "same") for present in SUBSCRIPTIONS}
    best = best_in_turns(meters)
    return [
        {
            "held": held,
            "present": present,
            "us_per_change": time * 1e6,
            "ratio": time / best[held, SUBSCRIPTIONS[0]],
        }
        for (held, present), time in best.items()
    ]


def _held(held: str, number: int) -> tuple[str, ...]:
    """The topics of a subscription: such that each is held by one or two others, or the same ten for everybody."""
    first = number * 5 if held == "spread" else 0
    return tuple(f"market/{place:05}/trades" for place in range(first, first + 10))


def _change_meter(held: str, present: int) -> Callable[[], float]:
    others = Client(new_stage(), "others")
    for number in range(present):
        others.change(ChangeAsk(f"other-{number}", add=_held(held, number)))
    client = Client(others.stage, "subscriber")
    rng = random.Random(1)
    names = (f"new-{number}" for number in count(1))

    def measure() -> float:
        requests: list[Request] = []
        for name in islice(names, CHANGES):
            topics = _held(held, rng.randrange(present))
            requests.append(client.request(ChangeAsk(name, add=topics)))
            requests.append(client.request(ChangeAsk(name, ends=True)))
        return timed(lambda: run(client.stage, requests)) / len(requests)

    return measure


def large_changes() -> list[Row]:
    """Time to add, and to end, a subscription of 1,000 topics, with few and with many others."""
    present = (SUBSCRIPTIONS[0], SUBSCRIPTIONS[-1])
    clients = {others: _client_among(others) for others in present}
    meters = {(others, step): _large_change(clients[others], step) for others in present for step in ("add", "end")}
    best = best_in_turns(meters, rounds=2)
    return [
        {
            "present": others,
            "add_ms": best[others, "add"] * 1e3,
            "end_ms": best[others, "end"] * 1e3,
            "ratio": best[others, "add"] / best[present[0], "add"],
        }
        for others in present
    ]


def _client_among(others: int) -> Client:
    client = Client(new_stage(), "others")
    topics = topic_names(MANY_TOPICS)
    for number in range(others):
        held = tuple(topics[(number * 5 + place) % MANY_TOPICS] for place in range(10))
        client.change(ChangeAsk(f"other-{number}", add=held))
    return Client(client.stage, "subscriber")


def _large_change(client: Client, step: str) -> Callable[[], float]:
    add = tuple(topic_names(MANY_TOPICS))
    names = (f"large-{number}" for number in count(1))

    def measure() -> float:
        name = next(names)
        ask = ChangeAsk(name, add=add) if step == "add" else ChangeAsk(name, ends=True)
        return timed(lambda: client.change(ask))

    return measure


# -- d. a timestamp on the wire -----------------------------------------------------------------------------------------


def stamps() -> list[Row]:
    """Entries and bytes of a timestamp, as only its changes and in full, by the size of the group."""
    return [_stamp_row(group, load) for group in GROUPS for load in ("round-robin", "skewed")]


def _stamp_row(group: int, load: str) -> Row:
    delta, full = _stamps(group, load, full=False), _stamps(group, load, full=True)
    bare = [msgspec.structs.replace(s, entries={}) for s in delta]
    return {
        "group": group,
        "load": load,
        "delta_entries": _mean(len(s.entries) for s in delta),
        "delta_bytes": _mean(len(_written(s)) for s in delta),
        "full_entries": _mean(len(s.entries) for s in full),
        "full_bytes": _mean(len(_written(s)) for s in full),
        "bare_bytes": _mean(len(_written(s)) for s in bare),
    }


def _stamps(group: int, load: str, full: bool) -> list[Stamp]:
    stage = new_stage()
    client = Client(stage, "publisher")
    topics = topic_names(group)
    client.change(ChangeAsk("reader", add=tuple(topics), best_effort=full))
    order = _order(topics, load)
    run(stage, [client.request(PublishAsk(topic, BATCH)) for topic in topics])
    run(stage, [client.request(PublishAsk(topic)) for topic in islice(order, STAMPS)])
    operations = run_operations(stage, [client.request(PublishAsk(topic)) for topic in islice(order, STAMPS)])
    return [_stamp_of(operation) for operation in operations]


def _order(topics: list[str], load: str) -> Iterable[str]:
    """All topics in turn, or the n-th as often as 1/n says."""
    if load == "round-robin":
        return cycle(topics)
    weights = [1 / place for place in range(1, len(topics) + 1)]
    return cycle(random.Random(1).choices(topics, weights, k=2 * STAMPS))


def _stamp_of(operation: Operation) -> Stamp:
    part = operation.parts[0]
    assert isinstance(part, Publication)
    identity = f"{operation.client}/{operation.epoch}/{operation.sequence}"
    return Stamp(
        bytes(8), 1, operation.client, part.published_at, "", part.full, part.entries, part.marks, part.first, identity
    )


def _written(stamp: Stamp) -> bytes:
    return encode_stamp(NO_TAG, msgspec.msgpack.encode(stamp))


def _mean(numbers: Iterable[int]) -> float:
    listed = list(numbers)
    return sum(listed) / len(listed)


# -- what comes out -----------------------------------------------------------------------------------------------------

SECTIONS: dict[str, tuple[str, Callable[[], list[Row]]]] = {
    "events": ("a. An event at one stage", events_at_stage),
    "events_among_topics": ("a. A single event in a group of 10, among other topics of the stage", events_among_topics),
    "publications_at_client": ("a. A single publication at its client's session", publications_at_client),
    "notifications": ("b. A notification, while events on other topics wait", notifications),
    "changes": ("c. A change of a subscription of 10 topics", changes),
    "large_changes": (f"c. A subscription of {MANY_TOPICS:,} topics", large_changes),
    "stamps": ("d. An event's timestamp on the wire", stamps),
}


def measure_all() -> dict[str, list[Row]]:
    """Run every section, and print each table when it is there."""
    results: dict[str, list[Row]] = {}
    for name, (title, section) in SECTIONS.items():
        results[name] = section()
        print_table(title, results[name])
    results["aims"] = beside_the_aims(results["events"])
    print_table("e. A group of 10, round-robin, beside the aims", results["aims"])
    return results


def print_table(title: str, rows: Sequence[Row]) -> None:
    """A table of text."""
    cells = [[name.replace("_", " ") for name in rows[0]], *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}\n")
    for line in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_results(results: dict[str, list[Row]], folder: Path) -> None:
    """The raw numbers and the plot."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    (folder / "core.json").write_text(json.dumps({**machine, **results}, indent=1) + "\n")
    print(f"\nwritten: {folder / 'core.json'}")
    try:
        plot(results, folder / "core.png")
    except ImportError:
        print("no plot: matplotlib is missing (python -m pip install matplotlib)")
    else:
        print(f"written: {folder / 'core.png'}")


def plot(results: dict[str, list[Row]], path: Path) -> None:
    """One picture of all tables."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), layout="constrained")
    _draw(axes[0, 0], results["events"], ("pattern", "mode"), "group", ["us_per_event"], "log")
    _draw(axes[0, 1], results["notifications"], (), "waiting", ["us_per_notification"], "linear")
    _draw(axes[1, 0], results["changes"], ("held",), "present", ["us_per_change"], "linear")
    _draw(axes[1, 1], results["stamps"], ("load",), "group", ["delta_bytes", "full_bytes"], "log")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _draw(axis: Any, rows: list[Row], by: tuple[str, ...], x: str, values: list[str], scale: str) -> None:
    for value in values:
        lines: dict[str, list[Row]] = {}
        for row in rows:
            lines.setdefault(", ".join([value, *(row[name] for name in by)]).replace("_", " "), []).append(row)
        for label, line in lines.items():
            axis.plot([row[x] for row in line], [row[value] for row in line], marker="o", label=label)
    axis.set(xscale="log", yscale=scale, xlabel=x)
    if scale == "linear":
        axis.set_ylim(0, 1.3 * axis.get_ylim()[1])
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Measures the sans-IO core.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results", metavar="DIR")
    folder = parser.parse_args().output
    write_results(measure_all(), folder)


if __name__ == "__main__":
    main()
