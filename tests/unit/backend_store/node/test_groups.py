"""Consumer groups of a stream: each gets everything, from where it stands, whatever the others do."""

from __future__ import annotations

import pytest

from backend_store.core.receipts import SUFFIXES
from backend_store.model import Conflict, NotFound
from backend_store.node.limits import GROUP_IDLE_MS, GROUPS_PER_STREAM_MAX
from backend_store.storage.engine import Table
from tests.support.chunks import repeated
from tests.support.streams import StreamWorld, seqs_of
from tests.support.world import VISIBILITY_MS, Consumer, attempts_by_seq, receipts_by_seq

BOTH = pytest.mark.parametrize("mode", ["offsets", "leases"])
