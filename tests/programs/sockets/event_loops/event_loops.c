// loops KIND serve|ask PORT: loops of events that use sockets as those of runtimes do.
//
//   mio       Tokio: edge-triggered; members are added by a duplicate of the set from another
//             thread, which wakes the waiting one by an eventfd
//   rustix    smol: one-shot; the calls on the set pass libc by, those on sockets do not
//   bare      Bun, Zig: edge-triggered; every call on an open socket passes libc by
//   netty     its native transport: a listener for each of two loops (SO_REUSEPORT), lists of 1024
//             pieces, several messages a call, TCP_INFO
//   libuv     level-triggered; changes to the set are collected in an io_uring, if there is one
//   liburing  completions: accept, receive and send are entries of an io_uring (else as libuv)
//
// Only a program built with BARE has rustix and bare: of one that has such instructions the library
// leaves all sockets to the kernel. The protocol is that of servers.py: a length of four bytes, so
// many bytes, which come back in upper case. `ask` prints what it found: nothing in it depends on
// time.
#define _GNU_SOURCE
#include "libc_or_bare_calls.h"
#include "request_protocol.h"
#include "io_uring.h"
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/eventfd.h>

#define CONNECTIONS 12
#define PIECES 1024

enum {
    EDGE = 1,
    ONCE = 2,
    DUPLICATE = 4,
    REUSEPORT = 8,
    BATCHED = 16,
    COMPLETIONS = 32,
    MANY = 64,
};

struct loop {
    const struct way *way;
    // A set, and the number by which members are added.
    int set, registry, left;
    struct end listener, waker;
    struct ring ring;
    int has_ring;
};

struct way {
    const char *name;
    int flags;
    int (*create)(void);
    int (*ctl)(int set, int op, int fd, struct epoll_event *event);
    int (*wait)(int set, struct epoll_event *events, int count, int milliseconds);
    ssize_t (*receive)(int fd, void *data, size_t size);
    ssize_t (*send)(int fd, const struct iovec *pieces, int count);
    int (*accept)(int fd, int flags);
    int (*close)(int fd);
};

static const struct way WAYS[] = {
#ifdef BARE
    {"rustix", ONCE, raw_epoll_create, raw_epoll_ctl, raw_epoll_wait, libc_receive, libc_writev,
     libc_accept, close},
    {"bare", EDGE, raw_epoll_create, raw_epoll_ctl, raw_epoll_wait, raw_receive, raw_send,
     raw_accept, raw_close},
#endif
    {"mio", EDGE | DUPLICATE, libc_create, epoll_ctl, libc_wait, libc_receive, libc_writev,
     libc_accept, close},
    {"netty", EDGE | REUSEPORT | MANY, libc_create, epoll_ctl, libc_wait, several_received,
     several_sent, libc_accept, close},
    {"libuv", BATCHED, libc_create, epoll_ctl, libc_pwait, libc_read, libc_sendmsg, libc_accept,
     by_number},
    {"liburing", BATCHED | COMPLETIONS, libc_create, epoll_ctl, libc_pwait, libc_read,
     libc_sendmsg, libc_accept, close},
};

static int state_of(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) ? -errno : info.tcpi_state;
}

static int at_close, state_open, state_shut, state_over, answers, wrong;

static void finished(struct loop *loop, struct end *end)
{
    if (end->asks) {
        if (loop->way->flags & MANY && end->number == 0)
            state_over = state_of(end->fd);
        answers += end->answered;
        wrong += end->wrong;
        loop->left--;
    }
    at_close += loop->way->close(end->fd) == 0;
    free(end->in.data);
    free(end->out.data);
    free(end);
}

// A client that has asked all and sent it says so; whether a connection is over.
static int is_over(struct loop *loop, struct end *end)
{
    int sent = end->out.from == end->out.to;
    if (end->asks && sent && end->sent == REQUESTS && !end->shut) {
        end->shut = 1;
        if (loop->way->flags & MANY && end->number == 0)
            state_open = state_of(end->fd);
        shutdown(end->fd, SHUT_WR);
        if (loop->way->flags & MANY && end->number == 0)
            state_shut = state_of(end->fd);
    }
    return end->over && (end->asks || sent || end->over < 0);
}

// ---- a loop of readiness ----

static void change(struct loop *loop, int op, struct end *end, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = end};
    end->wants = events;
    if (loop->has_ring) {
        struct io_uring_sqe *entry = ring_entry(&loop->ring, IORING_OP_EPOLL_CTL, loop->set, 0);
        // It is read when it is submitted.
        static struct epoll_event kept[256];
        static unsigned turn;
        struct epoll_event *stays = &kept[turn++ % 256];
        *stays = event;
        entry->addr = (uintptr_t)stays;
        entry->len = op;
        entry->off = end->fd;
    } else if (loop->way->ctl(loop->registry, op, end->fd, &event)) {
        fail("epoll_ctl");
    }
}

static uint32_t wanted(struct loop *loop, struct end *end)
{
    if (loop->way->flags & EDGE)
        return EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    uint32_t events = end->over || !end->open ? 0 : EPOLLIN;
    if (end->out.from != end->out.to || !end->open)
        events |= EPOLLOUT;
    return events | (loop->way->flags & ONCE ? EPOLLONESHOT : 0);
}

static void flush(struct loop *loop, struct end *end)
{
    int limit = loop->way->flags & MANY ? PIECES : 2;
    while (end->out.from != end->out.to) {
        struct iovec pieces[PIECES];
        size_t size = end->out.to - end->out.from;
        int count = size < (size_t)limit ? (int)size : limit;
        for (int at = 0; at < count; at++) {
            size_t first = size * at / count, last = size * (at + 1) / count;
            pieces[at] = (struct iovec){end->out.data + end->out.from + first, last - first};
        }
        ssize_t done = loop->way->send(end->fd, pieces, count);
        if (done < 0) {
            if (errno != EAGAIN)
                end->over = -1;
            return;
        }
        end->out.from += done;
    }
}

static void serve_end(struct loop *loop, struct end *end)
{
    if (!end->open) {
        int error = 0;
        socklen_t size = sizeof error;
        if (getsockopt(end->fd, SOL_SOCKET, SO_ERROR, &error, &size) || error) {
            errno = error;
            fail("connect");
        }
        end->open = 1;
        ask_more(end);
    }
    flush(loop, end);
    static __thread char part[60000];
    while (!end->over) {
        ssize_t size = loop->way->receive(end->fd, part, sizeof part);
        if (size > 0)
            add(&end->in, part, size);
        else if (size == 0)
            end->over = 1;
        else if (errno == EAGAIN)
            break;
        else
            end->over = -1;
        frames(end);
        flush(loop, end);
    }
    if (is_over(loop, end)) {
        // Of a set that is changed later it is taken first.
        if (loop->has_ring) {
            change(loop, EPOLL_CTL_DEL, end, 0);
            ring_enter(&loop->ring, 0);
        }
        finished(loop, end);
    } else if (loop->way->flags & ONCE || wanted(loop, end) != end->wants) {
        change(loop, EPOLL_CTL_MOD, end, wanted(loop, end));
    }
}

static struct end *new_end(int fd, int asks)
{
    struct end *end = calloc(1, sizeof *end);
    end->fd = fd;
    end->asks = asks;
    end->open = !asks;
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return end;
}

static void run(struct loop *loop)
{
    struct epoll_event events[32];
    while (loop->left) {
        struct io_uring_cqe done;
        if (loop->has_ring && loop->ring.tail != loop->ring.submitted)
            ring_enter(&loop->ring, 0);
        while (loop->has_ring && ring_take(&loop->ring, &done))
            if (done.res < 0 && done.res != -ENOENT) {
                errno = -done.res;
                fail("epoll_ctl by a ring");
            }
        int count = loop->way->wait(loop->set, events, 32, -1);
        if (count < 0 && errno != EINTR)
            fail("wait");
        for (int at = 0; at < count; at++) {
            struct end *end = events[at].data.ptr;
            uint64_t word;
            if (end->is == WAKER) {
                if (read(end->fd, &word, 8) == 8)
                    loop->left--;
                continue;
            }
            if (end->is == CONNECTION) {
                serve_end(loop, end);
                continue;
            }
            for (int fd; (fd = loop->way->accept(end->fd, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
                struct end *near = new_end(fd, 0);
                change(loop, EPOLL_CTL_ADD, near, wanted(loop, near));
            }
            if (loop->way->flags & ONCE)
                change(loop, EPOLL_CTL_MOD, end, end->wants);
        }
    }
}

static void begin(struct loop *loop, const struct way *way)
{
    *loop = (struct loop){.way = way, .set = way->create(), .left = 1};
    loop->registry = way->flags & DUPLICATE ? fcntl(loop->set, F_DUPFD_CLOEXEC, 3) : loop->set;
    loop->has_ring = way->flags & BATCHED && ring_open(&loop->ring, 64);
    loop->waker = (struct end){.is = WAKER, .fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
}

static struct sockaddr_in address;

static int listener(int flags)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (flags & REUSEPORT)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 128))
        fail("listen");
    return fd;
}

#include "io_uring_loop.h"

// ---- servers and clients ----

static int has_completions(struct loop *loop)
{
    return loop->way->flags & COMPLETIONS && loop->has_ring;
}

static void *serve(void *way)
{
    struct loop *loop = malloc(sizeof *loop);
    begin(loop, way);
    loop->listener = (struct end){.is = LISTENER, .open = 1, .fd = listener(loop->way->flags)};
    if (has_completions(loop)) {
        fcntl(loop->listener.fd, F_SETFL, 0);
        accept_next(loop);
        complete(loop);
    }
    change(loop, EPOLL_CTL_ADD, &loop->listener, wanted(loop, &loop->listener) & ~EPOLLOUT);
    run(loop);
    return NULL;
}

static int connecting(int port, int is_blocking)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (is_blocking ? 0 : SOCK_NONBLOCK), 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)
        fail("connect");
    return fd;
}

// Connections, while the loop may wait already; and a word that it is all.
static void *connect_all(void *with)
{
    struct loop *loop = with;
    for (int number = 0; number < CONNECTIONS; number++) {
        int is_blocking = has_completions(loop);
        struct end *end = new_end(connecting(ntohs(address.sin_port), is_blocking), 1);
        end->number = number;
        if (is_blocking) {
            end->open = 1;
            ask_more(end);
            under_way(loop, end);
        } else {
            change(loop, EPOLL_CTL_ADD, end, wanted(loop, end));
        }
    }
    uint64_t one = 1;
    if (write(loop->waker.fd, &one, 8) != 8)
        fail("write");
    return NULL;
}

// What a connection to a port without a listener ends with.
static int refused(const struct way *way)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
    int set = way->create(), fd = connecting(1, 0), error = 0;
    socklen_t size = sizeof error;
    if (way->ctl(set, EPOLL_CTL_ADD, fd, &event) || way->wait(set, &event, 1, 10000) != 1)
        fail("a refusal");
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    way->close(fd);
    way->close(set);
    return error;
}

static void ask(const struct way *way)
{
    struct loop *loop = malloc(sizeof *loop);
    pthread_t other;
    begin(loop, way);
    loop->left = CONNECTIONS + !has_completions(loop);
    if (has_completions(loop)) {
        connect_all(loop);
        complete(loop);
    } else {
        change(loop, EPOLL_CTL_ADD, &loop->waker, EPOLLIN | (way->flags & EDGE ? EPOLLET : 0));
        if (way->flags & DUPLICATE)
            pthread_create(&other, NULL, connect_all, loop);
        else
            connect_all(loop);
        run(loop);
        if (way->flags & DUPLICATE)
            pthread_join(other, NULL);
    }
    printf("%d of %d answers, %d wrong, %d of %d closed\n", answers, CONNECTIONS * REQUESTS, wrong,
           at_close, CONNECTIONS);
    // The other end may have closed at once: CLOSE, FIN_WAIT1, FIN_WAIT2 or TIME_WAIT.
    printf("states %d, %d, %d; refused: %s\n", state_open, state_shut > 3 && state_shut < 8,
           state_over, strerror(refused(way)));
}

int main(int argc, char **argv)
{
    const struct way *way = NULL;
    for (size_t at = 0; argc == 4 && at < sizeof WAYS / sizeof *WAYS; at++)
        if (!strcmp(WAYS[at].name, argv[1]))
            way = &WAYS[at];
    if (!way)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[3])),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (!strcmp(argv[2], "ask")) {
        ask(way);
        return 0;
    }
    pthread_t other;
    if (way->flags & REUSEPORT)
        pthread_create(&other, NULL, serve, (void *)way);
    serve((void *)way);
}
