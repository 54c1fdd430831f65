"""Receipts: only what was given out is understood, in the spelling in which it was given out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.leases.receipts import (
    INDEX_OF,
    SUFFIXES,
    TOKEN_CHARS,
    TokenFields,
    by_token,
    make_token,
    read_token,
)

KEY = b"k" * 32
FIELDS = TokenFields(0, 0, 7, 1, 0, 300, 1_700_000_000_000 << 20, 3, 9)
TOKEN = make_token(KEY, FIELDS)

fields = st.builds(
    TokenFields,
    st.integers(0, 2**16 - 1),
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 255),
    st.integers(0, 255),
)


@given(st.binary(min_size=16, max_size=64), fields)
def test_a_token_says_what_it_was_made_of(key: bytes, given_fields: TokenFields) -> None:
    token = make_token(key, given_fields)
    assert read_token(key, token) == given_fields
    assert len(token) == TOKEN_CHARS + 1 and token.isascii()


def test_a_token_speaks_for_the_messages_of_its_lease_only() -> None:
    assert FIELDS.bits == 0b1111111000
    assert FIELDS._replace(first=0, last=255).bits == (1 << 256) - 1
    assert FIELDS._replace(first=5, last=5).bits == 1 << 5


def test_another_key_does_not_understand_it() -> None:
    assert read_token(b"x" * 32, TOKEN) is None


@pytest.mark.parametrize("at", range(len(TOKEN)))
def test_no_letter_of_it_can_change(at: int) -> None:
    for letter in "A_-9z.=+ ":
        forged = TOKEN[:at] + letter + TOKEN[at + 1 :]
        assert (read_token(KEY, forged) is None) == (forged != TOKEN)


def test_only_one_spelling_of_the_same_bytes_is_accepted() -> None:
    """Base64 leaves bits of the last letter unused: other letters there decode to the same bytes."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    accepted = [letter for letter in letters if read_token(KEY, TOKEN[:-2] + letter + ".") is not None]
    assert accepted == [TOKEN[-2]]


@given(st.text(max_size=80))
def test_any_text_is_no_token(text: str) -> None:
    assert read_token(KEY, text) is None
    assert read_token(KEY, text + ".") is None


@pytest.mark.parametrize(
    "text",
    [TOKEN[:-1], TOKEN[1:], TOKEN + ".",
     TOKEN.replace(".", "="), " " + TOKEN[1:], "é" * len(TOKEN), "", ".", "\ud800" * 59],
)  # fmt: skip
def test_a_cut_padded_or_foreign_token_is_none(text: str) -> None:
    assert read_token(KEY, text) is None


@given(st.lists(st.tuples(st.sampled_from(["a.", "b."]), st.integers(0, 255)), max_size=30))
def test_receipts_are_grouped_by_token(pairs: list[tuple[str, int]]) -> None:
    grouped = by_token([token + SUFFIXES[n] for token, n in pairs])
    assert {(token, n) for token, bits in grouped.items() for n in range(256) if bits >> n & 1} == set(pairs)


@given(st.lists(st.text(max_size=10)))
def test_any_texts_can_be_grouped_and_what_is_no_receipt_has_no_bits(texts: list[str]) -> None:
    grouped = by_token(texts)
    assert all(bits or text in texts for text, bits in grouped.items())
    assert all(text[-2:] in INDEX_OF for text in texts if text not in grouped)
