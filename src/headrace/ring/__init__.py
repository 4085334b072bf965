"""Where replicas live: a consistent-hash ring for new partitions, and plans of few moves for those that exist. Pure."""

from headrace.ring.node import Node
from headrace.ring.placement import place
from headrace.ring.plan import Move, plan

__all__ = ["Move", "Node", "place", "plan"]
