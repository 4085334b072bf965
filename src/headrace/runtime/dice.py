"""The machine's chance."""

from __future__ import annotations

from random import SystemRandom


class SystemDice(SystemRandom):
    """From the operating system: fit for nonces and ids that nobody may guess."""
