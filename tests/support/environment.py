"""The environment of servers that tests start: none of the user's settings, and small data folders.

Hundreds of data folders exist side by side during a run. Tests about the ballast or the publish stop use `AS_SHIPPED`.
"""

import os
from typing import Final

from backend_store.storage.space import SpaceRules

SMALL_FOLDERS: Final = {
    "PUSHQ_STORAGE__BALLAST_BYTES": str(1 << 20),
    "PUSHQ_STORAGE__PUBLISH_STOP_PERCENT": "99",
}
SMALL_FOLDER: Final = SpaceRules(publish_stop_fraction=0.99, ballast_bytes=1 << 20)
"""The same for a folder that a test opens directly."""
AS_SHIPPED: Final = {"PUSHQ_STORAGE__BALLAST_BYTES": "0", "PUSHQ_STORAGE__PUBLISH_STOP_PERCENT": "90"}


def without_settings() -> dict[str, str]:
    """This process's environment, without settings of Pushq."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PUSHQ_")}
