import com.fasterxml.jackson.databind.JsonNode;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** A member's log: every line reaches the system at once, so that a kill loses none. */
final class MemberLog {
    private final FileOutputStream file;

    MemberLog(JsonNode ask) throws IOException {
        file = new FileOutputStream(ask.get("log").asText(), true);
        Map<String, Object> said = new LinkedHashMap<>();
        for (String name : new String[] {"member", "group", "instance", "protocol"}) {
            said.put(name, ask.get(name));
        }
        write("began", said);
    }

    /** The virtual machine's nanoseconds are those of the machine's monotonic clock. */
    synchronized void write(String event, Map<String, ?> said) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("t", System.nanoTime());
        line.put("e", event);
        line.putAll(said);
        try {
            file.write((Contract.JSON.writeValueAsString(line) + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
