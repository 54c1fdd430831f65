"""What asks a role to end."""

from __future__ import annotations

import signal
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
