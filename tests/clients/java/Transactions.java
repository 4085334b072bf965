// Transactions of the Java client, which is the one that uses version 2 of the protocol (KIP-890).
//
//   java Transactions BOOTSTRAP PREFIX              every scenario, as `java Scenarios` does it
//   java Transactions BOOTSTRAP write A B COUNT     COUNT transactions into the topics A and B, whatever the network does

import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApplicationRecoverableException;
import org.apache.kafka.common.errors.ClusterAuthorizationException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;

public class Transactions extends Scenarios {
    static final Map<String, Scenario> TRANSACTIONS = new LinkedHashMap<>();

    static {
        TRANSACTIONS.put("version_2_is_finalized", Transactions::versionTwo);
        TRANSACTIONS.put("commits_and_aborts", Transactions::commitsAndAborts);
        TRANSACTIONS.put("every_end_bumps_the_epoch", Transactions::everyEndBumps);
        TRANSACTIONS.put("many_batches_in_flight", Transactions::manyBatches);
        TRANSACTIONS.put("consume_transform_produce", Transactions::transform);
        TRANSACTIONS.put("offsets_only", Transactions::offsetsOnly);
        TRANSACTIONS.put("empty_transactions", Transactions::emptyTransactions);
        TRANSACTIONS.put("fenced_by_a_second_instance", Transactions::fenced);
        TRANSACTIONS.put("fenced_by_the_admin", Transactions::fencedByAdmin);
        TRANSACTIONS.put("timeout", Transactions::timeout);
        TRANSACTIONS.put("timeout_too_long", Transactions::timeoutTooLong);
        TRANSACTIONS.put("describe_and_list", Transactions::describeAndList);
        TRANSACTIONS.put("markers_are_not_for_clients", Transactions::markers);
    }

    // -- what scenarios are made of

    static KafkaProducer<byte[], byte[]> transactional(String name, String... pairs) {
        String[] all = new String[pairs.length + 2];
        System.arraycopy(pairs, 0, all, 2, pairs.length);
        all[0] = "transactional.id";
        all[1] = name;
        KafkaProducer<byte[], byte[]> producer = producer(all);
        producer.initTransactions();
        return producer;
    }

    static String name() {
        return prefix + "-id-" + ++numbers;
    }

    static long end(String topic, String isolation) {
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("isolation.level", isolation)) {
            return consumer.endOffsets(List.of(place)).get(place);
        }
    }

    // A commit is answered before its markers are written.
    static void settle(String topic) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE * 1000L;
        while (end(topic, "read_committed") < end(topic, "read_uncommitted")) {
            if (System.currentTimeMillis() > deadline) throw new AssertionError(topic + " is not stable");
            Thread.sleep(20);
        }
    }

    static List<String> committed(String topic) throws Exception {
        settle(topic);
        long end = end(topic, "read_committed");
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("isolation.level", "read_committed")) {
            TopicPartition place = new TopicPartition(topic, 0);
            consumer.assign(List.of(place));
            consumer.seek(place, 0);
            long deadline = System.currentTimeMillis() + PATIENCE * 1000L;
            while (consumer.position(place) < end) {
                if (System.currentTimeMillis() > deadline) throw new AssertionError("stuck at " + consumer.position(place) + " of " + end);
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) found.add(text(record.value()));
            }
        }
        return found;
    }

    // As soon as it is `wanted`, for a while: the marker of the group's offsets may be the last one that is written.
    static OffsetAndMetadata committedOffset(String group, TopicPartition place, long wanted) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE * 1000L;
        OffsetAndMetadata found = null;
        while (System.currentTimeMillis() < deadline && (found == null || found.offset() != wanted))
            found = get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(place);
        return found;
    }

    static TransactionDescription describe(String name) throws Exception {
        return get(admin.describeTransactions(List.of(name)).all()).get(name);
    }

    // -- scenarios

    static void versionTwo() throws Exception {
        same((short) 2, get(admin.describeFeatures().featureMetadata()).finalizedFeatures().get("transaction.version").maxVersionLevel(), "level");
    }

    static void commitsAndAborts() throws Exception {
        String a = topic(1), b = topic(1);
        List<String> expected = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = transactional(name())) {
            for (int n = 0; n < 20; n++) {
                producer.beginTransaction();
                for (String topic : List.of(a, b)) producer.send(new ProducerRecord<>(topic, bytes("" + n)));
                if (n % 3 == 2) producer.flush();
                if (n % 3 != 0) producer.abortTransaction();
                else {
                    producer.commitTransaction();
                    expected.add("" + n);
                }
            }
        }
        same(expected, committed(a), "first topic");
        same(expected, committed(b), "second topic");
    }

    static void everyEndBumps() throws Exception {
        String topic = topic(1), name = name();
        try (KafkaProducer<byte[], byte[]> producer = transactional(name)) {
            int before = describe(name).producerEpoch();
            for (int n = 1; n <= 5; n++) {
                producer.beginTransaction();
                get(producer.send(new ProducerRecord<>(topic, bytes("" + n))));
                if (n % 2 == 0) producer.abortTransaction();
                else producer.commitTransaction();
                same(before + n, describe(name).producerEpoch(), "epoch");
            }
        }
        same(List.of("1", "3", "5"), committed(topic), "values");
    }

    static void manyBatches() throws Exception {
        String topic = topic(4);
        try (KafkaProducer<byte[], byte[]> producer = transactional(name(), "batch.size", "500", "linger.ms", "0")) {
            for (int round = 0; round < 6; round++) {
                producer.beginTransaction();
                for (int n = 0; n < 1000; n++) producer.send(new ProducerRecord<>(topic, n % 4, null, bytes(round + " " + n)));
                if (round % 2 == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
        List<String> expected = new ArrayList<>();
        for (int round = 0; round < 6; round += 2) for (int n = 0; n < 1000; n += 4) expected.add(round + " " + n);
        same(expected, committed(topic), "values of a partition");
    }

    static void transform() throws Exception {
        String source = topic(1), target = topic(1), group = source + "-group";
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            send(producer, source, 50);
        }
        List<String> expected = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = transactional(name());
                KafkaConsumer<byte[], byte[]> consumer = consumer("group.id", group, "isolation.level", "read_committed", "max.poll.records", "7")) {
            consumer.subscribe(List.of(source));
            long deadline = System.currentTimeMillis() + PATIENCE * 1000L;
            while (expected.size() < 50 && System.currentTimeMillis() < deadline) {
                List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
                consumer.poll(Duration.ofMillis(100)).forEach(records::add);
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> record : records) producer.send(new ProducerRecord<>(target, record.value()));
                long next = records.get(records.size() - 1).offset() + 1;
                producer.sendOffsetsToTransaction(Map.of(new TopicPartition(source, 0), new OffsetAndMetadata(next)), consumer.groupMetadata());
                producer.commitTransaction();
                for (ConsumerRecord<byte[], byte[]> record : records) expected.add(text(record.value()));
            }
        }
        same(50, expected.size(), "taken");
        same(expected, committed(target), "values");
        same(50L, committedOffset(group, new TopicPartition(source, 0), 50).offset(), "offset");
    }

    static void offsetsOnly() throws Exception {
        String source = topic(1), group = source + "-group";
        TopicPartition place = new TopicPartition(source, 0);
        try (KafkaProducer<byte[], byte[]> producer = transactional(name())) {
            for (long offset = 1; offset <= 4; offset++) {
                producer.beginTransaction();
                producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(offset, "n" + offset)), new org.apache.kafka.clients.consumer.ConsumerGroupMetadata(group));
                if (offset % 2 == 0) producer.abortTransaction();
                else producer.commitTransaction();
            }
        }
        OffsetAndMetadata found = committedOffset(group, place, 3);
        same("3 n3", found.offset() + " " + found.metadata(), "committed");
    }

    static void emptyTransactions() throws Exception {
        String topic = topic(1);
        try (KafkaProducer<byte[], byte[]> producer = transactional(name())) {
            for (int n = 0; n < 4; n++) {
                producer.beginTransaction();
                if (n % 2 == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, bytes("v")));
            producer.commitTransaction();
        }
        same(List.of("v"), committed(topic), "values");
    }

    static void isFenced(Scenario work) throws Exception {
        try {
            work.run();
        } catch (ProducerFencedException | InvalidProducerEpochException error) {
            return;
        } catch (KafkaException error) {
            if (error.getCause() instanceof ProducerFencedException || error.getCause() instanceof InvalidProducerEpochException) return;
            throw error;
        }
        throw new AssertionError("not fenced");
    }

    static void fenced() throws Exception {
        String topic = topic(1), name = name();
        KafkaProducer<byte[], byte[]> first = transactional(name);
        first.beginTransaction();
        get(first.send(new ProducerRecord<>(topic, bytes("first"))));
        try (KafkaProducer<byte[], byte[]> second = transactional(name)) {
            isFenced(first::commitTransaction);
            first.close(Duration.ZERO);
            second.beginTransaction();
            second.send(new ProducerRecord<>(topic, bytes("second")));
            second.commitTransaction();
        }
        same(List.of("second"), committed(topic), "values");
    }

    static void fencedByAdmin() throws Exception {
        String topic = topic(1), name = name();
        KafkaProducer<byte[], byte[]> producer = transactional(name);
        producer.beginTransaction();
        get(producer.send(new ProducerRecord<>(topic, bytes("v"))));
        get(admin.fenceProducers(List.of(name)).all());
        isFenced(producer::commitTransaction);
        producer.close(Duration.ZERO);
        same(List.of(), committed(topic), "values");
    }

    // What is looked at before the time is up shows that it was not aborted sooner; a slow machine needs more time.
    static void timeout() throws Exception {
        for (int timeoutMs = 1000; ; timeoutMs *= 2) {
            if (timesOut(timeoutMs)) return;
        }
    }

    static boolean timesOut(int timeoutMs) throws Exception {
        String topic = topic(1);
        KafkaProducer<byte[], byte[]> producer = transactional(name(), "transaction.timeout.ms", "" + timeoutMs);
        long begun = System.nanoTime();
        try {
            producer.beginTransaction();
            get(producer.send(new ProducerRecord<>(topic, bytes("slow"))));
            long stable = end(topic, "read_committed");
            if (System.nanoTime() - begun >= timeoutMs * 1_000_000L) return false;
            same(0L, stable, "stable offset");
            same(List.of(), committed(topic), "values");
            same(2L, end(topic, "read_committed"), "stable offset");
            try {
                producer.commitTransaction();
                throw new AssertionError("a transaction that was aborted is committed");
            } catch (KafkaException error) {
                // which one depends on the version: fenced, or an epoch that is not valid any more
            }
        } catch (ExecutionException | KafkaException error) {
            if (System.nanoTime() - begun >= timeoutMs * 1_000_000L && timeoutMs < 30_000) return false;
            throw error;
        } finally {
            producer.close(Duration.ZERO);
        }
        same(List.of(), committed(topic), "values");
        return true;
    }

    static void timeoutTooLong() throws Exception {
        try {
            transactional(name(), "transaction.timeout.ms", "960000").close();
        } catch (KafkaException error) {
            if (error.getMessage().contains("transaction.max.timeout.ms")) return;
            throw error;
        }
        throw new AssertionError("a timeout of 16 minutes was accepted");
    }

    static void describeAndList() throws Exception {
        String topic = topic(2), name = name();
        fails(TransactionalIdNotFoundException.class, () -> describe(name));
        try (KafkaProducer<byte[], byte[]> producer = transactional(name, "transaction.timeout.ms", "30000")) {
            same(TransactionState.EMPTY, describe(name).state(), "state");
            producer.beginTransaction();
            get(producer.send(new ProducerRecord<>(topic, 1, null, bytes("v"))));
            TransactionDescription found = describe(name);
            same(TransactionState.ONGOING, found.state(), "state");
            same(30_000L, found.transactionTimeoutMs(), "timeout");
            same(Set.of(new TopicPartition(topic, 1)), found.topicPartitions(), "partitions");
            same(true, get(admin.listTransactions(new ListTransactionsOptions().filterStates(List.of(TransactionState.ONGOING))).all()).stream().anyMatch(each -> each.transactionalId().equals(name)), "listed");
            TopicPartition place = new TopicPartition(topic, 1);
            ProducerState state = get(admin.describeProducers(List.of(place)).all()).get(place).activeProducers().get(0);
            same(found.producerId(), state.producerId(), "producer");
            same(0L, state.currentTransactionStartOffset().getAsLong(), "start");
            producer.commitTransaction();
            settle(topic);
            long deadline = System.currentTimeMillis() + PATIENCE * 1000L;
            while (describe(name).state() != TransactionState.COMPLETE_COMMIT && System.currentTimeMillis() < deadline) Thread.sleep(10);
            same(TransactionState.COMPLETE_COMMIT, describe(name).state(), "state");
        }
    }

    static void markers() throws Exception {
        String topic = topic(1);
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaProducer<byte[], byte[]> producer = transactional(name())) {
            producer.beginTransaction();
            get(producer.send(new ProducerRecord<>(topic, bytes("whole"))));
            ProducerState state = get(admin.describeProducers(List.of(place)).all()).get(place).activeProducers().get(0);
            fails(ClusterAuthorizationException.class, () -> get(admin.abortTransaction(new AbortTransactionSpec(place, state.producerId(), (short) state.producerEpoch(), 0)).all()));
            producer.commitTransaction();
        }
        same(List.of("whole"), committed(topic), "values");
    }

    // -- through a bad network

    static void write(String a, String b, int count) {
        KafkaProducer<byte[], byte[]> producer = transactional(a, "retry.backoff.ms", "20", "reconnect.backoff.ms", "20", "reconnect.backoff.max.ms", "100", "linger.ms", "0", "batch.size", "100");
        for (int n = 0; n < count; n++) {
            boolean doomed = n % 5 == 4;
            int attempt = 0;
            while (true) {
                String label = n + " " + attempt++ + (doomed ? " doomed" : "");
                try {
                    producer.beginTransaction();
                    for (int index = 0; index < 6; index++)
                        producer.send(new ProducerRecord<>(index % 2 == 0 ? a : b, index % 2, null, bytes(label + " " + index)));
                    if (doomed) producer.flush();
                    else {
                        insist(producer::commitTransaction);
                        System.out.println("committed " + label);
                        break;
                    }
                } catch (KafkaException error) {
                    System.out.println("failed " + label + ": " + error);
                    if (error instanceof ApplicationRecoverableException || error.getCause() instanceof ApplicationRecoverableException) {
                        producer.close(Duration.ZERO);
                        producer = transactional(a);
                        continue;
                    }
                }
                insist(producer::abortTransaction);
                System.out.println("aborted " + label);
                if (doomed) break;
            }
        }
        producer.close();
    }

    static void insist(Runnable step) {
        while (true) {
            try {
                step.run();
                return;
            } catch (TimeoutException error) {
                System.out.println("again: " + error);
            }
        }
    }

    public static void main(String[] args) {
        bootstrap = args[0];
        if (args[1].equals("write")) {
            write(args[2], args[3], Integer.parseInt(args[4]));
            System.exit(0);
        }
        prefix = args[1];
        admin = Admin.create(settings());
        run(TRANSACTIONS);
    }
}
