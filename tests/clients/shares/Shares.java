// Share groups with Kafka's Java client.
//   Shares look ADDRESS PREFIX                       what each step gives, a line each
//   Shares work ADDRESS GROUP HISTORY PROCESS SEED QUEUE...    a member as in work.py, until it fails
import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Shares {
    static final Duration SOON = Duration.ofMillis(200);
    static final long WAIT_MS = 30_000;
    static String address;

    static void say(String what, Object value) {
        System.out.println(what + "=" + value);
        System.out.flush();
    }

    static KafkaShareConsumer<String, String> member(String group, Collection<String> queues, String... more) {
        var settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("metadata.max.age.ms", "1000");
        for (int i = 0; i < more.length; i += 2) settings.put(more[i], more[i + 1]);
        var member = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        member.subscribe(queues);
        return member;
    }

    static List<ConsumerRecord<String, String>> take(KafkaShareConsumer<String, String> member) {
        var found = new ArrayList<ConsumerRecord<String, String>>();
        for (long until = System.currentTimeMillis() + WAIT_MS; found.isEmpty() && System.currentTimeMillis() < until;)
            member.poll(SOON).forEach(found::add);
        return found;
    }

    static String shown(Collection<ConsumerRecord<String, String>> records) {
        var parts = new ArrayList<String>();
        for (var record : records) parts.add(record.value() + "x" + record.deliveryCount().orElse((short) -1));
        return String.join(" ", parts);
    }

    static String acknowledge(KafkaShareConsumer<String, String> member, List<ConsumerRecord<String, String>> records, AcknowledgeType type) {
        for (var record : records) member.acknowledge(record, type);
        var said = new TreeSet<String>();
        member.commitSync().values().forEach(error -> said.add(error.map(one -> one.getClass().getSimpleName()).orElse("done")));
        return String.join(",", said);
    }

    interface Step { void run() throws Exception; }

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

    static void set(Admin admin, String group, String... settings) throws Exception {
        var entries = new ArrayList<AlterConfigOp>();
        for (int i = 0; i < settings.length; i += 2)
            entries.add(new AlterConfigOp(new ConfigEntry(settings[i], settings[i + 1]), AlterConfigOp.OpType.SET));
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), entries)).all().get();
    }

    static void write(KafkaProducer<String, String> producer, String queue, String... values) throws Exception {
        for (var value : values) producer.send(new ProducerRecord<>(queue, 0, null, value)).get();
    }

    static void look(String prefix) throws Exception {
        var settings = Map.<String, Object>of("bootstrap.servers", address);
        String queue = prefix + "-queue", group = prefix + "-group";
        var part = new TopicPartition(queue, 0);
        try (var admin = Admin.create(settings);
             var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            admin.createTopics(List.of(new NewTopic(queue, 1, (short) 1))).all().get();
            set(admin, group, "share.auto.offset.reset", "earliest");
            write(producer, queue, "a", "b", "c", "d");

            var told = new TreeMap<String, String>();
            try (var one = member(group, List.of(queue))) {
                one.setAcknowledgementCommitCallback((offsets, error) -> offsets.forEach((id, some) -> some.forEach(
                    offset -> told.put("" + offset, error == null ? "done" : error.getClass().getSimpleName()))));
                var records = take(one);
                say("given", shown(records));
                say("held for", one.acquisitionLockTimeoutMs().orElse(-1));
                one.acknowledge(records.get(0), AcknowledgeType.ACCEPT);
                one.acknowledge(records.get(1), AcknowledgeType.RELEASE);
                one.acknowledge(records.get(2), AcknowledgeType.REJECT);
                say("acknowledged", acknowledge(one, records.subList(3, 4), AcknowledgeType.RENEW));
                var again = take(one);
                say("renewed", shown(again));
                say("accepted", acknowledge(one, again, AcknowledgeType.ACCEPT));
                again = take(one);
                say("released", shown(again));
                say("accepted again", acknowledge(one, again, AcknowledgeType.ACCEPT));
                one.wakeup();
                say("woken", failure(() -> one.poll(SOON)));
                say("told", told);
            }
            write(producer, queue, "e", "f");
            try (var one = member(group, List.of(queue))) {
                var records = take(one);
                say("held at its close", shown(records));
                one.acknowledge(records.get(0), AcknowledgeType.ACCEPT);
            }
            try (var one = member(group, List.of(queue), "share.acknowledgement.mode", "implicit")) {
                say("given back", shown(take(one)));
                say("refused", failure(() -> one.acknowledge(queue, 0, 5, AcknowledgeType.ACCEPT)));
                one.commitSync();
                one.poll(SOON);
            }

            for (var value : List.of("g", "h", "i", "j", "k", "l")) producer.send(new ProducerRecord<>(queue, 0, null, value));
            producer.flush();
            String[] strict = {"share.acquire.mode", "record_limit", "max.poll.records", "2"};
            try (var one = member(group, List.of(queue), strict); var two = member(group, List.of(queue), strict);
                 var three = member(group, List.of(queue), strict)) {
                var members = List.of(one, two, three);
                var held = new ArrayList<List<ConsumerRecord<String, String>>>();
                for (var each : members) held.add(take(each));
                for (var each : held) say("of three", shown(each));
                var known = admin.describeShareGroups(List.of(group)).describedGroups().get(group).get();
                say("described", known.groupState() + " " + known.members().size() + " "
                    + known.members().iterator().next().assignment().topicPartitions());
                for (int i = 0; i < 3; i++) say("done", acknowledge(members.get(i), held.get(i), AcknowledgeType.ACCEPT));
            }

            set(admin, group, "share.record.lock.duration.ms", "1000");
            write(producer, queue, "m", "n");
            try (var slow = member(group, List.of(queue))) {
                var held = take(slow);
                set(admin, group, "share.record.lock.duration.ms", "60000");
                try (var other = member(group, List.of(queue))) {
                    var taken = take(other);
                    say("after its time", shown(taken));
                    say("too late", acknowledge(slow, held, AcknowledgeType.ACCEPT));
                    say("in time", acknowledge(other, taken, AcknowledgeType.ACCEPT));
                }
            }
            administer(admin, queue, group, part);
        }
    }

    static void administer(Admin admin, String queue, String group, TopicPartition part) throws Exception {
        var listed = admin.listGroups(new ListGroupsOptions().withTypes(java.util.Set.of(GroupType.SHARE))).all().get();
        for (var one : listed)
            if (one.groupId().equals(group)) say("listed", one.type().get() + " " + one.protocol() + " " + one.groupState().get());
        say("offsets", offset(admin, group, part));
        admin.alterShareGroupOffsets(group, Map.of(part, 3L)).all().get();
        say("altered", offset(admin, group, part));
        try (var one = member(group, List.of(queue))) {
            var records = take(one);
            say("given anew", shown(records));
            say("alter of one in use", failure(() -> admin.alterShareGroupOffsets(group, Map.of(part, 0L)).all().get()));
            say("delete of one in use", failure(() -> admin.deleteShareGroups(List.of(group)).all().get()));
        }
        admin.deleteShareGroupOffsets(group, java.util.Set.of(queue)).all().get();
        say("deleted", offset(admin, group, part));
        admin.deleteShareGroups(List.of(group)).all().get();
        say("gone", failure(() -> admin.describeShareGroups(List.of(group)).all().get()));
    }

    static String offset(Admin admin, String group, TopicPartition part) throws Exception {
        var all = admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(group).get();
        var known = all.get(part);
        return known == null ? "none" : known.startOffset() + " lag " + known.lag().orElse(-1L);
    }

    // The same as work.py.

    static FileOutputStream history;
    static String process;
    static long events;

    static void event(String type, String f, long id, long time, Collection<String> values) throws Exception {
        var line = String.format("{\"process\": \"%s\", \"type\": \"%s\", \"f\": \"%s\", \"id\": %d, \"time\": %d, \"value\": [%s]}\n",
            process, type, f, id, time, String.join(", ", values));
        history.write(line.getBytes(StandardCharsets.UTF_8));
    }

    static String item(String queue, int partition, long offset, String... more) {
        var parts = new StringBuilder("[\"" + queue + "\", " + partition + ", " + offset);
        for (var one : more) parts.append(", ").append(one);
        return parts.append("]").toString();
    }

    static String quoted(String text) {
        return "\"" + text + "\"";
    }

    static void work(String group, String path, String name, long seed, List<String> queues) throws Exception {
        history = new FileOutputStream(path, true);
        process = name;
        event("info", "join", events, System.nanoTime(), List.of());
        var random = new Random(seed);
        var waiting = new HashSet<String>();
        var answers = new ArrayList<String>();
        var member = member(group, queues, "max.poll.records", "20", "default.api.timeout.ms", "20000");
        member.setAcknowledgementCommitCallback((offsets, error) -> offsets.forEach((id, some) -> some.forEach(offset -> {
            waiting.remove(item(id.topic(), id.partition(), offset));
            answers.add(item(id.topic(), id.partition(), offset, error == null ? "null" : quoted(Errors.forException(error).name())));
        })));
        while (true) {
            var records = new ArrayList<ConsumerRecord<String, String>>();
            long began = System.nanoTime();
            member.poll(SOON).forEach(records::add);
            if (records.isEmpty()) continue;
            var given = new ArrayList<String>();
            var types = new ArrayList<AcknowledgeType>();
            var said = new ArrayList<String>();
            for (var one : records) {
                given.add(item(one.topic(), one.partition(), one.offset(), quoted(one.value()), "" + one.deliveryCount().get()));
                int number = random.nextInt(100);
                if (Integer.parseInt(one.value()) % 100 == 0) number = 80;  // poison
                types.add(number < 75 ? AcknowledgeType.ACCEPT : number < 92 ? AcknowledgeType.RELEASE : AcknowledgeType.REJECT);
                waiting.add(item(one.topic(), one.partition(), one.offset()));
                var type = types.get(types.size() - 1).toString().toLowerCase();
                said.add(item(one.topic(), one.partition(), one.offset(), quoted(type)));
            }
            event("invoke", "acquire", ++events, began, List.of());
            event("ok", "acquire", events, System.nanoTime(), given);
            Thread.sleep(random.nextInt(200));
            answers.clear();
            event("invoke", "acknowledge", ++events, System.nanoTime(), said);
            for (int i = 0; i < records.size(); i++) member.acknowledge(records.get(i), types.get(i));
            member.commitSync();
            for (long until = System.currentTimeMillis() + 5000; !waiting.isEmpty() && System.currentTimeMillis() < until;)
                member.commitSync();  // which calls back
            event("ok", "acknowledge", events, System.nanoTime(), answers);
            if (!waiting.isEmpty()) throw new IllegalStateException("no answer");
        }
    }

    public static void main(String[] args) throws Exception {
        address = args[1];
        try {
            if (args[0].equals("look")) look(args[2]);
            else work(args[2], args[3], args[4], Long.parseLong(args[5]), List.of(args).subList(6, args.length));
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }
}
