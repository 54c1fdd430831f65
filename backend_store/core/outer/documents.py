"""Rows in which the out-cluster manager writes down what it knows of each cluster, as bytes. No I/O.

They lie beside the metadata of the home cluster: the manager alone writes them, bound to its duty, and gateways read
them to choose where a new queue goes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from backend_store.core.outer.clusters import Cluster

KIND: Final = "cluster"
"""Documents of clusters, each by its name: see `stored`."""
EVENT_KIND: Final = "cluster-event"
"""Documents of what the manager decided, a ring of slots."""
DUTY: Final = "out-cluster manager"
"""Whose holder writes them."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Cluster).decode


def stored(cluster: Cluster) -> bytes:
    """Fields by their names, so that one may be added: who does not know it passes over it."""
    return _encode(cluster)


def parsed(data: bytes) -> Cluster:
    """Raises `ValueError` for what is no such row."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a row of a cluster cannot be read: {error}") from None
