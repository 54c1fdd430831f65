"""What `pushq doctor` makes of a server's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.commands import checks


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("ahead_s", "is_good", "said"),
    [(0, True, "within one second"), (-3, True, "s behind"), (3, True, "s ahead"), (-60, False, "s behind")],
)
async def test_a_clock_is_told_as_exactly_as_a_date_header_can_tell_it(ahead_s: int, is_good: bool, said: str) -> None:
    async def raw(method: str, path: str) -> SimpleNamespace:
        now = datetime.now(UTC) + timedelta(seconds=ahead_s)
        return SimpleNamespace(headers={"date": format_datetime(now.replace(microsecond=0), usegmt=True)})

    found = await checks._clock(cast(Any, SimpleNamespace(raw=raw)))
    assert (found.is_ok, said in found.detail) == (is_good, True), found
