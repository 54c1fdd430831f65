"""How long tests wait for what must come: one limit for all, far beyond what it takes on a machine that is busy.

It says nothing about how fast Pushq is; what a page promises has a limit of its own, beside the test of that promise.
"""

from __future__ import annotations

import os

PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", "60"))
"""`TEST_PATIENCE_S` stretches it for a machine that is slower still."""

FAR = 10.0
"""What is measured on a machine that others use is no verdict: beside other tests a figure must only stay within so
many times its bound. The long forms (`make overload`, `make storm`) hold it to the bound itself."""
