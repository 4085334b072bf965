"""What the controller decides of nodes and partitions: plain functions of an image."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest

from headrace.broker import decisions
from headrace.broker.commands import (
    AlterInSync,
    Drain,
    InSync,
    Join,
    OfflineReplicas,
    Register,
    Remove,
    ShortLeader,
)
from headrace.broker.image import BrokerRecord, EligiblePartitionRecord, Image, PartitionRecord, TopicRecord, apply
from headrace.broker.levels import ELIGIBLE_LEADERS, FIRST
from headrace.core.errors import ApiError, ErrorCode


@dataclass(frozen=True)
class Policy:
    is_unclean: bool = False
    is_synced: bool = True
    is_volatile: bool = False
    least: int = 1

    def unclean(self, topic, image):
        return self.is_unclean

    def synced(self, topic, image):
        return self.is_synced

    def volatile(self, topic, image):
        return self.is_volatile

    def min_insync(self, topic, image):
        return self.least


POLICY = decisions.Standard()
ORDERS = UUID(int=7)


def image(*partitions: PartitionRecord, nodes=(1, 2, 3), fenced=(), draining=()) -> Image:
    return apply(
        Image(),
        [
            *(
                BrokerRecord(n, f"h{n}", 9092, None, 4, f"d{n}", fenced=n in fenced, draining=n in draining)
                for n in nodes
            ),
            TopicRecord("orders", ORDERS),
            *partitions,
        ],
    )


def partition(index=0, replicas=(1, 2, 3), isr=None, leader=1, epoch=0, **more) -> PartitionRecord:
    return PartitionRecord("orders", index, replicas, isr if isr is not None else replicas, leader, epoch, **more)


def after(before: Image, records) -> Image:
    return apply(before, records)


def the(found: Image, index: int = 0) -> PartitionRecord:
    return found.topics["orders"].partitions[index]


def register(node: int, *, clean: bool = True, directory: str | None = None, port: int = 9092) -> Register:
    return Register(node, f"h{node}", port, None, f"d{node}" if directory is None else directory, clean)


def test_a_newcomer_gets_a_place_and_is_fenced():
    [record] = decisions.join(image(), Join(4, "h4", 9094, "d4"))
    assert (record.node_id, record.host, record.port, record.fenced, record.epoch) == (4, "h4", 9094, True, 0)


def test_a_node_id_belongs_to_one_directory():
    with pytest.raises(ApiError) as refused:
        decisions.join(image(), Join(2, "elsewhere", 9094, "another"))
    assert refused.value.code is ErrorCode.duplicate_broker_registration
    with pytest.raises(ApiError):
        decisions.register(image(), register(2, directory="another"), Policy())
    assert decisions.join(image(), Join(2, "h2", 9092, "d2")) == []


def test_a_newcomer_that_never_came_may_try_again_with_another_directory():
    waiting = apply(image(), decisions.join(image(), Join(4, "h4", 9094, "d4")))
    [record] = decisions.join(waiting, Join(4, "h5", 9095, "other"))
    assert (record.host, record.directory_id) == ("h5", "other")


def test_a_node_that_came_back_elsewhere_is_found_there():
    [record] = decisions.join(image(), Join(2, "moved", 1, "d2"))
    assert (record.host, record.port, record.epoch, record.fenced) == ("moved", 1, 4, False)


def test_every_start_of_a_node_has_a_new_epoch_and_begins_fenced():
    found = after(image(), decisions.register(image(), register(2, port=1), Policy()))
    assert (found.brokers[2].epoch, found.brokers[2].port, found.brokers[2].fenced) == (5, 1, True)


def test_a_node_alone_is_not_fenced_and_keeps_leading():
    alone = image(partition(replicas=(1,)), nodes=(1,))
    found = after(alone, decisions.register(alone, register(1), Policy()))
    assert not found.brokers[1].fenced
    assert the(found) == the(alone)


def test_who_restarts_gives_its_leaderships_away_and_stays_in_sync_if_nothing_was_lost():
    before = image(partition())
    for clean, synced in ((True, True), (False, True), (True, False)):
        found = the(after(before, decisions.register(before, register(1, clean=clean), Policy(is_synced=synced))))
        assert (found.leader, found.isr, found.leader_epoch) == (2, (1, 2, 3), 1)


def test_who_may_have_lost_bytes_is_in_sync_no_more():
    before = image(partition(), partition(1, leader=2, replicas=(2, 1)))
    found = after(before, decisions.register(before, register(1, clean=False), Policy(is_synced=False)))
    assert (the(found).leader, the(found).isr) == (2, (2, 3))
    assert (the(found, 1).leader, the(found, 1).isr) == (2, (2,))


def test_who_held_it_in_memory_is_in_sync_no_more_however_it_stopped():
    before = image(partition())
    policy = Policy(is_synced=False, is_volatile=True)
    found = the(after(before, decisions.register(before, register(1, clean=True), policy)))
    assert (found.leader, found.isr) == (2, (2, 3))


def test_the_last_in_sync_replica_stays_though_it_may_have_lost_bytes():
    before = image(partition(isr=(1,)))
    found = the(after(before, decisions.register(before, register(1, clean=False), Policy(is_synced=False))))
    assert found.isr == (1,)
    assert found.leader == -1  # until it is unfenced
    back = after(after(before, decisions.register(before, register(1, clean=False), Policy(is_synced=False))), [])
    again = the(after(back, decisions.unfence(back, 1, Policy())))
    assert again.leader == 1
    assert again.leader_epoch > 0


def test_a_silent_node_leads_nothing_and_is_in_no_set_that_can_do_without_it():
    before = image(partition(), partition(1, leader=2, replicas=(2, 1)), partition(2, replicas=(1,)))
    found = after(before, decisions.fence(before, 1, Policy()))
    assert found.brokers[1].fenced
    assert (the(found).leader, the(found).isr) == (2, (2, 3))
    assert (the(found, 1).leader, the(found, 1).isr) == (2, (2,))
    assert (the(found, 2).leader, the(found, 2).isr) == (-1, (1,))
    assert decisions.fence(found, 1, Policy()) == []


def test_nobody_out_of_sync_leads_unless_the_topic_allows_it():
    before = image(partition(isr=(1,)))
    assert the(after(before, decisions.fence(before, 1, Policy()))).leader == -1
    found = the(after(before, decisions.fence(before, 1, Policy(is_unclean=True))))
    assert (found.leader, found.isr) == (2, (2,))


def test_a_node_that_is_back_leads_what_nobody_leads():
    before = image(partition(replicas=(1,), leader=-1, epoch=3), partition(1, leader=2), fenced=(1,))
    found = after(before, decisions.unfence(before, 1, Policy()))
    assert not found.brokers[1].fenced
    assert (the(found).leader, the(found).leader_epoch) == (1, 4)
    assert the(found, 1) == the(before, 1)
    assert decisions.unfence(found, 1, Policy()) == []


def test_draining_moves_leaderships_and_can_be_ended():
    before = image(partition(), partition(1, replicas=(1,)))
    found = after(before, decisions.drain(before, Drain(1, True), POLICY))
    assert found.brokers[1].draining
    assert (the(found).leader, the(found).isr) == (2, (1, 2, 3))
    assert the(found, 1).leader == 1  # there is nobody else
    assert decisions.eligible(found) == {2, 3}
    assert not after(found, decisions.drain(found, Drain(1, False), POLICY)).brokers[1].draining
    with pytest.raises(ApiError):
        decisions.drain(before, Drain(9, True), POLICY)


def test_a_node_is_removed_when_it_holds_nothing_and_is_stopped():
    busy = image(partition())
    with pytest.raises(ApiError, match="drain it"):
        decisions.remove(busy, Remove(3))
    idle = image(partition(replicas=(1, 2)))
    with pytest.raises(ApiError, match="stop it"):
        decisions.remove(idle, Remove(3))
    stopped = image(partition(replicas=(1, 2)), fenced=(3,))
    assert 3 not in after(stopped, decisions.remove(stopped, Remove(3))).brokers
    assert decisions.remove(stopped, Remove(9)) == []


def alter(isr, *, leader_epoch=0, partition_epoch=0, node=1, epoch=4, epochs=(), topic=ORDERS) -> AlterInSync:
    return AlterInSync(node, epoch, (InSync(topic, 0, leader_epoch, partition_epoch, isr, epochs),))


def test_a_leader_changes_its_in_sync_set():
    before = image(partition())
    records, errors = decisions.alter_in_sync(before, alter((1, 3)), POLICY)
    assert errors == (0,)
    assert the(after(before, records)).isr == (1, 3)
    assert the(after(before, records)).partition_epoch == 1


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (alter((1, 3), leader_epoch=-1), ErrorCode.fenced_leader_epoch),
        (alter((1, 3), partition_epoch=-1), ErrorCode.invalid_update_version),
        (alter((1, 2, 3), node=2), ErrorCode.invalid_request),
        (alter((1, 9)), ErrorCode.invalid_request),
        (alter((1, 2, 3), epochs=(4, 3, 4)), ErrorCode.ineligible_replica),
        (alter((1, 2, 3), topic=UUID(int=1)), ErrorCode.unknown_topic_id),
    ],
)
def test_what_an_old_or_wrong_leader_wants_is_refused(command, code):
    records, errors = decisions.alter_in_sync(image(partition()), command, POLICY)
    assert (records, errors) == ([], (code,))


def test_an_older_start_of_a_node_is_not_heard():
    with pytest.raises(ApiError) as refused:
        decisions.alter_in_sync(image(partition()), alter((1, 3), epoch=3), POLICY)
    assert refused.value.code is ErrorCode.stale_broker_epoch


def test_a_fenced_node_does_not_get_into_sync():
    before = image(partition(isr=(1, 2)), fenced=(3,))
    assert decisions.alter_in_sync(before, alter((1, 2, 3)), POLICY)[1] == (ErrorCode.ineligible_replica,)


def test_a_reassignment_ends_when_its_target_is_in_sync():
    before = image(partition(replicas=(2, 3, 1), isr=(2, 1), leader=1, adding=(3,), removing=(1,)))
    records, errors = decisions.alter_in_sync(before, alter((2, 3, 1)), POLICY)
    found = the(after(before, records))
    assert errors == (0,)
    assert (found.replicas, found.leader, found.adding, found.removing) == ((2, 3), 2, (), ())


def test_leaderships_go_back_to_preferred_replicas_that_are_up():
    before = image(partition(leader=2), partition(1, replicas=(3, 1), leader=1), partition(2, leader=1), draining=(3,))
    records = decisions.preferred_due(before, 10, POLICY)
    assert [(record.index, record.leader) for record in records] == [(0, 1)]
    assert decisions.preferred_due(after(before, records), 10, POLICY) == []


# Eligible leader replicas (KIP-966)

TWO = Policy(least=2)


def tracking(*partitions: PartitionRecord, levels=(2, 2, 2), fenced=()) -> Image:
    """All nodes know of eligible replicas, unless `levels` say otherwise."""
    nodes = [
        BrokerRecord(n, f"h{n}", 9092, None, 4, f"d{n}", fenced=n in fenced, level=level)
        for n, level in enumerate(levels, 1)
    ]
    return apply(Image(), [*nodes, TopicRecord("orders", ORDERS), *partitions])


def knowing(node: int, *, clean: bool = True) -> Register:
    return Register(node, f"h{node}", 9092, None, f"d{node}", clean, level=ELIGIBLE_LEADERS)


def short(reporter: int, leader: int, leader_epoch: int, **more) -> ShortLeader:
    return ShortLeader(reporter, more.pop("epoch", 4), ORDERS, 0, leader, leader_epoch, 100)


def test_who_is_fenced_when_too_few_are_left_stays_eligible():
    found = after(before := tracking(partition(isr=(1, 2))), decisions.fence(before, 2, TWO))
    assert (the(found).isr, the(found).elr, the(found).leader) == ((1,), (2,), 1)
    assert found.level == ELIGIBLE_LEADERS
    gone = after(found, decisions.fence(found, 1, TWO))
    assert (the(gone).isr, the(gone).elr, the(gone).leader, the(gone).last_known_elr) == ((), (1, 2), -1, (1,))
    back = after(gone, decisions.unfence(gone, 2, TWO))
    assert (the(back).isr, the(back).elr, the(back).leader) == ((2,), (1,), 2)


def test_with_enough_in_sync_a_record_is_as_it_always_was():
    found = after(before := tracking(partition()), decisions.fence(before, 3, TWO))
    assert type(the(found)) is PartitionRecord and the(found).isr == (1, 2)
    assert found.level == FIRST


def test_while_a_node_does_not_know_of_eligible_replicas_the_last_member_stays():
    before = tracking(partition(isr=(1,)), levels=(2, 2, 1))
    found = after(before, decisions.fence(before, 1, TWO))
    assert type(the(found)) is PartitionRecord and the(found).isr == (1,)


def test_a_node_that_registers_with_an_older_release_ends_it_at_once():
    before = tracking(partition(isr=(1,)))
    found = after(before, decisions.register(before, register(1, clean=False), TWO))
    assert type(the(found)) is PartitionRecord and the(found).isr == (1,)


def test_the_last_one_in_sync_is_not_trusted_when_it_lost_bytes_and_another_is_eligible():
    policy = Policy(is_synced=False, least=2)
    before = tracking(EligiblePartitionRecord("orders", 0, (1, 2, 3), (1,), 1, 7, elr=(2,)), fenced=(2,))
    found = after(before, decisions.register(before, knowing(1, clean=False), policy))
    found = after(found, decisions.unfence(found, 1, policy))
    assert (the(found).isr, the(found).elr, the(found).leader) == ((), (2,), -1)
    found = after(found, decisions.unfence(found, 2, policy))
    assert (the(found).isr, the(found).leader, the(found).unclean_epoch) == ((2,), 2, -1)


def test_when_all_lost_bytes_the_last_to_say_so_leads_in_an_unclean_epoch():
    policy = Policy(is_synced=False, least=2)
    found = tracking(partition())
    for node in (1, 2, 3):
        found = after(found, decisions.register(found, knowing(node, clean=False), policy))
        found = after(found, decisions.unfence(found, node, policy))
    assert (the(found).isr, the(found).leader) == ((3,), 3)
    assert the(found).unclean_epoch == the(found).leader_epoch


def test_a_leader_grows_its_in_sync_set_and_ends_the_eligibility_of_others():
    before = tracking(EligiblePartitionRecord("orders", 0, (1, 2, 3), (1,), 1, 0, elr=(2,)))
    records, errors = decisions.alter_in_sync(before, alter((1, 3)), TWO)
    assert errors == (0,)
    assert (the(after(before, records)).isr, the(after(before, records)).elr) == ((1, 3), ())


def test_a_lost_log_is_not_eligible():
    before = tracking(EligiblePartitionRecord("orders", 0, (1, 2, 3), (1,), 1, 0, elr=(2, 3)))
    found = after(before, decisions.offline_replicas(before, OfflineReplicas(3, 4, ((ORDERS, 0),)), TWO))
    assert the(found).elr == (2,)
    found = after(found, decisions.offline_replicas(found, OfflineReplicas(1, 4, ((ORDERS, 0),)), TWO))
    assert (the(found).isr, the(found).elr, the(found).leader) == ((2,), (), 2)


def test_a_leader_that_lacks_what_is_committed_is_deposed_once():
    before = tracking(partition(epoch=7))
    found = after(before, decisions.short_leader(before, short(3, 1, 7), TWO))
    assert (the(found).isr, the(found).leader, the(found).leader_epoch) == ((2, 3), 3, 8)
    assert decisions.short_leader(found, short(2, 1, 7), TWO) == []
    with pytest.raises(ApiError):
        decisions.short_leader(before, short(3, 1, 7, epoch=3), TWO)


def test_a_topic_that_wants_fewer_in_sync_ends_the_eligibility_of_others():
    before = tracking(EligiblePartitionRecord("orders", 0, (1, 2, 3), (1,), 1, 0, elr=(2, 3)))
    assert decisions.eligible_due(before, Policy(least=3)) == []
    assert the(after(before, decisions.eligible_due(before, Policy(least=1)))).elr == ()
