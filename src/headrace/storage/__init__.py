"""One partition's log on a `Files` tree: segments, indexes, producers, recovery, retention, catalog."""
