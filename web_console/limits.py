"""Every bound of the console: units and qualifiers last."""

from __future__ import annotations

from typing import Final

SESSIONS_MAX: Final = 1_000
"""Sessions of the console of one process; the one that was idle for longest makes room."""
SESSIONS_PER_CALLER_MAX: Final = 20
"""Sessions of one key or subject."""
SESSION_IDLE_SECONDS_MAX: Final = 1_800
"""A session without a page for this long is over."""
SESSION_SECONDS_MAX: Final = 28_800
"""A session is over after this long, whatever its activity."""
LOGINS_PER_MINUTE_MAX: Final = 20
"""Refused sign-ins of one address, before it must wait."""
LOGIN_ADDRESSES_MAX: Final = 4_096
"""Addresses whose refused sign-ins are remembered."""
CREDENTIAL_CHARS_MAX: Final = 16_384
"""An API key or a JWT in the sign-in form."""
FORM_BYTES_MAX: Final = 2_097_152
"""Size of a form's body."""
FORM_FIELDS_MAX: Final = 200
HELD_FORM_CHARS_MAX: Final = 524_288
"""A form that was sent without a session, and is kept in the sign-in form, encoded once more."""
STREAMS_MAX: Final = 200
"""Live pages of one process at a time."""
STREAMS_PER_TENANT_MAX: Final = 40
"""Live pages of one tenant at a time: those of other tenants stay live."""
STREAMS_PER_SESSION_MAX: Final = 12
"""Live pages of one session at a time."""
LIVE_SECONDS: Final = 2.0
"""Time between two updates of a live page."""
LIVE_SECONDS_MAX: Final = 30.0
"""Time between two updates of a live page that is slow to make."""
LIVE_SHARE_MAX: Final = 0.005
"""Fraction of a core that one live page may cost; a page that is slower to make is updated less often."""
LOOKS_REMEMBERED: Final = 5
"""Updates of a live page by which its cost is measured."""
ROWS_PER_PAGE: Final = 50
"""Rows of a table on one page."""
EXPORT_ROWS_MAX: Final = 20_000
"""Rows of an exported table."""
DASHBOARDS_MAX: Final = 50
"""Saved dashboards of a tenant."""
DASHBOARD_QUEUES_MAX: Final = 12
"""Queues of one dashboard."""
MESSAGE_CHARS_SHOWN_MAX: Final = 65_536
"""Characters of a payload on its page; all of it is in the export."""
