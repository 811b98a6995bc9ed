"""`make prove-01`: run what the first milestone must show, line by line, and print the figures.

Each line ends in `holds`, `FAILS` or `NOT RUN` (with what it lacks); the exit code is 0 only if all hold. The whole takes
about a quarter of an hour on two cores; `--only soak,mutants` runs some, `--list` names them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from proving import ROOT, Failed, NotRun, expect, main, run

from ordered_pubsub.core.messages import Hello, Launch, LinkFrame, Operation, Publication, PublishAsk, Relay, Request
from ordered_pubsub.core.stage.journal import frame_record, scan
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.core.topics import check_pattern, check_topic
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.core.trust.authenticity import NO_TAG, Stamp
from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.testing.soak import SoakTally, report, run_many
from ordered_pubsub.wire.stamp import decode_stamp, encode_stamp

SOAK_SEEDS = 10_000
POSITION_SEEDS = 2_000


# -- the lines ------------------------------------------------------------------------------------------------------------


def demo() -> None:
    """`ordered-pubsub demo --json` prints counts from the real run: the ENS disagrees, the notifications agree."""
    found = json.loads(run(str(Path(sys.executable).parent / "ordered-pubsub"), "demo", "--json"))
    print(json.dumps({key: value for key, value in found.items() if not isinstance(value, (list, dict))}, indent=2))
    expect(found["ens_disagreements"] > 0, "the ENS gave both subscribers the same order")
    expect(found["ordered_disagreements"] == 0, "the notifications disagree")
    expect(found["events"] > 0 and found["subscribers"] >= 2, "nothing was shown")


def clean_clone() -> None:
    """`make demo` and `make test` work in a clean clone; the second run of either does no set-up again."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        run("git", "clone", "--quiet", str(ROOT), str(clone))
        for target in ("demo", "test"):
            for again in (False, True):
                started = time.monotonic()
                output = run("make", target, cwd=clone, CI="true")
                set_up = [line for line in output.splitlines() if line.startswith("make:")]
                summary = [line for line in output.splitlines() if " passed" in line]
                print(
                    f"make {target}, {'again' if again else 'first'}: {time.monotonic() - started:.0f} s",
                    *summary,
                    sep="\n  ",
                )
                expect(bool(set_up) is not again, f"set-up at the {'second' if again else 'first'} run: {set_up}")


def fresh_debian() -> None:
    """The same on a Debian with only Python 3.11, git and make."""
    if os.geteuid() != 0:
        raise NotRun("it needs root, for debootstrap and chroot")
    print(run("bash", str(ROOT / "benchmarks" / "fresh_debian.sh"), "demo", "demo", "test", "test"))


def soak() -> None:
    """10,000 worlds on two cores without a violation, and what they covered."""
    print(_run_worlds(SOAK_SEEDS))


def _run_worlds(seeds: int) -> str:
    started = time.monotonic()
    total = SoakTally()
    for tally in run_many(0, seeds, 2):
        total.add(tally)
    text = report(total, time.monotonic() - started)
    expect(not total.failures, text)
    return text


def mutants() -> None:
    """Every mutant is caught, in the seed that docs/mutants.md names."""
    table = run(sys.executable, "-m", "simulation.mutants", cwd=ROOT / "tests")
    rows = [line for line in table.splitlines() if line.startswith(("| `", "| mutant"))]
    print("\n".join(rows))
    expect(not any(row.endswith("nothing |") for row in rows), "a mutant was not found")
    expect(table == (ROOT / "docs" / "mutants.md").read_text(), "docs/mutants.md says something else: make mutants")


def positions() -> None:
    """In 2,000 schedules positions are 1, 2, 3, …, and equal the sum of the entries where the topics do not change."""
    total = SoakTally()
    for tally in run_many(0, POSITION_SEEDS, 2):
        total.add(tally)
    counts = total.counts
    print(
        f"{counts['worlds']:,} worlds, {counts['subscriptions']:,} subscriptions, {counts['notifications']:,} notifications"
    )
    print(
        f"{counts['checked_positions']:,} positions compared with the sum of the entries; violations: {len(total.failures)}"
    )
    expect(not total.failures and counts["checked_positions"] > POSITION_SEEDS, str(total.failures[:3]))


def costs() -> None:
    """The costs of the core."""
    print(run(sys.executable, str(ROOT / "benchmarks" / "core.py")))


def timestamps() -> None:
    """Mean entries per event for a load after the paper's section 5.3."""
    print(run(sys.executable, str(ROOT / "benchmarks" / "timestamps.py")))


def bad_input() -> None:
    """Each bad input has its own clear error, and changes nothing."""
    for name, provoke in BAD_INPUTS.items():
        try:
            provoke()
        except OrderedPubSubError as error:
            print(f"{name}\n    {type(error).__name__}: {error}")
        else:
            raise Failed(f"{name}: no error")


# -- bad inputs -----------------------------------------------------------------------------------------------------------

THREE = Topology((StageSpec("high", ("h",)), StageSpec("middle", ("m",)), StageSpec("low", ("l",))))


def _newer_timestamp() -> None:
    body = msgspec.msgpack.encode(Stamp(bytes(8), 1, "p", 0.0, "", False, {}, [], 1, "p/1"))
    data = encode_stamp(NO_TAG, body)
    decode_stamp(bytes([data[0] + 1]) + data[1:])


def _refused_by_a_stage(message: Relay | LinkFrame) -> None:
    stage = Stage.restore(1, THREE, None, [])
    for peer in (0, 2):
        stage.connected(peer)
        stage.handle_peer(peer, Hello(THREE.fingerprint, 0), 0.0)
    before = stage.snapshot()
    try:
        stage.handle_peer(2, message, 0.0)
    finally:
        expect(stage.snapshot() == before, "the refused input has changed the stage")


def _not_owned_request() -> None:
    _refused_by_a_stage(Relay(2, Request("c", 1, 1, 0, 0, (PublishAsk("h"),))))


def _not_owned_operation() -> None:
    _refused_by_a_stage(LinkFrame(1, Launch(Operation("c", 1, 1, 0, 2, 2, 0, [Publication("l", 1, 0.0)]))))


def _damaged_journal() -> None:
    data = bytearray(b"".join(map(frame_record, (b"first", b"second", b"third"))))
    data[15] ^= 1
    scan(bytes(data), "eu.journal")


def _torn_journal() -> None:
    """A torn last record is cut off with a message of its own; the stage starts without it, for it was never answered."""
    found = scan(frame_record(b"first") + frame_record(b"second")[:-2], "eu.journal")
    expect(found.records == [b"first"] and found.torn_bytes == 12, f"the torn record was not cut off: {found}")
    print(f"a journal with a torn last record\n    {found.torn_message}")


def _full_buffer() -> None:
    delivery = Delivery("s", buffer_events_max=0)
    delivery.begin_at({"t": 0})
    delivery.receive(Arrival("t", 2, {}))


BAD_INPUTS: dict[str, Callable[[], object]] = {
    "a topic pattern where a topic is wanted": lambda: check_topic("eu/*"),
    "a pattern that is none": lambda: check_pattern("eu*"),
    "an empty topic": lambda: check_topic(""),
    "a topic that is too long": lambda: check_topic("x" * 256),
    "a topic with a control character": lambda: check_topic("eu\nus"),
    "a timestamp from a newer version": _newer_timestamp,
    "a request for a stage that does not take it": _not_owned_request,
    "an operation for a stage that does not own the topic": _not_owned_operation,
    "a journal with a damaged middle": _damaged_journal,
    "a buffer that is full": _full_buffer,
}

LINES: dict[str, Callable[[], None]] = {
    "demo": demo,
    "bad-input": bad_input,
    "torn-journal": _torn_journal,
    "positions": positions,
    "costs": costs,
    "timestamps": timestamps,
    "mutants": mutants,
    "soak": soak,
    "clean-clone": clean_clone,
    "fresh-debian": fresh_debian,
}


if __name__ == "__main__":
    sys.exit(main(LINES, __doc__))
