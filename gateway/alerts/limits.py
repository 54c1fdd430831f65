"""Bounds of alerts, each with its unit last."""

from __future__ import annotations

from typing import Final

RULES_PER_TENANT_MAX: Final = 100
"""Alert rules of a tenant."""
RULES_MAX: Final = 2_000
"""Alert rules of a node, of all tenants; beyond its first a tenant may have as many as are still free."""
SILENCES_PER_TENANT_MAX: Final = 200
"""Silences of a tenant, those that are over among them; the oldest of these make room."""
RECEIVERS_PER_TENANT_MAX: Final = 20
"""Receivers of a tenant's alerts."""
RECEIVERS_PER_RULE_MAX: Final = 10
"""Receivers that a rule names."""
ALERTS_PER_RULE_MAX: Final = 1_000
"""Alerts of one rule at a time; what else it finds is counted, and waits until one of them is over."""
CLOCK_STEP_MS_MIN: Final = 2_000
"""A clock that is set by less changes nothing for alerts; by more, and what they wait for waits as long as before."""
ID_SPAN_MS: Final = 600_000
"""Found in two of these spans of the clock, an alert has two ids, whoever finds it."""
HISTORY_PER_TENANT_MAX: Final = 2_000
"""Transitions of alerts that are remembered of a tenant."""
HISTORY_UNWRITTEN_ROWS_MAX: Final = 20_000
"""Lines of the history, of all tenants, that wait to be written down; the oldest are given up, and counted."""
RESOLVED_PER_TENANT_MAX: Final = 2_000
"""Alerts of a tenant that are over and still listed; of more the oldest are in the history alone."""
HISTORY_MS_MAX: Final = 30 * 24 * 3600 * 1000
"""How long transitions of alerts and silences that are over are remembered."""
RESOLVED_KEPT_MS: Final = 3600 * 1000
"""How long an alert that is over is still listed."""
FOR_MS_MAX: Final = 24 * 3600 * 1000
"""The longest `for_ms` and `keep_ms` of a rule."""
WINDOW_MS_MIN: Final = 10_000
"""The shortest `window_ms` of a rule: two rows of a series."""
WINDOW_MS_MAX: Final = 850_000
"""The longest `window_ms` of a rule: the series of the last quarter of an hour has to have it."""
SILENCE_MS_MAX: Final = 365 * 24 * 3600 * 1000
"""The longest silence."""
TEXT_CHARS_MAX: Final = 1_000
"""Notes of rules and reasons of silences."""
URL_CHARS_MAX: Final = 2_000
"""The address of a webhook."""
SLO_MINUTES: Final = 360
"""Minutes that an SLO looks back."""
SLO_EVENTS_MIN: Final = 20
"""Requests that a window must have before its burn rate means something."""
WEBHOOKS_AT_ONCE_MAX: Final = 32
"""Webhooks that are under way at once."""
WEBHOOKS_PER_TENANT_AT_ONCE_MAX: Final = 4
"""Webhooks of one tenant that are under way at once: receivers that never answer hold up nobody else's."""
WEBHOOKS_PER_RECEIVER_AT_ONCE_MAX: Final = 2
"""Webhooks to one receiver that are under way at once."""
WEBHOOKS_WAITING_MAX: Final = 4_000
"""Webhooks that wait for their turn or their next try; what comes more is dropped, and logged."""
WEBHOOKS_PER_TENANT_WAITING_MAX: Final = 200
"""Webhooks of one tenant that wait; what comes more is dropped, and logged."""
WEBHOOKS_PER_RECEIVER_WAITING_MAX: Final = 100
"""Webhooks to one receiver that wait; what comes more is dropped, and logged."""
GROUP_ALERTS_MIN: Final = 10
"""Alerts of one rule that begin, or end, at one look: so many or more are told with one message."""
GROUP_SUBJECTS_MAX: Final = 100
"""Subjects that such a message names."""
WEBHOOK_SECONDS_MAX: Final = 10.0
"""How long a receiver may take to answer."""
WEBHOOK_ANSWER_BYTES_MAX: Final = 32 * 1024
"""What is read of an answer until its status has come, interim responses among it."""
WEBHOOK_READ_BYTES_MAX: Final = 4 * 1024
"""What is read of an answer at once."""
WEBHOOK_TRIES_MAX: Final = 8
"""How often a webhook is tried."""
WEBHOOK_RETRY_SECONDS: Final = 1.0
"""The pause before the second try; each further one is twice as long."""
WEBHOOK_RETRY_SECONDS_MAX: Final = 60.0
"""The longest pause between two tries of a webhook."""
WEBHOOK_NETWORKS_MAX: Final = 100
"""Entries of `alerts.webhook_networks`."""
LISTENERS_MAX: Final = 200
"""Streams of alerts that are open at once."""
LISTENERS_PER_TENANT_MAX: Final = 20
"""Streams of alerts that one tenant has open at once."""
EVENTS_WAITING_MAX: Final = 1_000
"""Alerts that wait for the reader of a stream; one that is slower is cut, and reads the list anew."""
PREVIEW_SUBJECTS_MAX: Final = 100
"""Subjects that the preview of a rule shows."""
DUTY_HOLD_MS_MIN: Final = 10_000
"""How long a gateway that tells of alerts must be silent before another one does."""
DUTY_HOLD_MS_MAX: Final = 180_000
"""The longest that a gateway with long looks may be silent before another one tells: one that stood still for an hour
and goes on must not have it for hours."""
DUTY_MARGIN_MS: Final = 1_000
"""How long before another gateway could get the duty its holder stops telling: clocks may differ by that."""
DUTY_ASK_SECONDS_MAX: Final = 5.0
"""How long the backends may take to say which gateway tells of alerts."""
DUTY_LOOKS_BEFORE: Final = 2
"""Looks that a gateway takes before it would tell of alerts: by then it has seen the queues."""
REPORT_SECONDS: Final = 10.0
"""How often a gateway says what only it knows: how its process is, and how its requests went."""
REPORT_SECONDS_MAX: Final = 60.0
"""A gateway that has said nothing for so long is gone, and its alerts are over."""
CHANGE_SECONDS_MAX: Final = 5.0
"""How long a change of a rule, silence or receiver may take where backends do not answer, with its wait for others."""
WRITE_SECONDS_MAX: Final = 2.0
"""How long a look at the rules waits for backends to write down what it found; then it is told before that."""
WRITE_ROWS_MAX: Final = 500
"""Rows of alerts that are written down with one commit."""
WRITE_BYTES_SOFT_MAX: Final = 256 * 1024
"""Such a commit ends with the row that passes this."""
TELLING_MS_MAX: Final = 600_000
"""A webhook that did not arrive for so long is not sent by the next process or gateway."""
