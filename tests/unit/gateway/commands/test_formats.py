"""How `consume` writes a message: the body alone, and by a template that is checked before anything is taken."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import click
import pytest

from gateway.commands.consume import consume
from gateway.commands.formats import FIELDS, FORMAT_CHARS_MAX, raw, template


def message(body: Any = None, **fields: Any) -> Any:
    """In place of the SDK's message."""
    known = dict.fromkeys(FIELDS) | {"id": "m-1", "queue": "orders", "attempt": 2, "headers": {}} | fields
    return SimpleNamespace(**known | {"body": body})


@pytest.mark.parametrize(
    ("body", "written"),
    [
        (b"\x00\xff\n", b"\x00\xff\n"),
        ({"ü": [1, None]}, '{"ü":[1,null]}'.encode()),
        ("two\nlines", b'"two\\nlines"'),
        (None, b"null"),
    ],
)
def test_raw_body_is_bytes_as_they_are_and_json_on_one_line(body: Any, written: bytes) -> None:
    assert raw(message(body)) == written
    assert template("{body}")(message(body)) == written


def test_template_names_fields_and_headers() -> None:
    shown = template("{id} {queue} {attempt} {attempts} [{headers.x-y.z}] {body}")
    assert shown(message({"n": 1}, headers={"x-y.z": "a"})) == b'm-1 orders 2 2 [a] {"n":1}'


def test_what_a_message_does_not_have_is_empty() -> None:
    assert template("[{key}{headers.x}{reply_to}{expires_at}]")(message()) == b"[]"


def test_text_is_a_string_without_quotes_and_all_else_as_it_is() -> None:
    shown = template("{text}")
    assert [shown(message(body)) for body in ("two\nlines", 42, b"\xff")] == [b"two\nlines", b"42", b"\xff"]


def test_times_are_rfc_3339_and_headers_together_json() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 6_000, tzinfo=UTC)
    shown = template("{published_at} {headers}")(message(published_at=at, headers={"a": "1"}))
    assert shown == b'2026-01-02T03:04:05.006Z {"a":"1"}'


def test_braces_and_escapes_stand_for_themselves() -> None:
    assert template(r"{{{id}}}\t\\n\n\0")(message()) == b"{m-1}\t\\n\n\0"


def test_bytes_of_the_command_line_that_are_no_text_are_kept() -> None:
    assert template("\udcff{id}")(message()) == b"\xffm-1"


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_every_field_that_is_offered_is_shown(name: str) -> None:
    assert isinstance(template(f"{{{name}}}")(message("x")), bytes)


def test_help_names_each_field_in_the_order_of_the_refusal() -> None:
    assert f"in braces: {', '.join(FIELDS)}".partition(", headers")[0] in " ".join((consume.help or "").split())
    with pytest.raises(click.BadParameter) as refused:
        template("{}")
    assert f"The fields are {', '.join(FIELDS)}" in refused.value.message


def test_a_publishers_own_number_is_shown_where_it_gave_one() -> None:
    shown = template("[{producer} {producer_seq}]")
    assert shown(message(producer="sensor-7", producer_seq=41)) == b"[sensor-7 41]"
    assert shown(message()) == b"[ ]"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{bdy}", "unknown field {bdy}; did you mean {body}? The fields are id, queue"),
        ("{}", "unknown field {}"),
        ("{headers.}", "unknown field {headers.}"),
        ("{id", "unpaired { at character 1; write {{ for a literal one"),
        ("id}", "unpaired } at character 3"),
        (r"{id}\q", r"at character 5; use \n"),
        ("x" * (FORMAT_CHARS_MAX + 1), "the maximum is 4096"),
    ],
)
def test_wrong_template_is_refused_with_what_is_wrong(text: str, told: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        template(text)
    assert told in refused.value.message
    assert refused.value.param_hint == "--format"
