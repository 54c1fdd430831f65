"""Rows in which the out-cluster manager stores its state of each cluster, as bytes. No I/O.

They are stored beside the metadata of the home cluster: only the manager writes them, while it holds its duty, and
gateways read them to choose the cluster of a new queue.
"""

from __future__ import annotations

from typing import Final

import msgspec

from backend_store.core.outer.clusters import Cluster

KIND: Final = "cluster"
"""Documents of clusters, each by its name: see `stored`."""
EVENT_KIND: Final = "cluster-event"
"""Documents of the manager's events, a ring of slots."""
DUTY: Final = "out-cluster manager"
"""The duty whose holder writes the documents."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Cluster).decode


def stored(cluster: Cluster) -> bytes:
    """Encodes a cluster with the names of its fields, so that fields may be added: older versions ignore them."""
    return _encode(cluster)


def parsed(data: bytes) -> Cluster:
    """Decodes the row of a cluster. Raises `ValueError` for any other data."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a row of a cluster cannot be read: {error}") from None
