"""docs/wire.md is complete and true: somebody may write a client from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec.inspect import StructType, type_info

from ordered_pubsub.core.log.shelf import LogStamp
from ordered_pubsub.core.messages import (
    Answer,
    Change,
    ChangeAsk,
    Chunk,
    Durable,
    LogItem,
    NackRange,
    Operation,
    PeerMessage,
    Publication,
    PublishAsk,
    Refusal,
    Request,
    Resume,
    SystemKeys,
)
from ordered_pubsub.core.trust.authenticity import Stamp
from ordered_pubsub.wire import pack, protocol, stamp
from ordered_pubsub.wire.framing import HEAD_BYTES
from ordered_pubsub.wire.protocol import FromClient, FromPeer, Greeting, ToClient

TEXT = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")

UNIONS = (Greeting, FromClient, ToClient, FromPeer, PeerMessage, Durable)
PARTS = (Request, PublishAsk, ChangeAsk, Answer, Refusal, Publication, Change)
TAGGED = dict.fromkeys([*(kind for union in UNIONS for kind in get_args(union)), *PARTS])
BARE = (
    LogStamp, Operation, Stamp, pack.PackedBatch, SystemKeys, pack.PackedEvent, pack.Logged, Chunk, LogItem, Resume, NackRange,
)  # fmt: skip

EXAMPLE = re.compile(r"((?:^    (?:[0-9a-f]{2} ?)+\n)+)\n((?:^    [\[ ].*\n)+)", re.MULTILINE)
EXAMPLES = [(bytes.fromhex(found[1]), json.loads(found[2])) for found in EXAMPLE.finditer(TEXT)]


def arrays(text: str) -> Iterator[list[str]]:
    """Everything in square brackets, those within others as well, as its elements."""
    for start in (found.start() for found in re.finditer(r"\[", text)):
        depth, elements = 0, [""]
        for character in text[start:]:
            depth += (character == "[") - (character == "]")
            if not depth:
                break
            if character == "," and depth == 1:
                elements.append("")
            else:
                elements[-1] += character
        yield [
            element.removeprefix("[").strip() if number == 0 else element.strip()
            for number, element in enumerate(elements)
        ]


ARRAYS = list(arrays(TEXT))


def describes(array: list[str], names: list[str]) -> bool:
    """Whether an array in the text has these elements: what it calls by a name has this one; an example has none."""
    return len(array) == len(names) and all(
        said == name or said[:1] in ("[", "{") or name in NAMED_BY_KIND.get(said, ())
        for said, name in zip(array, names, strict=True)
    )


NAMED_BY_KIND = {
    "request": ("request",),
    "durable": ("message",),
    "operation": ("operation",),
    "messages": ("messages",),
    "refusal or nil": ("refusal",),
    "answer or refusal": ("answer",),
}
"""Elements that the page calls by what they are."""


@pytest.mark.parametrize("kind", TAGGED, ids=lambda kind: kind.__name__)
def test_every_message_is_there_with_all_its_elements(kind: Any) -> None:
    info = type_info(kind)
    assert isinstance(info, StructType)
    names = [f'"{info.tag}"', *(field.encode_name for field in info.fields)]

    assert any(describes(array, names) for array in ARRAYS), f"docs/wire.md does not have [{', '.join(names)}]"


@pytest.mark.parametrize("kind", BARE, ids=lambda kind: kind.__name__)
def test_what_has_no_name_of_its_own_is_there_with_all_its_elements(kind: Any) -> None:
    names = list(kind.__struct_fields__)

    assert any(describes(array, names) for array in ARRAYS), f"docs/wire.md does not have [{', '.join(names)}]"


def test_an_array_that_lacks_an_element_or_has_another_one_is_not_taken_for_the_message() -> None:
    names = ['"publish"', "topic", "count"]

    assert describes(['"publish"', "topic", "count"], names)
    assert not describes(['"publish"', "topic"], names)
    assert not describes(['"publish"', "count", "topic"], names)
    assert not describes(['"change"', "topic", "count"], names)
    assert not describes(['"publish"', "topic", "1"], names)


def test_all_codes_of_rejections_are_there() -> None:
    assert [code for code in protocol.REJECTIONS if f"`{code}`" not in TEXT] == []


# -- the examples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "decoder"), [(0, protocol.from_client), (1, protocol.to_client)], ids=["asking", "telling"]
)
def test_a_frame_of_the_example_is_what_is_said_and_sent(index: int, decoder: msgspec.msgpack.Decoder[Any]) -> None:
    frame, data = EXAMPLES[index]
    message = decoder.decode(frame[HEAD_BYTES:])

    assert int.from_bytes(frame[:HEAD_BYTES], "big") == len(frame) - HEAD_BYTES
    assert msgspec.to_builtins(msgspec.msgpack.decode(frame[HEAD_BYTES:])) == data  # no bytes are no text
    assert protocol.encode(message) == frame


def test_the_stamp_of_the_example_is_what_is_said_and_sent() -> None:
    data, fields = EXAMPLES[2]

    tag, body, found = stamp.decode_stamp(data)
    plain = msgspec.to_builtins(found)
    assert [tag.hex(), found.system.hex(), *list(plain)[1:]] == fields
    assert stamp.encode_stamp(tag, msgspec.msgpack.encode(found)) == stamp.encode_stamp(tag, body) == data
    assert len(EXAMPLES) == 3


def test_the_ping_is_what_is_sent() -> None:
    assert f"`{protocol.encode(protocol.Ping()).hex(' ')}`" in TEXT
