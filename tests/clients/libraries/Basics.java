// The ordinary life of a topic, by what every Java client since 2.8 has.
//   Basics ADDRESS TOPIC       what each step gives, a line each
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Basics {
    static final long WAIT_MS = 30_000;
    static String address;

    static Properties settings(String... more) {
        var settings = new Properties();
        settings.put("bootstrap.servers", address);
        for (int i = 0; i < more.length; i += 2) settings.put(more[i], more[i + 1]);
        return settings;
    }

    static void say(String step, Object value) {
        System.out.println(step + "=" + value);
    }

    static void produce(String topic, String... more) throws Exception {
        var settings = settings(more);
        var transactional = settings.containsKey("transactional.id");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            if (transactional) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "k", "aborted")).get();
                producer.abortTransaction();
                producer.beginTransaction();
            }
            for (int i = 0; i < 3; i++) producer.send(new ProducerRecord<>(topic, "k", "v" + i)).get();
            if (transactional) producer.commitTransaction();
        }
    }

    static List<String> consume(String topic, String group, int count) {
        var settings = settings("group.id", group, "auto.offset.reset", "earliest",
            "isolation.level", "read_committed", "enable.auto.commit", "false");
        var seen = new ArrayList<String>();
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long end = System.currentTimeMillis() + WAIT_MS;
            while (seen.size() < count && System.currentTimeMillis() < end)
                for (var record : consumer.poll(Duration.ofMillis(200))) seen.add(record.value());
            consumer.commitSync();
        }
        return seen;
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        var topic = arguments[1];
        var partition = new TopicPartition(topic, 0);
        try (var admin = Admin.create(settings())) {
            admin.createTopics(List.of(new NewTopic(topic, Optional.of(1), Optional.empty()))).all().get();
            say("listed", admin.listTopics().names().get().contains(topic));
            produce(topic, "enable.idempotence", "true", "compression.type", "gzip");
            produce(topic, "transactional.id", topic);
            say("consumed", String.join(",", consume(topic, topic, 6)));
            say("end", admin.listOffsets(Map.of(partition, OffsetSpec.latest())).all().get().get(partition).offset());
            say("committed", admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().get(partition).offset());
            say("features", admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("kproxy.level"));
            admin.deleteConsumerGroups(List.of(topic)).all().get();
            admin.deleteTopics(List.of(topic)).all().get();
            say("still listed", admin.listTopics().names().get().contains(topic));
        }
    }
}
