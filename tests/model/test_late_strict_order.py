"""Strictly ordered queues with late messages at the head of their keys, against the reference queue: few keys, and many
messages that come too late."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from backend_store.model import QueueConfig
from gateway.queues.rules import broken_rules
from tests.model.test_queue_semantics import QueueSemantics
from tests.support.seeds import examples
from tests.support.semantics_model import SemanticsModel
from tests.support.semantics_wishes import Author, Wish
from tests.support.world import World

WINDOW_MS = 50


@st.composite
def configs(draw: st.DrawFn) -> QueueConfig:
    given: dict[str, Any] = {
        "sequencing": draw(st.sampled_from(["producer", "clock"])),
        "lease_mode": draw(st.sampled_from(["memory", "replicated"])),
        "key_run_max": draw(st.sampled_from([1, 2, 10])),
    }
    if draw(st.booleans()):
        given["retry_backoff_ms"] = draw(st.sampled_from([10, 150]))
    if draw(st.booleans()):
        given["dead_letter_queue"] = None
    else:
        given["max_attempts"] = draw(st.integers(1, 3))
    if draw(st.integers(0, 3)) == 0:
        given["max_messages"] = draw(st.integers(4, 12))
        given["overflow"] = draw(st.sampled_from(["reject", "drop_oldest"]))
    config = QueueConfig(ordering="strict", late_messages="head", sort_window_ms=WINDOW_MS, **given)
    assert not list(broken_rules(config, ()))
    return config


wishes = st.builds(
    Wish,
    priority=st.just(0),
    key=st.sampled_from([None, "a", "a", "b"]),
    delay_ms=st.just(0),
    ttl_ms=st.sampled_from([None, None, None, None, None, 300]),
    id=st.none(),
    producer=st.sampled_from(["p", "p", "p", "q"]),
    step=st.sampled_from([0, 1, 2, 3, -1, -2, -3]),
    skew_ms=st.sampled_from([-2000, -400, -100, -60, -50, 0]),
    size=st.sampled_from([0, 0, 3, 17_000]),
)


class LateStrictOrder(QueueSemantics):
    @initialize(config=configs(), wishes=st.lists(wishes, min_size=1, max_size=12))
    def begin(self, config: QueueConfig, wishes: list[Wish]) -> None:
        self.config = config
        self.world = World(config=config)
        self.author = Author(config)
        self.model = SemanticsModel(config, self.world.now_ms)
        self._open()
        self.publish(wishes)
        self.commit()

    @rule(wishes=st.lists(wishes, min_size=1, max_size=5))
    def come_late(self, wishes: list[Wish]) -> None:
        """All that waits has its turn first, so that what was to come before it is late."""
        self.time_passes(WINDOW_MS)
        self.commit()
        self.publish(wishes)
        self.commit()


TestLateStrictOrder = LateStrictOrder.TestCase
TestLateStrictOrder.settings = settings(
    max_examples=examples(40, exploring=300),
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)
