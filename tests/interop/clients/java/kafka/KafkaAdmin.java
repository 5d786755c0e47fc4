import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** What the contract asks of the admin client. */
final class KafkaAdmin {
    private KafkaAdmin() {}

    /** Work with an admin client that is closed afterwards. */
    private interface Work {
        Object run(Admin admin, JsonNode ask) throws Exception;
    }

    static Map<String, Contract.Action> actions() {
        Map<String, Work> works =
                Map.ofEntries(
                        Map.entry("create_topic", KafkaAdmin::createTopic),
                        Map.entry("delete_topic", KafkaAdmin::deleteTopic),
                        Map.entry("add_partitions", KafkaAdmin::addPartitions),
                        Map.entry("list_topics", (admin, ask) -> done(admin.listTopics().names())),
                        Map.entry("describe_topic", KafkaAdmin::describeTopic),
                        Map.entry("describe_cluster", KafkaAdmin::describeCluster),
                        Map.entry("offsets", KafkaAdmin::offsets),
                        Map.entry("describe_configs", KafkaAdmin::describeConfigs),
                        Map.entry("alter_configs", KafkaAdmin::alterConfigs),
                        Map.entry("delete_records", KafkaAdmin::deleteRecords));
        Map<String, Contract.Action> actions = new HashMap<>();
        works.forEach((name, work) -> actions.put(name, ask -> withAdmin(ask, work)));
        return actions;
    }

    static TopicPartition partitionOf(JsonNode ask) {
        return new TopicPartition(ask.get("topic").asText(), ask.get("partition").asInt());
    }

    private static Object withAdmin(JsonNode ask, Work work) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", ask.get("servers").asText());
        try (Admin admin = Admin.create(config)) {
            return work.run(admin, ask);
        }
    }

    private static <T> T done(KafkaFuture<T> future) throws Exception {
        return future.get(KafkaProgram.TIMEOUT_S, TimeUnit.SECONDS);
    }

    private static Object createTopic(Admin admin, JsonNode ask) throws Exception {
        Map<String, String> configs = new HashMap<>();
        ask.get("configs").properties().forEach(
                one -> configs.put(one.getKey(), one.getValue().asText()));
        NewTopic wanted =
                new NewTopic(
                        ask.get("topic").asText(),
                        Optional.of(ask.get("partitions").asInt()),
                        Optional.of((short) 1));
        done(admin.createTopics(List.of(wanted.configs(configs))).all());
        return null;
    }

    private static Object deleteTopic(Admin admin, JsonNode ask) throws Exception {
        return done(admin.deleteTopics(List.of(ask.get("topic").asText())).all());
    }

    private static Object addPartitions(Admin admin, JsonNode ask) throws Exception {
        NewPartitions wanted = NewPartitions.increaseTo(ask.get("total").asInt());
        return done(admin.createPartitions(Map.of(ask.get("topic").asText(), wanted)).all());
    }

    private static Object describeTopic(Admin admin, JsonNode ask) throws Exception {
        String topic = ask.get("topic").asText();
        TopicDescription described =
                done(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
        List<Integer> leaders = new ArrayList<>();
        List<List<Integer>> replicas = new ArrayList<>();
        described.partitions().forEach(
                partition -> {
                    leaders.add(partition.leader().id());
                    replicas.add(partition.replicas().stream().map(Node::id).toList());
                });
        return Map.of("partitions", leaders.size(), "leaders", leaders, "replicas", replicas);
    }

    private static Object describeCluster(Admin admin, JsonNode ask) throws Exception {
        DescribeClusterResult described = admin.describeCluster();
        List<Map<String, Object>> brokers = new ArrayList<>();
        for (Node node : done(described.nodes())) {
            brokers.add(Map.of("id", node.id(), "host", node.host(), "port", node.port()));
        }
        return Map.of("brokers", brokers, "controller", done(described.controller()).id());
    }

    private static Object offsets(Admin admin, JsonNode ask) throws Exception {
        Map<String, OffsetSpec> specs =
                Map.of(
                        "earliest", OffsetSpec.earliest(),
                        "latest", OffsetSpec.latest(),
                        "at_time", OffsetSpec.forTimestamp(ask.get("timestamp_ms").asLong()),
                        "max_timestamp", OffsetSpec.maxTimestamp());
        TopicPartition partition = partitionOf(ask);
        Map<String, Long> told = new HashMap<>();
        for (Map.Entry<String, OffsetSpec> spec : specs.entrySet()) {
            Map<TopicPartition, OffsetSpec> wanted = Map.of(partition, spec.getValue());
            long offset = done(admin.listOffsets(wanted).partitionResult(partition)).offset();
            told.put(spec.getKey(), offset);
        }
        return told;
    }

    private static ConfigResource resourceOf(JsonNode ask) {
        ConfigResource.Type type =
                ask.get("kind").asText().equals("topic")
                        ? ConfigResource.Type.TOPIC
                        : ConfigResource.Type.BROKER;
        return new ConfigResource(type, ask.get("name").asText());
    }

    private static Object describeConfigs(Admin admin, JsonNode ask) throws Exception {
        ConfigResource resource = resourceOf(ask);
        Map<String, Map<String, Object>> told = new HashMap<>();
        for (ConfigEntry entry :
                done(admin.describeConfigs(List.of(resource)).all()).get(resource).entries()) {
            Map<String, Object> one = new HashMap<>();
            one.put("value", entry.value());
            one.put("is_default", entry.isDefault());
            one.put("is_read_only", entry.isReadOnly());
            told.put(entry.name(), one);
        }
        return told;
    }

    private static Object alterConfigs(Admin admin, JsonNode ask) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        ask.get("set").properties().forEach(
                one ->
                        changes.add(
                                new AlterConfigOp(
                                        new ConfigEntry(one.getKey(), one.getValue().asText()),
                                        AlterConfigOp.OpType.SET)));
        for (JsonNode name : ask.get("remove")) {
            ConfigEntry entry = new ConfigEntry(name.asText(), null);
            changes.add(new AlterConfigOp(entry, AlterConfigOp.OpType.DELETE));
        }
        return done(admin.incrementalAlterConfigs(Map.of(resourceOf(ask), changes)).all());
    }

    private static Object deleteRecords(Admin admin, JsonNode ask) throws Exception {
        TopicPartition partition = partitionOf(ask);
        RecordsToDelete wanted = RecordsToDelete.beforeOffset(ask.get("before").asLong());
        return done(admin.deleteRecords(Map.of(partition, wanted)).lowWatermarks().get(partition))
                .lowWatermark();
    }
}
