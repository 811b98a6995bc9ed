"""Header values survive brokers whose headers are text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub_adapters.headers import BYTES_MARK, TEXT_MARK, header_from_text, header_to_text

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
MARKED = st.builds(lambda mark, rest: mark + rest, st.sampled_from([BYTES_MARK, TEXT_MARK, "b64", "u64"]), ANY_TEXT)


@given(st.one_of(st.binary(), ANY_TEXT, MARKED))
def test_what_is_written_is_read(value: bytes | str) -> None:
    read = header_from_text(header_to_text(value))

    assert read == value
    assert type(read) is type(value)


@given(st.one_of(st.binary(), ANY_TEXT, MARKED))
def test_what_travels_is_printable_ascii_that_nobody_trims(value: bytes | str) -> None:
    text = header_to_text(value)

    assert text.isascii()
    assert text.isprintable()
    assert text == text.strip()


@given(st.one_of(ANY_TEXT, MARKED))
def test_any_text_of_a_plain_publisher_can_be_read(text: str) -> None:
    assert isinstance(header_from_text(text), (bytes, str))


@pytest.mark.parametrize("value", ["", "application/json", "trace-1", "a b", "b64", "x" * 300])
def test_plain_text_travels_as_it_is(value: str) -> None:
    assert header_to_text(value) == value


@pytest.mark.parametrize("text", ["b64:not base64", "b64:abc", "b64:é", "u64:/w==", "u64:=", "B64:YQ=="])
def test_what_only_looks_encoded_is_plain_text(text: str) -> None:
    assert header_from_text(text) == text


def test_plain_text_that_looks_encoded_is_not_mistaken_for_bytes() -> None:
    assert header_from_text(header_to_text("b64:YQ==")) == "b64:YQ=="
