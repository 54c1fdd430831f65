"""The table of settings is that of the type that holds them, and says of each what its reader needs."""

from __future__ import annotations

import pytest

from backend_store.model import QueueConfig
from gateway.queue_config import DEFAULTS
from gateway.queue_settings import FIXED, LATER_SETTINGS, RANGES, SETTINGS


def test_every_setting_is_told_of_in_the_order_of_the_config() -> None:
    assert list(SETTINGS) == list(QueueConfig.__struct_fields__)
    assert LATER_SETTINGS.isdisjoint(SETTINGS)


def test_every_number_has_a_range_that_its_default_lies_in() -> None:
    for name, default in zip(QueueConfig.__struct_fields__, QueueConfig.__struct_defaults__, strict=False):
        if type(default) is int and name != "partitions":
            low, high = RANGES[name]
            assert low <= default <= high
        elif default is None and name.endswith(("_ms", "_ms_max", "_bytes", "_messages")):
            assert name in RANGES


def test_the_protocols_bounds_are_kept() -> None:
    assert RANGES["visibility_timeout_ms"] == (0, 12 * 3600 * 1000)
    assert RANGES["dedupe_window_ms"][1] == 14 * 24 * 3600 * 1000
    assert RANGES["max_message_bytes"] == (1, 1_048_576)
    assert RANGES["priorities"] == (1, 10)


@pytest.mark.parametrize("name", [*DEFAULTS, "dead_letter_queue"])
def test_a_default_that_hangs_on_other_settings_is_told_in_words(name: str) -> None:
    assert SETTINGS[name].default


def test_what_a_queue_is_cannot_change() -> None:
    assert set(FIXED) == {"kind", "delivery", "ordering", "sequencing", "lease_mode", "fair_by"}
