import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ConcurrentMessageListenerContainer;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.kafka.listener.KafkaMessageListenerContainer;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.util.backoff.FixedBackOff;

/** A listener with transactions copies a queue; one record fails until it goes to the dead letters. */
public class SpringKafka {
    public static void main(String[] arguments) throws Exception {
        String address = arguments[0], queue = arguments[1];
        Map<String, Object> writes = Map.of("bootstrap.servers", address,
            "key.serializer", StringSerializer.class, "value.serializer", StringSerializer.class);
        Map<String, Object> reads = Map.of("bootstrap.servers", address, "auto.offset.reset", "earliest",
            "isolation.level", "read_committed", "key.deserializer", StringDeserializer.class,
            "value.deserializer", StringDeserializer.class);
        var plain = new KafkaTemplate<String, String>(new DefaultKafkaProducerFactory<>(writes));
        for (int number = 0; number < 100; number++)
            plain.send(queue, "k" + number % 3, "" + number).get(30, TimeUnit.SECONDS);
        var factory = new DefaultKafkaProducerFactory<String, String>(writes);
        factory.setTransactionIdPrefix(queue + "-");
        var template = new KafkaTemplate<String, String>(factory);
        var consumers = new DefaultKafkaConsumerFactory<String, String>(reads);
        var failures = new AtomicInteger();
        var properties = new ContainerProperties(queue);
        properties.setGroupId(queue);
        properties.setKafkaAwareTransactionManager(new KafkaTransactionManager<>(factory));
        properties.setMessageListener((MessageListener<String, String>) record -> {
            if (record.value().equals("7")) {
                failures.incrementAndGet();
                throw new IllegalStateException("seven");
            }
            template.send(queue + "-out", record.key(), record.value());
        });
        var copying = new ConcurrentMessageListenerContainer<>(consumers, properties);
        var recoverer = new DeadLetterPublishingRecoverer(template, (record, error) ->
            new org.apache.kafka.common.TopicPartition(record.topic() + "-dlt", -1));
        copying.setAfterRollbackProcessor(new org.springframework.kafka.listener.DefaultAfterRollbackProcessor<>(
            recoverer, new FixedBackOff(50, 2), template, true));
        copying.start();
        Set<String> copied = read(consumers, queue + "-out", 99), dead = read(consumers, queue + "-dlt", 1);
        copying.stop();
        System.out.println("copied=" + copied.size());
        System.out.println("dead=" + dead);
        System.out.println("failures=" + failures);
        System.exit(0);
    }

    private static Set<String> read(DefaultKafkaConsumerFactory<String, String> consumers, String queue, int count)
            throws Exception {
        var found = new ConcurrentSkipListSet<String>();
        var latch = new CountDownLatch(count);
        var properties = new ContainerProperties(queue);
        properties.setGroupId(queue);
        properties.setMessageListener((MessageListener<String, String>) record -> {
            if (found.add(record.value())) latch.countDown();
        });
        var container = new KafkaMessageListenerContainer<>(consumers, properties);
        container.start();
        latch.await(90, TimeUnit.SECONDS);
        container.stop();
        return new TreeSet<>(found);
    }
}
