import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Flink copies a queue into another one exactly once, through a failure, by checkpoints. */
public class FlinkCopy {
    public static void main(String[] arguments) throws Exception {
        String address = arguments[0], queue = arguments[1];
        var settings = new Configuration();
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 3);
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, java.time.Duration.ofMillis(200));
        var flink = StreamExecutionEnvironment.createLocalEnvironment(1, settings);
        flink.enableCheckpointing(500);
        var source = KafkaSource.<String>builder().setBootstrapServers(address).setTopics(queue).setGroupId(queue)
            .setStartingOffsets(OffsetsInitializer.earliest()).setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new SimpleStringSchema()).build();
        var sink = KafkaSink.<String>builder().setBootstrapServers(address)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE).setTransactionalIdPrefix(queue)
            .setProperty("transaction.timeout.ms", "60000")
            .setRecordSerializer(KafkaRecordSerializationSchema.builder().setTopic(queue + "-out")
                .setValueSerializationSchema(new SimpleStringSchema()).build()).build();
        flink.fromSource(source, WatermarkStrategy.noWatermarks(), "queue").map(new Once()).sinkTo(sink);
        flink.execute();
        System.out.println("failed=" + Once.failed);
        System.exit(0);
    }

    /** A map that fails once, in the midst. */
    static class Once implements MapFunction<String, String> {
        static volatile boolean failed;

        @Override
        public String map(String value) throws Exception {
            Thread.sleep(10);
            if (value.equals("150") && !failed) {
                failed = true;
                throw new IllegalStateException("once");
            }
            return value;
        }
    }
}
