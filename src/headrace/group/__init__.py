"""Consumer groups as a replicated machine: pure, no asyncio, no clock, no files, no logging."""
