"""The table of settings is that of the type that holds them, and says of each what its reader needs."""

from __future__ import annotations

import msgspec
import pytest

from backend_store.model import AutoExpand, QueueConfig
from gateway.queues.config import DEFAULTS
from gateway.queues.settings import AUTO_EXPAND, FIXED, LATER_SETTINGS, PART_RANGES, RANGES, SETTINGS


def test_every_setting_is_told_of_in_the_order_of_the_config() -> None:
    assert list(SETTINGS) == list(QueueConfig.__struct_fields__)
    assert LATER_SETTINGS.isdisjoint(SETTINGS)


def test_every_number_has_a_range_that_its_default_lies_in() -> None:
    for name, default in zip(QueueConfig.__struct_fields__, QueueConfig.__struct_defaults__, strict=False):
        if type(default) is int:
            low, high = RANGES[name]
            assert low <= default <= high
        elif default is None and name.endswith(("_ms", "_ms_max", "_bytes", "_messages")):
            assert name in RANGES


def test_every_part_of_growing_by_itself_is_told_of_with_a_range_that_its_default_lies_in() -> None:
    assert list(AUTO_EXPAND) == list(AutoExpand.__struct_fields__)
    assert set(PART_RANGES) == set(AUTO_EXPAND) - {"of"}
    for field in msgspec.structs.fields(AutoExpand):
        if not field.required:
            low, high = PART_RANGES[field.name]
            assert low <= field.default <= high


def test_the_protocols_bounds_are_kept() -> None:
    assert RANGES["partitions"] == (1, 64)
    assert RANGES["visibility_timeout_ms"] == (0, 12 * 3600 * 1000)
    assert RANGES["dedupe_window_ms"][1] == 14 * 24 * 3600 * 1000
    assert RANGES["max_message_bytes"] == (1, 1_048_576)
    assert RANGES["priorities"] == (1, 10)


@pytest.mark.parametrize("name", [*DEFAULTS, "dead_letter_queue"])
def test_a_default_that_hangs_on_other_settings_is_told_in_words(name: str) -> None:
    assert SETTINGS[name].default


def test_what_a_queue_is_cannot_change() -> None:
    assert set(FIXED) == {"kind", "delivery", "ordering", "sequencing", "replication", "lease_mode", "fair_by"}
