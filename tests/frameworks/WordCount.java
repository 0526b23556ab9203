// Counts words with Kafka Streams: a repartition topic, a state store, and its changelog.
//   java -cp 'libs/*' WordCount.java ADDRESS APPLICATION IN OUT STATE_DIRECTORY
// Says what happens, a line of JSON each, and takes lines from standard input: a word to look up in
// the state store (an interactive query), or nothing more to stop.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

public class WordCount {
    static synchronized void say(String format, Object... values) {
        System.out.printf(format + "%n", values);
        System.out.flush();
    }

    public static void main(String[] args) throws Exception {
        var settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("application.id", args[1]);
        settings.put("state.dir", args[4]);
        settings.put("commit.interval.ms", "200");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        settings.put("auto.offset.reset", "earliest");
        settings.put("session.timeout.ms", "6000");
        for (int i = 5; i < args.length; i++) {
            settings.put(args[i].split("=")[0], args[i].split("=")[1]);
        }
        var builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(args[2]);
        lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
            .selectKey((key, word) -> word)
            .groupByKey()
            .count(Materialized.as("counts"))
            .toStream()
            .to(args[3], Produced.with(Serdes.String(), Serdes.Long()));
        var streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            say("{\"error\": \"%s\"}", String.valueOf(error).replace('"', '\'').replace('\n', ' '));
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler
                .StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> say("{\"state\": \"%s\"}", now));
        streams.setGlobalStateRestoreListener(new StateRestoreListener() {
            public void onRestoreStart(TopicPartition part, String store, long from, long to) {}
            public void onBatchRestored(TopicPartition part, String store, long to, long count) {}
            public void onRestoreEnd(TopicPartition part, String store, long count) {
                say("{\"restored\": %d}", count);
            }
        });
        streams.start();
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String word = input.readLine(); word != null; word = input.readLine()) {
            try {
                ReadOnlyKeyValueStore<String, Long> counts = streams.store(
                    StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.keyValueStore()));
                var count = counts.get(word);
                say("{\"word\": \"%s\", \"count\": %d}", word, count == null ? 0 : count);
            } catch (Exception error) {
                say("{\"word\": \"%s\", \"count\": -1}", word);
            }
        }
        streams.close();
        say("{\"state\": \"closed\"}");
    }
}
