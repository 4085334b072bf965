"""The APIs of transactions, each in every version, against a coordinator that says what it is told to say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.apis import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    api_versions,
    describe_producers,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)
from headrace.apis.api import Api, Context
from headrace.broker.topics import NewTopic
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.commands import OffsetToCommit
from headrace.storage.producers import Producer, Sent
from headrace.txn.commands import Identity
from headrace.txn.records import State, Transaction
from headrace.wire import messages

NONE, FENCED, OLD_FENCED = ErrorCode.none, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch
WHO = {"transactional_id": "tx", "producer_id": 7, "producer_epoch": 2}
NOW_MS = 1_700_000_000_000


class Transactions:
    """A coordinator that answers `error`, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.error = NONE
        self.known: dict[str, Transaction] = {}
        self.fault: ApiError | None = None

    def _note(self, *call: Any) -> None:
        if self.fault is not None:
            raise self.fault
        self.asked.append(call)

    def _identity(self) -> Identity:
        return Identity(NONE, 7, 3) if self.error is NONE else Identity(self.error)

    async def init_producer_id(self, name: str, timeout_ms: int, expected: tuple[int, int] | None) -> Identity:
        self._note("init", name, timeout_ms, expected)
        return self._identity()

    async def end(self, *who: Any, commit: bool, bump: bool) -> Identity:
        self._note("end", *who, commit, bump)
        return self._identity()

    async def add_partitions(self, *call: Any) -> ErrorCode:
        self._note("add", *call)
        return self.error

    async def add_offsets(self, *call: Any) -> ErrorCode:
        self._note("offsets", *call)
        return self.error

    async def offsets_partition(self, group: str) -> tuple[str, int]:
        return "__consumer_offsets", 3

    async def register(self, *call: Any) -> list[ErrorCode]:
        self._note("register", *call)
        return [self.error] * len(call[3])

    async def verify(self, *call: Any) -> list[ErrorCode]:
        self._note("verify", *call)
        return [self.error] * len(call[3])

    async def coordinator(self, name: str) -> int | None:
        return None

    async def describe(self, name: str) -> Transaction | None:
        self._note("describe", name)
        return self.known.get(name)

    async def list(self) -> list[tuple[str, Transaction]]:
        self._note("list")
        return list(self.known.items())


class Groups:
    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.errors = [NONE]

    async def coordinator(self, name: str) -> int | None:
        return None

    async def commit_transactional(self, *call: Any) -> list[ErrorCode]:
        self.asked.append(call)
        return self.errors * len(call[-1])


class Stage:
    """A client of one service, with topic `a` of two partitions."""

    def __init__(self, admin: Any) -> None:
        self.admin = admin
        self.transactions, self.groups = Transactions(), Groups()
        admin.create(NewTopic("a", 2, 1), NewTopic("__consumer_offsets", 4, 1))
        admin.service.transactions, admin.service.groups = self.transactions, self.groups
        admin.service.admission = SimpleNamespace(coordinator=self.transactions)
        admin.service.count_error = lambda api, code: None
        admin.service.clock = SimpleNamespace(now_ms=lambda: NOW_MS)

    def call(self, api: Api, version: int, *, peer: int | None = None, **fields: Any) -> Any:
        return self.admin.call(api, version, peer=peer, **fields)


@pytest.fixture
def stage(admin: Any) -> Stage:
    return Stage(admin)


def versions(api: Api) -> range:
    return range(api.versions[0], api.versions[1] + 1)


# -- InitProducerId


@pytest.mark.parametrize("version", versions(init_producer_id.API))
def test_a_transactional_producer_gets_its_epoch(stage: Stage, version: int) -> None:
    answer = stage.call(init_producer_id.API, version, transactional_id="tx", transaction_timeout=60_000)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, 7, 3)
    assert stage.transactions.asked == [("init", "tx", 60_000, None)]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_may_name_what_it_has(stage: Stage, version: int) -> None:
    fields = {"transactional_id": "tx", "transaction_timeout": 1, "producer_id": 7}
    stage.call(init_producer_id.API, version, **fields, producer_epoch=2)
    assert stage.transactions.asked == [("init", "tx", 1, (7, 2))]
    answer = stage.call(init_producer_id.API, version, **fields)
    assert answer.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions(init_producer_id.API))
def test_init_tells_of_fencing_in_words_that_the_version_has(stage: Stage, version: int) -> None:
    stage.transactions.error = FENCED
    answer = stage.call(init_producer_id.API, version, transactional_id="tx", transaction_timeout=1)
    assert answer.error_code is (FENCED if version >= 4 else OLD_FENCED)
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


# -- AddPartitionsToTxn


def _topics(answer: Any) -> list[tuple[str, int, str]]:
    return [
        (topic.name, part.partition_index, part.partition_error_code.name)
        for topic in answer
        for part in topic.results_by_partition
    ]


def _add(stage: Stage, version: int, *topics: tuple[str, list[int]]) -> list[tuple[str, int, str]]:
    asked = [{"name": name, "partitions": partitions} for name, partitions in topics]
    prefixed = {f"v3_and_below_{name}": value for name, value in {**WHO, "topics": asked}.items()}
    answer = stage.call(add_partitions_to_txn.API, version, **prefixed)
    return _topics(answer.results_by_topic_v3_and_below)


@pytest.mark.parametrize("version", range(4))
def test_a_client_adds_partitions_to_its_transaction(stage: Stage, version: int) -> None:
    assert _add(stage, version, ("a", [0, 1])) == [("a", 0, "none"), ("a", 1, "none")]
    assert stage.transactions.asked == [("add", "tx", 7, 2, [("a", 0), ("a", 1)])]
    stage.transactions.error = FENCED
    assert _add(stage, version, ("a", [0])) == [("a", 0, "producer_fenced" if version >= 2 else OLD_FENCED.name)]


@pytest.mark.parametrize("version", range(4))
def test_one_bad_partition_keeps_the_others_out(stage: Stage, version: int) -> None:
    assert _add(stage, version, ("a", [0, 2]), ("b", [0]), ("__consumer_offsets", [0])) == [
        ("a", 0, "operation_not_attempted"),
        ("a", 2, "unknown_topic_or_partition"),
        ("b", 0, "unknown_topic_or_partition"),
        ("__consumer_offsets", 0, "topic_authorization_failed"),
    ]
    assert stage.transactions.asked == []


@pytest.mark.parametrize("version", range(4))
def test_a_coordinator_that_cannot_answer_is_every_partitions_error(stage: Stage, version: int) -> None:
    stage.transactions.fault = ApiError(ErrorCode.coordinator_load_in_progress)
    assert _add(stage, version, ("a", [0, 1])) == [("a", p, "coordinator_load_in_progress") for p in (0, 1)]


@pytest.mark.parametrize("version", [4, 5])
def test_a_node_adds_and_verifies_for_several_transactions_and_a_client_does_not(stage: Stage, version: int) -> None:
    topics = [{"name": "a", "partitions": [1]}]
    transactions = [
        {**WHO, "verify_only": False, "topics": topics},
        {**WHO, "transactional_id": "other", "verify_only": True, "topics": topics},
    ]
    refused = stage.call(add_partitions_to_txn.API, version, transactions=transactions)
    assert refused.error_code is ErrorCode.cluster_authorization_failed
    assert not refused.results_by_transaction and not stage.transactions.asked
    answer = stage.call(add_partitions_to_txn.API, version, transactions=transactions, peer=2)
    assert answer.error_code is NONE
    found = [(result.transactional_id, _topics(result.topic_results)) for result in answer.results_by_transaction]
    assert found == [("tx", [("a", 1, "none")]), ("other", [("a", 1, "none")])]
    assert [call[:2] for call in stage.transactions.asked] == [("add", "tx"), ("verify", "other")]


# -- AddOffsetsToTxn, EndTxn


@pytest.mark.parametrize("version", versions(add_offsets_to_txn.API))
def test_a_groups_offsets_join(stage: Stage, version: int) -> None:
    assert stage.call(add_offsets_to_txn.API, version, **WHO, group_id="g").error_code is NONE
    assert stage.transactions.asked == [("offsets", "tx", 7, 2, "g")]
    stage.transactions.error = FENCED
    answer = stage.call(add_offsets_to_txn.API, version, **WHO, group_id="g")
    assert answer.error_code is (FENCED if version >= 2 else OLD_FENCED)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", versions(end_txn.API))
def test_only_version_5_asks_for_a_new_epoch_and_gets_it(stage: Stage, version: int, commit: bool) -> None:
    answer = stage.call(end_txn.API, version, **WHO, committed=commit)
    assert answer.error_code is NONE
    assert stage.transactions.asked == [("end", "tx", 7, 2, commit, version == 5)]
    if version == 5:
        assert (answer.producer_id, answer.producer_epoch) == (7, 3)


@pytest.mark.parametrize("version", versions(end_txn.API))
def test_an_end_that_is_refused_says_why(stage: Stage, version: int) -> None:
    stage.transactions.error = FENCED
    answer = stage.call(end_txn.API, version, **WHO, committed=True)
    assert answer.error_code is (FENCED if version >= 2 else OLD_FENCED)
    stage.transactions.fault = ApiError(ErrorCode.coordinator_not_available)
    assert stage.call(end_txn.API, version, **WHO, committed=True).error_code is ErrorCode.coordinator_not_available


# -- TxnOffsetCommit


def _commit(stage: Stage, version: int, *partitions: int, topic: str = "a") -> list[str]:
    rows = [{"partition_index": p, "committed_offset": 40 + p, "committed_metadata": None} for p in partitions]
    answer = stage.call(
        txn_offset_commit.API, version, **WHO, group_id="g", topics=[{"name": topic, "partitions": rows}]
    )
    return [part.error_code.name for part in answer.topics[0].partitions]


@pytest.mark.parametrize("version", versions(txn_offset_commit.API))
def test_offsets_are_committed_in_a_transaction_that_has_them(stage: Stage, version: int) -> None:
    assert _commit(stage, version, 0, 5, 1) == ["none", "unknown_topic_or_partition", "none"]
    verb = "register" if version == 5 else "verify"
    assert stage.transactions.asked == [(verb, "tx", 7, 2, (("__consumer_offsets", 3),))]
    offsets = [OffsetToCommit("a", 0, 40), OffsetToCommit("a", 1, 41)]
    assert stage.groups.asked == [("g", "", -1, None, 7, 2, offsets)]


@pytest.mark.parametrize("version", versions(txn_offset_commit.API))
def test_offsets_outside_of_a_transaction_are_refused(stage: Stage, version: int) -> None:
    stage.transactions.error = ErrorCode.transaction_abortable
    expected = "transaction_abortable" if version >= 4 else "invalid_txn_state"
    assert _commit(stage, version, 0, 1) == [expected] * 2
    stage.transactions.error = FENCED
    assert _commit(stage, version, 0) == ["invalid_producer_epoch"]
    assert stage.groups.asked == []


@pytest.mark.parametrize("version", versions(txn_offset_commit.API))
def test_old_clients_are_not_told_that_a_coordinator_loads(stage: Stage, version: int) -> None:
    stage.groups.errors = [ErrorCode.coordinator_load_in_progress]
    expected = "coordinator_load_in_progress" if version >= 2 else "coordinator_not_available"
    assert _commit(stage, version, 0) == [expected]


def test_offsets_of_no_known_partition_ask_nobody(stage: Stage) -> None:
    assert _commit(stage, 5, 0, topic="b") == ["unknown_topic_or_partition"]
    assert (stage.transactions.asked, stage.groups.asked) == ([], [])


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_member_comes_along(stage: Stage, version: int) -> None:
    row = {"partition_index": 0, "committed_offset": 9, "committed_leader_epoch": 4, "committed_metadata": "m"}
    member = {"member_id": "me", "generation_id": 6, "group_instance_id": "i"}
    topics = [{"name": "a", "partitions": [row]}]
    stage.call(txn_offset_commit.API, version, **WHO, **member, group_id="g", topics=topics)
    assert stage.groups.asked == [("g", "me", 6, "i", 7, 2, [OffsetToCommit("a", 0, 9, 4, "m")])]


# -- to be looked at


def test_transactions_are_described(stage: Stage) -> None:
    partitions = (("a", 0), ("a", 1), ("b", 5))
    stage.transactions.known["tx"] = Transaction(
        7, 2, State.ONGOING, 60_000, partitions=partitions, start_ms=NOW_MS, update_ms=NOW_MS
    )
    answer = stage.call(describe_transactions.API, 0, transactional_ids=["tx"])
    [found] = answer.transaction_states
    assert (found.error_code, found.transaction_state) == (NONE, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == (7, 2)
    assert found.transaction_timeout.total_seconds() == 60
    assert found.transaction_start_time.timestamp() == NOW_MS / 1000
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("a", (0, 1)), ("b", (5,))]


def test_what_is_unknown_nameless_or_not_available_has_its_own_error(stage: Stage) -> None:
    answer = stage.call(describe_transactions.API, 0, transactional_ids=["no", ""])
    assert [(one.transactional_id, one.error_code.name) for one in answer.transaction_states] == [
        ("no", "transactional_id_not_found"),
        ("", "invalid_request"),
    ]
    stage.transactions.fault = ApiError(ErrorCode.coordinator_load_in_progress)
    answer = stage.call(describe_transactions.API, 0, transactional_ids=["tx"])
    assert answer.transaction_states[0].error_code is ErrorCode.coordinator_load_in_progress


def _list(stage: Stage, version: int, **filters: Any) -> list[str]:
    answer = stage.call(list_transactions.API, version, **filters)
    assert answer.error_code is NONE
    return [f"{row.transactional_id} {row.producer_id} {row.transaction_state}" for row in answer.transaction_states]


@pytest.fixture
def listed(stage: Stage) -> Stage:
    stage.transactions.known = {
        "tx-1": Transaction(7, 0, State.EMPTY, 1),
        "tx-2": Transaction(8, 0, State.ONGOING, 1, start_ms=NOW_MS - 5000),
        "other": Transaction(9, 0, State.PREPARE_ABORT, 1, start_ms=NOW_MS - 50),
    }
    return stage


@pytest.mark.parametrize("version", versions(list_transactions.API))
def test_transactions_are_listed_by_state_and_producer(listed: Stage, version: int) -> None:
    assert _list(listed, version) == ["tx-1 7 Empty", "tx-2 8 Ongoing", "other 9 PrepareAbort"]
    assert _list(listed, version, state_filters=["Ongoing", "Empty"]) == ["tx-1 7 Empty", "tx-2 8 Ongoing"]
    assert _list(listed, version, producer_id_filters=[9, 10]) == ["other 9 PrepareAbort"]
    assert _list(listed, version, producer_id_filters=[9], state_filters=["Empty"]) == []


@pytest.mark.parametrize("version", versions(list_transactions.API))
def test_states_that_nobody_knows_are_named(listed: Stage, version: int) -> None:
    answer = listed.call(list_transactions.API, version, state_filters=["Nonsense"])
    assert answer.unknown_state_filters == ("Nonsense",)
    assert answer.transaction_states == ()


def test_transactions_are_listed_by_duration_and_pattern(listed: Stage) -> None:
    assert _list(listed, 1, duration_filter=1000, state_filters=["Ongoing", "PrepareAbort"]) == ["tx-2 8 Ongoing"]
    assert _list(listed, 2, duration_filter=-1, transactional_id_pattern="tx-.*") == ["tx-1 7 Empty", "tx-2 8 Ongoing"]
    assert _list(listed, 2, duration_filter=-1, transactional_id_pattern="tx") == []
    answer = listed.call(list_transactions.API, 2, duration_filter=-1, transactional_id_pattern="(")
    assert answer.error_code is ErrorCode.invalid_regular_expression


def test_producers_of_a_partition_are_described(stage: Stage) -> None:
    producers = {
        7: Producer(2, 10, NOW_MS, [Sent(0, 4, 0, 4, 1), Sent(5, 9, 5, 9, NOW_MS)], 5, 3),
        8: Producer(0, -1, NOW_MS, []),
    }
    partition = SimpleNamespace(log=SimpleNamespace(producers=producers))

    def get(topic: str, index: int) -> Any:
        if (topic, index) != ("a", 0):
            raise ApiError(ErrorCode.unknown_topic_or_partition)
        return partition

    stage.admin.service.partitions = SimpleNamespace(get=get)
    topics = [{"name": "a", "partition_indexes": [0, 9]}, {"name": "..", "partition_indexes": [0]}]
    answer = stage.call(describe_producers.API, 0, topics=topics)
    codes = [[part.error_code.name for part in topic.partitions] for topic in answer.topics]
    assert codes == [["none", "unknown_topic_or_partition"], ["invalid_topic_exception"]]
    first, second = answer.topics[0].partitions[0].active_producers
    assert (first.producer_id, first.producer_epoch, first.last_sequence, first.last_timestamp) == (7, 2, 9, NOW_MS)
    assert (first.current_txn_start_offset, first.coordinator_epoch) == (5, 3)
    assert (second.last_sequence, second.last_timestamp, second.current_txn_start_offset) == (-1, -1, -1)


# -- the rest


@pytest.mark.parametrize("version", versions(write_txn_markers.API))
def test_a_client_may_not_write_markers(stage: Stage, version: int) -> None:
    marker = {
        "producer_id": 7,
        "producer_epoch": 0,
        "transaction_result": True,
        "coordinator_epoch": 0,
        "topics": [{"name": "a", "partition_indexes": [0, 1]}],
    }
    answer = stage.call(write_txn_markers.API, version, markers=[marker])
    [result] = answer.markers
    codes = [part.error_code for part in result.topics[0].partitions]
    assert (result.producer_id, codes) == (7, [ErrorCode.cluster_authorization_failed] * 2)


@pytest.mark.parametrize("version", versions(find_coordinator.API))
def test_this_node_coordinates_every_transactional_id(stage: Stage, version: int) -> None:
    fields = {"coordinator_keys": ["tx"]} if version >= 4 else {"key": "tx"}
    if version:
        fields["key_type"] = 1  # type: ignore[assignment]
    answer = stage.call(find_coordinator.API, version, **fields)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id) == (NONE, 1)


@pytest.mark.parametrize("version", [3, 4])
def test_the_newer_protocol_is_finalized_when_all_its_apis_are_served(
    stage: Stage, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import headrace.apis as apis

    context = Context(stage.admin.service, version, "a-client", "127.0.0.1")

    def answer() -> Any:
        body = messages.encode_answer(18, version, api_versions.handle(context, None))
        return messages.decode_response(18, version, body)

    def finalized() -> dict[str, tuple[int, int]]:
        return {one.name: (one.min_version_level, one.max_version_level) for one in answer().finalized_features}

    modules = (init_producer_id, add_partitions_to_txn, add_offsets_to_txn, end_txn, txn_offset_commit)
    monkeypatch.setattr(apis, "TABLE", {module.API.key: module.API for module in modules})
    assert finalized()["transaction.version"] == (2, 2)
    assert answer().finalized_features_epoch == 0
    supported = {one.name: (one.min_version, one.max_version) for one in answer().supported_features}
    assert supported.get("transaction.version") == ((0, 2) if version == 4 else None)
    monkeypatch.setattr(apis, "TABLE", {end_txn.API.key: end_txn.API})
    assert "transaction.version" not in finalized()
