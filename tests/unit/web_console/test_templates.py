"""What every template of the console keeps to."""

from __future__ import annotations

import re
from pathlib import Path

import web_console

TEMPLATES = Path(web_console.__file__).parent / "templates" / "console"
CLOBBERED = {"id", "contains", "action", "method", "submit", "children", "attributes", "parentNode", "remove"}
"""A field of one of these names hides what scripts ask a form for."""


def test_no_field_hides_what_scripts_ask_a_form_for() -> None:
    for path in TEMPLATES.glob("*.html"):
        names = set(re.findall(r'<(?:input|select|textarea|button)[^>]* name="([a-zA-Z_]+)"', path.read_text()))
        assert not names & CLOBBERED, path.name


def test_no_template_has_code_or_style_of_its_own_or_turns_escaping_off() -> None:
    for path in TEMPLATES.glob("*.html"):
        text = path.read_text()
        assert not re.search(r"<style|style=|\son[a-z]+=|<script(?! src=)|\|\s*safe|autoescape", text), path.name


def test_every_form_that_acts_carries_the_token_of_its_session() -> None:
    for path in TEMPLATES.glob("*.html"):
        for form in re.findall(
            r'<form[^>]*method="post"[^>]*action="/console/do/.*?</form>', path.read_text(), re.DOTALL
        ):
            assert "m.hidden(visit, here)" in form or "{{ hidden(visit, here) }}" in form, path.name
