/* Many connections between two processes, all at once: `many_connections serve PORT`,
 * `many_connections connect PORT COUNT ROUNDS`. Each is told its number in every round and says it
 * back; then the client says what one has cost it. The server ends when all are closed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 256

static void check(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static long kilobytes(void)
{
    char line[256];
    long found = 0;
    FILE *rollup = fopen("/proc/self/smaps_rollup", "r");
    check(rollup != NULL, "smaps_rollup");
    while (fgets(line, sizeof line, rollup))
        sscanf(line, "Private_Dirty: %ld", &found);
    fclose(rollup);
    return found;
}

static struct sockaddr_in at(const char *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static int serve(const char *port)
{
    struct sockaddr_in address = at(port);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), open = 0;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    check(!bind(listener, (void *)&address, sizeof address), "bind");
    check(!listen(listener, 4096), "listen");
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
    check(!epoll_ctl(set, EPOLL_CTL_ADD, listener, &event), "epoll_ctl");
    for (;;) {
        int count = epoll_wait(set, events, EVENTS, -1);
        check(count > 0, "epoll_wait");
        for (int i = 0; i < count; i++) {
            int number = events[i].data.fd;
            uint32_t word;
            if (number == listener) {
                int new = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (new < 0) {
                    check(errno == EAGAIN, "accept4");
                    continue;
                }
                event.data.fd = new;
                check(!epoll_ctl(set, EPOLL_CTL_ADD, new, &event), "epoll_ctl");
                open++;
                continue;
            }
            ssize_t got = recv(number, &word, sizeof word, 0);
            if (got == sizeof word) {
                check(send(number, &word, sizeof word, 0) == sizeof word, "send");
            } else if (got == 0) {
                check(!close(number), "close");
                if (--open == 0)
                    return 0;
            } else {
                check(got < 0 && errno == EAGAIN, "recv");
            }
        }
    }
}

static int join(const char *port, int count, int rounds)
{
    struct sockaddr_in address = at(port);
    int *all = calloc((size_t)count, sizeof *all);
    memset(all, 1, (size_t)count * sizeof *all);
    long before = kilobytes();
    double begun = now();
    for (int i = 0; i < count; i++) {
        all[i] = socket(AF_INET, SOCK_STREAM, 0);
        check(all[i] >= 0, "socket");
        check(!connect(all[i], (void *)&address, sizeof address), "connect");
    }
    double made = now();
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < count; i++) {
            uint32_t word = (uint32_t)(round * count + i), back = ~word;
            check(send(all[i], &word, sizeof word, 0) == sizeof word, "send");
            check(recv(all[i], &back, sizeof back, MSG_WAITALL) == sizeof back, "recv");
            check(word == back, "another's word");
        }
    double ended = now();
    long after = kilobytes();
    printf("%.0f connections a second, %.0f bytes each, %.0f ns a round trip\n",
           count / (made - begun), (double)(after - before) * 1024 / count,
           (ended - made) * 1e9 / count / rounds);
    for (int i = 0; i < count; i++)
        check(!close(all[i]), "close");
    free(all);
    return 0;
}

int main(int count, char **words)
{
    struct rlimit most;
    check(!getrlimit(RLIMIT_NOFILE, &most), "getrlimit");
    most.rlim_cur = most.rlim_max;
    check(!setrlimit(RLIMIT_NOFILE, &most), "setrlimit");
    if (count == 3)
        return serve(words[2]);
    return count == 5 ? join(words[2], atoi(words[3]), atoi(words[4])) : 2;
}
