"""The controller's eye on the nodes: who is alive, who votes, who leads what it should.

Rules:
- Every node has this object; it acts only while its node leads. A new leader gives everybody a new session, except the
  leader before it: that one was silent already.
- A node that was not heard for a session is fenced. A controller that was held up itself blames nobody for that time.
- Gossip may say that a node is dead: it is fenced then if it has missed two beats, too. Its machine may say that nobody
  listens there: it is fenced if no beat came since then, and one is overdue. A beat refutes both.
- A fenced node comes back when it beats and has applied all that it must know.
- The number of voters is odd: learners are made voters in pairs, and only those that are alive and have caught up. A
  voter that stays away is replaced when a learner is there for it. Without one, they go in pairs: an even number of
  voters survives no more than the odd number above it, and whoever comes back could not vote.
- Leaderships go back to preferred replicas, and internal topics get the replicas that they lacked while the cluster was
  smaller, now and then.
- Times are of the loop. Nothing here is remembered by the next leader but what is in the image.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from headrace.broker import decisions, reassigning
from headrace.core.errors import ApiError
from headrace.raft.membership import Change, ChangeKind
from headrace.raft.ready import RoleName, Standing

if TYPE_CHECKING:
    from headrace.broker.cluster_settings import ClusterSettings
    from headrace.broker.controller import Controller

logger = logging.getLogger(__name__)

MISSED_BEATS: Final = 2  # after which gossip's word is believed
OVERDUE_BEATS: Final = 1.5  # after which a machine's word is
REPLACE_VOTER_SESSIONS: Final = 20  # of silence, until a voter is replaced
LEADERS_AT_ONCE: Final = 200
CHECK_LATE_S: Final = 0.01  # timers may be early


class NodeWatch:
    """See the module."""

    def __init__(self, controller: Controller, settings: ClusterSettings, policy: decisions.Policy) -> None:
        self._controller = controller
        self._node_id = controller.quorum.node_id
        self._settings = settings
        self._policy = policy
        self._beat_s = settings.heartbeat_ms / 1000
        self._session_s = settings.session_ms / 1000
        self._seen: dict[int, float] = {}
        self._refused: dict[int, float] = {}  # when a node's machine last said that nobody listens there
        self._checks: dict[int, asyncio.TimerHandle] = {}
        self._applied: dict[int, int] = {}
        self._must_know: dict[int, int] = {}  # by node: what it must have applied before it may lead
        self._taken_over_at: int | None = None  # the index at which this node began to lead
        self._steps_are_due = False
        self._last_leader: int | None = None
        self._last_look = 0.0
        self._next_balance = 0.0
        self._task: asyncio.Task[None] | None = None
        self._fencing: asyncio.Task[None] | None = None
        controller.watch(self._stands)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="node-watch")

    async def stop(self) -> None:
        for check in self._checks.values():
            check.cancel()
        self._checks.clear()
        tasks = [task for task in (self._task, self._fencing) if task is not None]
        self._task = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # What is heard

    def registered(self, node: int, index: int) -> None:
        self._must_know[node] = index
        self._seen[node] = self._now()

    def heard(self, node: int, applied: int) -> bool:
        """A node lives. Whether it knows all that it must know to lead."""
        self._seen[node] = self._now()
        self._applied[node] = applied
        if self._taken_over_at is None:
            self._take_over()
        return applied >= self._must_know.get(node, self._taken_over_at or 0)

    def left(self, node: int) -> None:
        """A node has said that it stops."""
        self._must_know[node] = self._controller.applied_index

    def health(self, node: int) -> tuple[int, int]:
        """What a node has applied, and how many ms ago it was heard; -1: never."""
        seen = self._seen.get(node)
        return self._applied.get(node, 0), -1 if seen is None else round((self._now() - seen) * 1000)

    def suspected(self, node: int) -> None:
        """Gossip believes that a node is dead: look at once."""
        if self._silence(node) > MISSED_BEATS * self._beat_s:
            self._doubt(node, "gossip believes it dead")

    def refused(self, node: int) -> None:
        """A node's machine says that nobody listens there: look as soon as a beat is overdue."""
        self._refused[node] = self._now()
        self._check(node)

    def _check(self, node: int) -> None:
        if (check := self._checks.pop(node, None)) is not None:
            check.cancel()
        if self._is_refused(node):
            left_s = OVERDUE_BEATS * self._beat_s - self._silence(node)
            if left_s < 0:
                self._doubt(node, "nobody listens there")
            else:
                loop = asyncio.get_running_loop()
                self._checks[node] = loop.call_later(left_s + CHECK_LATE_S, self._check, node)

    def _is_refused(self, node: int) -> bool:
        """Whether nobody listens where it should be, as far as its machine knows, and no beat came since."""
        refused = self._refused.get(node)
        return refused is not None and self._silence(node) >= self._now() - refused

    def _doubt(self, node: int, reason: str) -> None:
        if not self._controller.leads or self._taken_over_at is None or self._fencing is not None:
            return
        known = self._controller.proposed.brokers.get(node)
        if known is None or known.fenced or node == self._node_id:
            return
        self._fencing = asyncio.get_running_loop().create_task(self._fence_now(node, reason), name="fence")

    async def _fence_now(self, node: int, reason: str) -> None:
        try:
            await self._fence(node, reason)
        except ApiError as error:
            logger.info("a node could not be fenced", extra={"node": node, "reason": str(error)})
        finally:
            self._fencing = None

    # What is done

    async def _run(self) -> None:
        self._last_look = self._now()
        while True:
            await asyncio.sleep(self._beat_s)
            try:
                await self.look()
            except ApiError as error:
                logger.info("the nodes could not be looked after", extra={"reason": str(error)})
            except Exception:
                logger.exception("the nodes could not be looked after")

    async def look(self) -> None:
        """Once in a while, on the leader: fence the silent, choose voters, bring leaders home."""
        now = self._now()
        late = now - self._last_look - 2 * self._beat_s
        self._last_look = now
        if not self._controller.leads:
            return
        if self._taken_over_at is None:
            self._take_over()
        elif late > 0:
            self._seen = {node: seen + late for node, seen in self._seen.items()}
        for node in list(self._controller.proposed.brokers.values()):
            if node.node_id == self._node_id or node.fenced:
                continue
            silence = self._silence(node.node_id)
            if silence > OVERDUE_BEATS * self._beat_s and self._is_refused(node.node_id):
                await self._fence(node.node_id, "nobody listens there")
            elif silence > self._session_s:
                await self._fence(node.node_id, "it was not heard for a session")
        if self._steps_are_due:
            await self._controller.commit(decisions.steps_due(self._controller.proposed, self._policy))
            await self._controller.commit(decisions.eligible_due(self._controller.proposed, self._policy))
            self._steps_are_due = False
        await self._choose_voters()
        await self._balance(now)

    async def _fence(self, node: int, reason: str) -> None:
        records = decisions.fence(self._controller.proposed, node, self._policy)
        if records:
            logger.warning("a node is fenced", extra={"node": node, "reason": reason, "changes": len(records)})
            await self._controller.commit(records)
            self._must_know[node] = self._controller.applied_index

    async def _choose_voters(self) -> None:
        change = self._voter_change()
        if change is not None:
            logger.info("the quorum changes", extra={"change": change.kind.value, "node": change.node})
            await self._controller.quorum.change(change)

    def _voter_change(self) -> Change | None:
        """The next step towards the right number of voters, all of them alive."""
        quorum = self._controller.quorum
        membership, image = quorum.membership, self._controller.image
        voters, known = membership.voters, set(image.brokers)
        living = decisions.alive(image)
        able = [node for node in membership.learners if node in living]
        gone = [node for node in voters if node != self._node_id and self._is_gone(node)]
        most = self._settings.voters - (self._settings.voters + 1) % 2
        wanted = min(most, len(voters) - len(gone) + len(able))
        wanted -= (wanted + 1) % 2
        strangers = [node for node in membership.members if node not in known and node != self._node_id]
        if strangers and self._taken_over_at is not None:
            return Change(ChangeKind.REMOVE, strangers[0])
        if len(voters) < wanted or (gone and able and len(voters) <= most):
            return Change(ChangeKind.PROMOTE, able[0]) if able else None
        if gone and len(voters) > max(wanted, (len(voters) - len(gone)) | 1):
            return Change(ChangeKind.REMOVE, gone[0])
        missing = [node for node in known if node not in membership.members]
        return Change(ChangeKind.ADD_LEARNER, missing[0]) if missing else None

    def _is_gone(self, node: int) -> bool:
        known = self._controller.image.brokers.get(node)
        silent = self._silence(node) > REPLACE_VOTER_SESSIONS * self._session_s
        return known is None or (known.fenced and silent)

    async def _balance(self, now: float) -> None:
        image = self._controller.proposed
        if not self._settings.balance_leaders_ms or now < self._next_balance or len(image.brokers) < 2:
            return
        self._next_balance = now + self._settings.balance_leaders_ms / 1000
        records = decisions.preferred_due(image, LEADERS_AT_ONCE, self._policy)
        if records:
            logger.info("leaderships go back to preferred replicas", extra={"count": len(records)})
            await self._controller.commit(records)
        grown = await reassigning.grow_internal_topics(self._controller, self._policy)
        if grown:
            logger.info("internal topics get more replicas", extra={"partitions": grown})

    # Leading

    def _stands(self, standing: Standing) -> None:
        if standing.role is not RoleName.LEADER:
            self._taken_over_at = None
            if standing.leader is not None:
                self._last_leader = standing.leader

    def _take_over(self) -> None:
        """This node has begun to lead: everybody has a new session, the leader that fell silent a short one."""
        now = self._now()
        self._taken_over_at = self._controller.applied_index
        self._last_look = now
        self._steps_are_due = True
        self._must_know.clear()
        self._next_balance = now + self._settings.balance_leaders_ms / 1000
        self._seen = dict.fromkeys(self._controller.image.brokers, now)
        if self._last_leader is not None and self._last_leader != self._node_id:
            self._seen[self._last_leader] = now - max(0.0, self._session_s - MISSED_BEATS * self._beat_s)
            self._check(self._last_leader)

    def _silence(self, node: int) -> float:
        now = self._now()
        return now - self._seen.setdefault(node, now)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
