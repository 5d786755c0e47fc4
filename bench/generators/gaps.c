/* Produces one small record after the other, acks=all, and finds the longest time without an answer.
 *
 * A record every INTERVAL_MS, whatever became of the last ones. Prints a line with the first
 * acknowledgement; every byte on standard input restarts the watch, its end ends the program when
 * all records have their answers: {"records": n, "failed": n, "longest_gap_s": s}.
 * Metadata is asked for often and at once, so that what is seen is the cluster's time and not ours.
 */
#include <librdkafka/rdkafka.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FLUSH_MS 120000

static long delivered, failed;
static double last_s, longest_s;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk;
    (void)opaque;
    if (message->err) {
        if (!failed++) fprintf(stderr, "gaps: %s\n", rd_kafka_err2str(message->err));
        return;
    }
    double now = now_s();
    if (delivered++ == 0) {
        puts("acknowledged");
        fflush(stdout);
    } else if (now - last_s > longest_s) {
        longest_s = now - last_s;
    }
    last_s = now;
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
    char error[512];
    if (rd_kafka_conf_set(conf, key, value, error, sizeof error) != RD_KAFKA_CONF_OK) {
        fprintf(stderr, "gaps: %s\n", error);
        exit(2);
    }
}

/* Whether to go on: false at the end of standard input. */
static int listen_to_input(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    if (poll(&input, 1, 0) <= 0) return 1;
    char bytes[64];
    if (read(0, bytes, sizeof bytes) <= 0) return 0;
    longest_s = 0;
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: gaps BROKERS TOPIC PARTITION INTERVAL_MS [key=value ...]\n");
        return 2;
    }
    int partition = atoi(argv[3]);
    double interval_s = atof(argv[4]) / 1e3;
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", argv[1]);
    set(conf, "acks", "all");
    set(conf, "linger.ms", "0");
    set(conf, "message.timeout.ms", "100000");
    set(conf, "retry.backoff.ms", "20");
    set(conf, "reconnect.backoff.ms", "20");
    set(conf, "reconnect.backoff.max.ms", "100");
    set(conf, "topic.metadata.refresh.fast.interval.ms", "50");
    for (int i = 5; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (!equals) return 2;
        *equals = 0;
        set(conf, argv[i], equals + 1);
    }
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    char error[512];
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof error);
    if (!rk) { fprintf(stderr, "gaps: %s\n", error); return 1; }
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[2], NULL);
    char value[100];
    memset(value, 'x', sizeof value);
    double next_s = now_s();
    while (listen_to_input()) {
        if (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_COPY, value, sizeof value, NULL, 0, NULL) == -1 &&
            rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL) {
            fprintf(stderr, "gaps: %s\n", rd_kafka_err2str(rd_kafka_last_error()));
            return 1;
        }
        next_s += interval_s;
        for (double left_s = next_s - now_s(); left_s > 0; left_s = next_s - now_s())
            rd_kafka_poll(rk, (int)(left_s * 1e3) + 1);
    }
    rd_kafka_flush(rk, FLUSH_MS);
    printf("{\"records\": %ld, \"failed\": %ld, \"longest_gap_s\": %.6f}\n", delivered, failed, longest_s);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(rk);
    return failed != 0;
}
