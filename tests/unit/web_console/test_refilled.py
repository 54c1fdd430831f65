"""Forms that were refused come back as they were sent, with what is wrong at its field."""

from __future__ import annotations

import html
import re

import pytest

from web_console.pages.refilled import refilled
from web_console.visit import Finding

BACK = '<input type="hidden" name="form_token" value="t"><input type="hidden" name="back" value="/console">'


def form(fields: str, act: str = "publish", item: str = "orders") -> str:
    of = f'<input type="hidden" name="queue" value="{item}">'
    return f'<form class="card" method="post" action="/console/do/{act}">{BACK}{of}{fields}</form>'


SENT = {"form_token": "other", "back": "/elsewhere", "queue": "orders"}


@pytest.mark.parametrize(
    "text", ["plain", "a \"b\" & <c> 'd'", "</textarea><script>", "ünïcode \u2028", "\n\n two", ""]
)
@pytest.mark.parametrize(
    "field", ['<input name="x" value="first" required>', '<textarea name="x" rows="3">{}</textarea>']
)
def test_a_text_stays_whatever_is_in_it(field: str, text: str) -> None:
    page = refilled(form(field), "publish", SENT | {"x": text}, ())
    found = re.search(r'name="x" value="([^"]*)" required>|name="x" rows="3">\n([^<]*)</textarea>', page)
    assert found is not None and html.unescape(found[1] if found[1] is not None else found[2]) == text
    assert BACK in page and "<script" not in page


def test_what_was_chosen_and_ticked_stays() -> None:
    fields = (
        '<select name="s"><option value="a" selected>A</option><option value="b">B</option></select>'
        '<select name="u"><option>one &amp; two</option><option selected>three</option></select>'
        '<input type="radio" name="r" value="json" checked><input type="radio" name="r" value="text">'
        '<input type="checkbox" name="on" value="on" checked><input type="checkbox" name="off" value="on">'
    )
    page = refilled(form(fields), "publish", SENT | {"s": "b", "u": "one & two", "r": "text", "off": "on"}, ())
    assert re.findall(r"<option[^>]* selected>([^<]*)", page) == ["B", "one &amp; two"]
    assert re.findall(r'name="(\w+)"(?: value="(\w+)")? checked', page) == [("r", "text"), ("off", "on")]


def test_of_forms_alike_the_one_that_was_sent_is_filled_and_opened() -> None:
    details = '<details class="act" id="{0}"><summary>Change</summary>{1}</details>'
    page = "".join(details.format(item, form('<input name="x" value="">', item=item)) for item in ("mail", "orders"))
    filled = refilled(page, "publish", SENT | {"x": "typed"}, ())
    assert re.findall(r'<details class="act" id="(\w+)" open>', filled) == ["orders"]
    assert re.findall(r'name="x" value="(\w*)"', filled) == ["", "typed"]
    for nothing in (refilled(page, "purge", SENT, ()), refilled(page, "publish", SENT | {"queue": "gone"}, ())):
        assert nothing == page


def test_the_state_that_a_form_is_about_stays_as_it_was_sent() -> None:
    page = refilled(form('<input type="hidden" name="etag" value="2">'), "publish", SENT | {"etag": "1"}, ())
    assert 'name="etag" value="1"' in page and 'name="form_token" value="t"' in page


def test_a_form_of_an_overtaken_state_tells_the_present_value_of_each_field_that_differs() -> None:
    fields = (
        '<input name="a" value="6"><input name="b" value="9"><input name="c" value="">'
        '<select name="s"><option value="x" selected>X</option><option value="y">Y &amp; Z</option></select>'
        '<input type="checkbox" name="on" value="on" checked><textarea name="t">\nsame</textarea>'
    )
    sent = SENT | {"a": "5", "b": "9", "c": "1", "s": "y", "t": "same"}
    page = refilled(form(fields), "publish", sent, (), is_stale=True)
    assert re.findall(r'name="(\w+)"[^<]*(?:<option.*?</select>)?<span class="note">Now: (\w+)', page) == [
        ("a", "6"), ("c", "empty"), ("s", "X"), ("on", "on"),
    ]  # fmt: skip
    assert "Now:" not in refilled(form(fields), "publish", sent, ())


def test_what_is_wrong_stands_behind_its_field_and_the_first_one_has_the_cursor() -> None:
    fields = (
        '<label>A <input name="set.max_attempts" value="1" aria-describedby="about"></label>'
        '<input name="message_id" value=""><select name="kind"><option>work</option></select>'
        '<input name="well" value="">'
    )
    findings = (
        Finding("/max_attempts", "it is <0>"),
        Finding("/messages/0/id", "too long"),
        Finding("/kind/0", "unknown kind"),
        Finding("/elsewhere", "not here"),
        Finding("/queue", "of a hidden field"),
    )
    page = refilled(form(fields), "publish", SENT, findings)
    assert (
        '<input name="set.max_attempts" value="1" aria-describedby="wrong-0 about" aria-invalid="true" autofocus>'
        '<strong class="wrong" id="wrong-0">it is &lt;0&gt;</strong></label>' in page
    )
    assert re.findall(r'<strong class="wrong" id="(wrong-\d)">([^<]*)<', page)[1:] == [
        ("wrong-1", "too long"),
        ("wrong-2", "unknown kind"),
    ]
    assert page.count("autofocus") == 1 and page.count("aria-invalid") == 3
