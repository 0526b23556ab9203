// What users' Java clients do, where Kafka's own tools cannot: many queues, and microseconds.
//
//   java -cp 'kafka-libs/*' Load.java wide    SERVER PREFIX QUEUES ROUNDS QUEUES_PER_PRODUCER MORE
//   java -cp 'kafka-libs/*' Load.java back    SERVER PREFIX QUEUES RECORDS
//   java -cp 'kafka-libs/*' Load.java follow  SERVER PREFIX QUEUES SECONDS RATE
//   java -cp 'kafka-libs/*' Load.java keyed   SERVER QUEUE KEYS
//   java -cp 'kafka-libs/*' Load.java latency SERVER QUEUE RECORDS RATE WARM_UP
//
// Each prints one line of JSON for each thing that it measured, and ends with 1 at the first error.

import java.lang.management.ManagementFactory;
import java.lang.management.OperatingSystemMXBean;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class Load {
    static final byte[] VALUE = new byte[100];
    static final int PRODUCERS = 4;
    static final int ASKING = 128; // threads of a producer that wait for new queues

    static final AtomicReference<Exception> failed = new AtomicReference<>();

    public static void main(String[] args) throws Exception {
        Arrays.fill(VALUE, (byte) 'x');
        String server = args[1];
        switch (args[0]) {
            case "wide" -> wide(server, args[2], number(args[3]), number(args[4]), number(args[5]), number(args[6]));
            case "back" -> back(server, args[2], number(args[3]), number(args[4]));
            case "follow" -> follow(server, args[2], number(args[3]), number(args[4]), number(args[5]));
            case "keyed" -> keyed(server, args[2], number(args[3]));
            case "latency" -> latency(server, args[2], number(args[3]), number(args[4]), number(args[5]));
            default -> throw new IllegalArgumentException(args[0]);
        }
        if (failed.get() != null) throw failed.get();
        System.exit(0);
    }

    static int number(String text) {
        return Integer.parseInt(text);
    }

    // Of this process, so far.
    static double cpu() {
        OperatingSystemMXBean system = ManagementFactory.getOperatingSystemMXBean();
        return ((com.sun.management.OperatingSystemMXBean) system).getProcessCpuTime() / 1e9;
    }

    static double seconds(long since) {
        return (System.nanoTime() - since) / 1e9;
    }

    static KafkaProducer<byte[], byte[]> producer(String server, String... more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", server);
        for (int i = 0; i < more.length; i += 2) settings.put(more[i], more[i + 1]);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String server) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", server);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        // The classic consumer goes through all that is assigned at each piece that a socket brings:
        // of 100,000 queues it read 1,400 records/s, with the server idle.
        settings.put("group.protocol", "consumer");
        settings.put("group.id", "load"); // it asks for one, although it only assigns
        settings.put("max.poll.records", "500000");
        settings.put("metric.reporters", ""); // no beans for each queue
        settings.put("enable.metrics.push", "false");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void send(KafkaProducer<byte[], byte[]> producer, String queue) {
        producer.send(new ProducerRecord<>(queue, 0, null, VALUE), (metadata, error) -> {
            if (error != null) failed.compareAndSet(null, error);
        });
    }

    // One record of each key to one queue.
    static void keyed(String server, String queue, int keys) throws Exception {
        long began = System.nanoTime();
        double before = cpu();
        try (KafkaProducer<byte[], byte[]> producer = producer(server, "linger.ms", "5",
                "enable.metrics.push", "false", "delivery.timeout.ms", "600000")) {
            for (int key = 0; key < keys; key++) {
                byte[] name = Integer.toString(key).getBytes();
                producer.send(new ProducerRecord<>(queue, name, VALUE), (metadata, error) -> {
                    if (error != null) failed.compareAndSet(null, error);
                });
            }
        }
        System.out.printf("{\"seconds\": %f, \"cpu\": %f}%n", seconds(began), cpu() - before);
    }

    // One record to each queue, ROUNDS times; then, in one more round, MORE to each.
    // The first round makes the queues: a producer waits for each topic that is new to it, so ASKING
    // threads ask for all of a producer's before it sends to them (while it has records to send, its
    // thread goes through all of its topics each time that it wakes up). Producers are many when
    // QUEUES_PER_PRODUCER is small, four of them at a time: what a client keeps of each topic makes
    // each new one dearer.
    static void wide(String server, String prefix, int queues, int rounds, int each, int more)
            throws Exception {
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (int i = 0; i < (queues + each - 1) / each; i++) {
            // A buffer is taken for each queue with records to send: small ones, for many queues.
            producers.add(producer(server, "batch.size", "2048", "linger.ms", "5",
                "buffer.memory", "67108864", "max.block.ms", "120000",
                "retry.backoff.ms", "1", "enable.metrics.push", "false", "metric.reporters", ""));
        }
        int last = more > 0 ? rounds : rounds - 1;
        for (int round = 0; round <= last; round++) {
            boolean isFirst = round == 0;
            boolean isLast = round == last;
            int count = round < rounds ? 1 : more;
            long began = System.nanoTime();
            double before = cpu();
            ExecutorService turns = Executors.newFixedThreadPool(PRODUCERS);
            List<Future<?>> done = new ArrayList<>();
            for (int i = 0; i < producers.size(); i++) {
                int from = i * each;
                int to = Math.min(queues, from + each);
                KafkaProducer<byte[], byte[]> producer = producers.get(i);
                done.add(turns.submit(() -> {
                    if (isFirst) ask(producer, prefix, from, to);
                    for (int q = from; q < to; q++) {
                        for (int k = 0; k < count; k++) send(producer, prefix + q);
                    }
                    producer.flush();
                    if (isLast) producer.close(); // and free its buffers
                    return null;
                }));
            }
            for (Future<?> one : done) one.get();
            turns.shutdown();
            System.out.printf("{\"seconds\": %.4f, \"cpu\": %.4f}%n", seconds(began), cpu() - before);
        }
    }

    static void ask(KafkaProducer<byte[], byte[]> producer, String prefix, int from, int to)
            throws Exception {
        ExecutorService asking = Executors.newFixedThreadPool(ASKING);
        AtomicLong next = new AtomicLong(from);
        List<Future<?>> done = new ArrayList<>();
        for (int i = 0; i < ASKING; i++) {
            done.add(asking.submit(() -> {
                for (long q = next.getAndIncrement(); q < to; q = next.getAndIncrement()) {
                    producer.partitionsFor(prefix + q);
                }
            }));
        }
        for (Future<?> one : done) one.get();
        asking.shutdown();
    }

    static List<TopicPartition> assigned(String prefix, int queues) {
        List<TopicPartition> found = new ArrayList<>(queues);
        for (int q = 0; q < queues; q++) found.add(new TopicPartition(prefix + q, 0));
        return found;
    }

    // All records of all queues with one consumer, from the call that assigns them on.
    static void back(String server, String prefix, int queues, int records) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(server)) {
            List<TopicPartition> partitions = assigned(prefix, queues);
            long began = System.nanoTime();
            double before = cpu();
            consumer.assign(partitions);
            double first = 0;
            int read = 0;
            while (read < records && seconds(began) < 600) {
                int count = consumer.poll(Duration.ofSeconds(1)).count();
                if (read == 0 && count > 0) first = seconds(began);
                read += count;
            }
            System.out.printf("{\"records\": %d, \"seconds\": %.4f, \"first\": %.4f, \"cpu\": %.4f}%n",
                read, seconds(began), first, cpu() - before);
        }
    }

    // A consumer of many queues of which few have news; says "ready" when it has looked at all.
    static void follow(String server, String prefix, int queues, int lasts, int rate) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(server);
                KafkaProducer<byte[], byte[]> producer = producer(server, "linger.ms", "0")) {
            consumer.assign(assigned(prefix, queues));
            for (int i = 0; i < rate; i++) send(producer, prefix + i);
            producer.flush();
            long began = System.nanoTime();
            while (seconds(began) < 10) consumer.poll(Duration.ofSeconds(1)); // the backlog
            System.out.println("{\"ready\": true}");
            began = System.nanoTime();
            int sent = 0;
            int read = 0;
            while (seconds(began) < lasts) {
                while (sent < seconds(began) * rate) {
                    send(producer, prefix + (int) ((sent * 7919L) % queues));
                    sent++;
                }
                read += consumer.poll(Duration.ofMillis(20)).count();
            }
            long end = System.nanoTime();
            while (read < sent && seconds(end) < 5) read += consumer.poll(Duration.ofMillis(20)).count();
            System.out.printf("{\"sent\": %d, \"read\": %d}%n", sent, read);
        }
    }

    // From send() to its callback, at a steady rate.
    static void latency(String server, String queue, int records, int rate, int warmUp) {
        long[] nanos = new long[records];
        AtomicLong count = new AtomicLong();
        try (KafkaProducer<byte[], byte[]> producer = producer(server, "linger.ms", "0", "acks", "all")) {
            producer.partitionsFor(queue);
            long began = System.nanoTime();
            for (int i = 0; i < warmUp + records; i++) {
                long due = began + i * 1_000_000_000L / rate;
                for (long left; (left = due - System.nanoTime()) > 0; ) LockSupport.parkNanos(left);
                int at = i - warmUp;
                long sent = System.nanoTime();
                producer.send(new ProducerRecord<>(queue, 0, null, VALUE), (metadata, error) -> {
                    if (error != null) failed.compareAndSet(null, error);
                    else if (at >= 0) {
                        nanos[at] = System.nanoTime() - sent;
                        count.incrementAndGet();
                    }
                });
            }
        }
        Arrays.sort(nanos);
        System.out.printf("{\"records\": %d, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"p999_ms\": %.3f}%n",
            count.get(), nanos[records / 2] / 1e6, nanos[records * 99 / 100] / 1e6,
            nanos[records * 999 / 1000] / 1e6);
    }
}
