import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs command-line tools of Apache Kafka in this process, one after the other, as their scripts
 * would: a new JVM for each would take longer than its work.
 */
final class KafkaTools {
    /** Thrown where a tool would end the process. */
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1;

        Ended(int code) {
            super("exit " + code, null, false, false);
        }
    }

    /** Hooks are run when the tool has ended, as if its process had. */
    private final List<Runnable> hooks = new ArrayList<>();

    /** With what the tool ended first: some catch what ends them, and end again with an error. */
    private Integer exitCode;

    KafkaTools() {
        Exit.Procedure ended =
                (code, message) -> {
                    if (message != null) {
                        System.err.println(message);
                    }
                    exitCode = exitCode == null ? code : exitCode;
                    throw new Ended(code);
                };
        Exit.setExitProcedure(ended);
        Exit.setHaltProcedure(ended);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
    }

    Object run(JsonNode ask) throws Exception {
        List<String> arguments = new ArrayList<>();
        ask.get("arguments").forEach(one -> arguments.add(one.asText()));
        InputStream oldIn = System.in;
        PrintStream oldOut = System.out;
        PrintStream oldErr = System.err;
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(Contract.bytes(ask.get("input"))));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        try {
            int code = call(ask.get("main").asText(), arguments.toArray(new String[0]));
            System.out.flush();
            return Map.of(
                    "exit", code, "out", out.toByteArray(), "err", err.toString(StandardCharsets.UTF_8));
        } finally {
            System.setIn(oldIn);
            System.setOut(oldOut);
            System.setErr(oldErr);
        }
    }

    private int call(String mainClass, String[] arguments) throws Exception {
        exitCode = null;
        try {
            Class.forName(mainClass).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException thrown) {
            if (exitCode != null) {
                return exitCode;
            }
            thrown.getCause().printStackTrace();
            return 1;
        } finally {
            List<Runnable> due = List.copyOf(hooks);
            hooks.clear();
            due.forEach(Runnable::run);
        }
    }
}
