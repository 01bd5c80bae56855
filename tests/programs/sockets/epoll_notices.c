// Whom epoll has told of bytes gets bytes: `epoll_notices serve PORT`, `epoll_notices connect PORT
// ANSWERS`.
//
// The server answers each byte with 300, and sleeps now and then right behind; the client has 16
// connections, which do not block, in a level-triggered set. A read behind an event that says
// EAGAIN is counted: nobody else reads.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS = 16, ANSWER = 300 };

#define CHECK(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

static void add(int set, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

static struct sockaddr_in place(const char *port) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(atoi(port)),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return place;
}

static int serve(const char *port) {
    struct sockaddr_in at = place(port);
    int listener = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0), one = 1, left = 0;
    long answered = 0;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 64) == 0);
    char answer[ANSWER];
    memset(answer, 'a', sizeof answer);
    for (;; left++) {
        if (left == CONNECTIONS)
            break;
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        CHECK(fd >= 0);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        add(set, fd);
    }
    long told_of_nothing = 0;
    while (left > 0) {
        struct epoll_event events[64];
        int count = epoll_wait(set, events, 64, -1);
        CHECK(count >= 0 || errno == EINTR);
        for (int at = 0; at < count; at++) {
            char byte[64];
            ssize_t got = read(events[at].data.fd, byte, sizeof byte);
            if (got > 0) {
                CHECK(write(events[at].data.fd, answer, sizeof answer) == ANSWER);
                // Before it sleeps what was not read yet goes another way.
                if (++answered % 3 == 0)
                    usleep(1);
            } else if (got == 0) {
                close(events[at].data.fd);
                left--;
            } else {
                CHECK(errno == EAGAIN);
                told_of_nothing++;
            }
        }
    }
    printf("told of nothing: %ld\n", told_of_nothing);
    return 0;
}

static int connects(const char *port, long answers) {
    struct sockaddr_in at = place(port);
    int set = epoll_create1(0), one = 1, got[1024] = {0};
    long told_of_nothing = 0;
    for (int number = 0; number < CONNECTIONS; number++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0 && fd < 1024);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        add(set, fd);
    }
    struct epoll_event events[64];
    for (int fd = set + 1; fd <= set + CONNECTIONS; fd++)
        CHECK(write(fd, "x", 1) == 1);
    while (answers > 0) {
        int count = epoll_wait(set, events, 64, -1);
        CHECK(count >= 0 || errno == EINTR);
        for (int at = 0; at < count; at++) {
            int fd = events[at].data.fd;
            char data[8192];
            ssize_t part = recv(fd, data, sizeof data, MSG_DONTWAIT);
            if (part < 0 && errno == EAGAIN) {
                told_of_nothing++;
                continue;
            }
            CHECK(part > 0);
            got[fd] += part;
            if (got[fd] == ANSWER) {
                got[fd] = 0;
                if (--answers >= CONNECTIONS)
                    CHECK(write(fd, "x", 1) == 1);
            }
        }
    }
    printf("told of nothing: %ld\n", told_of_nothing);
    return 0;
}

int main(int count, char **words) {
    if (count == 3 && strcmp(words[1], "serve") == 0)
        return serve(words[2]);
    if (count == 4 && strcmp(words[1], "connect") == 0)
        return connects(words[2], atol(words[3]));
    return 2;
}
