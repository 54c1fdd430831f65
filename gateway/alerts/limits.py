"""Bounds of alerts, each with its unit last."""

from __future__ import annotations

from typing import Final

RULES_PER_TENANT_MAX: Final = 100
"""Alert rules of a tenant."""
RULES_MAX: Final = 2_000
"""Alert rules of a node, of all tenants; beyond its first a tenant may have no more than are still free."""
SILENCES_PER_TENANT_MAX: Final = 200
"""Silences of a tenant, including expired ones; the oldest of those make room."""
RECEIVERS_PER_TENANT_MAX: Final = 20
"""Receivers of a tenant's alerts."""
RECEIVERS_PER_RULE_MAX: Final = 10
"""Receivers that a rule names."""
ALERTS_PER_RULE_MAX: Final = 1_000
"""Alerts of one rule at a time; further ones are counted, and wait until one of these is over."""
CLOCK_STEP_MS_MIN: Final = 2_000
"""A clock step below this is ignored; after a larger one the waiting times of alerts move with the clock."""
ID_SPAN_MS: Final = 600_000
"""The span of time that is part of an alert's id: found in two spans, an alert has two ids, at any gateway."""
HISTORY_PER_TENANT_MAX: Final = 2_000
"""Transitions of alerts that are remembered for a tenant."""
HISTORY_UNWRITTEN_ROWS_MAX: Final = 20_000
"""Lines of the history, of all tenants, that wait to be stored; the oldest are dropped, and counted."""
RESOLVED_PER_TENANT_MAX: Final = 2_000
"""Resolved alerts of a tenant that are still listed; older ones are only in the history."""
HISTORY_MS_MAX: Final = 30 * 24 * 3600 * 1000
"""How long transitions of alerts and expired silences are remembered."""
RESOLVED_KEPT_MS: Final = 3600 * 1000
"""How long a resolved alert is still listed."""
FOR_MS_MAX: Final = 24 * 3600 * 1000
"""The longest `for_ms` and `keep_ms` of a rule."""
WINDOW_MS_MIN: Final = 10_000
"""The shortest `window_ms` of a rule: two rows of a series."""
WINDOW_MS_MAX: Final = 850_000
"""The longest `window_ms` of a rule: it has to fit into the series of the last quarter of an hour."""
SILENCE_MS_MAX: Final = 365 * 24 * 3600 * 1000
"""The longest silence."""
TEXT_CHARS_MAX: Final = 1_000
"""Characters of the note of a rule and of the reason of a silence."""
URL_CHARS_MAX: Final = 2_000
"""Characters of the address of a webhook."""
SLO_MINUTES: Final = 360
"""Minutes that an SLO looks back."""
SLO_EVENTS_MIN: Final = 20
"""Requests that a window must have for its burn rate to count."""
WEBHOOKS_AT_ONCE_MAX: Final = 32
"""Webhooks in flight at once."""
WEBHOOKS_PER_TENANT_AT_ONCE_MAX: Final = 4
"""Webhooks of one tenant in flight at once: receivers that never answer delay only their own tenant."""
WEBHOOKS_PER_RECEIVER_AT_ONCE_MAX: Final = 2
"""Webhooks to one receiver in flight at once."""
WEBHOOKS_WAITING_MAX: Final = 4_000
"""Webhooks that wait for a slot or their next try; more are dropped, and logged."""
WEBHOOKS_PER_TENANT_WAITING_MAX: Final = 200
"""Webhooks of one tenant that wait; more are dropped, and logged."""
WEBHOOKS_PER_RECEIVER_WAITING_MAX: Final = 100
"""Webhooks to one receiver that wait; more are dropped, and logged."""
GROUP_ALERTS_MIN: Final = 10
"""Alerts of one rule that begin, or end, at one evaluation: this many or more are sent in one message."""
GROUP_SUBJECTS_MAX: Final = 100
"""Subjects that such a message names."""
WEBHOOK_SECONDS_MAX: Final = 10.0
"""How long a receiver may take to answer."""
WEBHOOK_ANSWER_BYTES_MAX: Final = 32 * 1024
"""Bytes of an answer that are read until its status is known, including interim responses."""
WEBHOOK_READ_BYTES_MAX: Final = 4 * 1024
"""Bytes of an answer that are read in one turn of the loop."""
WEBHOOK_TRIES_MAX: Final = 8
"""Tries of one webhook."""
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
"""Alerts that wait for the reader of a stream; a slower reader is disconnected, and has to read the list again."""
PREVIEW_SUBJECTS_MAX: Final = 100
"""Subjects that the preview of a rule shows."""
DUTY_HOLD_MS_MIN: Final = 10_000
"""How long a gateway with the duty to notify must be silent before another one gets it."""
DUTY_HOLD_MS_MAX: Final = 180_000
"""The longest that a gateway with slow evaluations may be silent before another one gets the duty: one that was stopped
for an hour and continues must not keep it for hours."""
DUTY_MARGIN_MS: Final = 1_000
"""How long before another gateway could get the duty its holder stops notifying: clocks may differ by this much."""
DUTY_ASK_SECONDS_MAX: Final = 5.0
"""How long the backends may take to answer which gateway has the duty."""
DUTY_LOOKS_BEFORE: Final = 2
"""Evaluations of a gateway before it asks for the duty: by then it has sampled the queues."""
REPORT_SECONDS: Final = 10.0
"""How often a gateway reports what only it knows: the state of its process, and its counts of requests."""
REPORT_SECONDS_MAX: Final = 60.0
"""A gateway without a report for this long is gone, and its alerts are over."""
CHANGE_SECONDS_MAX: Final = 5.0
"""How long a change of a rule, silence or receiver may take while backends do not answer, including its wait for other
changes."""
WRITE_SECONDS_MAX: Final = 2.0
"""How long an evaluation waits for backends to store its result; then receivers are notified before it is stored."""
WRITE_ROWS_MAX: Final = 500
"""Rows of alerts that are stored in one commit."""
WRITE_BYTES_SOFT_MAX: Final = 256 * 1024
"""A commit of alerts ends with the row that passes this size."""
TELLING_MS_MAX: Final = 600_000
"""A webhook that did not arrive for this long is not sent by the next process or gateway."""
