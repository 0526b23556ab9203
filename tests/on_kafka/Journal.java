// One writer of a queue with Kafka's Java client, which is idempotent.
//   Journal ADDRESS QUEUE EXPECTED...    a record for each end that is expected; what is said of each, a line
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Journal {
    public static void main(String[] args) throws Exception {
        var settings = Map.<String, Object>of("bootstrap.servers", args[0], "enable.idempotence", "true");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int i = 2; i < args.length; i++) {
                var record = new ProducerRecord<>(args[1], 0, "key", "after " + args[i]);
                record.headers().add("kproxy.if-end-offset", args[i].getBytes());
                try {
                    System.out.println("at " + producer.send(record).get().offset());
                } catch (ExecutionException error) {
                    System.out.println(error.getCause().getClass().getSimpleName() + ": " + error.getCause().getMessage());
                }
            }
        }
    }
}
