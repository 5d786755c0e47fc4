import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.function.Function;

/** The contract of the client programs (see the README above), for those written in Java. */
final class Contract {
    static final ObjectMapper JSON =
            new ObjectMapper().configure(JsonParser.Feature.INCLUDE_SOURCE_IN_LOCATION, false);

    /** One kind of request. */
    interface Action {
        Object run(JsonNode ask) throws Exception;
    }

    private Contract() {}

    /** Answers line by line until standard input ends; `codeOf` knows the client's exceptions. */
    static void serve(Map<String, Action> actions, Function<Throwable, Integer> codeOf)
            throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err); // whatever a client prints must not look like an answer
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode ask = JSON.readTree(line);
                answer.set("ok", JSON.valueToTree(actions.get(ask.get("do").asText()).run(ask)));
            } catch (Exception error) {
                error.printStackTrace();
                answer.putObject("error").put("code", codeOf.apply(error)).put("text", said(error));
            }
            answers.write((answer + "\n").getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
    }

    private static String said(Throwable error) {
        String inner = error.getCause() == null ? "" : " <- " + said(error.getCause());
        return error + inner;
    }

    static byte[] bytes(JsonNode node) throws IOException {
        return node == null || node.isNull() ? null : node.binaryValue();
    }

    /** A record as the contract has it, without headers yet. */
    static ObjectNode record(long offset, long timestampMs, byte[] key, byte[] value) {
        ObjectNode record = JSON.createObjectNode();
        record.put("offset", offset).put("timestamp_ms", timestampMs);
        record.put("key", key).put("value", value).putArray("headers");
        return record;
    }

    static void addHeader(ObjectNode record, String name, byte[] value) {
        ArrayNode header = ((ArrayNode) record.get("headers")).addArray();
        header.add(name).add(value);
    }
}
