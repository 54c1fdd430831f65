"""Metrics of encryption: blocks sealed and opened, and whether keys can be made."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.encryption.setup import Encrypting


def families(encryption: Encrypting | None) -> Iterator[Metric]:
    if encryption is None:
        return
    vault = encryption.vault
    counters = (
        ("pushq_sealed_blocks", "Message blocks encrypted.", vault.counts.sealed),
        ("pushq_opened_blocks", "Message blocks decrypted.", vault.counts.opened),
        ("pushq_unreadable_blocks", "Reads of a block that cannot be decrypted.", vault.counts.failed),
        (
            "pushq_master_key_failures",
            "Failures to wrap a new data key, or unwrap another gateway's, with the master key.",
            vault.master_failures,
        ),
    )
    for name, text, value in counters:
        counter = CounterMetricFamily(name, text)
        counter.add_metric((), value)
        yield counter
    masters = GaugeMetricFamily(
        "pushq_master_keys", "Master keys in use: the one that wraps, and those that only unwrap."
    )
    masters.add_metric((), vault.masters.count)
    yield masters
    keys = GaugeMetricFamily("pushq_data_keys", "Data keys in memory, including older ones of each queue.")
    keys.add_metric((), vault.keys)
    yield keys
