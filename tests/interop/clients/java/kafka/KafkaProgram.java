import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/** Apache Kafka's own client and command-line tools by the contract of the client programs. */
public final class KafkaProgram {
    static final long TIMEOUT_S = 30;
    // Higher than any broker's limit, so that it is the broker who refuses.
    private static final int MESSAGE_BYTES_MAX = 64 << 20;

    private KafkaProgram() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, Contract.Action> actions = new HashMap<>(KafkaAdmin.actions());
        actions.put("hello", ask -> Map.of("client", "java", "version", AppInfoParser.getVersion()));
        actions.put("produce", KafkaProgram::produce);
        actions.put("consume", KafkaProgram::consume);
        actions.putAll(KafkaMember.actions());
        actions.put("tool", new KafkaTools()::run);
        Contract.serve(actions, KafkaProgram::codeOf);
    }

    /** The broker's number for an exception of the client, null for one of its own. */
    private static Integer codeOf(Throwable error) {
        for (Throwable at = error; at != null; at = at.getCause()) {
            Errors known = Errors.forException(at);
            if (known != Errors.UNKNOWN_SERVER_ERROR) {
                return (int) known.code();
            }
        }
        return null;
    }

    private static List<Long> produce(JsonNode ask) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", ask.get("servers").asText());
        config.put("acks", ask.get("acks").asText());
        config.put("compression.type", ask.get("codec").asText());
        config.put("linger.ms", "20");
        config.put("max.request.size", MESSAGE_BYTES_MAX);
        if (!ask.get("idempotent").isNull()) {
            config.put("enable.idempotence", ask.get("idempotent").asBoolean());
        }
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode given : ask.get("records")) {
                sent.add(producer.send(toSend(ask, given)));
            }
            producer.flush();
            List<Long> offsets = new ArrayList<>();
            for (Future<RecordMetadata> one : sent) {
                RecordMetadata done = one.get(TIMEOUT_S, TimeUnit.SECONDS);
                offsets.add(done.hasOffset() ? done.offset() : -1L);
            }
            return offsets;
        }
    }

    private static ProducerRecord<byte[], byte[]> toSend(JsonNode ask, JsonNode given)
            throws Exception {
        JsonNode at = given.get("timestamp_ms");
        ProducerRecord<byte[], byte[]> record =
                new ProducerRecord<>(
                        ask.get("topic").asText(),
                        ask.get("partition").asInt(),
                        at.isNull() ? null : at.asLong(),
                        Contract.bytes(given.get("key")),
                        Contract.bytes(given.get("value")));
        for (JsonNode header : given.get("headers")) {
            record.headers().add(header.get(0).asText(), Contract.bytes(header.get(1)));
        }
        return record;
    }

    private static List<ObjectNode> consume(JsonNode ask) {
        Properties config = new Properties();
        config.put("bootstrap.servers", ask.get("servers").asText());
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "none");
        TopicPartition partition = KafkaAdmin.partitionOf(ask);
        List<ObjectNode> records = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(
                        config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            start(consumer, partition, ask.get("from"));
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_S);
            while (records.size() < ask.get("count").asInt()) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("only " + records.size() + " records came");
                }
                for (ConsumerRecord<byte[], byte[]> got : consumer.poll(Duration.ofSeconds(1))) {
                    records.add(received(got));
                }
            }
        }
        return records.subList(0, ask.get("count").asInt());
    }

    private static void start(
            KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, JsonNode origin) {
        switch (origin.get("at").asText()) {
            case "beginning" -> consumer.seekToBeginning(List.of(partition));
            case "offset" -> consumer.seek(partition, origin.get("offset").asLong());
            default -> {
                long at = origin.get("timestamp_ms").asLong();
                OffsetAndTimestamp found =
                        consumer.offsetsForTimes(Map.of(partition, at)).get(partition);
                consumer.seek(partition, found.offset());
            }
        }
    }

    private static ObjectNode received(ConsumerRecord<byte[], byte[]> got) {
        ObjectNode record =
                Contract.record(got.offset(), got.timestamp(), got.key(), got.value());
        got.headers().forEach(one -> Contract.addHeader(record, one.key(), one.value()));
        return record;
    }
}
