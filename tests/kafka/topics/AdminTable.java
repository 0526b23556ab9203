// Calls each method of Kafka's AdminClient and says what comes of it, a line each:
//   METHOD TAB CASE TAB ANSWER
//   java -cp 'libs/*' AdminTable.java ADDRESS PREFIX NODE
// The answer is the value, without what differs from server to server (ids, nodes, times), or the
// name of the exception. At the end a line "METHODS", and all that the interface has.
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.serialization.*;

public class AdminTable {
    static Admin admin;
    static final Set<String> called = new TreeSet<>();

    static void tell(String method, String what, Callable<Object> work) {
        called.add(method);
        String said;
        try {
            said = shown(work.call());
        } catch (ExecutionException error) {
            said = error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            said = error.getClass().getSimpleName();
        }
        System.out.println(method + "\t" + what + "\t" + said.replace('\n', ' '));
        System.out.flush();
    }

    static String shown(Object value) {
        if (value == null) return "ok";
        if (value instanceof Throwable error) return error.getClass().getSimpleName();
        if (value instanceof Optional<?> some) return some.map(AdminTable::shown).orElse("none");
        if (value instanceof Map<?, ?> map) {
            var sorted = new TreeMap<String, String>();
            map.forEach((key, one) -> sorted.put(shown(key), shown(one)));
            return sorted.toString();
        }
        if (value instanceof Set<?> some)
            return some.stream().map(AdminTable::shown).sorted().toList().toString();
        if (value instanceof Collection<?> some)
            return some.stream().map(AdminTable::shown).toList().toString();
        return value.toString();
    }

    /** Of many futures what each gave, an exception too. */
    static <K, V> Map<K, Object> each(Map<K, KafkaFuture<V>> futures) throws Exception {
        var found = new HashMap<K, Object>();
        for (var one : futures.entrySet()) {
            try {
                V value = one.getValue().get();
                found.put(one.getKey(), value == null ? "ok" : value);
            } catch (ExecutionException error) {
                found.put(one.getKey(), error.getCause());
            }
        }
        return found;
    }

    /** Wait for what a server does a moment after it has answered. */
    static void eventually(Callable<Boolean> check) throws Exception {
        for (int i = 0; i < 200; i++) {
            try {
                if (check.call()) return;
            } catch (ExecutionException error) {
                // not yet
            }
            Thread.sleep(50);
        }
    }

    static Map<String, Object> client(String address, String... more) {
        var settings = new HashMap<String, Object>(Map.of(
            "bootstrap.servers", address, "client.id", "table",
            "request.timeout.ms", "15000", "default.api.timeout.ms", "15000"));
        for (int i = 0; i < more.length; i += 2) settings.put(more[i], more[i + 1]);
        return settings;
    }

    /** A member that polls until it is told to stop. */
    static Thread member(String address, AtomicBoolean stop, String group, String topic,
            String... more) {
        var thread = new Thread(() -> {
            var settings = client(address, more);
            settings.put("group.id", group);
            settings.put("auto.offset.reset", "earliest");
            try (Consumer<String, String> consumer = new KafkaConsumer<>(
                    settings, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of(topic));
                while (!stop.get()) consumer.poll(Duration.ofMillis(50));
            }
        });
        thread.start();
        return thread;
    }

    static String member(MemberDescription one) {
        return one.clientId() + " " + one.host() + " " + one.groupInstanceId() + " "
            + one.assignment().topicPartitions().stream().map(TopicPartition::toString).sorted().toList();
    }

    static Map<String, Map<String, String>> values(Config config, String... names) {
        var found = new TreeMap<String, Map<String, String>>();
        for (String name : names) {
            var entry = config.get(name);
            found.put(name, entry == null ? Map.of() : Map.of(
                "value", String.valueOf(entry.value()), "source", entry.source().name(),
                "type", entry.type().name(),
                "flags", entry.isReadOnly() + " " + entry.isSensitive() + " " + entry.isDefault()));
        }
        return found;
    }

    static void topics(String a, String b, String none, int node) throws Exception {
        tell("createTopics", "two, one with settings", () -> each(admin.createTopics(List.of(
            new NewTopic(a, 2, (short) 1).configs(Map.of("retention.ms", "3600000")),
            new NewTopic(b, Map.of(0, List.of(node))))).values()));
        tell("createTopics", "again, and bad ones", () -> each(admin.createTopics(List.of(
            new NewTopic(a, 1, (short) 1), new NewTopic("bad name", 1, (short) 1),
            new NewTopic(none + "1", 0, (short) 1), new NewTopic(none + "2", 1, (short) 0),
            new NewTopic(none + "3", 1, (short) 9), new NewTopic(none + "4", Map.of(0, List.of(987))),
            new NewTopic(none + "5", 1, (short) 1).configs(Map.of("no.such", "1")))).values()));
        tell("createTopics", "only checked", () -> {
            var made = admin.createTopics(List.of(new NewTopic(none, 3, (short) 1)),
                new CreateTopicsOptions().validateOnly(true));
            return List.of(made.numPartitions(none).get(), made.replicationFactor(none).get(),
                made.config(none).get().get("retention.ms").value());
        });
        eventually(() -> admin.describeTopics(List.of(a, b)).allTopicNames().get().size() == 2);
        tell("listTopics", "", () -> admin.listTopics().listings().get().stream()
            .filter(one -> one.name().startsWith(a.substring(0, a.length() - 1)))
            .map(one -> one.name() + " " + one.isInternal()).sorted().toList());
        tell("describeTopics", "by name", () -> admin.describeTopics(List.of(a, b)).allTopicNames()
            .get().values().stream().map(one -> one.name() + one.isInternal() + one.partitions()
                .stream().map(part -> part.partition() + " " + part.replicas().size() + " "
                    + part.isr().size() + " " + part.elr() + " " + part.lastKnownElr()).toList()
                + one.authorizedOperations()).sorted().toList());
        tell("describeTopics", "operations", () -> admin.describeTopics(List.of(a),
            new DescribeTopicsOptions().includeAuthorizedOperations(true)).allTopicNames().get()
            .get(a).authorizedOperations());
        tell("describeTopics", "none", () -> each(admin.describeTopics(List.of(none, "bad name"))
            .topicNameValues()));
        tell("describeTopics", "by id", () -> {
            var id = admin.describeTopics(List.of(a)).allTopicNames().get().get(a).topicId();
            return admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get()
                .get(id).name();
        });
        tell("describeTopics", "by an id of none", () -> admin.describeTopics(
            TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()))).allTopicIds().get());
        tell("createPartitions", "", () -> each(admin.createPartitions(Map.of(
            b, NewPartitions.increaseTo(2, List.of(List.of(node))))).values()));
        tell("createPartitions", "bad", () -> each(admin.createPartitions(Map.of(
            a, NewPartitions.increaseTo(1), none, NewPartitions.increaseTo(3))).values()));
        tell("createPartitions", "as many as there are", () -> each(admin.createPartitions(Map.of(
            a, NewPartitions.increaseTo(2))).values()));
        tell("createPartitions", "to no node", () -> each(admin.createPartitions(Map.of(
            a, NewPartitions.increaseTo(3, List.of(List.of(987))))).values()));
        tell("createPartitions", "too few nodes", () -> each(admin.createPartitions(Map.of(
            a, NewPartitions.increaseTo(4, List.of(List.of(node))))).values()));
    }

    static void records(String address, String a, String none) throws Exception {
        var first = new TopicPartition(a, 0);
        try (var producer = new KafkaProducer<>(client(address), new StringSerializer(),
                new StringSerializer())) {
            for (int i = 0; i < 5; i++) {
                producer.send(new ProducerRecord<>(a, 0, 1000L * i, "key", "value" + i)).get();
            }
        }
        Map<String, OffsetSpec> specs = new TreeMap<>(Map.of(
            "latest", OffsetSpec.latest(), "earliest", OffsetSpec.earliest(),
            "time", OffsetSpec.forTimestamp(2500), "later", OffsetSpec.forTimestamp(99999),
            "max", OffsetSpec.maxTimestamp(), "local", OffsetSpec.earliestLocal(),
            "tiered", OffsetSpec.latestTiered(), "pending", OffsetSpec.earliestPendingUpload()));
        for (var spec : specs.entrySet()) {
            tell("listOffsets", spec.getKey(), () -> {
                var found = admin.listOffsets(Map.of(first, spec.getValue())).all().get().get(first);
                return found.offset() + " at " + found.timestamp();
            });
        }
        tell("listOffsets", "committed only", () -> admin.listOffsets(
            Map.of(first, OffsetSpec.latest()), new ListOffsetsOptions(IsolationLevel.READ_COMMITTED))
            .all().get().get(first).offset());
        tell("describeProducers", "", () -> admin.describeProducers(List.of(first)).all().get()
            .get(first).activeProducers().stream().map(one -> one.producerEpoch() + " "
                + one.lastSequence() + " " + one.lastTimestamp() + " "
                + one.currentTransactionStartOffset() + " " + one.coordinatorEpoch()).toList());
        tell("describeProducers", "of none", () -> admin.describeProducers(
            List.of(new TopicPartition(a, 77)),
            new DescribeProducersOptions().timeoutMs(3000)).all().get());
        tell("deleteRecords", "", () -> admin.deleteRecords(Map.of(
            first, RecordsToDelete.beforeOffset(2))).lowWatermarks().get(first).get().lowWatermark());
        tell("deleteRecords", "behind the end", () -> admin.deleteRecords(Map.of(
            first, RecordsToDelete.beforeOffset(99))).all().get());
        tell("deleteRecords", "of none", () -> admin.deleteRecords(Map.of(
            new TopicPartition(none, 0), RecordsToDelete.beforeOffset(0)),
            new DeleteRecordsOptions().timeoutMs(3000)).all().get());
        tell("listOffsets", "after it", () -> admin.listOffsets(Map.of(first, OffsetSpec.earliest()))
            .all().get().get(first).offset());
    }

    static void configs(String a, String none, int node) throws Exception {
        var topic = new ConfigResource(ConfigResource.Type.TOPIC, a);
        var broker = new ConfigResource(ConfigResource.Type.BROKER, "" + node);
        var group = new ConfigResource(ConfigResource.Type.GROUP, none);
        tell("describeConfigs", "topic", () -> values(admin.describeConfigs(List.of(topic)).all()
            .get().get(topic), "retention.ms", "cleanup.policy", "segment.bytes", "no.such"));
        tell("describeConfigs", "names of a topic's", () -> admin.describeConfigs(List.of(topic))
            .all().get().get(topic).entries().stream().map(ConfigEntry::name)
            .filter(name -> !name.startsWith("kproxy.") && !name.contains("deadletterqueue"))
            .sorted().toList());
        tell("describeConfigs", "group", () -> values(admin.describeConfigs(List.of(group)).all()
            .get().get(group), "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms",
            "share.session.timeout.ms", "streams.num.standby.replicas"));
        tell("describeConfigs", "broker", () -> values(admin.describeConfigs(List.of(broker)).all()
            .get().get(broker), "offsets.retention.minutes", "message.max.bytes", "num.partitions"));
        tell("describeConfigs", "none", () -> each(admin.describeConfigs(List.of(
            new ConfigResource(ConfigResource.Type.TOPIC, none))).values()));
        tell("describeConfigs", "another broker", () -> each(admin.describeConfigs(List.of(
            new ConfigResource(ConfigResource.Type.BROKER, "987")),
            new DescribeConfigsOptions().timeoutMs(3000)).values()));
        tell("describeConfigs", "client metrics", () -> admin.describeConfigs(List.of(
            new ConfigResource(ConfigResource.Type.CLIENT_METRICS, none))).all().get().values()
            .stream().map(config -> config.entries().size()).toList());
        tell("describeConfigs", "loggers", () -> admin.describeConfigs(List.of(new ConfigResource(
            ConfigResource.Type.BROKER_LOGGER, "" + node))).all().get().values().stream()
            .anyMatch(config -> config.entries().stream().anyMatch(one -> one.value().equals("INFO")
                || one.value().equals("WARN"))));
        for (var type : AlterConfigOp.OpType.values()) {
            tell("incrementalAlterConfigs", "topic " + type, () -> each(admin.incrementalAlterConfigs(
                Map.of(topic, List.of(new AlterConfigOp(
                    new ConfigEntry("cleanup.policy", "compact"), type)))).values()));
            eventually(() -> true);
        }
        tell("incrementalAlterConfigs", "unknown", () -> each(admin.incrementalAlterConfigs(Map.of(
            topic, List.of(new AlterConfigOp(new ConfigEntry("no.such", "1"),
                AlterConfigOp.OpType.SET)))).values()));
        tell("incrementalAlterConfigs", "bad", () -> each(admin.incrementalAlterConfigs(Map.of(
            topic, List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "soon"),
                AlterConfigOp.OpType.SET)))).values()));
        tell("incrementalAlterConfigs", "none", () -> each(admin.incrementalAlterConfigs(Map.of(
            new ConfigResource(ConfigResource.Type.TOPIC, none), List.of(new AlterConfigOp(
                new ConfigEntry("retention.ms", "1"), AlterConfigOp.OpType.SET)))).values()));
        tell("incrementalAlterConfigs", "only checked", () -> each(admin.incrementalAlterConfigs(
            Map.of(topic, List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "5"),
                AlterConfigOp.OpType.SET))),
            new AlterConfigsOptions().validateOnly(true)).values()));
        tell("incrementalAlterConfigs", "a broker's that is not set", () -> each(
            admin.incrementalAlterConfigs(Map.of(broker, List.of(new AlterConfigOp(
                new ConfigEntry("leader.replication.throttled.rate", ""),
                AlterConfigOp.OpType.DELETE)))).values()).values());
        tell("incrementalAlterConfigs", "logger", () -> each(admin.incrementalAlterConfigs(Map.of(
            new ConfigResource(ConfigResource.Type.BROKER_LOGGER, "" + node),
            List.of(new AlterConfigOp(new ConfigEntry("no.such.logger", "NOISY"),
                AlterConfigOp.OpType.SET)))).values()).values());
        eventually(() -> admin.describeConfigs(List.of(topic)).all().get().get(topic)
            .get("retention.ms").value().equals("3600000"));
        tell("describeConfigs", "after that", () -> values(admin.describeConfigs(List.of(topic))
            .all().get().get(topic), "retention.ms", "cleanup.policy"));
        tell("listConfigResources", "topics", () -> admin.listConfigResources(
            Set.of(ConfigResource.Type.TOPIC), new ListConfigResourcesOptions()).all().get().stream()
            .filter(one -> one.name().startsWith(a.substring(0, a.length() - 1)))
            .map(ConfigResource::name).sorted().toList());
        tell("listConfigResources", "brokers", () -> admin.listConfigResources(
            Set.of(ConfigResource.Type.BROKER), new ListConfigResourcesOptions()).all().get().stream()
            .anyMatch(one -> one.name().equals("" + node)));
        tell("listConfigResources", "groups", () -> admin.listConfigResources(
            Set.of(ConfigResource.Type.GROUP), new ListConfigResourcesOptions()).all().get());
        tell("listClientMetricsResources", "", () -> admin.listClientMetricsResources().all().get());
    }

    static void groups(String address, String a, String b, String none, String prefix)
            throws Exception {
        String classic = prefix + "-classic", modern = prefix + "-modern", alone = prefix + "-alone";
        var stop = new AtomicBoolean();
        var members = List.of(
            member(address, stop, classic, a, "group.instance.id", "one"),
            member(address, stop, modern, a, "group.protocol", "consumer"));
        tell("alterConsumerGroupOffsets", "a new group", () -> admin.alterConsumerGroupOffsets(alone,
            Map.of(new TopicPartition(a, 0), new OffsetAndMetadata(3, "note"),
                new TopicPartition(b, 0), new OffsetAndMetadata(0))).all().get());
        tell("alterConsumerGroupOffsets", "of no topic", () -> admin.alterConsumerGroupOffsets(alone,
            Map.of(new TopicPartition(none, 0), new OffsetAndMetadata(3))).all().get());
        for (String group : List.of(classic, modern)) {
            eventually(() -> admin.describeConsumerGroups(List.of(group)).all().get().get(group)
                .members().stream().mapToInt(one -> one.assignment().topicPartitions().size())
                .sum() == 2);
        }
        for (String group : List.of(classic, modern, alone, none)) {
            String name = group.substring(prefix.length() + 1);
            tell("describeConsumerGroups", name, () -> {
                var one = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
                return one.groupState() + " " + one.type() + " " + one.partitionAssignor() + " "
                    + one.isSimpleConsumerGroup() + " " + one.groupEpoch().isPresent() + " "
                    + one.members().stream().map(AdminTable::member).toList() + " "
                    + one.authorizedOperations();
            });
            tell("describeClassicGroups", name, () -> {
                var one = admin.describeClassicGroups(List.of(group)).all().get().get(group);
                return one.state() + " " + one.protocol() + " " + one.protocolData() + " "
                    + one.isSimpleConsumerGroup() + " " + one.members().stream()
                    .map(AdminTable::member).toList();
            });
            tell("describeShareGroups", name, () -> admin.describeShareGroups(List.of(group)).all()
                .get().get(group).groupState());
            tell("describeStreamsGroups", name, () -> admin.describeStreamsGroups(List.of(group))
                .all().get().get(group).groupState());
            tell("alterConsumerGroupOffsets", name, () -> admin.alterConsumerGroupOffsets(group,
                Map.of(new TopicPartition(a, 0), new OffsetAndMetadata(4))).all().get());
            tell("alterStreamsGroupOffsets", name, () -> admin.alterStreamsGroupOffsets(group,
                Map.of(new TopicPartition(a, 1), new OffsetAndMetadata(0))).all().get());
            tell("listStreamsGroupOffsets", name, () -> admin.listStreamsGroupOffsets(Map.of(group,
                new ListStreamsGroupOffsetsSpec())).partitionsToOffsetAndMetadata(group).get()
                .keySet());
            tell("deleteConsumerGroupOffsets", name, () -> {
                var deleted = admin.deleteConsumerGroupOffsets(group, Set.of(
                    new TopicPartition(a, 0), new TopicPartition(none, 0)));
                return List.of(each(Map.of(a, deleted.partitionResult(new TopicPartition(a, 0)))),
                    each(Map.of(none, deleted.partitionResult(new TopicPartition(none, 0)))));
            });
            tell("deleteStreamsGroupOffsets", name, () -> admin.deleteStreamsGroupOffsets(group,
                Set.of(new TopicPartition(a, 1))).all().get());
            tell("alterShareGroupOffsets", name, () -> admin.alterShareGroupOffsets(group,
                Map.of(new TopicPartition(a, 0), 0L)).all().get());
            tell("listShareGroupOffsets", name, () -> admin.listShareGroupOffsets(Map.of(group,
                new ListShareGroupOffsetsSpec())).all().get());
            tell("deleteShareGroupOffsets", name, () -> admin.deleteShareGroupOffsets(group,
                Set.of(a)).all().get());
        }
        tell("listConsumerGroupOffsets", "", () -> admin.listConsumerGroupOffsets(alone)
            .partitionsToOffsetAndMetadata().get().entrySet().stream().map(one -> one.getKey() + " "
                + one.getValue().offset() + one.getValue().metadata()).sorted().toList());
        tell("listConsumerGroupOffsets", "none", () -> admin.listConsumerGroupOffsets(none)
            .partitionsToOffsetAndMetadata().get());
        for (var options : Map.of("all", new ListGroupsOptions(),
                "consumer", ListGroupsOptions.forConsumerGroups(),
                "share", ListGroupsOptions.forShareGroups(),
                "streams", ListGroupsOptions.forStreamsGroups(),
                "empty", new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY)),
                "classic", new ListGroupsOptions().withTypes(Set.of(GroupType.CLASSIC)))
                .entrySet().stream().sorted(Map.Entry.comparingByKey()).toList()) {
            tell("listGroups", options.getKey(), () -> admin.listGroups(options.getValue()).all().get()
                .stream().filter(one -> one.groupId().startsWith(prefix)).map(one -> one.groupId()
                    + one.type() + one.protocol() + one.groupState() + one.isSimpleConsumerGroup())
                .sorted().toList());
        }
        tell("listConsumerGroups", "", () -> admin.listConsumerGroups().all().get().stream()
            .filter(one -> one.groupId().startsWith(prefix)).map(one -> one.groupId() + one.type()
                + one.groupState() + one.isSimpleConsumerGroup()).sorted().toList());
        tell("removeMembersFromConsumerGroup", "unknown", () -> admin.removeMembersFromConsumerGroup(
            classic, new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("two"))))
            .all().get());
        tell("removeMembersFromConsumerGroup", "none", () -> admin.removeMembersFromConsumerGroup(
            none, new RemoveMembersFromConsumerGroupOptions()).all().get());
        tell("deleteConsumerGroups", "with members", () -> each(admin.deleteConsumerGroups(
            List.of(classic, modern, none)).deletedGroups()));
        tell("deleteStreamsGroups", "with members", () -> each(admin.deleteStreamsGroups(
            List.of(modern, none)).deletedGroups()));
        tell("deleteShareGroups", "with members", () -> each(admin.deleteShareGroups(
            List.of(modern, none)).deletedGroups()));
        stop.set(true);
        for (Thread one : members) one.join();
        tell("removeMembersFromConsumerGroup", "by its name", () ->
            admin.removeMembersFromConsumerGroup(classic, new RemoveMembersFromConsumerGroupOptions(
                List.of(new MemberToRemove("one")))).all().get());
        eventually(() -> admin.describeConsumerGroups(List.of(modern)).all().get().get(modern)
            .members().isEmpty());
        tell("deleteConsumerGroups", "empty", () -> each(admin.deleteConsumerGroups(
            List.of(classic, modern, alone)).deletedGroups()));
    }

    static void places(String a, String none, int node) throws Exception {
        var first = new TopicPartition(a, 0);
        var replica = new TopicPartitionReplica(a, 0, node);
        tell("describeLogDirs", "", () -> admin.describeLogDirs(List.of(node)).allDescriptions().get()
            .get(node).values().stream().map(one -> one.replicaInfos().entrySet().stream()
                .filter(part -> part.getKey().topic().equals(a)).map(part -> part.getKey() + " "
                    + part.getValue().offsetLag() + part.getValue().isFuture()).sorted().toList()
                + " " + one.totalBytes().isPresent() + one.isCordoned()).toList());
        tell("describeReplicaLogDirs", "", () -> {
            var found = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
            return (found.getCurrentReplicaLogDir() != null) + " "
                + found.getCurrentReplicaOffsetLag() + " " + found.getFutureReplicaLogDir();
        });
        tell("alterReplicaLogDirs", "no such directory", () -> each(admin.alterReplicaLogDirs(
            Map.of(replica, "/no/such")).values()).values());
        tell("alterReplicaLogDirs", "where it is", () -> each(admin.alterReplicaLogDirs(Map.of(replica,
            admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica)
                .getCurrentReplicaLogDir())).values()).values());
        for (var type : ElectionType.values()) {
            tell("electLeaders", type + "", () -> admin.electLeaders(type, Set.of(first,
                new TopicPartition(none, 0))).partitions().get());
        }
        tell("alterPartitionReassignments", "where it is", () -> each(
            admin.alterPartitionReassignments(Map.of(first, Optional.of(
                new NewPartitionReassignment(List.of(node))))).values()));
        tell("alterPartitionReassignments", "to no node", () -> each(
            admin.alterPartitionReassignments(Map.of(first, Optional.of(
                new NewPartitionReassignment(List.of(987))))).values()));
        tell("alterPartitionReassignments", "none under way", () -> each(
            admin.alterPartitionReassignments(Map.of(first, Optional.empty())).values()));
        tell("alterPartitionReassignments", "of none", () -> each(admin.alterPartitionReassignments(
            Map.of(new TopicPartition(none, 0), Optional.of(
                new NewPartitionReassignment(List.of(node))))).values()));
        tell("listPartitionReassignments", "", () -> admin.listPartitionReassignments()
            .reassignments().get());
        tell("listPartitionReassignments", "of one", () -> admin.listPartitionReassignments(
            Set.of(first)).reassignments().get());
        tell("listPartitionReassignments", "of none", () -> admin.listPartitionReassignments(
            Set.of(new TopicPartition(none, 0))).reassignments().get());
        tell("unregisterBroker", "unknown", () -> admin.unregisterBroker(987).all().get());
    }

    static void cluster(int node) throws Exception {
        tell("describeCluster", "", () -> {
            var found = admin.describeCluster();
            return found.nodes().get().stream().anyMatch(one -> one.id() == node) + " "
                + found.nodes().get().stream().allMatch(one -> one.rack() == null) + " "
                + (found.clusterId().get().length() > 0) + " " + found.authorizedOperations().get();
        });
        tell("describeCluster", "operations", () -> admin.describeCluster(
            new DescribeClusterOptions().includeAuthorizedOperations(true)).authorizedOperations()
            .get());
        tell("describeFeatures", "", () -> {
            var found = admin.describeFeatures().featureMetadata().get();
            return found.finalizedFeatures().keySet() + " " + found.supportedFeatures().keySet()
                + " " + found.finalizedFeaturesEpoch().isPresent();
        });
        tell("updateFeatures", "unknown", () -> admin.updateFeatures(Map.of("no.such",
            new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE)),
            new UpdateFeaturesOptions()).all().get());
        tell("updateFeatures", "too high", () -> admin.updateFeatures(Map.of("metadata.version",
            new FeatureUpdate((short) 999, FeatureUpdate.UpgradeType.UPGRADE)),
            new UpdateFeaturesOptions().validateOnly(true)).all().get());
        tell("describeMetadataQuorum", "", () -> {
            var found = admin.describeMetadataQuorum().quorumInfo().get();
            return found.voters().stream().anyMatch(one -> one.replicaId() == found.leaderId()) + " "
                + (found.highWatermark() >= 0) + " " + found.nodes().isEmpty();
        });
        var voter = Set.of(new RaftVoterEndpoint("CONTROLLER", "127.0.0.1", 1));
        tell("addRaftVoter", "", () -> admin.addRaftVoter(987, Uuid.randomUuid(), voter).all().get());
        tell("removeRaftVoter", "", () -> admin.removeRaftVoter(987, Uuid.randomUuid()).all().get());
        tell("clientInstanceId", "", () -> admin.clientInstanceId(Duration.ofSeconds(3)));
        tell("metrics", "", () -> !admin.metrics().isEmpty());
        var metric = admin.metrics().values().iterator().next();
        tell("registerMetricForSubscription", "", () -> {
            admin.registerMetricForSubscription((org.apache.kafka.common.metrics.KafkaMetric) metric);
            return null;
        });
        tell("unregisterMetricFromSubscription", "", () -> {
            admin.unregisterMetricFromSubscription(
                (org.apache.kafka.common.metrics.KafkaMetric) metric);
            return null;
        });
    }

    static void security(String user) throws Exception {
        var binding = new AclBinding(new ResourcePattern(ResourceType.TOPIC, user, PatternType.LITERAL),
            new AccessControlEntry("User:" + user, "*", AclOperation.READ, AclPermissionType.ALLOW));
        tell("createAcls", "", () -> each(admin.createAcls(List.of(binding)).values()).values());
        tell("describeAcls", "", () -> admin.describeAcls(AclBindingFilter.ANY).values().get());
        tell("deleteAcls", "", () -> admin.deleteAcls(List.of(AclBindingFilter.ANY)).all().get());
        tell("createDelegationToken", "", () -> admin.createDelegationToken().delegationToken().get());
        tell("renewDelegationToken", "", () -> admin.renewDelegationToken(new byte[4])
            .expiryTimestamp().get());
        tell("expireDelegationToken", "", () -> admin.expireDelegationToken(new byte[4])
            .expiryTimestamp().get());
        tell("describeDelegationToken", "", () -> admin.describeDelegationToken().delegationTokens()
            .get());
        tell("describeClientQuotas", "", () -> admin.describeClientQuotas(ClientQuotaFilter.all())
            .entities().get());
        tell("alterClientQuotas", "bad", () -> admin.alterClientQuotas(List.of(
            new ClientQuotaAlteration(new ClientQuotaEntity(Map.of("user", user)),
                List.of(new ClientQuotaAlteration.Op("no_such_rate", 5.0))))).all().get());
        tell("describeUserScramCredentials", "all", () -> admin.describeUserScramCredentials().all()
            .get());
        tell("describeUserScramCredentials", "one", () -> admin.describeUserScramCredentials(
            List.of(user)).description(user).get());
        tell("alterUserScramCredentials", "delete none", () -> each(admin.alterUserScramCredentials(
            List.of(new UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256))).values()));
    }

    static void transactions(String id, String a) throws Exception {
        tell("listTransactions", "", () -> admin.listTransactions().all().get().stream()
            .filter(one -> one.transactionalId().equals(id)).toList());
        tell("describeTransactions", "none", () -> admin.describeTransactions(List.of(id)).all()
            .get());
        tell("fenceProducers", "", () -> admin.fenceProducers(List.of(id)).all().get());
        tell("forceTerminateTransaction", "none", () -> admin.forceTerminateTransaction(id).result()
            .get());
        tell("abortTransaction", "none", () -> admin.abortTransaction(new AbortTransactionSpec(
            new TopicPartition(a, 0), 12345, (short) 0, 0)).all().get());
    }

    public static void main(String[] args) throws Exception {
        String address = args[0], prefix = args[1];
        String a = prefix + "-a", b = prefix + "-b", none = prefix + "-none";
        admin = Admin.create(client(address));
        called.addAll(List.of("create", "close"));
        int node = Integer.parseInt(args[2]);
        topics(a, b, none, node);
        records(address, a, none);
        configs(a, none, node);
        groups(address, a, b, none, prefix);
        places(a, none, node);
        cluster(node);
        security(prefix);
        transactions(prefix, a);
        tell("deleteTopics", "by name", () -> each(admin.deleteTopics(List.of(a, none))
            .topicNameValues()));
        tell("deleteTopics", "by id", () -> admin.deleteTopics(TopicCollection.ofTopicIds(List.of(
            admin.describeTopics(List.of(b)).allTopicNames().get().get(b).topicId()))).all().get());
        tell("deleteTopics", "by an id of none", () -> admin.deleteTopics(
            TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()))).all().get());
        admin.close();
        var names = new TreeSet<String>();
        for (var method : Admin.class.getMethods()) names.add(method.getName());
        names.removeAll(called);
        System.out.println("METHODS\tnot called\t" + names);
        System.exit(0);
    }
}
