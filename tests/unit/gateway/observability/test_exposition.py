"""Metrics in the format that was asked for."""

from __future__ import annotations

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from backend_store.histogram import Example, Histogram
from gateway.observability.exposition import Format, histogram
from gateway.series.exposition import labelled

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def counted() -> Histogram:
    seconds = Histogram((0.1, 1.0))
    for value, count in ((0.05, 3), (0.1, 1), (0.5, 2), (70.0, 1)):
        seconds.add(value, count)
    seconds.examples[1] = Example(TRACE, 0.5, 1_700_000_000.0)
    return seconds


def page(accept: str) -> str:
    form = Format(accept)
    counter = CounterMetricFamily("seen", "Were seen.")
    counter.add_metric((), 3)
    families = [counter, histogram("took_seconds", "Took.", [(("ws",), counted())], labels=("transport",))]
    other = GaugeMetricFamily("there", "Is there.")
    other.add_metric((), 1)
    return form.page(form.part(families), form.part([other]), form.process()).decode()


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/html,application/xhtml+xml", False),
        ("text/plain;version=0.0.4", False),
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", False),
        ("application/openmetrics-text;version=0.0.1,text/plain;q=0.5", False),
        ("Application/OpenMetrics-Text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text;q=many", False),
        (";;,=,;q", False),
    ],
)
def test_openmetrics_is_for_those_who_prefer_it(accept: str, is_openmetrics: bool) -> None:
    form = Format(accept)
    assert form.is_openmetrics is is_openmetrics
    assert ("openmetrics-text; version=1.0.0" in form.content_type) is is_openmetrics


def test_openmetrics_has_one_end_examples_and_since_when_it_counts() -> None:
    text = page(PROMETHEUS)
    assert text.endswith("\n# EOF\n") and text.count("# EOF") == 1
    families = {family.name: family for family in openmetrics_families(text)}
    assert {"seen", "took_seconds", "there", "process_cpu_seconds"} <= families.keys()
    assert [sample.name for sample in families["seen"].samples] == ["seen_total"]
    rows = {sample.labels["le"]: sample for sample in families["took_seconds"].samples if "le" in sample.labels}
    assert {bound: row.value for bound, row in rows.items()} == {"0.1": 4, "1.0": 6, "+Inf": 7}
    examples = {bound: row.exemplar for bound, row in rows.items() if row.exemplar}
    assert list(examples) == ["1.0"] and examples["1.0"][:2] == ({"trace_id": TRACE}, 0.5)
    assert float(examples["1.0"].timestamp) == 1_700_000_000
    (created,) = [sample for sample in families["took_seconds"].samples if sample.name.endswith("_created")]
    assert created.value > 1_700_000_000


def test_the_text_format_has_neither() -> None:
    text = page("")
    families = {family.name: family for family in text_families(text)}
    assert "took_seconds_created" not in text and TRACE not in text and "# EOF" not in text
    assert len(families["took_seconds"].samples) == 5


def test_pages_of_several_processes_are_one_page_of_openmetrics() -> None:
    form = Format(PROMETHEUS)
    text = form.page(labelled({1: page(PROMETHEUS), 2: page(PROMETHEUS)}).encode()).decode()
    families = {family.name: family for family in openmetrics_families(text)}
    assert {s.labels["gateway"] for s in families["took_seconds"].samples} == {"1", "2"}
    assert any(s.exemplar for s in families["took_seconds"].samples)
