"""What servers say to each other, one struct per kind.

Rules:
- Every message names its sender, its target and the sender's term. Only `PreVote` and a granted `PreVoteReply` speak of
  a term that has not begun.
- Nothing is asked twice of the wire: a message may be lost, late, doubled or out of order, and the machine copes.
- An `AppendAccepted` speaks for the log up to `match`, which is saved. A rejection says where to look next.
"""

from __future__ import annotations

import msgspec

from headrace.raft.records import Count, Entry, NodeId, Snapshot


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    sender: NodeId
    to: NodeId
    term: Count


class PreVote(Envelope, frozen=True, tag="pre_vote"):
    """Would you vote for me in this term, which I have not begun? (Thesis, 9.6.)"""

    last_index: Count
    last_term: Count


class PreVoteReply(Envelope, frozen=True, tag="pre_vote_reply"):
    """Granted: `term` is the one that was asked about. Refused: it is the term of whoever refuses."""

    granted: bool


class RequestVote(Envelope, frozen=True, tag="request_vote"):
    """`transfer`: the leader itself asked for this election, so that it does not protect its leadership."""

    last_index: Count
    last_term: Count
    transfer: bool = False


class VoteReply(Envelope, frozen=True, tag="vote_reply"):
    granted: bool


class AppendEntries(Envelope, frozen=True, tag="append"):
    prev_index: Count
    prev_term: Count
    entries: tuple[Entry, ...]
    commit: Count


class AppendAccepted(Envelope, frozen=True, tag="accepted"):
    match: Count


class AppendRejected(Envelope, frozen=True, tag="rejected"):
    """The log has no such entry at `rejected`. `hint_index` is the last place below it where the logs may agree: what
    is there is of `hint_term`, no newer than the entry that was looked for."""

    rejected: Count
    hint_index: Count
    hint_term: Count


class InstallSnapshot(Envelope, frozen=True, tag="snapshot"):
    """Answered by `AppendAccepted`. A driver that moves the payload in chunks hands this over when it is complete."""

    snapshot: Snapshot


class Heartbeat(Envelope, frozen=True, tag="heartbeat"):
    """`commit` is no more than the receiver is known to have. `round` counts the rounds that confirm reads."""

    commit: Count
    round: Count


class HeartbeatAck(Envelope, frozen=True, tag="heartbeat_ack"):
    round: Count


class Stale(Envelope, frozen=True, tag="stale"):
    """The answer to a leader of an older term: there is a newer one."""


class TimeoutNow(Envelope, frozen=True, tag="timeout_now"):
    """From a leader that hands over: hold an election at once. (Thesis, 3.10.)"""


class ReadRequest(Envelope, frozen=True, tag="read"):
    number: Count


class ReadAnswer(Envelope, frozen=True, tag="read_answer"):
    """What the follower may read once it has applied `index`."""

    number: Count
    index: Count


Message = (
    PreVote
    | PreVoteReply
    | RequestVote
    | VoteReply
    | AppendEntries
    | AppendAccepted
    | AppendRejected
    | InstallSnapshot
    | Heartbeat
    | HeartbeatAck
    | Stale
    | TimeoutNow
    | ReadRequest
    | ReadAnswer
)
FromLeader = AppendEntries | Heartbeat | InstallSnapshot
