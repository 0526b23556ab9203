// Transactions of Kafka's Java client.
//   Transactions look ADDRESS PREFIX                       what each step gives, a line each
//   Transactions process ADDRESS PREFIX SLOT QUEUES RECORDS PAUSE_MS HISTORIES
//                     copies PREFIX-in-k to PREFIX-out-k exactly once, until it meets an error,
//                     and records it in a file of HISTORIES (tests/histories/operations.py)
import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    static final Duration SOON = Duration.ofMillis(200);
    static final long WAIT_MS = 30_000;
    static String address;

    static void say(String what, Object value) {
        System.out.println(what + "=" + value);
        System.out.flush();
    }

    static Producer<String, String> producer(String id, String... more) {
        var settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("transactional.id", id);
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("retry.backoff.ms", "20");
        for (int i = 0; i < more.length; i += 2) settings.put(more[i], more[i + 1]);
        var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return producer;
    }

    static Consumer<String, String> consumer(String group, String isolation, String... more) {
        var settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("group.id", group);
        settings.put("isolation.level", isolation);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("reconnect.backoff.max.ms", "200");
        for (int i = 0; i < more.length; i += 2) settings.put(more[i], more[i + 1]);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    static void write(Producer<String, String> producer, String queue, String... values) throws Exception {
        for (var value : values) producer.send(new ProducerRecord<>(queue, value));
        producer.flush();
    }

    static String failure(Step step) {
        try {
            step.run();
            return "none";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            return error.getClass().getSimpleName();
        }
    }

    interface Step { void run() throws Exception; }

    static long end(String queue, String isolation) {
        try (var reader = consumer("ends", isolation)) {
            var part = new TopicPartition(queue, 0);
            return reader.endOffsets(List.of(part)).get(part);
        }
    }

    // Until no transaction is open: a real Kafka writes markers after it has answered.
    static void settle(String queue) throws Exception {
        for (long until = System.currentTimeMillis() + WAIT_MS; end(queue, "read_committed") != end(queue, "read_uncommitted");) {
            if (System.currentTimeMillis() > until) throw new IllegalStateException(queue + " is not settled");
            Thread.sleep(20);
        }
    }

    // What a reader gets until its position is its end, and that position.
    static String read(String queue, String isolation) {
        var part = new TopicPartition(queue, 0);
        var values = new ArrayList<String>();
        try (var reader = consumer("readers", isolation)) {
            reader.assign(List.of(part));
            reader.seekToBeginning(List.of(part));
            long end = reader.endOffsets(List.of(part)).get(part);
            for (long until = System.currentTimeMillis() + WAIT_MS; reader.position(part) < end;) {
                if (System.currentTimeMillis() > until) return "stands at " + reader.position(part) + " before " + end;
                for (var record : reader.poll(SOON)) values.add(record.value());
            }
            return String.join(",", values) + " to " + reader.position(part) + " lag " + reader.currentLag(part).orElse(-1);
        }
    }

    static void look(String prefix) throws Exception {
        String in = prefix + "-in", out = prefix + "-out", id = prefix + "-id", group = prefix + "-group";
        var part = new TopicPartition(in, 0);
        try (var admin = Admin.create(Map.of("bootstrap.servers", address))) {
            admin.createTopics(List.of(new NewTopic(in, 1, (short) 1), new NewTopic(out, 1, (short) 1))).all().get();
            for (long until = System.currentTimeMillis() + WAIT_MS; ; Thread.sleep(50)) {
                try {
                    admin.describeTopics(List.of(in, out)).allTopicNames().get();
                    break;
                } catch (ExecutionException error) {
                    boolean unknown = error.getCause() instanceof UnknownTopicOrPartitionException;
                    if (!unknown || System.currentTimeMillis() > until) throw error;
                }
            }
            var first = producer(id);
            first.beginTransaction();
            write(first, in, "a", "b", "c");
            first.commitTransaction();
            first.beginTransaction();
            write(first, in, "aborted");
            first.abortTransaction();
            settle(in);
            say("committed and aborted", read(in, "read_committed"));
            say("uncommitted", read(in, "read_uncommitted"));

            first.beginTransaction();
            write(first, in, "d");
            say("open", read(in, "read_committed"));
            say("open, uncommitted", read(in, "read_uncommitted"));
            try (var reader = consumer("times", "read_committed")) {
                say("open, by time", reader.offsetsForTimes(Map.of(part, System.currentTimeMillis() - 60_000)).get(part).offset());
                say("open, from its own time", reader.offsetsForTimes(Map.of(part, System.currentTimeMillis() + 60_000)).get(part));
            }
            var known = admin.describeTransactions(List.of(id)).description(id).get();
            say("described", known.state() + " " + known.topicPartitions());
            var active = admin.describeProducers(List.of(part)).partitionResult(part).get().activeProducers();
            say("its start", active.get(0).currentTransactionStartOffset().getAsLong());
            first.commitTransaction();
            settle(in);
            say("committed", read(in, "read_committed"));
            // Transactions of version 2 bump the epoch with each end.
            int before = admin.describeTransactions(List.of(id)).description(id).get().producerEpoch();
            first.beginTransaction();
            first.commitTransaction();
            first.beginTransaction();
            write(first, in, "e");
            first.commitTransaction();
            settle(in);
            int after = admin.describeTransactions(List.of(id)).description(id).get().producerEpoch();
            say("epochs of one transaction", after - before);

            try (var reader = consumer(group, "read_committed")) {
                reader.subscribe(List.of(in));
                var records = new ArrayList<ConsumerRecord<String, String>>();
                for (long until = System.currentTimeMillis() + WAIT_MS; records.size() < 5 && System.currentTimeMillis() < until;)
                    reader.poll(SOON).forEach(records::add);
                for (var round : List.of("abort", "commit")) {
                    first.beginTransaction();
                    for (var record : records) first.send(new ProducerRecord<>(out, record.value() + record.offset()));
                    first.flush();  // an abort drops what was not sent
                    first.sendOffsetsToTransaction(Map.of(part, new OffsetAndMetadata(reader.position(part))), reader.groupMetadata());
                    if (round.equals("abort")) first.abortTransaction(); else first.commitTransaction();
                    settle(out);
                    // A consumer of committed records waits until offsets are stable.
                    var offset = reader.committed(java.util.Set.of(part)).get(part);
                    say(round + " of offsets", offset == null ? "none" : offset.offset() == reader.position(part) ? "its position" : offset.offset());
                }
            }
            say("transformed", read(out, "read_committed"));

            var second = producer(id);
            first.beginTransaction();
            say("fenced", failure(() -> {
                first.send(new ProducerRecord<>(out, "of a zombie")).get();
                first.commitTransaction();
            }));
            say("lets a fenced one begin", failure(first::beginTransaction).equals("none"));
            second.beginTransaction();
            write(second, out, "of the second");
            second.commitTransaction();
            second.beginTransaction();
            write(second, out, "of who was fenced");
            admin.fenceProducers(List.of(id)).all().get();
            say("fenced by an administrator", failure(second::commitTransaction));
            settle(out);
            say("after fencing", read(out, "read_committed"));
            first.close(Duration.ZERO);
            second.close(Duration.ZERO);
        }
    }

    static FileOutputStream history;
    static String process;
    static long events;

    static void event(String type, String f, long id, long time, Collection<String> values, String more) throws Exception {
        var line = String.format("{\"process\": \"%s\", \"type\": \"%s\", \"f\": \"%s\", \"id\": %d, \"time\": %d%s, \"value\": [%s]}\n",
            process, type, f, id, time, more, String.join(", ", values));
        history.write(line.getBytes(StandardCharsets.UTF_8));
    }

    static String sent(String queue, Object offset, String value) {
        return "[\"send\", \"" + queue + "\", 0, " + offset + ", \"" + value + "\"]";
    }

    static ConsumerRebalanceListener listener() {
        return new ConsumerRebalanceListener() {
            public void onPartitionsRevoked(Collection<TopicPartition> parts) {}

            public void onPartitionsAssigned(Collection<TopicPartition> parts) {
                var some = new ArrayList<String>();
                for (var part : parts) some.add("[\"" + part.topic() + "\", " + part.partition() + ", null]");
                try {
                    event("ok", "assign", ++events, System.nanoTime(), some, "");
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }
        };
    }

    static void process(String prefix, String slot, int queues, int count, long pauseMs, String histories) throws Exception {
        process = slot + "." + ProcessHandle.current().pid();
        history = new FileOutputStream(histories + "/" + process + ".jsonl", true);
        var reader = consumer(prefix, "read_committed", "group.instance.id", slot, "session.timeout.ms", "6000",
            "heartbeat.interval.ms", "500", "max.poll.records", "" + count);
        var producer = producer(prefix + "-" + slot, "transaction.timeout.ms", "10000");
        var names = new ArrayList<String>();
        for (int i = 0; i < queues; i++) names.add(prefix + "-in-" + i);
        reader.subscribe(names, listener());
        for (int number = 1; ; Thread.sleep(pauseMs)) {
            long began = System.nanoTime();
            var records = reader.poll(SOON);
            if (records.isEmpty()) continue;
            var polled = new ArrayList<String>();
            for (var one : records) polled.add("[\"" + one.topic() + "\", " + one.partition() + ", " + one.offset() + ", \"" + one.value() + "\"]");
            event("invoke", "poll", ++events, began, List.of(), "");
            event("ok", "poll", events, System.nanoTime(), polled, "");
            for (boolean commit : number++ % 7 == 0 ? new boolean[] {false, true} : new boolean[] {true}) {
                var copies = new ArrayList<ProducerRecord<String, String>>();
                var planned = new ArrayList<String>();
                var positions = new HashMap<TopicPartition, OffsetAndMetadata>();
                for (var record : records) {
                    var value = commit ? record.value() : "aborted " + record.value();
                    copies.add(new ProducerRecord<>(record.topic().replace("-in-", "-out-"), value));
                    planned.add(sent(copies.get(copies.size() - 1).topic(), null, value));
                    positions.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                var commits = new ArrayList<String>();
                positions.forEach((part, at) -> commits.add("[\"commit\", \"" + prefix + "\", \"" + part.topic() + "\", 0, " + at.offset() + "]"));
                planned.addAll(commits);
                event("invoke", "txn", ++events, System.nanoTime(), planned, "");
                producer.beginTransaction();
                var written = new ArrayList<Future<RecordMetadata>>();
                for (var copy : copies) written.add(producer.send(copy));
                producer.sendOffsetsToTransaction(positions, reader.groupMetadata());
                producer.flush();
                var steps = new ArrayList<String>();
                for (int i = 0; i < copies.size(); i++) {
                    var offset = written.get(i).get().offset();
                    steps.add(sent(copies.get(i).topic(), offset < 0 ? null : offset, copies.get(i).value()));
                }
                steps.addAll(commits);
                var asked = ", \"asked\": " + System.nanoTime();
                if (commit) producer.commitTransaction(); else producer.abortTransaction();
                event(commit ? "ok" : "fail", "txn", events, System.nanoTime(), steps, asked);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        address = args[1];
        try {
            if (args[0].equals("look")) look(args[2]);
            else process(args[2], args[3], Integer.parseInt(args[4]), Integer.parseInt(args[5]), Long.parseLong(args[6]), args[7]);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }
}
