/* End-to-end latency at a steady rate: one producer (acks=all) and one consumer in one process.
 *
 * Every record carries the time at which it was due, not at which it was sent: a producer that is
 * held up counts against the broker (no coordinated omission). The first WARM_UP seconds are left
 * out. Prints {"records", "seconds", "p50_us", "p99_us", "p999_us", "rate"}.
 */
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GIVE_UP_NS 30000000000

static char *brokers, *topic_name;
static long rate, size, total, skipped;
static uint32_t *samples_us;
static long sample_count, seen;
static atomic_int is_consumer_ready, has_failed;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
    char error[512];
    if (rd_kafka_conf_set(conf, key, value, error, sizeof error) != RD_KAFKA_CONF_OK) {
        fprintf(stderr, "latency: %s\n", error);
        exit(2);
    }
}

static rd_kafka_t *client(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char error[512];
    set(conf, "bootstrap.servers", brokers);
    set(conf, "socket.nagle.disable", "true");
    rd_kafka_t *rk = rd_kafka_new(type, conf, error, sizeof error);
    if (!rk) { fprintf(stderr, "latency: %s\n", error); exit(1); }
    return rk;
}

static void take(rd_kafka_message_t *message, int64_t at) {
    int64_t due;
    if (message->err || message->len < sizeof due) {
        if (message->err) fprintf(stderr, "latency: %s\n", rd_kafka_message_errstr(message));
        return;
    }
    memcpy(&due, message->payload, sizeof due);
    if (due < 0 || due > at) return; /* not one of ours */
    if (due && seen++ >= skipped) samples_us[sample_count++] = (uint32_t)((at - due) / 1000);
    if (!due) atomic_store(&is_consumer_ready, 1);
}

static void *consume(void *unused) {
    (void)unused;
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "group.id", "bench");
    set(conf, "enable.auto.commit", "false");
    set(conf, "fetch.wait.max.ms", "500");
    set(conf, "fetch.min.bytes", "1");
    rd_kafka_t *rk = client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_poll_set_consumer(rk);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic_name, 0)->offset = RD_KAFKA_OFFSET_BEGINNING;
    rd_kafka_assign(rk, list);
    int64_t heard = now_ns();
    while (seen < total && !atomic_load(&has_failed)) {
        /* One at a time: a call for many returns when it has all of them or its time is up, and
         * would add half of that time to every figure. */
        rd_kafka_message_t *message = rd_kafka_consumer_poll(rk, 100);
        int64_t at = now_ns();
        if (message) {
            heard = at;
            take(message, at);
            rd_kafka_message_destroy(message);
        }
        if (at - heard > GIVE_UP_NS) { atomic_store(&has_failed, 1); fprintf(stderr, "latency: silence\n"); }
    }
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_consumer_close(rk);
    rd_kafka_destroy(rk);
    return NULL;
}

static void send_one(rd_kafka_t *rk, rd_kafka_topic_t *topic, char *value, int64_t due) {
    memcpy(value, &due, sizeof due);
    if (rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, value, (size_t)size, NULL, 0, NULL)) {
        fprintf(stderr, "latency: %s\n", rd_kafka_err2str(rd_kafka_last_error()));
        atomic_store(&has_failed, 1);
    }
    rd_kafka_poll(rk, 0);
}

/* Sleeps to the next due record; those that became due meanwhile go at once. */
static double produce(rd_kafka_t *rk, rd_kafka_topic_t *topic) {
    char *value = calloc(1, (size_t)size);
    while (!atomic_load(&is_consumer_ready) && !atomic_load(&has_failed)) {
        send_one(rk, topic, value, 0); /* a record without a time only wakes the consumer */
        rd_kafka_flush(rk, 1000);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    int64_t begin = now_ns(), gap = 1000000000 / rate;
    for (long i = 0; i < total && !atomic_load(&has_failed); i++) {
        int64_t due = begin + i * gap;
        struct timespec until = {.tv_sec = due / 1000000000, .tv_nsec = due % 1000000000};
        if (now_ns() < due) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        send_one(rk, topic, value, due);
    }
    double took = (double)(now_ns() - begin) / 1e9;
    free(value);
    return took;
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: latency BROKERS TOPIC RATE SIZE SECONDS WARM_UP\n");
        return 2;
    }
    brokers = argv[1];
    topic_name = argv[2];
    rate = atol(argv[3]);
    size = atol(argv[4]);
    total = (long)((double)rate * (atof(argv[5]) + atof(argv[6])));
    skipped = (long)((double)rate * atof(argv[6]));
    if (rate < 1 || size < 8 || total <= skipped) return 2;
    samples_us = calloc((size_t)total, sizeof *samples_us);
    pthread_t consumer;
    if (pthread_create(&consumer, NULL, consume, NULL)) return 1;
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "linger.ms", "0");
    set(conf, "acks", "all");
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, topic_name, NULL);
    double took = produce(rk, topic);
    rd_kafka_flush(rk, 30000);
    pthread_join(consumer, NULL);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(rk);
    if (atomic_load(&has_failed) || !sample_count) return 1;
    qsort(samples_us, (size_t)sample_count, sizeof *samples_us, by_value);
    printf("{\"records\": %ld, \"seconds\": %.6f, \"p50_us\": %u, \"p99_us\": %u, \"p999_us\": %u, \"rate\": %.1f}\n",
           sample_count, took, samples_us[sample_count / 2], samples_us[sample_count * 99 / 100],
           samples_us[sample_count * 999 / 1000], (double)total / took);
    return 0;
}
