// An entrance and a filter with Kafka's Java client:  Routes ADDRESS PREFIX
// The entrance is PREFIX, its queues PREFIX-KEY; a line for what each step finds.
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Routes {
    static final long WAIT_MS = 30_000;
    static final int RECORDS = 1000, QUEUES = 100;
    static String address, in;

    static void say(String what, Object value) {
        System.out.println(what + "=" + value);
        System.out.flush();
    }

    static Properties settings(String group) {
        var settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("metadata.max.age.ms", "500");
        if (group != null) {
            settings.put("group.id", group);
            settings.put("key.deserializer", StringDeserializer.class.getName());
            settings.put("value.deserializer", StringDeserializer.class.getName());
        } else {
            settings.put("key.serializer", StringSerializer.class.getName());
            settings.put("value.serializer", StringSerializer.class.getName());
        }
        return settings;
    }

    static ProducerRecord<String, String> record(String key, String value, String colour) {
        var headers = new RecordHeaders();
        if (colour != null) headers.add("colour", colour.getBytes(StandardCharsets.UTF_8));
        return new ProducerRecord<>(in, null, null, key, value, headers);
    }

    static List<ConsumerRecord<String, String>> read(String group, String pattern, int count) {
        var settings = settings(group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        var found = new ArrayList<ConsumerRecord<String, String>>();
        try (var consumer = new KafkaConsumer<String, String>(settings)) {
            consumer.subscribe(Pattern.compile(pattern));
            long until = System.currentTimeMillis() + WAIT_MS;
            while (found.size() < count && System.currentTimeMillis() < until) {
                consumer.poll(Duration.ofMillis(200)).forEach(found::add);
            }
        }
        return found;
    }

    static void configure(Admin admin, ConfigResource.Type type, String name, String setting, String value)
            throws Exception {
        var op = new AlterConfigOp(new ConfigEntry(setting, value), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(type, name), List.of(op))).all().get();
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        in = arguments[1];
        String quoted = Pattern.quote(in);
        try (var admin = Admin.create(settings(null))) {
            var entrance = new NewTopic(in, Optional.of(1), Optional.empty()).configs(
                Map.of("kproxy.route.to", in + "-{key}", "kproxy.route.unroutable", in + ".lost"));
            admin.createTopics(List.of(entrance)).all().get();
            var red = new NewTopic(in + ".red", Optional.of(1), Optional.empty()).configs(
                Map.of("kproxy.route.from", in, "kproxy.route.filter", "header:colour:red"));
            admin.createTopics(List.of(red)).all().get();
            configure(admin, ConfigResource.Type.GROUP, in + "-share", "share.auto.offset.reset", "earliest");

            try (var producer = new KafkaProducer<String, String>(settings(null))) {
                for (int n = 0; n < RECORDS; n++) {
                    producer.send(record("" + n % QUEUES, "" + n, n % 100 == 7 ? "red" : "blue"));
                }
                producer.flush();
                say("produced", RECORDS);
            }
            var out = read(in + "-out", quoted + "-\\d+", RECORDS);
            var next = new HashMap<String, Integer>();
            boolean ordered = out.size() == RECORDS;
            for (var one : out) {
                int number = Integer.parseInt(one.value());
                ordered &= one.topic().equals(in + "-" + number % QUEUES)
                    && one.offset() == number / QUEUES
                    && next.merge(one.topic(), 1, Integer::sum) == number / QUEUES + 1;
            }
            say("queues", next.size());
            say("in order", ordered);
            say("entrance", read(in + "-in", quoted, RECORDS).size());
            say("red", read(in + "-red", quoted + "\\.red", RECORDS / 100).size());

            var transactional = settings(null);
            transactional.put("transactional.id", in);
            try (var producer = new KafkaProducer<String, String>(transactional)) {
                producer.initTransactions();
                producer.beginTransaction();
                for (int n = 0; n < 5; n++) producer.send(record("aborted", "" + n, "green"));
                producer.flush();
                producer.abortTransaction();
                producer.beginTransaction();
                for (int n = 0; n < 3; n++) producer.send(record("committed", "" + n, "green"));
                producer.send(record(null, "keyless", "green"));
                producer.commitTransaction();
            }
            var committed = read(in + "-committed", quoted + "-committed", 3);
            var lost = read(in + "-lost", quoted + "\\.lost", 1);
            var names = new HashSet<>(admin.listTopics().names().get());
            say("aborted", names.contains(in + "-aborted") ? 1 : 0);
            say("committed", committed.size());
            var why = lost.get(0).headers().lastHeader("kproxy.route.error").value();
            say("unroutable", lost.size() + " " + new String(why, StandardCharsets.UTF_8));

            var shared = new HashSet<Long>();
            try (var consumer = new KafkaShareConsumer<String, String>(settings(in + "-share"))) {
                consumer.subscribe(List.of(in + ".red"));
                long until = System.currentTimeMillis() + WAIT_MS;
                while (shared.size() < RECORDS / 100 && System.currentTimeMillis() < until) {
                    for (var one : consumer.poll(Duration.ofMillis(200))) shared.add(one.offset());
                }
            }
            say("shared", shared.size());

            var resource = new ConfigResource(ConfigResource.Type.TOPIC, in);
            var described = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            var to = described.get("kproxy.route.to");
            say(to.name(), to.value() + " " + to.source());
            try {
                configure(admin, ConfigResource.Type.TOPIC, in, "kproxy.route.to", "{key}");
                say("refused", "nothing");
            } catch (ExecutionException error) {
                say("refused", error.getCause().getClass().getSimpleName());
            }
        }
    }
}
