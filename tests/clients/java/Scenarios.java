// The Java client against Headrace. `java Scenarios BOOTSTRAP PREFIX` runs every scenario and prints `PASS name` or
// `FAIL name: why` for each; `java Scenarios` lists their names. Topics and groups start with PREFIX.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidRegularExpression;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Scenarios {
    interface Scenario {
        void run() throws Exception;
    }

    static final int PATIENCE = 60;
    static final Map<String, Scenario> ALL = new LinkedHashMap<>();
    static String bootstrap;
    static String prefix;
    static Admin admin;
    static int numbers = 0;

    // -- what scenarios are made of

    static String topic(int partitions, String... configs) throws Exception {
        String name = prefix + "-" + ++numbers;
        Map<String, String> entries = new HashMap<>();
        for (int at = 0; at < configs.length; at += 2) entries.put(configs[at], configs[at + 1]);
        get(admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(entries))).all());
        return name;
    }

    static <T> T get(Future<T> future) throws Exception {
        return future.get(PATIENCE, TimeUnit.SECONDS);
    }

    static Properties settings(String... pairs) {
        Properties found = new Properties();
        found.put("bootstrap.servers", bootstrap);
        for (int at = 0; at < pairs.length; at += 2) found.put(pairs[at], pairs[at + 1]);
        return found;
    }

    static KafkaProducer<byte[], byte[]> producer(String... pairs) {
        return new KafkaProducer<>(settings(pairs), new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String... pairs) {
        Properties found = settings("auto.offset.reset", "earliest", "enable.auto.commit", "false", "fetch.max.wait.ms", "50", "heartbeat.interval.ms", "200");
        found.putAll(settings(pairs));
        if ("consumer".equals(found.get("group.protocol"))) found.remove("heartbeat.interval.ms"); // the broker says it
        return new KafkaConsumer<>(found, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static List<RecordMetadata> send(KafkaProducer<byte[], byte[]> producer, String topic, int count) throws Exception {
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        for (int n = 0; n < count; n++) futures.add(producer.send(new ProducerRecord<>(topic, bytes("k" + n), bytes("v" + n))));
        producer.flush();
        List<RecordMetadata> found = new ArrayList<>();
        for (Future<RecordMetadata> future : futures) found.add(get(future));
        return found;
    }

    static List<ConsumerRecord<byte[], byte[]>> take(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long deadline = System.currentTimeMillis() + PATIENCE * 1000L;
        while (found.size() < count && System.currentTimeMillis() < deadline)
            consumer.poll(Duration.ofMillis(100)).forEach(found::add);
        same(count, found.size(), "records");
        return found;
    }

    static List<ConsumerRecord<byte[], byte[]>> read(String topic, int count, long offset) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            TopicPartition place = new TopicPartition(topic, 0);
            consumer.assign(List.of(place));
            consumer.seek(place, offset);
            return take(consumer, count);
        }
    }

    static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] value) {
        return value == null ? null : new String(value, StandardCharsets.UTF_8);
    }

    static void same(Object expected, Object found, String what) {
        if (!Objects.equals(expected, found)) throw new AssertionError(what + ": expected " + expected + ", found " + found);
    }

    static void fails(Class<? extends Throwable> kind, Scenario scenario) throws Exception {
        try {
            scenario.run();
        } catch (ExecutionException error) {
            if (kind.isInstance(error.getCause())) return;
            throw error;
        } catch (RuntimeException error) {
            if (kind.isInstance(error)) return;
            throw error;
        }
        throw new AssertionError("no " + kind.getSimpleName());
    }

    static void roundTrip(String... pairs) throws Exception {
        String topic = topic(1);
        try (KafkaProducer<byte[], byte[]> producer = producer(pairs)) {
            send(producer, topic, 300);
        }
        List<ConsumerRecord<byte[], byte[]>> found = read(topic, 300, 0);
        for (int n = 0; n < 300; n++) {
            same("v" + n, text(found.get(n).value()), "value");
            same((long) n, found.get(n).offset(), "offset");
        }
        same(137L, read(topic, 163, 137).get(0).offset(), "an offset inside a batch");
    }

    // -- scenarios

    static {
        ALL.put("acks_0", () -> roundTrip("acks", "0", "enable.idempotence", "false"));
        ALL.put("acks_1", () -> roundTrip("acks", "1", "enable.idempotence", "false"));
        ALL.put("idempotent", () -> roundTrip("acks", "all", "enable.idempotence", "true"));
        for (String codec : List.of("gzip", "snappy", "lz4", "zstd"))
            ALL.put(codec, () -> roundTrip("compression.type", codec, "linger.ms", "50"));
        ALL.put("keys_values_and_headers", Scenarios::keysValuesAndHeaders);
        ALL.put("large_messages", Scenarios::largeMessages);
        ALL.put("times", Scenarios::times);
        ALL.put("log_append_time", Scenarios::logAppendTime);
        ALL.put("auto_created_and_invalid_topics", Scenarios::autoCreatedAndInvalidTopics);
        ALL.put("pipelined_fetches_and_metadata", Scenarios::pipelined);
        String strategy = "partition.assignment.strategy";
        ALL.put("rebalance", () -> rebalance(strategy, "org.apache.kafka.clients.consumer.RangeAssignor"));
        ALL.put("cooperative_rebalance", () -> rebalance(strategy, "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"));
        ALL.put("sticky_rebalance", () -> rebalance(strategy, "org.apache.kafka.clients.consumer.StickyAssignor"));
        ALL.put("round_robin_rebalance", () -> rebalance(strategy, "org.apache.kafka.clients.consumer.RoundRobinAssignor"));
        ALL.put("new_protocol_rebalance", () -> rebalance("group.protocol", "consumer"));
        ALL.put("new_protocol_range_rebalance", () -> rebalance("group.protocol", "consumer", "group.remote.assignor", "range"));
        ALL.put("new_protocol_patterns_and_admin", Scenarios::newProtocolPatternsAndAdmin);
        ALL.put("admin_topics_and_configs", Scenarios::adminTopicsAndConfigs);
        ALL.put("admin_offsets_and_records", Scenarios::adminOffsetsAndRecords);
        ALL.put("admin_groups", Scenarios::adminGroups);
    }

    static void keysValuesAndHeaders() throws Exception {
        String topic = topic(1);
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            get(producer.send(new ProducerRecord<>(topic, null, bytes("no key"))));
            get(producer.send(new ProducerRecord<>(topic, bytes("no value"), null)));
            get(producer.send(new ProducerRecord<>(topic, bytes(""), bytes(""))));
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, bytes("k"), bytes("v"));
            record.headers().add("a", bytes("1")).add("a", bytes("2")).add("null", null);
            get(producer.send(record));
        }
        List<ConsumerRecord<byte[], byte[]>> found = read(topic, 4, 0);
        same(Arrays.asList(null, "no value", "", "k"), Arrays.asList(text(found.get(0).key()), text(found.get(1).key()), text(found.get(2).key()), text(found.get(3).key())), "keys");
        same(Arrays.asList("no key", null, "", "v"), Arrays.asList(text(found.get(0).value()), text(found.get(1).value()), text(found.get(2).value()), text(found.get(3).value())), "values");
        List<String> headers = new ArrayList<>();
        found.get(3).headers().forEach(header -> headers.add(header.key() + "=" + text(header.value())));
        same(List.of("a=1", "a=2", "null=null"), headers, "headers");
    }

    static void largeMessages() throws Exception {
        String topic = topic(1, "max.message.bytes", "950000");
        try (KafkaProducer<byte[], byte[]> producer = producer("max.request.size", "3000000")) {
            get(producer.send(new ProducerRecord<>(topic, new byte[900_000])));
            fails(RecordTooLargeException.class, () -> get(producer.send(new ProducerRecord<>(topic, new byte[960_000]))));
            get(producer.send(new ProducerRecord<>(topic, new byte[10])));
        }
        same(900_000, read(topic, 2, 0).get(0).value().length, "size");
    }

    static void times() throws Exception {
        String topic = topic(1);
        long start = 1_700_000_000_000L;
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            for (int n = 0; n < 10; n++) producer.send(new ProducerRecord<>(topic, 0, start + n * 1000, null, bytes("v")));
        }
        same(start + 9000, read(topic, 10, 0).get(9).timestamp(), "timestamp");
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            same(7L, consumer.offsetsForTimes(Map.of(place, start + 6500)).get(place).offset(), "offset by time");
            same(Map.of(place, 10L), consumer.endOffsets(List.of(place)), "end");
        }
        same(9L, get(admin.listOffsets(Map.of(place, OffsetSpec.maxTimestamp())).all()).get(place).offset(), "offset of the newest");
    }

    static void logAppendTime() throws Exception {
        String topic = topic(1, "message.timestamp.type", "LogAppendTime");
        long before = System.currentTimeMillis();
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            get(producer.send(new ProducerRecord<>(topic, 0, 1000L, null, bytes("v"))));
        }
        ConsumerRecord<byte[], byte[]> found = read(topic, 1, 0).get(0);
        same(TimestampType.LOG_APPEND_TIME, found.timestampType(), "type");
        same(true, found.timestamp() >= before && found.timestamp() <= System.currentTimeMillis(), "time");
    }

    static void autoCreatedAndInvalidTopics() throws Exception {
        String topic = prefix + "-auto";
        try (KafkaProducer<byte[], byte[]> producer = producer("max.block.ms", "60000")) {
            get(producer.send(new ProducerRecord<>(topic, bytes("first"))));
            fails(InvalidTopicException.class, () -> get(producer.send(new ProducerRecord<>("not a name", bytes("v")))));
        }
        same("first", text(read(topic, 1, 0).get(0).value()), "value");
    }

    // The Java client dies if another answer overtakes a long-polled fetch.
    static void pipelined() throws Exception {
        String topic = topic(1);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("fetch.max.wait.ms", "2000", "metadata.max.age.ms", "50")) {
            TopicPartition place = new TopicPartition(topic, 0);
            consumer.assign(List.of(place));
            consumer.seek(place, 0);
            long deadline = System.currentTimeMillis() + 600;
            while (System.currentTimeMillis() < deadline) consumer.poll(Duration.ofMillis(20));
            try (KafkaProducer<byte[], byte[]> producer = producer()) {
                send(producer, topic, 5);
            }
            take(consumer, 5);
        }
    }

    static void newProtocolPatternsAndAdmin() throws Exception {
        String topic = topic(3);
        String group = topic + "-group";
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("group.id", group, "group.protocol", "consumer", "group.instance.id", "one")) {
            consumer.subscribe(new SubscriptionPattern(topic + ".*"));
            long deadline = System.currentTimeMillis() + PATIENCE * 1000L;
            while (consumer.assignment().size() < 3 && System.currentTimeMillis() < deadline) consumer.poll(Duration.ofMillis(50));
            same(3, consumer.assignment().size(), "partitions");
            ConsumerGroupDescription found = get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
            same(GroupState.STABLE, found.groupState(), "state");
            same(GroupType.CONSUMER, found.type(), "type");
            same("uniform", found.partitionAssignor(), "assignor");
            MemberDescription member = found.members().iterator().next();
            same(found.groupEpoch(), member.memberEpoch(), "epochs");
            same(Optional.of("one"), member.groupInstanceId(), "instance");
            same(3, member.assignment().topicPartitions().size(), "assigned");
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("group.id", group, "group.protocol", "consumer")) {
            consumer.subscribe(new SubscriptionPattern("(a)\\1"));
            fails(InvalidRegularExpression.class, () -> {
                for (int n = 0; n < PATIENCE * 20; n++) consumer.poll(Duration.ofMillis(50));
            });
        }
    }

    static void rebalance(String... more) throws Exception {
        String topic = topic(4);
        String group = topic + "-group";
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            for (int n = 0; n < 400; n++) producer.send(new ProducerRecord<>(topic, n % 4, null, bytes("" + n)));
        }
        List<String> seen = new ArrayList<>();
        List<String> all = new ArrayList<>(List.of("group.id", group, "max.poll.records", "5"));
        all.addAll(List.of(more));
        String[] pairs = all.toArray(new String[0]);
        KafkaConsumer<byte[], byte[]> first = consumer(pairs);
        join(first, topic);
        while (seen.size() < 40) step(first, seen);
        try (KafkaConsumer<byte[], byte[]> second = consumer(pairs)) {
            join(second, topic);
            long deadline = System.currentTimeMillis() + PATIENCE * 1000L;
            List<String> others = new ArrayList<>();
            while (others.size() < 20 && System.currentTimeMillis() < deadline) {
                step(first, seen);
                step(second, others);
            }
            first.close();
            while (seen.size() + others.size() < 400 && System.currentTimeMillis() < deadline) step(second, others);
            seen.addAll(others);
        }
        same(400, new HashSet<>(seen).size(), "different records");
        same(400, seen.size(), "records");
    }

    static void step(KafkaConsumer<byte[], byte[]> consumer, List<String> seen) {
        consumer.poll(Duration.ofMillis(20)).forEach(record -> seen.add(record.partition() + "/" + record.offset()));
        try {
            consumer.commitSync();
        } catch (RebalanceInProgressException error) {
            // A cooperative member goes on during a rebalance; what it keeps is committed at the next step.
        }
    }

    static void join(KafkaConsumer<byte[], byte[]> consumer, String topic) {
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            public void onPartitionsAssigned(Collection<TopicPartition> places) {}

            public void onPartitionsRevoked(Collection<TopicPartition> places) {
                if (!places.isEmpty()) consumer.commitSync();
            }
        });
    }

    static void adminTopicsAndConfigs() throws Exception {
        String topic = topic(2, "retention.ms", "1000");
        fails(TopicExistsException.class, () -> get(admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all()));
        fails(InvalidConfigurationException.class, () -> topic(1, "retention.ms", "soon"));
        get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all());
        same(5, get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size(), "partitions");
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Collection<AlterConfigOp> change = List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "777000"), AlterConfigOp.OpType.SET));
        get(admin.incrementalAlterConfigs(Map.of(resource, change)).all());
        ConfigEntry entry = get(admin.describeConfigs(List.of(resource)).all()).get(resource).get("retention.ms");
        same("777000", entry.value(), "retention.ms");
        same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, entry.source(), "source");
        same(1, get(admin.describeCluster().nodes()).size(), "nodes");
        same(1, get(admin.describeLogDirs(List.of(get(admin.describeCluster().controller()).id())).allDescriptions()).size(), "log dirs");
        get(admin.deleteTopics(List.of(topic)).all());
        same(false, get(admin.listTopics().names()).contains(topic), "listed");
    }

    static void adminOffsetsAndRecords() throws Exception {
        String topic = topic(1);
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            send(producer, topic, 10);
        }
        same(4L, get(admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(place)).lowWatermark(), "low watermark");
        same(4L, get(admin.listOffsets(Map.of(place, OffsetSpec.earliest())).all()).get(place).offset(), "earliest");
        same(10L, get(admin.listOffsets(Map.of(place, OffsetSpec.latest())).all()).get(place).offset(), "latest");
    }

    static void adminGroups() throws Exception {
        String topic = topic(1);
        String group = topic + "-group";
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            send(producer, topic, 10);
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("group.id", group, "group.instance.id", "one")) {
            consumer.subscribe(List.of(topic));
            take(consumer, 10);
            consumer.commitSync(Map.of(place, new OffsetAndMetadata(10, Optional.empty(), "ten")));
            same(GroupState.STABLE, get(admin.describeConsumerGroups(List.of(group)).all()).get(group).groupState(), "state");
        }
        get(admin.removeMembersFromConsumerGroup(group, new org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions()).all());
        same(GroupState.EMPTY, get(admin.describeConsumerGroups(List.of(group)).all()).get(group).groupState(), "state");
        same(true, get(admin.listGroups().all()).stream().anyMatch(each -> each.groupId().equals(group)), "listed");
        OffsetAndMetadata committed = get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(place);
        same("10 ten", committed.offset() + " " + committed.metadata(), "committed");
        get(admin.alterConsumerGroupOffsets(group, Map.of(place, new OffsetAndMetadata(3))).all());
        same(3L, get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(place).offset(), "reset");
        get(admin.deleteConsumerGroupOffsets(group, Set.of(place)).all());
        get(admin.deleteConsumerGroups(List.of(group)).all());
        fails(GroupIdNotFoundException.class, () -> get(admin.deleteConsumerGroups(List.of(group)).all()));
    }

    public static void main(String[] args) {
        if (args.length == 0) {
            ALL.keySet().forEach(System.out::println);
            return;
        }
        bootstrap = args[0];
        prefix = args[1];
        admin = Admin.create(settings());
        run(ALL);
    }

    static void run(Map<String, Scenario> scenarios) {
        scenarios.forEach((name, scenario) -> {
            long begun = System.currentTimeMillis();
            try {
                scenario.run();
                System.out.println("PASS " + name + " " + (System.currentTimeMillis() - begun) + " ms");
            } catch (Throwable error) {
                StringBuilder trace = new StringBuilder(error.toString());
                for (StackTraceElement at : error.getStackTrace())
                    if (at.getClassName().startsWith("Scenarios")) trace.append(" at line ").append(at.getLineNumber());
                System.out.println("FAIL " + name + ": " + trace.toString().replace('\n', ' '));
            }
        });
        admin.close();
        System.exit(0);
    }
}
