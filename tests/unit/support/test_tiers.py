"""What a run of the gate means: which tests are asked again, and what makes it red."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.tiers import (
    QUARANTINED_MAX,
    RERUNS_MAX,
    TIER_OF,
    BadQuarantine,
    Outcome,
    Report,
    is_of,
    judge,
    read_quarantine,
    tier_of,
    to_run_again,
)

PURE, REAL = "tests/unit/test_a.py::test_a", "tests/integration/test_b.py::test_b"


def report(test: str, outcome: Outcome = "failed") -> Report:
    return Report(test, outcome, 1.0, "AssertionError" if outcome == "failed" else "")


def test_every_folder_of_the_table_is_there() -> None:
    root = Path(__file__).parents[3] / "tests"
    assert [name for name in TIER_OF if not (root / name).exists()] == []


def test_a_file_has_the_tier_of_its_folder_and_else_is_real() -> None:
    assert tier_of("tests/unit/gateway/test_x.py::test_y") == "pure"
    assert tier_of("tests/unitary/test_x.py") == "real"
    assert is_of("unit", "pure") and is_of("unit/gateway", "pure") and not is_of("cluster", "pure")


def test_an_entry_below_a_folder_keeps_the_folder_open_for_both_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIER_OF, "unit/deep/test_kill.py", "real")
    assert is_of("unit", "real") and is_of("unit", "pure")
    assert is_of("unit/deep", "real") and not is_of("unit/wide", "real")
    assert tier_of("tests/unit/deep/test_kill.py::test_x") == "real"


def test_only_real_tests_are_run_again() -> None:
    assert to_run_again([report(PURE), report(REAL), report("tests/js/test_c.py", "passed")], {}) == [report(REAL)]


def test_a_real_test_that_passes_again_is_named_and_the_run_is_green() -> None:
    verdict = judge([report(REAL), report(PURE, "passed")], {REAL: True}, {})
    assert verdict.is_green and verdict.reran == [report(REAL)]


def test_a_real_test_that_fails_each_time_is_red() -> None:
    verdict = judge([report(REAL)], {REAL: False}, {})
    assert not verdict.is_green and verdict.failed == [report(REAL)]


def test_a_pure_test_that_fails_is_red() -> None:
    assert not judge([report(PURE)], {}, {}).is_green


def test_so_many_failures_are_not_the_machine() -> None:
    failed = [report(f"{REAL}[{n}]") for n in range(RERUNS_MAX + 1)]
    assert to_run_again(failed[1:], {}) and not to_run_again(failed, {})
    verdict = judge(failed, {}, {})
    assert not verdict.is_green and "11 tests needed another run" in verdict.complaints[0]


def test_a_run_without_tests_or_with_a_skipped_one_is_red() -> None:
    assert judge([], {}, {}).complaints == ["no test ran"]
    assert "1 skipped" in judge([report(PURE, "skipped")], {}, {}).complaints[0]


def test_a_quarantined_test_may_fail_and_must_exist() -> None:
    assert to_run_again([report(REAL)], {REAL}) == []
    verdict = judge([report(REAL)], {}, {REAL})
    assert verdict.is_green and verdict.excused == [report(REAL)]
    assert judge([report(PURE, "passed")], {}, {REAL}).complaints == [f"quarantined and not there: {REAL}"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[quarantined]]\ntest = "tests/js/test_a.py::test_b"\nsince = 2026-11-25', "entry 1: it needs exactly"),
        (f'[[quarantined]]\ntest = "{PURE}"\nreason = "x"\nsince = 2026-11-25', "is pure"),
        (
            f'[[quarantined]]\ntest = "{REAL}"\nreason = "x"\nsince = 2026-11-25\n' * (QUARANTINED_MAX + 1),
            "at most 10 may be",
        ),
    ],
)
def test_a_quarantine_that_hides_too_much_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "quarantine.toml"
    file.write_text(text)
    with pytest.raises(BadQuarantine, match=complaint):
        read_quarantine(file)


def test_the_quarantine_of_this_tree_can_be_read() -> None:
    read_quarantine(Path(__file__).parents[3] / "tests" / "quarantine.toml")
