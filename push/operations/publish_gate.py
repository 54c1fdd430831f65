"""The admission check of every publish: over HTTP, in a frame, or with an ack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend_store.model import PushqError, QueueConfig

if TYPE_CHECKING:
    from push.delivery.hub import Hub


def check_publish(hub: Hub, config: QueueConfig) -> None:
    """Raises `draining` or `overloaded` if a publish to a queue of this config is not taken now."""
    if hub.draining:
        raise PushqError("the server is shutting down", code="draining")
    if hub.intake.publishes:
        hub.intake.check_publish(config)
