"""SQL over topics: archived and live records are one table, without overlap and without gap."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")

from headrace.cli.sql import Format, Shell, _print
from headrace.spark.cluster import Cluster
from headrace.spark.lake import Archive
from headrace.spark.options import LATEST
from headrace.spark.query import QueryError, Topics, relations


@pytest.fixture
def topics(spark: Any, kafka: Any, tmp_path: Path) -> Topics:
    return Topics(spark, kafka.bootstrap, lake=str(tmp_path / "lake"))


def archive(spark: Any, kafka: Any, topic: str, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}
    path = str(tmp_path / "lake" / topic)
    query = Archive(options, path, str(tmp_path / "checkpoint"), name=topic).start(spark, once=True)
    assert query.awaitTermination(500)


def test_names_in_a_statement_are_found(spark: Any) -> None:
    text = "with c as (select * from a) select * from c join `b-c` on true where x in (select y from d.e)"
    assert sorted(relations(spark, text)) == ["a", "b-c", "d, e"]
    with pytest.raises(QueryError, match="(?i)syntax error"):
        relations(spark, "selekt 1")


def test_archived_and_live_records_are_one_table(
    spark: Any, kafka: Any, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, [b'{"id": %d, "who": "ann"}' % i for i in range(10)])
    archive(spark, kafka, topic, tmp_path)
    kafka.produce(topic, [b'{"id": %d, "who": "bob", "offset": 1.5}' % i for i in range(10, 15)])
    kafka.produce(topic, [b'{"id": 15}'], partition=1)
    kafka.trim(topic, 0, 5)  # the broker forgets what is archived
    rows = topics.sql(f"select id, who, data.offset as inner, `offset`, value from {topic} order by id").collect()
    assert [row.id for row in rows] == list(range(16))
    assert (rows[12].who, rows[12].inner, rows[12].offset, rows[3].offset) == ("bob", 1.5, 12, 3)
    found = topics.sql(f"select who, count(*) as n from {topic} group by who order by n desc")
    assert [tuple(row) for row in found.collect()] == [("ann", 10), ("bob", 5), (None, 1)]
    _print(found, Format.csv, 2)
    assert capsys.readouterr().out.splitlines() == ["who,n", "ann,10", "bob,5"]
    _print(found, Format.json, 10)
    assert capsys.readouterr().out.splitlines()[-1] == '{"who":null,"n":1}'


def test_a_gap_between_archive_and_broker_is_said_and_not_hidden(
    spark: Any, kafka: Any, topics: Topics, tmp_path: Path
) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"a"] * 5)
    archive(spark, kafka, topic, tmp_path)
    kafka.produce(topic, [b"b"] * 5)
    kafka.trim(topic, 0, 8)
    with pytest.raises(QueryError, match="archived up to 5, but the broker has records from 8 on"):
        topics.sql(f"select * from {topic}")


def test_an_archive_answers_for_a_topic_of_which_nothing_else_is_left(
    spark: Any, kafka: Any, topics: Topics, tmp_path: Path
) -> None:
    topic = kafka.topic()
    assert topics.sql(f"select * from {topic}").columns[0] == "key", "nothing to guess from yet"
    kafka.produce(topic, [b'{"id": %d}' % i for i in range(5)])
    archive(spark, kafka, topic, tmp_path)
    kafka.trim(topic, 0, 5)
    assert sorted(row.id for row in topics.sql(f"select id from {topic}").collect()) == list(range(5))
    kafka.delete(topic)
    again = Topics(spark, kafka.bootstrap, lake=topics.lake)
    assert again.sql(f"select id from {topic}").count() == 5


def test_a_statement_is_followed_from_where_its_first_answer_ended(spark: Any, kafka: Any, topics: Topics) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"one", b"two"])
    statement = f"select value, `offset` from {topic} where value <> 'no'"
    assert topics.sql(statement).count() == 2
    kafka.produce(topic, [b"three", b"no", b"four"])
    stream = topics.follow(statement)
    assert stream is not None
    seen: list[str] = []

    def keep(frame: Any, batch_id: int) -> None:
        seen.extend(row.value for row in frame.collect())

    query = stream.writeStream.foreachBatch(keep).trigger(availableNow=True).start()
    assert query.awaitTermination(500)
    assert seen == ["three", "four"]
    topics.sql(f"select count(*) from {topic}")
    assert topics.follow(f"select count(*) from {topic}") is None  # to be asked again instead


def test_one_record_with_text_in_a_field_of_numbers_does_not_spoil_a_sum(kafka: Any, topics: Topics) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b'{"amount": 3, "id": 1}', b'{"amount": "n/a", "id": 2}', b'{"amount": 4.5, "id": 3}'])
    assert topics.sql(f"select sum(amount), sum(id) from `{topic}`").collect() == [(7.5, 6)]


def test_what_spark_finds_only_when_rows_are_computed_is_one_sentence(kafka: Any, topics: Topics) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b'{"id": 1}'])
    with pytest.raises(QueryError, match="(?i)division by zero") as told:
        _print(topics.sql(f"select 1 / (id - 1) from `{topic}`"), Format.json, 10)
    assert "\n" not in str(told.value)


def test_what_is_not_there_is_one_sentence(kafka: Any, topics: Topics) -> None:
    number = kafka.topic()
    topic = kafka.topic(name=f"shipments-of-{number}-today")
    with pytest.raises(QueryError, match=f"no topic 'shipments-of-{number}-todya'; did you mean '{topic}'"):
        topics.sql(f"select * from `shipments-of-{number}-todya`")
    kafka.topic(name=f"with.{number}")
    with pytest.raises(QueryError, match=f"backticks: `with.{number}`"):
        topics.sql(f"select * from with.{number}")
    assert topics.sql(f"select * from `with.{number}`").columns[0] == "key"


def test_records_that_go_while_a_sample_is_read_are_not_missed(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"%d" % i for i in range(5)])
    real = Cluster.offsets

    def slow(*given: Any) -> Any:
        found = real(*given)
        if LATEST in given[2].values():
            kafka.trim(topic, 0, 3)
        return found

    monkeypatch.setattr(Cluster, "offsets", slow)
    nothing: Any = None
    assert list(Topics(nothing, kafka.bootstrap)._sample(topic)) == [b"3", b"4"]


def test_the_shell_goes_on_after_a_mistake(
    kafka: Any, topics: Topics, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x"])
    script = f"selekt;\n\\f csv\nselect value,\n  partition\nfrom {topic};\n\\d {topic}\n\\q\nselect 2;\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(script))
    Shell(topics, Format.table, 10).run()
    out, err = capsys.readouterr()
    assert "error: syntax error" in err.lower()
    assert out.splitlines()[:2] == ["value,partition", "x,0"]
    assert "timestamp" in out and "2" not in out.splitlines()[-1]
