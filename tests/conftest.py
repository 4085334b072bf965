"""For all tests: properties are tried with the same examples every time, so that a suite that passed passes again.

HYPOTHESIS_RANDOM=1 tries others; what that finds becomes a test of its own.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("suite", derandomize=not os.environ.get("HYPOTHESIS_RANDOM"))
settings.load_profile("suite")
