/* Consumes COUNT records of all PARTITIONS from the beginning with librdkafka (assign, no group).
 *
 * Time runs from the first record to the last; prints {"records", "seconds", "bytes"}.
 */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AT_ONCE 10000

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
    char error[512];
    if (rd_kafka_conf_set(conf, key, value, error, sizeof error) != RD_KAFKA_CONF_OK) {
        fprintf(stderr, "consume: %s\n", error);
        exit(2);
    }
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: consume BROKERS TOPIC PARTITIONS COUNT [key=value ...]\n");
        return 2;
    }
    int partitions = atoi(argv[3]);
    long count = atol(argv[4]), taken = 0;
    double bytes = 0, begin = 0, end = 0, started = now_s();
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", argv[1]);
    set(conf, "group.id", "bench");
    set(conf, "enable.auto.commit", "false");
    set(conf, "auto.offset.reset", "earliest");
    set(conf, "queued.min.messages", "1000000");
    set(conf, "queued.max.messages.kbytes", "262144");
    set(conf, "fetch.message.max.bytes", "1048576");
    for (int i = 5; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (!equals) return 2;
        *equals = 0;
        set(conf, argv[i], equals + 1);
    }
    char error[512];
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, error, sizeof error);
    if (!rk) { fprintf(stderr, "consume: %s\n", error); return 1; }
    rd_kafka_poll_set_consumer(rk);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(partitions);
    for (int i = 0; i < partitions; i++)
        rd_kafka_topic_partition_list_add(list, argv[2], i)->offset = RD_KAFKA_OFFSET_BEGINNING;
    rd_kafka_assign(rk, list);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(rk);
    static rd_kafka_message_t *messages[AT_ONCE];
    while (taken < count && now_s() - started < 300) {
        ssize_t n = rd_kafka_consume_batch_queue(queue, 100, messages, AT_ONCE);
        if (n > 0 && !begin) begin = now_s();
        for (ssize_t i = 0; i < n; i++) {
            if (messages[i]->err) fprintf(stderr, "consume: %s\n", rd_kafka_message_errstr(messages[i]));
            else { taken++; bytes += (double)messages[i]->len; }
            rd_kafka_message_destroy(messages[i]);
        }
    }
    end = now_s();
    printf("{\"records\": %ld, \"seconds\": %.6f, \"bytes\": %.0f}\n", taken, end - begin, bytes);
    rd_kafka_queue_destroy(queue);
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_consumer_close(rk);
    rd_kafka_destroy(rk);
    return taken < count;
}
