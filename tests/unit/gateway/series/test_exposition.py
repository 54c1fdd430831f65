"""Metrics of several processes on one page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.series.exposition import labelled


def page(value: int, *, has_more: bool = False) -> str:
    registry = CollectorRegistry()
    Gauge("a_gauge", "With a brace { in its text.", registry=registry).set(value)
    Counter("a_counter", "Counts.", ["path"], registry=registry).labels('/{queue} "x" }').inc(value)
    Histogram("seconds", "Took.", registry=registry, buckets=(1.0,)).observe(value)
    if has_more:
        Gauge("only_there", "In one process.", registry=registry).set(1)
    return generate_latest(registry).decode()


def test_each_sample_says_whose_it_is_and_each_family_stands_once() -> None:
    text = labelled({1: page(3), 2: page(4, has_more=True)})
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)) and "only_there" in names
    found = {
        (s.name, s.labels["gateway"]): s for family in families for s in family.samples if s.name != "seconds_bucket"
    }
    assert found["a_gauge", "1"].value == 3 and found["a_gauge", "2"].value == 4
    assert found["a_counter_total", "2"].labels["path"] == '/{queue} "x" }'
    assert found["seconds_sum", "1"].value == 3
    assert ("only_there", "1") not in found and found["only_there", "2"].value == 1


def test_one_page_keeps_all_of_its_samples() -> None:
    text = page(3)
    before = [s for family in text_string_to_metric_families(text) for s in family.samples]
    after = [s for family in text_string_to_metric_families(labelled({1: text})) for s in family.samples]
    assert [(s.name, s.value, {**s.labels, "gateway": "1"}) for s in before] == [
        (s.name, s.value, s.labels) for s in after
    ]
