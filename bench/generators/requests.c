/* One-record Produce requests over raw sockets: CONNECTIONS x IN_FLIGHT, for SECONDS.
 *
 * A Python or JVM generator would measure itself. The frames, one or more, are built by the caller
 * (any Produce version, one partition each) and read from standard input one behind the other; only
 * the correlation id is set here. Requests go through the frames in turn.
 * Prints one JSON line: {"requests": n, "seconds": s, "p50_us": .., "p99_us": ..}.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FRAMES_BYTES_MAX (8 << 20)
#define FRAMES_MAX 16384
#define OUT_BYTES 65536
#define ANSWER_MAX 65536
#define IN_FLIGHT_MAX 64
#define SAMPLES_MAX (1 << 22)

struct connection {
    int fd;
    size_t filled;
    unsigned char answer[ANSWER_MAX];
    int64_t sent_ns[IN_FLIGHT_MAX];
    uint32_t sent, received;
};

static unsigned char frames[FRAMES_BYTES_MAX];
static size_t frame_at[FRAMES_MAX + 1]; /* where each begins, and where the last one ends */
static size_t frame_count, frame_next;
static uint32_t samples_us[SAMPLES_MAX];
static size_t sample_count;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "requests: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Finds the borders by the size in front of each frame; nothing may be left over. */
static void read_frames(void) {
    size_t filled = fread(frames, 1, FRAMES_BYTES_MAX, stdin), at = 0;
    while (at + 14 <= filled && frame_count < FRAMES_MAX) {
        uint32_t size;
        memcpy(&size, frames + at, 4);
        at += ntohl(size) + 4u;
        frame_at[++frame_count] = at;
        if (at - frame_at[frame_count - 1] > OUT_BYTES) break;
    }
    errno = EINVAL;
    if (!frame_count || at != filled) fail("bad frames");
}

static void send_all(struct connection *c, const unsigned char *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = send(c->fd, data + done, size - done, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR) fail("send");
        if (n > 0) done += (size_t)n;
    }
}

static void send_some(struct connection *c, int count) {
    static unsigned char out[OUT_BYTES];
    size_t filled = 0;
    for (int i = 0; i < count; i++) {
        const unsigned char *frame = frames + frame_at[frame_next];
        size_t size = frame_at[frame_next + 1] - frame_at[frame_next];
        if (filled + size > sizeof out) { send_all(c, out, filled); filled = 0; }
        memcpy(out + filled, frame, size);
        uint32_t id = htonl(c->sent);
        memcpy(out + filled + 8, &id, 4); /* size, api key, version, then the correlation id */
        filled += size;
        c->sent_ns[c->sent % IN_FLIGHT_MAX] = now_ns();
        c->sent++;
        frame_next = (frame_next + 1) % frame_count;
    }
    send_all(c, out, filled);
}

/* Whole answers in the buffer; each must carry the next correlation id and error code 0. */
static int take_answers(struct connection *c, long error_at) {
    size_t at = 0;
    int count = 0;
    while (c->filled - at >= 8) {
        uint32_t size, id;
        memcpy(&size, c->answer + at, 4);
        size = ntohl(size);
        if (size > ANSWER_MAX - 4) fail("an answer that is too large");
        if (c->filled - at < size + 4) break;
        memcpy(&id, c->answer + at + 4, 4);
        if (ntohl(id) != c->received) { errno = 0; fail("answers out of order"); }
        if (error_at >= 0 && (c->answer[at + 4 + (size_t)error_at] | c->answer[at + 5 + (size_t)error_at])) {
            errno = 0;
            fail("an error code in an answer");
        }
        int64_t took = now_ns() - c->sent_ns[c->received % IN_FLIGHT_MAX];
        if (sample_count < SAMPLES_MAX) samples_us[sample_count++] = (uint32_t)(took / 1000);
        c->received++;
        at += size + 4;
        count++;
    }
    memmove(c->answer, c->answer + at, c->filled - at);
    c->filled -= at;
    return count;
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: requests HOST PORT CONNECTIONS IN_FLIGHT SECONDS ERROR_AT < FRAMES\n");
        return 2;
    }
    int connections = atoi(argv[3]), in_flight = atoi(argv[4]);
    double seconds = atof(argv[5]);
    long error_at = atol(argv[6]); /* where in an answer's body the error code is; -1 unknown */
    if (connections < 1 || in_flight < 1 || in_flight > IN_FLIGHT_MAX) { errno = EINVAL; fail("arguments"); }
    read_frames();
    int poll = epoll_create1(0);
    struct connection *all = calloc((size_t)connections, sizeof *all);
    for (int i = 0; i < connections; i++) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
        int one = 1;
        inet_pton(AF_INET, argv[1], &to.sin_addr);
        all[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(all[i].fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
        setsockopt(all[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &e);
    }
    int64_t begin = now_ns(), end = begin + (int64_t)(seconds * 1e9);
    long requests = 0, waiting = 0;
    for (int i = 0; i < connections; i++) { send_some(&all[i], in_flight); waiting += in_flight; }
    while (waiting) {
        struct epoll_event events[64];
        int n = epoll_wait(poll, events, 64, 5000);
        if (n == 0) { errno = ETIMEDOUT; fail("no answer"); }
        int is_over = now_ns() >= end;
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            ssize_t got = recv(c->fd, c->answer + c->filled, ANSWER_MAX - c->filled, MSG_DONTWAIT);
            if (got == 0) { errno = ECONNRESET; fail("closed"); }
            if (got < 0) { if (errno == EAGAIN) continue; fail("recv"); }
            c->filled += (size_t)got;
            int done = take_answers(c, error_at);
            requests += done;
            waiting -= done;
            if (!is_over) { send_some(c, done); waiting += done; }
        }
    }
    double took = (double)(now_ns() - begin) / 1e9;
    qsort(samples_us, sample_count, sizeof *samples_us, by_value);
    printf("{\"requests\": %ld, \"seconds\": %.6f, \"p50_us\": %u, \"p99_us\": %u}\n", requests, took,
           samples_us[sample_count / 2], samples_us[sample_count * 99 / 100]);
    return 0;
}
