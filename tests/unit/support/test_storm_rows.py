"""What `make storm` writes down is printed like any other run."""

from __future__ import annotations

from tests.bench.report import report

MACHINE = {
    "kind": "machine", "commit": "0123456789ab", "is_changed": False, "date": "2026-11-29", "encrypted": True,
    "rounds": 1, "patience_s": 0.0, "processor": "a processor", "cores": 2, "memory_gib": 24, "kernel": "6.18",
    "filesystem": "ext4", "python": "3.11.7", "packages": "uvicorn 0.54.0", "pinned": False,
}  # fmt: skip
ROW = {
    "kind": "storm-cut", "round": 1, "rate": 5000, "unit": "clients", "back_s": 26.5, "refused": 120,
    "p50_ms": 8.5, "p99_ms": 412.0, "p999_ms": 600.0, "rss_anon_mib": 190.1, "load_before": 0.3,
}  # fmt: skip


def test_a_storm_is_a_table_with_its_goal() -> None:
    text = report([MACHINE, ROW, ROW | {"kind": "storm-killed", "p99_ms": 1001.0}])
    assert "Measured on 2026-11-29 at commit `0123456789ab`" in text and "a round." in text
    cut, killed = (line for line in text.splitlines() if line.startswith("| `storm-"))
    assert "5,000 | 26.50 | 120" in cut and "p99, ms ≤ 1,000 reached" in cut
    assert "p99, ms ≤ 1,000 **missed**" in killed
