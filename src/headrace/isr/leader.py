"""What a partition's leader knows of its replicas, and what follows: the high watermark, and who is in sync.

Rules:
- The high watermark is the least end offset in the in-sync set. While a change of that set is proposed and not
  answered, members of the old set and of the new one count alike (the maximal set of KIP-497): whatever the controller
  decides, all that it may elect have everything below the high watermark.
- It stands still while fewer than `min_isr` replicas are in sync, and while others are eligible to lead: those have
  everything that is committed, and shall keep it (KIP-966).
- It never goes back. A new leader begins with the one that it had as a follower, and counts a follower only once that
  has fetched from it in this epoch; until then the high watermark stands still.
- A Fetch counts only if its log does not part from ours (`isr/divergence.py`): the driver asks that first. So an
  offset told in this epoch is an offset of one and the same log.
- A follower joins the in-sync set when it has reached the high watermark and the start of this leader's epoch (what
  lies before it is committed only together with it), and only in the incarnation that the controller has registered
  and not fenced (KIP-841, KIP-903). It leaves the set when it has not been at the end of the log for `max_lag_s`; but
  not while it asks and the leader cannot read what it asks for.
- A follower that keeps up is waited for like a member before it is one: under steady load it is never at the very end,
  and could not reach a high watermark that runs away. One that stops fetching is waited for no longer than
  `max_lag_s`, one that is fenced not at all.
- The true high watermark is known to have reached everything that was ever acknowledged once it has reached the start
  of the epoch (KIP-207): until then, `offsets_are_known` is false and nobody is told of "the end".
- One proposal at a time. Without an answer it stays, and counts: only the controller's word settles it.
- One object for one leader epoch. Times are monotonic seconds that the driver gives; there is no clock here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from headrace.isr.state import Nodes, PartitionState

UNKNOWN_OFFSET: Final = -1
UNKNOWN_EPOCH: Final = -1


class Follower:
    """What its fetches have told. Its end offset may go back: a node that restarted has what it has."""

    __slots__ = ("broker_epoch", "caught_up_s", "end_offset", "fetched_s", "leader_end_offset", "start_offset")

    def __init__(self, caught_up_s: float) -> None:
        self.end_offset = UNKNOWN_OFFSET
        self.start_offset = UNKNOWN_OFFSET
        self.broker_epoch = UNKNOWN_EPOCH
        self.caught_up_s = caught_up_s  # when it was last at the end of the log
        self.fetched_s = -math.inf
        self.leader_end_offset = UNKNOWN_OFFSET  # when it fetched last

    def fetched(self, fetch_offset: int, broker_epoch: int, leader_end_offset: int, now_s: float) -> None:
        if fetch_offset >= leader_end_offset:
            self.caught_up_s = max(self.caught_up_s, now_s)
        elif self.leader_end_offset != UNKNOWN_OFFSET and fetch_offset >= self.leader_end_offset:
            # It has reached what was the end when it fetched before: under steady load it is never at the very end.
            self.caught_up_s = max(self.caught_up_s, self.fetched_s)
        self.end_offset = fetch_offset
        self.broker_epoch = broker_epoch
        self.leader_end_offset = leader_end_offset
        self.fetched_s = now_s


class LeaderReplicas:
    """See the module. `end_offset` is where the log ended when this node became leader: the epoch begins there."""

    def __init__(
        self,
        node: int,
        state: PartitionState,
        *,
        end_offset: int,
        high_watermark: int,
        now_s: float,
        synced_offset: int | None = None,
        min_isr: int = 1,
    ) -> None:
        """`synced_offset`: where acknowledgements wait for a sync, how far that has come."""
        assert state.leader == node, f"{node} does not lead {state}"
        self.node = node
        self.state = state
        self.start_offset = end_offset
        self.high_watermark = high_watermark
        self.min_isr = min_isr  # as the topic wants it; not more than there are replicas
        # Of what counts here: of what is synced, where acknowledgements wait for it.
        self._end_offset = end_offset if synced_offset is None else synced_offset
        self._log_end_offset = end_offset
        self._proposal: Nodes | None = None
        self._followers: dict[int, Follower] = {}
        self._joining: dict[int, None] = {}  # those that keep up and are no members yet
        self._meet(now_s)
        self._advance()

    # What is known

    @property
    def offsets_are_known(self) -> bool:
        return self.high_watermark >= self.start_offset

    @property
    def proposal(self) -> Nodes | None:
        """The in-sync set that waits for the controller's word."""
        return self._proposal

    @property
    def maximal_isr(self) -> Nodes:
        """Everybody who may be in sync by what was agreed or proposed."""
        proposal = self._proposal or ()
        return tuple(node for node in self.state.replicas if node in self.state.isr or node in proposal)

    def follower(self, node: int) -> Follower | None:
        """None for strangers, who are refused, and for the leader itself."""
        return self._followers.get(node)

    # What happens

    def appended(self, end_offset: int, log_end_offset: int | None = None) -> bool:
        """The leader's own log counts up to `end_offset`. Whether the high watermark moved.

        Where acknowledgements wait for a sync, `end_offset` is what is synced, `log_end_offset` what is written.
        """
        self._end_offset = max(self._end_offset, end_offset)
        self._log_end_offset = max(self._log_end_offset, end_offset, log_end_offset or 0)
        return self._advance()

    def fetched(self, node: int, fetch_offset: int, broker_epoch: int, leader_end_offset: int, now_s: float) -> bool:
        """A replica has everything below `fetch_offset`. Whether the high watermark moved."""
        follower = self._followers.get(node)
        if follower is None or broker_epoch < follower.broker_epoch:
            return False  # a stranger, or a late word of an earlier incarnation
        self._log_end_offset = max(self._log_end_offset, leader_end_offset)
        follower.fetched(fetch_offset, broker_epoch, leader_end_offset, now_s)
        if node not in self.state.isr and math.isfinite(follower.caught_up_s):
            self._joining[node] = None
        return self._advance()

    def unserved(self, node: int, now_s: float) -> None:
        """A replica asked, and the leader could not read its own log: a member is not behind because of that."""
        if node in self.state.isr and (follower := self._followers.get(node)) is not None:
            follower.caught_up_s = max(follower.caught_up_s, now_s)

    def begins(self, node: int, start_offset: int) -> None:
        """A replica has nothing below `start_offset` any more."""
        if (follower := self._followers.get(node)) is not None:
            follower.start_offset = start_offset

    def all_begin_at(self, offset: int) -> bool:
        """Whether no replica in sync has anything below: then whoever leads next does not bring it back."""
        return all(self._followers[node].start_offset >= offset for node in self.state.isr if node != self.node)

    def fenced(self, node: int) -> bool:
        """A node is fenced: unless it is a member nobody waits for it. Whether the high watermark moved."""
        if node not in self._joining:
            return False
        self._wait_no_more([node])
        return self._advance()

    # The in-sync set

    def to_shrink(self, now_s: float, max_lag_s: float) -> Nodes | None:
        """The in-sync set without those that fell behind; None if there is nothing to propose.

        To be asked from time to time, since nobody is waited for who was found behind.
        """
        self._wait_no_more([node for node in self._joining if self._is_behind(node, now_s, max_lag_s)])
        if self._proposal is not None:
            return None
        stay = tuple(node for node in self.state.isr if not self._is_behind(node, now_s, max_lag_s))
        return stay if len(stay) < len(self.state.isr) else None

    def to_expand(self, registered: Mapping[int, int]) -> Nodes | None:
        """The in-sync set with those that caught up; None if there is nothing to propose.

        `registered`: the broker epochs of the nodes that are registered and not fenced. The others are not waited for.
        """
        self._wait_no_more([node for node in self._joining if not self._is_registered(node, registered)])
        if self._proposal is not None:
            return None
        grown = tuple(
            node for node in self.state.replicas if node in self.state.isr or self._may_join(node, registered)
        )
        return grown if len(grown) > len(self.state.isr) else None

    def proposed(self, isr: Nodes, partition_epoch: int) -> None:
        """`isr` is on its way to the controller, as the change that follows `partition_epoch`."""
        assert self._proposal is None, "one proposal at a time"
        assert partition_epoch == self.state.partition_epoch, "a proposal is made on the state that is known"
        assert self.node in isr, "a leader is in sync"
        self._proposal = isr

    def committed(self, state: PartitionState, now_s: float) -> bool:
        """What the controller agreed, whoever proposed it. Whether the high watermark moved. Old news is passed over.

        A newer state settles a proposal: it is that, or the proposal was made on a state that is no more.
        """
        assert (state.leader, state.leader_epoch) == (self.node, self.state.leader_epoch), "another leader's epoch"
        if state.partition_epoch <= self.state.partition_epoch:
            return False
        self.state = state
        self._proposal = None
        self._meet(now_s)
        return self._advance()

    def refused(self) -> bool:
        """The controller said no, and will not do it later. Whether the high watermark moved. Silence is no answer."""
        self._proposal = None
        return self._advance()

    # How

    def _meet(self, now_s: float) -> None:
        """One follower for each replica. A member begins as caught up: it has time to fetch from a new leader."""
        self._followers = {
            node: self._followers.get(node) or Follower(now_s if node in self.state.isr else -math.inf)
            for node in self.state.replicas
            if node != self.node
        }
        self._joining = {node: None for node in self._joining if node in self._followers and node not in self.state.isr}

    def _advance(self) -> bool:
        state = self.state
        if state.elr or len(state.isr) < min(self.min_isr, len(state.replicas)):
            return False
        ends = [self._end_offset]
        ends += [self._followers[node].end_offset for node in self.maximal_isr if node != self.node]
        ends += [self._followers[node].end_offset for node in self._joining]
        before = self.high_watermark
        self.high_watermark = max(before, min(ends))
        return self.high_watermark > before

    def _is_behind(self, node: int, now_s: float, max_lag_s: float) -> bool:
        follower = self._followers.get(node)
        if follower is None or follower.end_offset >= self._log_end_offset:
            return False
        return now_s - follower.caught_up_s > max_lag_s

    def _may_join(self, node: int, registered: Mapping[int, int]) -> bool:
        has_all = self._followers[node].end_offset >= max(self.high_watermark, self.start_offset)
        return has_all and self._is_registered(node, registered)

    def _is_registered(self, node: int, registered: Mapping[int, int]) -> bool:
        return registered.get(node, UNKNOWN_EPOCH) == self._followers[node].broker_epoch != UNKNOWN_EPOCH

    def _wait_no_more(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            del self._joining[node]
            self._followers[node].caught_up_s = -math.inf
