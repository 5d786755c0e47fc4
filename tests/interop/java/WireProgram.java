import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/** Kafka's message classes behind the line contract: JSON into bytes, bytes into JSON, defaults. */
final class WireProgram {
    private static final String PACKAGE = "org.apache.kafka.common.message.";

    private final Map<String, Format> formats = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        WireProgram program = new WireProgram();
        Contract.serve(
                Map.of(
                        "errors", ask -> errors(),
                        "apis", ask -> apis(),
                        "write", ask -> program.all(ask, Format::write),
                        "write_fresh", ask -> program.all(ask, Format::writeFresh),
                        "read", ask -> program.all(ask, Format::read)),
                error -> null);
    }

    private static ArrayNode errors() {
        ArrayNode all = Contract.JSON.createArrayNode();
        for (Errors error : Errors.values()) {
            all.addObject()
                    .put("name", error.name())
                    .put("code", error.code())
                    .put("is_retriable", error.exception() instanceof RetriableException);
        }
        return all;
    }

    private static ArrayNode apis() {
        ArrayNode all = Contract.JSON.createArrayNode();
        for (ApiKeys api : ApiKeys.values()) {
            ObjectNode one = all.addObject().put("name", api.name()).put("key", api.id);
            boolean isServed = api.hasValidVersion();
            one.put("oldest", isServed ? api.oldestVersion() : 0);
            one.put("latest", isServed ? api.latestVersion() : -1);
            ObjectNode requests = one.putObject("request_headers");
            ObjectNode responses = one.putObject("response_headers");
            for (short version = 0; isServed && version <= api.latestVersion(); version++) {
                if (version >= api.oldestVersion()) {
                    requests.put("" + version, api.requestHeaderVersion(version));
                    responses.put("" + version, api.responseHeaderVersion(version));
                }
            }
        }
        return all;
    }

    /** One thing done to each item; what Kafka refuses is told and does not end the others. */
    private ArrayNode all(JsonNode ask, Step step) throws Exception {
        Format format = format(ask.get("message").asText());
        short version = (short) ask.get("version").asInt();
        ArrayNode answers = Contract.JSON.createArrayNode();
        for (JsonNode item : ask.get("items")) {
            ObjectNode answer = answers.addObject();
            try {
                step.run(format, item, version, answer);
            } catch (InvocationTargetException wrapped) {
                answer.put("refused", wrapped.getCause().toString());
            } catch (RuntimeException refused) {
                answer.put("refused", refused.toString());
            }
        }
        return answers;
    }

    private Format format(String name) throws Exception {
        if (!formats.containsKey(name)) {
            formats.put(name, new Format(name));
        }
        return formats.get(name);
    }

    /** What is done to one item. */
    private interface Step {
        void run(Format format, JsonNode item, short version, ObjectNode answer) throws Exception;
    }

    /** One message class with its converter. */
    private static final class Format {
        private final Class<?> type;
        private final Method fromJson;
        private final Method toJson;

        Format(String name) throws Exception {
            type = Class.forName(PACKAGE + name + "Data");
            Class<?> converter = Class.forName(PACKAGE + name + "DataJsonConverter");
            fromJson = converter.getMethod("read", JsonNode.class, short.class);
            toJson = converter.getMethod("write", type, short.class, boolean.class);
        }

        void write(JsonNode item, short version, ObjectNode answer) throws Exception {
            answer.put("data", encoded((Message) fromJson.invoke(null, item, version), version));
        }

        void writeFresh(JsonNode item, short version, ObjectNode answer) throws Exception {
            answer.put("data", encoded((Message) fresh(type, item), version));
        }

        void read(JsonNode item, short version, ObjectNode answer) throws Exception {
            ByteBuffer data = ByteBuffer.wrap(item.binaryValue());
            Message message = (Message) type.getDeclaredConstructor().newInstance();
            message.read(new ByteBufferAccessor(data), version);
            if (data.hasRemaining()) {
                throw new IllegalStateException(data.remaining() + " bytes left");
            }
            answer.put("data", encoded(message, version));
            // Of record batches Kafka tells the size alone.
            answer.set("fields", (JsonNode) toJson.invoke(null, message, version, false));
        }

        private static byte[] encoded(Message message, short version) {
            return MessageUtil.byteBufferToArray(
                    MessageUtil.toByteBufferAccessor(message, version).buffer());
        }

        /** A struct of defaults, with an item in each array that the outline names. */
        private static Object fresh(Class<?> struct, JsonNode outline) throws Exception {
            Object made = struct.getDeclaredConstructor().newInstance();
            for (Map.Entry<String, JsonNode> entry : outline.properties()) {
                Method setter = setter(struct, entry.getKey());
                setter.invoke(made, value(setter.getGenericParameterTypes()[0], entry.getValue()));
            }
            return made;
        }

        private static Object value(Type type, JsonNode outline) throws Exception {
            if (!outline.isArray()) {
                return fresh((Class<?>) type, outline);
            }
            boolean isList = type instanceof ParameterizedType;
            Class<?> kind = isList ? ArrayList.class : (Class<?>) type;
            ParameterizedType named =
                    (ParameterizedType) (isList ? type : kind.getGenericSuperclass());
            @SuppressWarnings("unchecked")
            Collection<Object> items =
                    (Collection<Object>) kind.getDeclaredConstructor().newInstance();
            for (JsonNode item : outline) {
                items.add(fresh((Class<?>) named.getActualTypeArguments()[0], item));
            }
            return items;
        }

        private static Method setter(Class<?> struct, String name) {
            String wanted = "set" + name.substring(0, 1).toUpperCase() + name.substring(1);
            for (Method method : struct.getMethods()) {
                if (method.getName().equals(wanted)) {
                    return method;
                }
            }
            throw new IllegalArgumentException(struct + " has no " + name);
        }
    }
}
