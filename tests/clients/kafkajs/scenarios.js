// kafkajs against Headrace. `node scenarios.js NAME BOOTSTRAP PREFIX` runs one scenario and exits 0 if it held;
// without arguments it lists their names. Each scenario uses only topics and groups that start with PREFIX.
"use strict";

const assert = require("node:assert/strict");
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require("kafkajs");
const SnappyCodec = require("kafkajs-snappy");

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec;

const GROUP_TIMES = { sessionTimeout: 30000, heartbeatInterval: 200, rebalanceTimeout: 30000, maxWaitTimeInMs: 50 };

class Scene {
  constructor(bootstrap, prefix) {
    this.prefix = prefix;
    this.kafka = new Kafka({ clientId: "kafkajs", brokers: [bootstrap], logLevel: logLevel.NOTHING, connectionTimeout: 30000, retry: { retries: 8, initialRetryTime: 50 } });
    this.open = [];
  }
  async client(made) {
    await made.connect();
    this.open.push(made);
    return made;
  }
  producer(options) {
    return this.client(this.kafka.producer({ allowAutoTopicCreation: true, ...options }));
  }
  admin() {
    return this.client(this.kafka.admin());
  }
  async topic(numPartitions = 1, configEntries = []) {
    const topic = `${this.prefix}-topic`;
    const admin = await this.admin();
    await admin.createTopics({ timeout: 60000, topics: [{ topic, numPartitions, replicationFactor: 1, configEntries }] });
    return topic;
  }
  // The first `count` messages of a topic, each as { partition, ...message }.
  async read(topic, count) {
    const group = await this.member(`${this.prefix}-reader-${this.open.length}`, topic);
    await until(() => group.seen.length >= count, `${count} messages of ${topic}`);
    await group.consumer.disconnect();
    return group.seen.slice(0, count);
  }
  async member(groupId, topic) {
    const consumer = await this.client(this.kafka.consumer({ groupId, ...GROUP_TIMES }));
    const seen = [];
    await consumer.subscribe({ topics: [topic], fromBeginning: true });
    const ready = new Promise((resolve) => consumer.on(consumer.events.GROUP_JOIN, resolve));
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ topic: from, partition, message }) => {
        seen.push({ partition, ...message });
        await consumer.commitOffsets([{ topic: from, partition, offset: String(Number(message.offset) + 1) }]);
      },
    });
    await ready;
    return { consumer, seen };
  }
  async close() {
    for (const each of this.open) await each.disconnect().catch(() => {});
  }
}

async function until(condition, what, seconds = 60) {
  const deadline = Date.now() + seconds * 1000;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`timed out: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const text = (value) => (value === null || value === undefined ? value : value.toString());
const numbered = (count) => Array.from({ length: count }, (_, n) => ({ key: `k${n}`, value: `v${n}` }));

async function roundTrip(scene, options, sending) {
  const topic = await scene.topic();
  const producer = await scene.producer(options);
  const sent = await producer.send({ topic, messages: numbered(200), ...sending });
  if (sending.acks !== 0) assert.equal(sent[0].baseOffset, "0");
  const found = await scene.read(topic, 200);
  assert.deepEqual(found.map((each) => text(each.value)), numbered(200).map((each) => each.value));
  assert.deepEqual(found.map((each) => Number(each.offset)), Array.from({ length: 200 }, (_, n) => n));
}

const scenarios = {
  acks_0: (scene) => roundTrip(scene, {}, { acks: 0 }),
  acks_1: (scene) => roundTrip(scene, {}, { acks: 1 }),
  acks_all: (scene) => roundTrip(scene, {}, { acks: -1 }),
  idempotent: (scene) => roundTrip(scene, { idempotent: true, maxInFlightRequests: 1 }, { acks: -1 }),
  gzip: (scene) => roundTrip(scene, {}, { compression: CompressionTypes.GZIP }),
  snappy: (scene) => roundTrip(scene, {}, { compression: CompressionTypes.Snappy }),

  async keys_values_and_headers(scene) {
    const topic = await scene.topic();
    const producer = await scene.producer();
    const messages = [
      { key: null, value: "no key" },
      { key: "no value", value: null },
      { key: "", value: "" },
      { key: "k", value: "v", headers: { a: ["1", "2"], b: "3" } },
    ];
    await producer.send({ topic, messages });
    const found = await scene.read(topic, 4);
    assert.deepEqual(found.map((each) => [text(each.key), text(each.value)]), messages.map((each) => [each.key, each.value]));
    assert.deepEqual(found[3].headers.a.map(text), ["1", "2"]);
    assert.equal(text(found[3].headers.b), "3");
  },

  async large_messages(scene) {
    const topic = await scene.topic(1, [{ name: "max.message.bytes", value: "950000" }]);
    const producer = await scene.producer();
    await producer.send({ topic, messages: [{ value: Buffer.alloc(900000, 7) }] });
    assert.equal((await scene.read(topic, 1))[0].value.length, 900000);
    await assert.rejects(producer.send({ topic, messages: [{ value: Buffer.alloc(960000) }] }), (error) => {
      assert.match(`${error.type} ${error.cause && error.cause.type}`, /MESSAGE_TOO_LARGE/);
      return true;
    });
  },

  async times(scene) {
    const topic = await scene.topic();
    const producer = await scene.producer();
    const start = 1700000000000;
    for (let n = 0; n < 5; n++) await producer.send({ topic, messages: [{ value: "v", timestamp: String(start + n * 1000) }] });
    assert.deepEqual((await scene.read(topic, 5)).map((each) => Number(each.timestamp)), [0, 1, 2, 3, 4].map((n) => start + n * 1000));
    const admin = await scene.admin();
    assert.equal((await admin.fetchTopicOffsetsByTimestamp(topic, start + 1500))[0].offset, "2");
    assert.deepEqual(await admin.fetchTopicOffsets(topic), [{ partition: 0, offset: "5", high: "5", low: "0" }]);
  },

  async log_append_time(scene) {
    const topic = await scene.topic(1, [{ name: "message.timestamp.type", value: "LogAppendTime" }]);
    const producer = await scene.producer();
    const before = Date.now();
    await producer.send({ topic, messages: [{ value: "v", timestamp: "1000" }] });
    const [found] = await scene.read(topic, 1);
    assert.ok(Number(found.timestamp) >= before && Number(found.timestamp) <= Date.now(), found.timestamp);
  },

  async auto_created_topics(scene) {
    const topic = `${scene.prefix}-auto`;
    const producer = await scene.producer();
    await producer.send({ topic, messages: [{ value: "first" }] });
    assert.equal(text((await scene.read(topic, 1))[0].value), "first");
  },

  async invalid_names(scene) {
    const admin = await scene.admin();
    await assert.rejects(admin.createTopics({ topics: [{ topic: "a/b" }] }), (error) => /INVALID_TOPIC/.test(JSON.stringify(error) + error.errors?.map((each) => each.type)));
  },

  async rebalance(scene) {
    const topic = await scene.topic(4);
    const groupId = `${scene.prefix}-group`;
    const producer = await scene.producer();
    const messages = Array.from({ length: 400 }, (_, n) => ({ value: `${n}`, partition: n % 4 }));
    await producer.send({ topic, messages: messages.slice(0, 200) });
    const first = await scene.member(groupId, topic);
    await until(() => first.seen.length >= 40, "the first member's start");
    const second = await scene.member(groupId, topic);
    await producer.send({ topic, messages: messages.slice(200) });
    await until(() => second.seen.length >= 20, "the second member's share");
    await first.consumer.disconnect();
    await until(() => new Set([...first.seen, ...second.seen].map((each) => `${each.partition}/${each.offset}`)).size >= 400, "everything");
    const places = [...first.seen, ...second.seen].map((each) => `${each.partition}/${each.offset}`);
    assert.equal(new Set(places).size, 400);
    assert.equal(places.length, 400, `${places.length - 400} messages were seen twice`);
  },

  async seek_and_pause(scene) {
    const topic = await scene.topic();
    const producer = await scene.producer();
    await producer.send({ topic, messages: numbered(50) });
    const { consumer, seen } = await scene.member(`${scene.prefix}-group`, topic);
    await until(() => seen.length >= 50, "all");
    consumer.pause([{ topic }]);
    await producer.send({ topic, messages: [{ value: "while paused" }] });
    await new Promise((resolve) => setTimeout(resolve, 300));
    assert.equal(seen.length, 50);
    consumer.resume([{ topic }]);
    await until(() => seen.length >= 51, "the message after the pause");
    consumer.seek({ topic, partition: 0, offset: "45" });
    await until(() => seen.length >= 57, "the messages after the seek");
    assert.deepEqual(seen.slice(51, 57).map((each) => Number(each.offset)), [45, 46, 47, 48, 49, 50]);
  },

  async admin_topics_and_configs(scene) {
    const topic = await scene.topic(2, [{ name: "retention.ms", value: "1000" }]);
    const admin = await scene.admin();
    assert.ok((await admin.listTopics()).includes(topic));
    await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] });
    const described = await admin.fetchTopicMetadata({ topics: [topic] });
    assert.equal(described.topics[0].partitions.length, 5);
    assert.equal(await admin.createTopics({ topics: [{ topic }] }), false);
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
    await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: "retention.ms", value: "777000" }] }] });
    const configs = await admin.describeConfigs({ resources: [{ ...resource, configNames: ["retention.ms"] }] });
    assert.equal(configs.resources[0].configEntries[0].configValue, "777000");
    const producer = await scene.producer();
    await producer.send({ topic, messages: Array.from({ length: 10 }, () => ({ value: "v", partition: 0 })) });
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "4" }] });
    assert.equal((await admin.fetchTopicOffsets(topic)).find((each) => each.partition === 0).low, "4");
    await admin.deleteTopics({ topics: [topic] });
    assert.ok(!(await admin.listTopics()).includes(topic));
    assert.equal((await admin.describeCluster()).brokers.length, 1);
  },

  async admin_groups(scene) {
    const topic = await scene.topic();
    const groupId = `${scene.prefix}-group`;
    const producer = await scene.producer();
    await producer.send({ topic, messages: numbered(10) });
    const { consumer, seen } = await scene.member(groupId, topic);
    const admin = await scene.admin();
    await until(() => seen.length >= 10, "all");
    assert.equal((await admin.describeGroups([groupId])).groups[0].state, "Stable");
    await consumer.disconnect();
    assert.equal((await admin.describeGroups([groupId])).groups[0].state, "Empty");
    assert.ok((await admin.listGroups()).groups.some((each) => each.groupId === groupId));
    const committed = async () => (await admin.fetchOffsets({ groupId, topics: [topic] }))[0].partitions[0].offset;
    assert.equal(await committed(), "10");
    await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: "3" }] });
    assert.equal(await committed(), "3");
    await admin.deleteGroups([groupId]);
    assert.ok(!(await admin.listGroups()).groups.some((each) => each.groupId === groupId));
    assert.equal(await committed(), "-1");
  },
};

async function main([name, bootstrap, prefix]) {
  if (name === undefined) {
    console.log(Object.keys(scenarios).join("\n"));
    return;
  }
  const scene = new Scene(bootstrap, prefix);
  try {
    await scenarios[name](scene);
  } finally {
    await scene.close();
  }
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
