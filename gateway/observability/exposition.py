"""Renders metrics in Prometheus' text format, or as OpenMetrics if the request's `Accept` prefers that.

OpenMetrics has exemplars of histograms with their trace ids, and creation times; the text format has neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Exemplar, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from backend_store.histogram import Histogram

OPENMETRICS: Final = "application/openmetrics-text"
END: Final = b"# EOF\n"
CREATED: Final = "_created"

_process = CollectorRegistry()
ProcessCollector(registry=_process)


class Format:
    """The format of the answer to one scrape."""

    def __init__(self, accept: str = "") -> None:
        """`accept`: the header's value, or empty."""
        self.is_openmetrics = _prefers_openmetrics(accept)

    @property
    def content_type(self) -> str:
        return OPENMETRICS_TYPE if self.is_openmetrics else CONTENT_TYPE_LATEST

    def part(self, families: Iterable[Metric]) -> bytes:
        """Renders some families of a page. No family may occur in two parts."""
        return self._written(_Families(families if self.is_openmetrics else _without_created(families)))

    def process(self) -> bytes:
        """Renders the client library's series about this process, as a part."""
        return self._written(_process)

    def page(self, *parts: bytes) -> bytes:
        return b"".join(parts) + (END if self.is_openmetrics else b"")

    def _written(self, families: Collector) -> bytes:
        if self.is_openmetrics:
            written: bytes = generate_openmetrics(families)  # type: ignore[no-untyped-call]  # it has no types
            return written.removesuffix(END)
        return generate_latest(families)


class _Families(Collector):
    """A collector of given metric families, made for one scrape."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _without_created(families: Iterable[Metric]) -> Iterator[Metric]:
    """Removes creation times, of which the library would make gauges in the text format."""
    for family in families:
        family.samples = [sample for sample in family.samples if not sample.name.endswith(CREATED)]
        yield family


def histogram(
    name: str, text: str, counted: Iterable[tuple[Sequence[str], Histogram]], *, labels: Sequence[str] = ()
) -> Metric:
    """A histogram family. `counted`: pairs of the values of `labels` and a histogram."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, one in counted:
        rows: list[tuple[str, float] | tuple[str, float, Exemplar]] = [
            (bound, count)
            if seen is None
            else (bound, count, Exemplar({"trace_id": seen.trace_id}, seen.value, seen.at))
            for bound, count, seen in one.cumulative()
        ]
        family.add_metric(values, rows, one.sum)
        family.samples.append(Sample(name + CREATED, dict(zip(labels, values, strict=True)), one.began))
    return family


def _prefers_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics is named and weighted at least as high as the text format. A wildcard (`*/*`) gets the text
    format."""
    wanted = {"text/plain": 0.0, OPENMETRICS: 0.0}
    for one in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in one.split(";"))
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        if kind in wanted and given.get("version", "1.0.0") not in _TOO_OLD:
            wanted[kind] = max(wanted[kind], _weight(given.get("q", "1")))
    return wanted[OPENMETRICS] > 0 and wanted[OPENMETRICS] >= wanted["text/plain"]


_TOO_OLD: Final = ("0.0.1",)
"""Draft versions of OpenMetrics. The text format's 0.0.4 is not one of them."""


def _weight(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0
