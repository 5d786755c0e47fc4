import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.DataStreamReader;
import org.apache.spark.sql.streaming.StreamingQuery;
import org.apache.spark.sql.streaming.Trigger;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * Spark's own connector for Kafka by the contract of the client programs: batch and streaming, to
 * and from a topic. One local session serves all requests.
 *
 * <p>`write` and `read` are batch; `read_stream` reads to the present end, `copy_stream` also
 * writes what it read to another topic. Options of the connector are given as they are.
 */
public final class SparkProgram {
    private static final StructType HEADER =
            new StructType(
                    new StructField[] {
                        DataTypes.createStructField("key", DataTypes.StringType, false),
                        DataTypes.createStructField("value", DataTypes.BinaryType, true),
                    });
    private static final StructType RECORD =
            new StructType(
                    new StructField[] {
                        DataTypes.createStructField("key", DataTypes.BinaryType, true),
                        DataTypes.createStructField("value", DataTypes.BinaryType, true),
                        DataTypes.createStructField(
                                "headers", DataTypes.createArrayType(HEADER), true),
                        DataTypes.createStructField("partition", DataTypes.IntegerType, true),
                    });
    private static final long TIMEOUT_MS = 120_000;

    private final SparkSession spark;
    private int streams;

    private SparkProgram(SparkSession spark) {
        this.spark = spark;
    }

    public static void main(String[] arguments) throws Exception {
        SparkSession spark =
                SparkSession.builder()
                        .master("local[2]")
                        .appName("interop")
                        .config("spark.ui.enabled", "false")
                        .config("spark.sql.shuffle.partitions", "1")
                        .config("spark.driver.bindAddress", "127.0.0.1")
                        .config("spark.driver.host", "127.0.0.1")
                        .config("spark.sql.warehouse.dir", arguments[0])
                        .config("spark.local.dir", arguments[0])
                        .getOrCreate();
        SparkProgram program = new SparkProgram(spark);
        Map<String, Contract.Action> actions = new HashMap<>();
        actions.put("hello", ask -> Map.of("client", "spark", "version", spark.version()));
        actions.put("write", program::write);
        actions.put("read", program::read);
        actions.put("read_stream", program::readStream);
        actions.put("copy_stream", program::copyStream);
        Contract.serve(actions, error -> null);
        spark.stop();
    }

    private Object write(JsonNode ask) throws Exception {
        List<Row> rows = new ArrayList<>();
        for (JsonNode record : ask.get("records")) {
            List<Row> headers = new ArrayList<>();
            for (JsonNode header : record.get("headers")) {
                headers.add(
                        RowFactory.create(header.get(0).asText(), Contract.bytes(header.get(1))));
            }
            byte[] key = Contract.bytes(record.get("key"));
            byte[] value = Contract.bytes(record.get("value"));
            rows.add(RowFactory.create(key, value, headers.toArray(), ask.get("partition").asInt()));
        }
        spark.createDataFrame(rows, RECORD)
                .coalesce(1)
                .write()
                .format("kafka")
                .option("kafka.bootstrap.servers", ask.get("servers").asText())
                .option("topic", ask.get("topic").asText())
                .option("includeHeaders", "true")
                .options(optionsOf(ask))
                .save();
        return null;
    }

    private Object read(JsonNode ask) {
        return records(
                spark.read()
                        .format("kafka")
                        .option("kafka.bootstrap.servers", ask.get("servers").asText())
                        .option("subscribe", ask.get("topic").asText())
                        .option("includeHeaders", "true")
                        .options(optionsOf(ask))
                        .load());
    }

    private Object readStream(JsonNode ask) throws Exception {
        String name = "stream_" + streams++;
        StreamingQuery query =
                source(ask).load()
                        .writeStream()
                        .format("memory")
                        .queryName(name)
                        .trigger(Trigger.AvailableNow())
                        .start();
        finish(query);
        return records(spark.table(name));
    }

    private Object copyStream(JsonNode ask) throws Exception {
        StreamingQuery query =
                source(ask).load()
                        .selectExpr("key", "value", "headers")
                        .writeStream()
                        .format("kafka")
                        .option("kafka.bootstrap.servers", ask.get("servers").asText())
                        .option("topic", ask.get("target").asText())
                        .option("includeHeaders", "true")
                        .option("checkpointLocation", ask.get("checkpoint").asText())
                        .trigger(Trigger.AvailableNow())
                        .start();
        finish(query);
        return null;
    }

    private DataStreamReader source(JsonNode ask) {
        return spark.readStream()
                .format("kafka")
                .option("kafka.bootstrap.servers", ask.get("servers").asText())
                .option("subscribe", ask.get("topic").asText())
                .option("includeHeaders", "true")
                .options(optionsOf(ask));
    }

    private static void finish(StreamingQuery query) throws Exception {
        if (!query.awaitTermination(TIMEOUT_MS)) {
            query.stop();
            throw new IllegalStateException("the stream did not come to its end");
        }
    }

    private static Map<String, String> optionsOf(JsonNode ask) {
        Map<String, String> options = new HashMap<>();
        ask.get("options").properties()
                .forEach(one -> options.put(one.getKey(), one.getValue().asText()));
        return options;
    }

    private static List<ObjectNode> records(Dataset<Row> rows) {
        List<ObjectNode> records = new ArrayList<>();
        for (Row row : rows.orderBy("partition", "offset").collectAsList()) {
            ObjectNode record =
                    Contract.record(
                            row.getAs("offset"),
                            ((java.sql.Timestamp) row.getAs("timestamp")).getTime(),
                            row.getAs("key"),
                            row.getAs("value"));
            record.put("partition", (int) row.getAs("partition"));
            List<Row> headers = row.isNullAt(row.fieldIndex("headers")) ? List.of()
                    : row.getList(row.fieldIndex("headers"));
            for (Row header : headers) {
                Contract.addHeader(record, header.getString(0), header.getAs(1));
            }
            records.add(record);
        }
        return records;
    }
}
