// What Spark 3.5's source and sink ask of kafka-clients 3.4.1, call by call and with their settings.
//   SparkCalls ADDRESS TOPIC       what each step gives, a line each
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class SparkCalls {
    static final long WAIT_MS = 30_000;
    static String address;

    static void say(String step, Object value) {
        System.out.println(step + "=" + value);
    }

    static Properties settings(Object... more) {
        var settings = new Properties();
        settings.put("bootstrap.servers", address);
        for (int i = 0; i < more.length; i += 2) settings.put(more[i], more[i + 1]);
        return settings;
    }

    static Properties ofReader(String reset, String group) {
        var bytes = ByteArrayDeserializer.class.getName();
        return settings("key.deserializer", bytes, "value.deserializer", bytes, "auto.offset.reset", reset,
            "enable.auto.commit", "false", "receive.buffer.bytes", 65536, "group.id", group);
    }

    // The sink: a task sends all its rows with a callback, and flushes.
    static void write(String topic, int from, int until) throws Exception {
        var bytes = ByteArraySerializer.class.getName();
        var failed = new AtomicReference<Exception>();
        try (var producer = new KafkaProducer<byte[], byte[]>(settings("key.serializer", bytes, "value.serializer", bytes))) {
            for (int i = from; i < until; i++) {
                var row = new ProducerRecord<>(topic, (Integer) null, 1000L + i, ("k" + i).getBytes(),
                    ("v" + i).getBytes(), List.of(new RecordHeader("n", new byte[] {(byte) i})));
                producer.send(row, (at, error) -> { if (error != null) failed.compareAndSet(null, error); });
            }
            producer.flush();
        }
        if (failed.get() != null) throw failed.get();
    }

    // The driver: which partitions a pattern means.
    static Set<TopicPartition> partitions(Admin admin, String pattern) throws Exception {
        var topics = admin.listTopics().listings().get().stream().map(one -> one.name())
            .filter(name -> Pattern.compile(pattern).matcher(name).find()).collect(Collectors.toSet());
        return admin.describeTopics(topics).allTopicNames().get().values().stream().filter(one -> !one.isInternal())
            .flatMap(one -> one.partitions().stream().map(part -> new TopicPartition(one.name(), part.partition())))
            .collect(Collectors.toSet());
    }

    // The driver: offsets of partitions, by the time or the end that is asked for.
    static Map<TopicPartition, Long> offsets(Admin admin, Set<TopicPartition> all, OffsetSpec spec) throws Exception {
        var asked = all.stream().collect(Collectors.toMap(Function.identity(), one -> spec));
        var found = new TreeMap<TopicPartition, Long>((a, b) -> a.toString().compareTo(b.toString()));
        admin.listOffsets(asked, new ListOffsetsOptions(IsolationLevel.READ_UNCOMMITTED)).all().get()
            .forEach((part, info) -> found.put(part, info.offset()));
        return found;
    }

    static String range(KafkaConsumer<byte[], byte[]> consumer, TopicPartition part) {
        consumer.seekToBeginning(Set.of(part));
        var earliest = consumer.position(part);
        consumer.seekToEnd(Set.of(part));
        return earliest + "-" + consumer.position(part);
    }

    // An executor: the records of one partition from an offset up to another, and the range that there is.
    static String read(TopicPartition part, long from, long until) {
        var seen = new ArrayList<String>();
        var range = "";
        try (var consumer = new KafkaConsumer<byte[], byte[]>(ofReader("none", "spark-executor-" + part))) {
            consumer.assign(List.of(part));
            long end = System.currentTimeMillis() + WAIT_MS;
            for (long at = from; at < until && System.currentTimeMillis() < end;) {
                consumer.seek(part, at);
                for (var record : consumer.poll(Duration.ofMillis(5000)).records(part))
                    if (record.offset() < until)
                        seen.add(new String(record.value()) + "/" + record.headers().lastHeader("n").value()[0]);
                at = consumer.position(part);
                range = range(consumer, part);
            }
        }
        return String.join(",", seen) + " of " + range;
    }

    static String beyond(TopicPartition part, long offset) {
        try (var consumer = new KafkaConsumer<byte[], byte[]>(ofReader("none", "spark-executor-" + part))) {
            consumer.assign(List.of(part));
            consumer.seek(part, offset);
            return "" + consumer.poll(Duration.ofMillis(WAIT_MS)).count();
        } catch (OffsetOutOfRangeException refused) {
            return "out of range";
        }
    }

    // The driver where spark.sql.streaming.kafka.useDeprecatedOffsetFetching is set: by a group.
    @SuppressWarnings("deprecation")
    static String byGroup(String topic) {
        try (var consumer = new KafkaConsumer<byte[], byte[]>(ofReader("earliest", "spark-driver-" + topic))) {
            consumer.subscribe(List.of(topic));
            long end = System.currentTimeMillis() + WAIT_MS;
            while (consumer.assignment().isEmpty() && System.currentTimeMillis() < end) consumer.poll(0);
            var parts = consumer.assignment();
            consumer.pause(parts);
            consumer.seekToEnd(parts);
            return parts.stream().map(consumer::position).toList() + "";
        }
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        var topic = arguments[1];
        var part = new TopicPartition(topic, 0);
        write(topic, 0, 5);
        try (var admin = Admin.create(ofReader("earliest", "spark-driver"))) {
            var parts = partitions(admin, topic);
            say("partitions", parts);
            say("earliest", offsets(admin, parts, OffsetSpec.earliest()).get(part));
            long known = offsets(admin, parts, OffsetSpec.latest()).get(part);
            say("latest", known);
            say("by time", offsets(admin, parts, OffsetSpec.forTimestamp(1002)).get(part));
            say("by a time to come", offsets(admin, parts, OffsetSpec.forTimestamp(9999)).get(part));
            say("batch", read(part, 1, known));
            write(topic, 5, 8);  // the next micro-batch: from the offsets that a checkpoint has
            long latest = offsets(admin, partitions(admin, topic), OffsetSpec.latest()).get(part);
            say("micro batch", read(part, known, latest));
            say("beyond the end", beyond(part, latest + 7));
            say("by a group", byGroup(topic));
        }
    }
}
