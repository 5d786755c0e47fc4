/* Produces COUNT records of SIZE bytes with librdkafka and prints {"records", "seconds", "bytes"}.
 *
 * Time runs from the first record to the last delivery report, after the topic's metadata is known.
 */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static long delivered, failed;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk;
    (void)opaque;
    if (message->err) {
        if (!failed++) fprintf(stderr, "produce: %s\n", rd_kafka_err2str(message->err));
    } else {
        delivered++;
    }
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
    char error[512];
    if (rd_kafka_conf_set(conf, key, value, error, sizeof error) != RD_KAFKA_CONF_OK) {
        fprintf(stderr, "produce: %s\n", error);
        exit(2);
    }
}

int main(int argc, char **argv) {
    if (argc < 7) {
        fprintf(stderr, "usage: produce BROKERS TOPIC PARTITIONS COUNT SIZE BATCH_BYTES [key=value ...]\n");
        return 2;
    }
    int partitions = atoi(argv[3]);
    long count = atol(argv[4]);
    size_t size = (size_t)atol(argv[5]);
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", argv[1]);
    set(conf, "batch.size", argv[6]);
    set(conf, "batch.num.messages", "1000000");
    set(conf, "linger.ms", "5");
    set(conf, "queue.buffering.max.messages", "1000000");
    set(conf, "queue.buffering.max.kbytes", "262144");
    set(conf, "message.max.bytes", "2000000");
    for (int i = 7; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (!equals) return 2;
        *equals = 0;
        set(conf, argv[i], equals + 1);
    }
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    char error[512];
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof error);
    if (!rk) { fprintf(stderr, "produce: %s\n", error); return 1; }
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[2], NULL);
    const struct rd_kafka_metadata *metadata;
    if (rd_kafka_metadata(rk, 0, topic, &metadata, 20000)) { fprintf(stderr, "produce: no metadata\n"); return 1; }
    rd_kafka_metadata_destroy(metadata);
    char *value = malloc(size);
    for (size_t i = 0; i < size; i++) value[i] = (char)('a' + i % 23);
    double begin = now_s();
    for (long i = 0; i < count; i++) {
        int partition = partitions == 1 ? 0 : (int)(i % partitions);
        while (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_COPY, value, size, NULL, 0, NULL) == -1) {
            if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL) { fprintf(stderr, "produce: %s\n", rd_kafka_err2str(rd_kafka_last_error())); return 1; }
            rd_kafka_poll(rk, 5);
        }
        if (i % 1024 == 0) rd_kafka_poll(rk, 0);
    }
    while (delivered + failed < count && now_s() - begin < 300) rd_kafka_poll(rk, 50);
    double took = now_s() - begin;
    printf("{\"records\": %ld, \"seconds\": %.6f, \"bytes\": %.0f}\n", delivered, took, (double)delivered * (double)size);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(rk);
    return failed || delivered < count;
}
