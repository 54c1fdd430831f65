"""Every bound of the console: units and qualifiers last."""

from __future__ import annotations

from typing import Final

SESSIONS_MAX: Final = 1_000
"""People signed in to the console of one process; whoever was idle for longest makes room."""
SESSIONS_PER_CALLER_MAX: Final = 20
"""Of one key or subject."""
SESSION_IDLE_SECONDS_MAX: Final = 1_800
"""After so long without a page a person signs in again."""
SESSION_SECONDS_MAX: Final = 28_800
"""After so long a person signs in again, whatever they did."""
LOGINS_PER_MINUTE_MAX: Final = 20
"""Refused sign-ins of one address, before it must wait."""
LOGIN_ADDRESSES_MAX: Final = 4_096
"""Addresses whose refused sign-ins are remembered."""
CREDENTIAL_CHARS_MAX: Final = 16_384
"""An API key or a JWT in the sign-in form."""
FORM_BYTES_MAX: Final = 2_097_152
"""The body of a form."""
FORM_FIELDS_MAX: Final = 200
STREAMS_MAX: Final = 200
"""Pages that are live at once, of one process."""
STREAMS_PER_TENANT_MAX: Final = 40
"""Pages that are live at once, of one tenant: the others' stay live beside them."""
STREAMS_PER_SESSION_MAX: Final = 12
"""Pages that are live at once, of one person."""
LIVE_SECONDS: Final = 2.0
"""Between two looks of a live page."""
LIVE_SECONDS_MAX: Final = 30.0
"""Between two looks of a live page that takes long to make."""
LIVE_SHARE_MAX: Final = 0.005
"""Of a core: what one live page may cost; a page that takes longer to make is made more seldom."""
LOOKS_REMEMBERED: Final = 5
"""Of a live page, to know what one costs."""
ROWS_PER_PAGE: Final = 50
"""Rows of a table on one page."""
EXPORT_ROWS_MAX: Final = 20_000
"""Rows of an exported table."""
DASHBOARDS_MAX: Final = 50
"""Saved dashboards of a tenant."""
DASHBOARD_QUEUES_MAX: Final = 12
"""Queues of one dashboard."""
MESSAGE_CHARS_SHOWN_MAX: Final = 65_536
"""Of a payload, on its page; the whole of it is in the export."""
