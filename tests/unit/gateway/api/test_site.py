"""Addresses beside `/v1`: where a slash at the end leads, and where it does not."""

from __future__ import annotations

import pytest

from tests.unit.gateway.conftest import Person

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("asked", "place"), [("/docs/", "/docs"), ("/docs/search/?q=ack", "/docs/search?q=ack")])
async def test_a_slash_at_the_end_leads_to_the_page(person: Person, asked: str, place: str) -> None:
    answer = await person.client.get(asked)
    assert (answer.status_code, answer.headers["location"]) == (308, place)


@pytest.mark.parametrize("asked", ["/docs%2f", "/docs%2F", "/console%2f", "/docs%2f/", "/docs/%2f", "/docs/..%2f"])
async def test_a_slash_that_is_written_as_a_code_leads_nowhere(person: Person, asked: str) -> None:
    assert (await person.client.get(asked)).status_code == 404
