"""The group APIs, each version through the wire's own encoder and decoder, over a coordinator in memory."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from headrace.apis import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from headrace.apis.api import Api, Context
from headrace.broker.groups import GroupCoordinator
from headrace.broker.image import BrokerRecord, Image, PartitionRecord, TopicRecord, apply
from headrace.broker.turns import Turns
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.settings import GroupSettings
from headrace.testing.sim.loop import SimLoop
from headrace.wire import messages

TOPIC_ID, GONE_ID = UUID(int=7), UUID(int=8)
IMAGE = apply(Image(), [TopicRecord("t", TOPIC_ID), *(PartitionRecord("t", n, (1,), (1,), 1, 0) for n in range(2))])
NONE = ErrorCode.none


class Stored(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


class Log:
    """A partition in memory, always durable."""

    size_bytes = 0

    def __init__(self) -> None:
        self.stored: list[Stored] = []
        self.log = self

    def append_internal(self, items):
        self.stored += [Stored(len(self.stored) + n, *item) for n, item in enumerate(items)]
        return len(self.stored)

    async def committed(self, next_offset):
        assert next_offset <= len(self.stored)

    def read_all(self):
        return self.stored

    def read_batches(self):
        plain = {"last_offset_delta": 0, "attributes": 0, "producer_id": -1, "producer_epoch": -1}
        return [(SimpleNamespace(base_offset=record.offset, **plain), [record]) for record in self.stored]

    def delete_before(self, offset):
        raise NotImplementedError


class Topic:
    def __init__(self) -> None:
        self.logs: list[Log] = []

    alone = True

    def absence(self, index: int) -> ApiError:
        return ApiError(ErrorCode.coordinator_not_available)

    def find(self):
        return self.logs

    async def ensure(self):
        self.logs = self.logs or [Log(), Log()]
        return self.logs


class Workers:
    async def run(self, work: Callable[[], Any]) -> Any:
        return work()


class Client:
    """A client of one broker."""

    def __init__(self) -> None:
        ids = count(1)
        settings = replace(GroupSettings(), initial_rebalance_delay_ms=0, min_session_timeout_ms=1)
        self.groups = GroupCoordinator(
            settings,
            Topic(),
            clock=SimpleNamespace(now_ms=lambda: 1_700_000_000_000),
            workers=Workers(),
            new_id=lambda: str(next(ids)),
        )
        self.service = SimpleNamespace(
            turns=Turns(time.monotonic),
            groups=self.groups,
            image=IMAGE,
            node=BrokerRecord(1, "broker", 9092),
            topic_name=None,
        )

    async def call(self, api: Api, version: int, **fields: Any) -> Any:
        body = messages.encode_request(api.key, version, fields)
        request = messages.decode_request(api.key, version, body)
        context = Context(self.service, version, "app", "10.0.0.1")  # type: ignore[arg-type]
        try:
            answer = api.handle(context, request)
            if inspect.isawaitable(answer):
                answer = await answer
        except ApiError as error:
            assert api.on_error is not None, f"{api.name} raised {error!r} and has no answer for it"
            answer = api.on_error(context, request, error)
        return messages.decode_response(api.key, version, messages.encode_answer(api.key, version, answer))

    async def join(self, version: int = 9, member_id: str = "", **fields: Any) -> Any:
        wanted: dict[str, Any] = {
            "group_id": "g",
            "session_timeout": 10_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff"}],
        }
        if version >= 1:
            wanted["rebalance_timeout"] = 60_000
        return await self.call(join_group.API, version, **{**wanted, **fields})

    async def sync(self, version: int, joined: Any, **fields: Any) -> Any:
        wanted: dict[str, Any] = {
            "group_id": "g",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "assignments": [{"member_id": m.member_id, "assignment": b"mine"} for m in joined.members],
        }
        if version >= 5:
            wanted |= {"protocol_type": "consumer", "protocol_name": "range"}
        return await self.call(sync_group.API, version, **{**wanted, **fields})

    async def member(self) -> Any:
        """A stable group of one."""
        joined = await self.join(9, (await self.join()).member_id)
        assert (await self.sync(5, joined)).error_code is NONE
        return joined

    async def commit(self, version: int, offset: int = 5, *, partition: int = 0, **fields: Any) -> Any:
        row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": "note"}
        wanted: dict[str, Any] = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{**self.topic(version, "t", TOPIC_ID), "partitions": [row]}],
        }
        return await self.call(offset_commit.API, version, **{**wanted, **fields})

    @staticmethod
    def topic(version: int, name: str, topic_id: UUID) -> dict[str, Any]:
        return {"topic_id": topic_id} if version >= 10 else {"name": name}

    async def fetch(self, version: int, topics: Any, group: str = "g") -> Any:
        """(the group's error, its topics), whatever the version."""
        if version >= 8:
            answer = await self.call(offset_fetch.API, version, groups=[{"group_id": group, "topics": topics}])
            return answer.groups[0].error_code, answer.groups[0].topics
        answer = await self.call(offset_fetch.API, version, group_id=group, topics=topics)
        return getattr(answer, "error_code", NONE), answer.topics


def versions(api: Api, since: int = 0) -> list[int]:
    return list(range(max(since, api.versions[0]), api.versions[1] + 1))


def scenario(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test with a fresh client."""

    def run(**arguments: Any) -> None:
        async def main() -> None:
            client = Client()
            await client.groups.start()
            await test(client, **arguments)
            await client.groups.stop()

        SimLoop().run_until_complete(main())

    run.__name__ = test.__name__
    parameters = list(inspect.signature(test).parameters.values())[1:]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize(
    ("api", "key", "supported"),
    [
        (offset_commit, 8, (2, 10)),
        (offset_fetch, 9, (1, 10)),
        (find_coordinator, 10, (0, 6)),
        (join_group, 11, (0, 9)),
        (heartbeat, 12, (0, 4)),
        (leave_group, 13, (0, 5)),
        (sync_group, 14, (0, 5)),
        (describe_groups, 15, (0, 6)),
        (list_groups, 16, (0, 5)),
        (delete_groups, 42, (0, 2)),
        (offset_delete, 47, (0, 0)),
    ],
)
def test_the_versions_are_those_of_kafka(api: Any, key: int, supported: tuple[int, int]) -> None:
    assert (api.API.key, api.API.versions) == (key, supported)


@pytest.mark.parametrize("version", versions(find_coordinator.API))
@scenario
async def test_this_node_coordinates_every_group(client: Client, version: int) -> None:
    keys = {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
    answer = await client.call(find_coordinator.API, version, **keys)
    for found in answer.coordinators if version >= 4 else [answer]:
        assert (found.error_code, found.node_id, found.host, found.port) == (NONE, 1, "broker", 9092)


@pytest.mark.parametrize("key_type", [2, 9])
@scenario
async def test_other_coordinators_do_not_exist_and_clients_learn_it_at_once(client: Client, key_type: int) -> None:
    answer = await client.call(find_coordinator.API, 6, key_type=key_type, coordinator_keys=["x"])
    [refused] = answer.coordinators
    assert (refused.key, refused.error_code, refused.node_id) == ("x", ErrorCode.invalid_request, -1)
    assert refused.error_message
    answer = await client.call(find_coordinator.API, 3, key_type=key_type, key="x")
    assert answer.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions(join_group.API))
@scenario
async def test_a_member_joins_in_every_version(client: Client, version: int) -> None:
    joined = await client.join(version)
    if version >= 4:
        assert joined.error_code is ErrorCode.member_id_required
        assert joined.member_id == "app-1"
        assert joined.protocol_name == (None if version >= 7 else "")
        joined = await client.join(version, joined.member_id)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (NONE, 1, "range")
    assert joined.leader == joined.member_id == joined.members[0].member_id
    if version >= 7:
        assert joined.protocol_type == "consumer"


@pytest.mark.parametrize("version", versions(join_group.API))
@scenario
async def test_a_refused_join_is_readable_in_every_version(client: Client, version: int) -> None:
    assert (await client.join(version, group_id="")).error_code is ErrorCode.invalid_group_id
    assert (await client.join(version, session_timeout=0)).error_code is ErrorCode.invalid_session_timeout
    assert (await client.join(version, "stranger")).error_code is ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", versions(join_group.API, 5))
@scenario
async def test_a_static_member_comes_back_without_a_rebalance(client: Client, version: int) -> None:
    first = await client.join(version, group_instance_id="i")
    await client.sync(5, first, group_instance_id="i")
    again = await client.join(version, group_instance_id="i")
    assert (again.error_code, again.generation_id, again.member_id) == (NONE, 1, "i-2")
    if version >= 9:
        assert again.skip_assignment
        assert again.leader == "i-2"
    else:
        assert again.leader == "i-1"
    assert (await client.sync(5, again, group_instance_id="i", assignments=[])).assignment == b"mine"


@pytest.mark.parametrize("version", versions(sync_group.API))
@scenario
async def test_a_member_gets_its_assignment_in_every_version(client: Client, version: int) -> None:
    joined = await client.join(9, (await client.join()).member_id)
    synced = await client.sync(version, joined)
    assert (synced.error_code, synced.assignment) == (NONE, b"mine")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    wrong = await client.sync(version, joined, generation_id=9)
    assert (wrong.error_code, wrong.assignment) == (ErrorCode.illegal_generation, b"")


@scenario
async def test_a_newer_sync_must_name_the_protocol(client: Client) -> None:
    joined = await client.join(9, (await client.join()).member_id)
    refused = await client.sync(5, joined, protocol_name=None)
    assert refused.error_code is ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize("version", versions(heartbeat.API))
@scenario
async def test_heartbeats_in_every_version(client: Client, version: int) -> None:
    joined = await client.member()
    fields = {"group_id": "g", "member_id": joined.member_id}
    assert (await client.call(heartbeat.API, version, generation_id=1, **fields)).error_code is NONE
    answer = await client.call(heartbeat.API, version, generation_id=2, **fields)
    assert answer.error_code is ErrorCode.illegal_generation


def test_a_heartbeat_while_groups_are_loaded_sends_nobody_away() -> None:
    answer = heartbeat.on_error(None, None, ApiError(ErrorCode.coordinator_load_in_progress))  # type: ignore[arg-type]
    assert answer == {"error_code": NONE}


@pytest.mark.parametrize("version", versions(leave_group.API))
@scenario
async def test_members_leave_in_every_version(client: Client, version: int) -> None:
    joined = await client.member()
    if version >= 3:
        members = [{"member_id": joined.member_id}, {"member_id": "stranger"}]
        answer = await client.call(leave_group.API, version, group_id="g", members=members)
        assert answer.error_code is NONE
        assert [m.error_code for m in answer.members] == [NONE, ErrorCode.unknown_member_id]
    else:
        answer = await client.call(leave_group.API, version, group_id="g", member_id="stranger")
        assert answer.error_code is ErrorCode.unknown_member_id
        answer = await client.call(leave_group.API, version, group_id="g", member_id=joined.member_id)
        assert answer.error_code is NONE
    assert (await client.groups.describe("g")).state == "Empty"


@scenario
async def test_leaving_needs_a_group_name(client: Client) -> None:
    assert (await client.call(leave_group.API, 5, group_id="", members=[])).error_code is ErrorCode.invalid_group_id


@pytest.mark.parametrize("version", versions(offset_commit.API))
@scenario
async def test_what_is_committed_is_fetched_in_every_version(client: Client, version: int) -> None:
    answer = await client.commit(version, 42)
    assert [p.error_code for p in answer.topics[0].partitions] == [NONE]
    for fetching in versions(offset_fetch.API):
        asked = [{**client.topic(fetching, "t", TOPIC_ID), "partition_indexes": [0, 1]}]
        error, [topic] = await client.fetch(fetching, asked)
        assert error is NONE
        rows = [(p.partition_index, p.committed_offset, p.metadata, p.error_code) for p in topic.partitions]
        assert rows == [(0, 42, "note", NONE), (1, -1, "", NONE)]


@pytest.mark.parametrize("version", versions(offset_fetch.API, 2))
@scenario
async def test_all_offsets_of_a_group_are_fetched_without_naming_them(client: Client, version: int) -> None:
    assert await client.fetch(version, None) == (NONE, ())
    await client.commit(9, 1, partition=0)
    await client.commit(9, 2, partition=1)
    error, [topic] = await client.fetch(version, None)
    assert error is NONE
    assert [(p.partition_index, p.committed_offset) for p in topic.partitions] == [(0, 1), (1, 2)]
    assert topic.topic_id == TOPIC_ID if version >= 10 else topic.name == "t"


@pytest.mark.parametrize("version", versions(offset_fetch.API))
@scenario
async def test_an_unknown_group_has_offset_minus_one_and_no_error(client: Client, version: int) -> None:
    asked = [{**client.topic(version, "t", TOPIC_ID), "partition_indexes": [0]}]
    error, [topic] = await client.fetch(version, asked, group="nobody")
    assert (error, topic.partitions[0].committed_offset, topic.partitions[0].error_code) == (NONE, -1, NONE)


@scenario
async def test_several_groups_are_fetched_at_once(client: Client) -> None:
    await client.commit(9, 1)
    await client.commit(9, 2, group_id="h")
    topics = [{"name": "t", "partition_indexes": [0]}]
    groups = [{"group_id": name, "topics": topics} for name in ("h", "g", "nobody")]
    answer = await client.call(offset_fetch.API, 9, groups=groups, require_stable=True)
    assert [(g.group_id, g.topics[0].partitions[0].committed_offset) for g in answer.groups] == [
        ("h", 2),
        ("g", 1),
        ("nobody", -1),
    ]


@scenario
async def test_unknown_topics_and_partitions_cannot_be_committed(client: Client) -> None:
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics = [
        {"name": "gone", "partitions": [row]},
        {"name": "t", "partitions": [{**row, "partition_index": 2}, row, {**row, "partition_index": -1}]},
    ]
    answer = await client.commit(9, topics=topics)
    unknown = ErrorCode.unknown_topic_or_partition
    assert [[p.error_code for p in t.partitions] for t in answer.topics] == [[unknown], [unknown, NONE, unknown]]
    answer = await client.commit(10, topics=[{"topic_id": GONE_ID, "partitions": [row]}])
    assert answer.topics[0].topic_id == GONE_ID
    assert answer.topics[0].partitions[0].error_code is ErrorCode.unknown_topic_id


@scenario
async def test_an_unknown_topic_id_is_an_error_of_its_partitions_when_fetching(client: Client) -> None:
    await client.commit(9, 3)
    asked = [{"topic_id": GONE_ID, "partition_indexes": [0]}, {"topic_id": TOPIC_ID, "partition_indexes": [0]}]
    _, [gone, known] = await client.fetch(10, asked)
    assert (gone.partitions[0].error_code, gone.partitions[0].committed_offset) == (ErrorCode.unknown_topic_id, -1)
    assert known.partitions[0].committed_offset == 3


@pytest.mark.parametrize("version", versions(offset_commit.API))
@scenario
async def test_a_generation_of_an_unknown_group_is_refused(client: Client, version: int) -> None:
    answer = await client.commit(version, generation_id_or_member_epoch=3, member_id="m")
    expected = ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
    assert answer.topics[0].partitions[0].error_code is expected


@pytest.mark.parametrize("version", [2, 3, 4])
@scenario
async def test_an_old_client_may_ask_for_a_retention(client: Client, version: int) -> None:
    assert (await client.commit(version, retention_time=60_000)).topics[0].partitions[0].error_code is NONE


@pytest.mark.parametrize("version", versions(describe_groups.API))
@scenario
async def test_groups_are_described_in_every_version(client: Client, version: int) -> None:
    joined = await client.member()
    fields = {"include_authorized_operations": True} if version >= 3 else {}
    answer = await client.call(describe_groups.API, version, groups=["g", "nobody"], **fields)
    stable, unknown = answer.groups
    assert (stable.error_code, stable.group_state, stable.protocol_type, stable.protocol_data) == (
        NONE,
        "Stable",
        "consumer",
        "range",
    )
    [member] = stable.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "app", "/10.0.0.1")
    assert (member.member_assignment, member.member_metadata[-5:]) == (b"mine", b"t\xff\xff\xff\xff")
    assert unknown.group_state == "Dead"
    assert unknown.error_code is (ErrorCode.group_id_not_found if version >= 6 else NONE)
    if version >= 3:
        assert stable.authorized_operations == 3400


@scenario
async def test_operations_are_told_only_to_those_who_ask(client: Client) -> None:
    answer = await client.call(describe_groups.API, 5, groups=["g"])
    assert answer.groups[0].authorized_operations == -(2**31)


@pytest.mark.parametrize("version", versions(list_groups.API))
@scenario
async def test_groups_are_listed_in_every_version(client: Client, version: int) -> None:
    await client.member()
    await client.commit(9, group_id="simple")
    listed = (await client.call(list_groups.API, version)).groups
    assert sorted((g.group_id, g.protocol_type) for g in listed) == [("g", "consumer"), ("simple", "")]
    if version >= 4:
        listed = (await client.call(list_groups.API, version, states_filter=["stable"])).groups
        assert [(g.group_id, g.group_state) for g in listed] == [("g", "Stable")]
    if version >= 5:
        listed = (await client.call(list_groups.API, version, types_filter=["Classic"])).groups
        assert [g.group_type for g in listed] == ["classic", "classic"]
        assert (await client.call(list_groups.API, version, types_filter=["consumer"])).groups == ()


@pytest.mark.parametrize("version", versions(delete_groups.API))
@scenario
async def test_groups_are_deleted_in_every_version(client: Client, version: int) -> None:
    await client.member()
    await client.commit(9, group_id="simple")
    answer = await client.call(delete_groups.API, version, groups_names=["g", "simple", "nobody", "g"])
    assert [(r.group_id, r.error_code) for r in answer.results] == [
        ("g", ErrorCode.non_empty_group),
        ("simple", NONE),
        ("nobody", ErrorCode.group_id_not_found),
    ]


@scenario
async def test_offsets_are_deleted_but_for_subscribed_topics(client: Client) -> None:
    def asked(name: str, *partitions: int) -> Any:
        return {"name": name, "partitions": [{"partition_index": p} for p in partitions]}

    refused = await client.call(offset_delete.API, 0, group_id="g", topics=[asked("t", 0)])
    assert refused.error_code is ErrorCode.group_id_not_found
    await client.commit(9)
    answer = await client.call(offset_delete.API, 0, group_id="g", topics=[asked("t", 0, 9), asked("gone", 0)])
    unknown = ErrorCode.unknown_topic_or_partition
    assert [[p.error_code for p in t.partitions] for t in answer.topics] == [[NONE, unknown], [unknown]]
    assert list(client.groups.group_offsets()) == []
    await client.member()
    answer = await client.call(offset_delete.API, 0, group_id="g", topics=[asked("t", 0)])
    assert answer.topics[0].partitions[0].error_code is ErrorCode.group_subscribed_to_topic


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (join_group.API, {"group_id": "g", "member_id": "", "protocol_type": "", "protocols": []}),
        (sync_group.API, {"group_id": "g", "member_id": "", "generation_id": 1, "assignments": []}),
        (heartbeat.API, {"group_id": "g", "member_id": "", "generation_id": 1}),
        (leave_group.API, {"group_id": "g"}),
        (offset_commit.API, {"group_id": "g"}),
        (offset_fetch.API, {}),
        (describe_groups.API, {"groups": ["g"]}),
        (list_groups.API, {}),
        (delete_groups.API, {"groups_names": ["g"]}),
        (offset_delete.API, {"group_id": "g", "topics": []}),
    ],
    ids=lambda value: value.name if isinstance(value, Api) else "",
)
@scenario
async def test_a_coordinator_that_is_not_there_is_an_answer_in_every_version(
    client: Client, api: Api, fields: dict[str, Any]
) -> None:
    await client.commit(9)
    await client.groups.stop()
    rows = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    for version in versions(api):
        extra: dict[str, Any] = {}
        if api is offset_commit.API:
            extra = {"topics": [{**client.topic(version, "t", TOPIC_ID), "partitions": rows}]}
        elif api is offset_fetch.API:
            topics = [{**client.topic(version, "t", TOPIC_ID), "partition_indexes": [0]}]
            extra = {"groups": [{"group_id": "g", "topics": topics}]} if version >= 8 else {"topics": topics}
        elif api is leave_group.API and version < 3:
            extra = {"member_id": "m"}
        elif api is sync_group.API and version >= 5:
            extra = {"protocol_type": "consumer", "protocol_name": "range"}
        answer = await client.call(api, version, **fields, **extra)
        assert "coordinator_not_available" in repr(answer), (api.name, version)
