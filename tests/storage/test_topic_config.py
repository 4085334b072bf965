from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.config import ConfigType
from headrace.core.errors import ApiError, ErrorCode
from headrace.storage.settings import StorageSettings
from headrace.storage.topic_config import TOPIC_CONFIGS, TopicConfig


def of(**overrides: str) -> TopicConfig:
    return TopicConfig.of({name.replace("_", "."): text for name, text in overrides.items()}, StorageSettings())


def test_a_topic_without_overrides_goes_by_the_defaults() -> None:
    assert of() == TopicConfig()


def test_the_storage_settings_give_the_defaults() -> None:
    storage = StorageSettings(retention_ms=5, segment_bytes=100, kind="memory", flush="os", max_message_bytes=7)
    config = TopicConfig.of({}, storage)
    assert (config.retention_ms, config.segment_bytes, config.max_message_bytes) == (5, 100, 7)
    assert (config.storage, config.flush) == ("memory", "os")


def test_a_topics_own_value_beats_the_brokers_dynamic_one_beats_the_settings() -> None:
    storage = StorageSettings(retention_ms=1, segment_ms=1)
    dynamic = {"retention.ms": "2", "segment.ms": "2", "min.insync.replicas": "2"}
    config = TopicConfig.of({"retention.ms": "3"}, storage, defaults=dynamic)
    assert (config.retention_ms, config.segment_ms, config.min_insync_replicas) == (3, 2, 2)


@pytest.mark.parametrize(
    ("policy", "compacts", "deletes"),
    [("delete", False, True), ("compact", True, False), ("compact, delete", True, True), ("", False, False)],
)
def test_the_cleanup_policy_is_a_list(policy: str, compacts: bool, deletes: bool) -> None:
    config = of(cleanup_policy=policy)
    assert (config.compacts, config.deletes) == (compacts, deletes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "7d"),
        ("retention.ms", ""),
        ("retention.ms", str(2**63)),
        ("retention.ms", "9" * 5000),
        ("segment.bytes", "1048575"),
        ("segment.bytes", str(2**31)),
        ("segment.ms", "0"),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete,delete"),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.insync.replicas", "0"),
        ("message.timestamp.type", "createtime"),
        ("preallocate", "maybe"),
        ("headrace.flush", "sometimes"),
        ("headrace.storage", "/etc/passwd"),
        ("retention.bytes", "٣"),
        ("remote.storage.path", "/tmp"),
    ],
)
def test_a_bad_or_unknown_config_is_invalid(name: str, text: str) -> None:
    with pytest.raises(ApiError) as caught:
        TopicConfig.of({name: text}, StorageSettings())
    assert caught.value.code is ErrorCode.invalid_config
    assert name in caught.value.message


def test_the_compaction_lags_must_not_cross() -> None:
    with pytest.raises(ApiError, match=r"min\.compaction\.lag\.ms"):
        TopicConfig.of({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}, StorageSettings())


def test_every_default_reads_back_from_its_own_text() -> None:
    config = TopicConfig()
    texts = {name: config.text(name) for name in TOPIC_CONFIGS}
    assert texts == {name: key.default for name, key in TOPIC_CONFIGS.items()}
    assert TopicConfig.of(texts, StorageSettings()) == config


def test_every_storage_default_agrees_with_the_topic_default() -> None:
    storage = StorageSettings()
    for key in TOPIC_CONFIGS.values():
        if key.setting is not None:
            assert getattr(storage, key.setting) == key.parse(key.default)


@given(st.sampled_from(sorted(TOPIC_CONFIGS)), st.text(max_size=40))
def test_no_text_does_more_than_become_a_value_or_be_refused(name: str, text: str) -> None:
    try:
        config = TopicConfig.of({name: text}, StorageSettings())
    except ApiError as error:
        assert error.code is ErrorCode.invalid_config
    else:
        assert TopicConfig.of({name: config.text(name)}, StorageSettings()) == config


def test_types_are_those_that_kafka_shows() -> None:
    shown = {
        name: TOPIC_CONFIGS[name].type for name in ("cleanup.policy", "retention.ms", "segment.bytes", "preallocate")
    }
    assert list(shown.values()) == [ConfigType.LIST, ConfigType.LONG, ConfigType.INT, ConfigType.BOOLEAN]
