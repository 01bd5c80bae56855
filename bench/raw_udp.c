/* What the network between two places can do at all, without any protocol: the yardstick of the
 * wire. One side is `serve PORT` and does what its clients ask for until it is killed; the other is
 *
 *   lat ADDRESS PORT BYTES COUNT     round trips of one datagram, both sides spinning
 *   stream ADDRESS PORT BYTES MS     trains of datagrams of BYTES (UDP GSO); the server receives
 *                                    with GRO and tells how much arrived
 *
 * and prints one number: nanoseconds of the median round trip, or bytes a second that arrived. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#define LARGEST 65507

enum { ECHO = 'e', DATA = 'd', ASK = 'a', DONE = 'q' };

/* So many looks that find nothing, some 30 ms, and the server sleeps: a client was killed. */
#define LOOKS 50000

struct told {
    uint64_t bytes, first, last; /* of DATA since the last ASK: how much, when */
};

static unsigned char buffer[1 << 17];

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void check(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "raw_udp: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static int open_socket(void)
{
    int s = socket(AF_INET, SOCK_DGRAM, 0), bytes = 8 << 20;
    check(s >= 0, "socket");
    check(!setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) ||
              !setsockopt(s, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), "SO_RCVBUF");
    return s;
}

static void serve(int port)
{
    int s = open_socket(), on = 1;
    struct told told = {0, 0, 0};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    check(!bind(s, (struct sockaddr *)&at, sizeof at), "bind");
    check(!setsockopt(s, IPPROTO_UDP, UDP_GRO, &on, sizeof on), "UDP_GRO");
    puts("ready");
    fflush(stdout);
    for (unsigned idle = 0;;) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        /* Spins while a client measures, and not a moment longer: what is measured next would
         * share its processor. */
        ssize_t n = recvfrom(s, buffer, sizeof buffer, idle < LOOKS ? MSG_DONTWAIT : 0,
                             (struct sockaddr *)&from, &length);
        if (n <= 0) {
            idle++;
            continue;
        }
        idle = 0;
        if (buffer[0] == ECHO) {
            sendto(s, buffer, (size_t)n, 0, (struct sockaddr *)&from, length);
        } else if (buffer[0] == DATA) {
            told.last = now_ns();
            if (!told.bytes)
                told.first = told.last;
            told.bytes += (uint64_t)n;
        } else if (buffer[0] == ASK) {
            sendto(s, &told, sizeof told, 0, (struct sockaddr *)&from, length);
            memset(&told, 0, sizeof told);
            idle = LOOKS;
        } else if (buffer[0] == DONE) {
            idle = LOOKS;
        }
    }
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void latency(int s, size_t bytes, size_t count)
{
    uint64_t *took = calloc(count, sizeof *took);
    check(took != NULL, "memory");
    buffer[0] = ECHO;
    uint64_t end = now_ns() + 3000000000; /* where others compute, a few must do */
    for (size_t i = 0; i < count; i++) {
        uint64_t start = now_ns();
        if (start > end && i >= 100)
            count = i;
        check(send(s, buffer, bytes, 0) == (ssize_t)bytes, "send");
        while (recv(s, buffer, sizeof buffer, MSG_DONTWAIT) < 0)
            if (now_ns() - start > 1000000000) { /* lost: again */
                start = now_ns();
                send(s, buffer, bytes, 0);
            }
        took[i] = now_ns() - start;
    }
    buffer[0] = DONE;
    send(s, buffer, 1, 0);
    qsort(took, count, sizeof *took, by_size);
    printf("%llu\n", (unsigned long long)took[count / 2]);
}

static void stream(int s, int segment, uint64_t ms)
{
    struct told told;
    size_t train = (size_t)(LARGEST / segment < 64 ? LARGEST / segment : 64) * (size_t)segment;
    struct timeval patience = {0, 200000};
    check(!setsockopt(s, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment), "UDP_SEGMENT");
    memset(buffer, DATA, sizeof buffer);
    for (uint64_t end = now_ns() + ms * 1000000; now_ns() < end;)
        check(send(s, buffer, train, 0) > 0 || errno == ENOBUFS || errno == EAGAIN, "send");
    check(!setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), "SO_RCVTIMEO");
    buffer[0] = ASK;
    for (int tries = 0; tries < 20; tries++) {
        send(s, buffer, 1, 0);
        if (recv(s, &told, sizeof told, 0) == sizeof told && told.last > told.first) {
            printf("%.0f\n", (double)told.bytes * 1e9 / (double)(told.last - told.first));
            return;
        }
    }
    check(0, "no answer");
}

int main(int count, char **words)
{
    if (count == 3 && !strcmp(words[1], "serve"))
        serve(atoi(words[2]));
    if (count != 6) {
        fprintf(stderr, "usage: raw_udp serve PORT | lat ADDRESS PORT BYTES COUNT | "
                        "stream ADDRESS PORT BYTES MS\n");
        return 2;
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[3]))};
    check(inet_aton(words[2], &to.sin_addr), "an IPv4 address");
    int s = open_socket();
    check(!connect(s, (struct sockaddr *)&to, sizeof to), "connect");
    if (!strcmp(words[1], "lat"))
        latency(s, (size_t)atoi(words[4]), (size_t)atoi(words[5]));
    else
        stream(s, atoi(words[4]), (uint64_t)atoll(words[5]));
    return 0;
}
