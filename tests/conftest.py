"""For all tests: properties are tried with the same examples every time, so that a suite that passed passes again.

HYPOTHESIS_RANDOM=1 tries others; what that finds becomes a test of its own. How long an example takes says nothing on a
machine that does other things too: there is no deadline.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite",
    derandomize=not os.environ.get("HYPOTHESIS_RANDOM"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")
