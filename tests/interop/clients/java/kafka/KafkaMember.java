import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a consumer group: eager, cooperative, or in the next generation's protocol. It polls
 * in a thread of its own until it is told to leave; its callbacks run inside of poll.
 */
final class KafkaMember implements ConsumerRebalanceListener, Runnable {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long LEAVE_MAX_S = 30;
    private static final Map<String, String> ASSIGNORS =
            Map.of(
                    "eager", "org.apache.kafka.clients.consumer.RangeAssignor",
                    "cooperative", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    private static final Map<String, KafkaMember> MEMBERS = new ConcurrentHashMap<>();

    private final JsonNode ask;
    private final MemberLog log;
    private final KafkaConsumer<byte[], String> consumer;
    private final Thread thread = new Thread(this);
    private volatile boolean isLeaving;
    private volatile long stalledUntilNs = System.nanoTime();

    private KafkaMember(JsonNode ask) throws IOException {
        this.ask = ask;
        log = new MemberLog(ask);
        consumer =
                new KafkaConsumer<>(
                        settings(ask), new ByteArrayDeserializer(), new StringDeserializer());
    }

    static Map<String, Contract.Action> actions() {
        return Map.of("join", KafkaMember::join, "stall", KafkaMember::stall, "leave", KafkaMember::leave);
    }

    private static Object join(JsonNode ask) throws IOException {
        KafkaMember member = new KafkaMember(ask);
        MEMBERS.put(ask.get("member").asText(), member);
        member.thread.setDaemon(true);
        member.thread.start();
        return null;
    }

    private static Object stall(JsonNode ask) {
        KafkaMember member = MEMBERS.get(ask.get("member").asText());
        long length = TimeUnit.MILLISECONDS.toNanos(ask.get("ms").asLong());
        member.stalledUntilNs = System.nanoTime() + length;
        return null;
    }

    private static Object leave(JsonNode ask) throws InterruptedException {
        KafkaMember member = MEMBERS.remove(ask.get("member").asText());
        member.isLeaving = true;
        member.thread.join(TimeUnit.SECONDS.toMillis(LEAVE_MAX_S));
        if (member.thread.isAlive()) {
            throw new IllegalStateException("did not leave within " + LEAVE_MAX_S + " s");
        }
        return null;
    }

    private static Properties settings(JsonNode ask) {
        String protocol = ask.get("protocol").asText();
        Properties config = new Properties();
        config.put("bootstrap.servers", ask.get("servers").asText());
        config.put("group.id", ask.get("group").asText());
        config.put("client.id", ask.get("member").asText());
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        config.put("max.poll.interval.ms", ask.get("poll_interval_ms").asText());
        config.put("max.poll.records", "50");
        config.put("metadata.max.age.ms", "1000");
        config.put("fetch.max.wait.ms", "100");
        config.put("reconnect.backoff.max.ms", "500");
        config.put("default.api.timeout.ms", "10000");
        if (!ask.get("instance").isNull()) {
            config.put("group.instance.id", ask.get("instance").asText());
        }
        if (protocol.equals("consumer")) { // timeouts and assignor are the broker's there
            config.put("group.protocol", "consumer");
        } else {
            config.put("group.protocol", "classic");
            config.put("session.timeout.ms", ask.get("session_ms").asText());
            config.put("heartbeat.interval.ms", ask.get("heartbeat_ms").asText());
            config.put("partition.assignment.strategy", ASSIGNORS.get(protocol));
        }
        return config;
    }

    @Override
    public void run() {
        try {
            subscribe();
            while (!isLeaving) {
                waitWhileStalled();
                process(poll());
            }
            consumer.close();
            log.write("left", Map.of());
        } catch (Exception error) {
            error.printStackTrace();
            log.write("error", Map.of("why", error.toString()));
        }
    }

    /** As an application does: a broker may stand still, and the next poll finds another. */
    private ConsumerRecords<byte[], String> poll() {
        try {
            return consumer.poll(POLL);
        } catch (RetriableException error) {
            return ConsumerRecords.empty();
        }
    }

    private void subscribe() {
        if (ask.get("pattern").isNull()) {
            List<String> topics = new ArrayList<>();
            ask.get("topics").forEach(topic -> topics.add(topic.asText()));
            consumer.subscribe(topics, this);
        } else if (ask.get("protocol").asText().equals("consumer")) { // the broker's to resolve
            consumer.subscribe(new SubscriptionPattern(ask.get("pattern").asText()), this);
        } else {
            consumer.subscribe(Pattern.compile(ask.get("pattern").asText()), this);
        }
    }

    private void waitWhileStalled() throws InterruptedException {
        while (!isLeaving && stalledUntilNs - System.nanoTime() > 0) {
            Thread.sleep(POLL.toMillis());
        }
    }

    private void process(ConsumerRecords<byte[], String> records) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<byte[], String> one : records) {
            log.write(
                    "processed",
                    Map.of("topic", one.topic(), "p", one.partition(), "o", one.offset(), "v", one.value()));
            offsets.put(
                    new TopicPartition(one.topic(), one.partition()),
                    new OffsetAndMetadata(one.offset() + 1));
        }
        if (offsets.isEmpty()) {
            return;
        }
        long began = System.nanoTime();
        try {
            consumer.commitSync(offsets);
            log.write("committed", Map.of("from", began, "offsets", told(offsets)));
        } catch (KafkaException error) {
            log.write("refused", Map.of("offsets", told(offsets), "why", error.toString()));
        }
    }

    private static List<List<Object>> told(Map<TopicPartition, OffsetAndMetadata> offsets) {
        return offsets.entrySet().stream()
                .map(
                        one ->
                                List.<Object>of(
                                        one.getKey().topic(),
                                        one.getKey().partition(),
                                        one.getValue().offset()))
                .toList();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        int generation = consumer.groupMetadata().generationId();
        log.write("assigned", Map.of("parts", parts(partitions), "gen", generation));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        log.write("revoked", Map.of("parts", parts(partitions)));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        log.write("lost", Map.of("parts", parts(partitions)));
    }

    private static List<List<Object>> parts(Collection<TopicPartition> partitions) {
        return partitions.stream()
                .map(one -> List.<Object>of(one.topic(), one.partition()))
                .toList();
    }
}
