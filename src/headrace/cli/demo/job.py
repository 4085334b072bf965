"""What runs on Spark in the demo: the pipeline of a folder until it is told to stop, then a question and a replay.

It is what `headrace pipeline run`, `headrace sql` and `headrace pipeline replay` do, in one session of Spark, for a
second one would only take its time to start. The answers go to a JSON file in the folder.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from headrace.cli import output
from headrace.cli.demo.day import ORDERS, PAYMENTS, SCHEMA
from headrace.cli.demo.setting import AGAIN, ANSWERS, ARCHIVE

QUESTION: Final = f"""\
select product, sum(count) as sold, sum(cents) as cents
from {ORDERS}
where cents > 0 and at is not null
group by product
order by cents desc"""
CASH: Final = f"topic = '{PAYMENTS}' and get_json_object(cast(value as string), '$.method') = 'cash'"


def main(folder: Path) -> None:
    from headrace.spark.pipeline.config import load
    from headrace.spark.pipeline.runner import Runner
    from headrace.spark.pipeline.state import State
    from headrace.spark.session import spark_session

    pipeline = load(folder)
    conf = {name: str(value) for name, value in pipeline.spark.conf.items()}
    spark = spark_session(
        f"headrace {pipeline.name}", pipeline.spark.master, conf, say=output.note, log_file=State(folder).log_file
    )
    runner = Runner(pipeline, folder, spark, say=output.note)

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    runner.run()
    fresh = spark.newSession()  # the pipeline's views are none of its business: "orders" is the topic
    answers = {**_ask(fresh, pipeline.broker, folder), **_replay(fresh, pipeline.broker, folder)}
    half = folder / f"{ANSWERS}.half"
    half.write_text(json.dumps(answers), encoding="utf-8")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whoever has the answers may end this at any moment
    half.replace(folder / ANSWERS)


def _ask(spark: Any, broker: str, folder: Path) -> dict[str, Any]:
    """The question in SQL, over archived and live records together."""
    from headrace.spark.query import Topics

    began = time.monotonic()
    topics = Topics(spark, broker, archives={ORDERS: str(folder / ARCHIVE)}, schemas={ORDERS: SCHEMA})
    rows = [list(row) for row in topics.sql(QUESTION).collect()]
    return {"products": rows, "sql_seconds": time.monotonic() - began}


def _replay(spark: Any, broker: str, folder: Path) -> dict[str, Any]:
    """Payments in cash, from the archive into a topic."""
    from headrace.spark.pipeline.replay import Replay

    began = time.monotonic()
    Replay(broker, AGAIN, folder / "replay", table=str(folder / ARCHIVE), where=CASH).run(spark)
    return {"replay_seconds": time.monotonic() - began}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
