/* How connections, buffers and transfers end: teardown TEST ADDRESS PORT OUR-ADDRESS. */
#include "client.h"

#include <pthread.h>
#include <rdma/rdma_cma.h>

/* A buffer goes while it is used: what was started is done, and nothing fails but to start. */
TEST(freed_in_use)
{
    enum { PARTS = 64, BYTES = 1 << 20 };
    static struct omv_dma_transfer parts[PARTS];
    reach(0);
    struct omv_dma_buffer *ours = allocate(OURS, BYTES);
    for (int round = 0; round < 3; round++) {
        same(order(ALLOCATE, 60, BYTES, both), 0);
        struct omv_dma_buffer *theirs = look_up(60);
        uint64_t number = tell(FREE, 60, 0, 0), result;
        bool stale = false;
        while (!stale) {
            for (int i = 0; i < PARTS; i++)
                parts[i] = (struct omv_dma_transfer){.to = theirs, .from = ours, .length = 5000};
            int some = omv_dma_start(dma, parts, PARTS);
            stale = some < 0 && errno == ESTALE;
            check(some > 0 || stale, "omv_dma_start: %m");
            for (int i = 0; i < some; i++)
                await(&parts[i]);
        }
        while (!answered(number, &result))
            ;
        same(result, 0);
        same(omv_dma_free(dma, theirs), 0);
    }
    same(omv_dma_connected(dma, node), 1);
    leave();
}

/* The same where nobody asks about the transfers: the node need not wait for that. */
TEST(freed_while_nobody_looks)
{
    enum { PARTS = 64, BYTES = 1 << 20 };
    static struct omv_dma_transfer parts[PARTS];
    reach(0);
    /* Its answers are read by another connection: what is asked of one looks at all of it. */
    struct omv_dma_node *second = omv_dma_connect(dma, arguments[0], atoi(arguments[1]), 20000);
    check(second, "omv_dma_connect: %m");
    struct omv_dma_buffer *by_first = answers;
    struct omv_dma_buffer *by_second = omv_dma_lookup(dma, second, ANSWERS, 0);
    check(by_second, "omv_dma_lookup: %m");
    struct omv_dma_buffer *ours = allocate(OURS, BYTES);
    for (int some = 0; some <= 0;) {
        same(order(ALLOCATE, 62, BYTES, both), 0);
        struct omv_dma_buffer *theirs = look_up(62);
        uint64_t number = tell(FREE, 62, 0, 0), result;
        for (int i = 0; i < PARTS; i++)
            parts[i] = (struct omv_dma_transfer){.to = theirs, .from = ours, .length = BYTES};
        some = omv_dma_start(dma, parts, PARTS);
        check(some > 0 || errno == ESTALE, "omv_dma_start: %m");
        answers = by_second;
        while (!answered(number, &result))
            usleep(100);
        answers = by_first;
        same(result, 0);
        for (int i = 0; i < some; i++)
            await(&parts[i]);
        same(omv_dma_free(dma, theirs), 0);
    }
    same(omv_dma_connected(dma, node), 1);
    leave();
}

static int flushed;

static void ended(struct omv_dma_transfer *transfer)
{
    check(!transfer->status || transfer->status == ECONNRESET, "%s", strerror(transfer->status));
    same(omv_dma_cleanup(dma), -1);
    same(errno, EDEADLK);
    flushed++;
}

/* What is under way at the end is told of, before the end. */
TEST(ends_under_way)
{
    enum { PARTS = 50 };
    static struct omv_dma_transfer parts[PARTS];
    for (int round = 0; round < 4; round++) {
        reach(0);
        struct omv_dma_buffer *big = look_up(BIG), *ours = allocate(OURS, 1 << 20);
        flushed = 0;
        for (int i = 0; i < PARTS; i++)
            parts[i] = (struct omv_dma_transfer){.to = i % 2 ? big : ours,
                                                 .from = i % 2 ? ours : big,
                                                 .length = 1 << 20, .done = ended};
        int some = omv_dma_start(dma, parts, PARTS);
        check(some > 0, "omv_dma_start: %m");
        if (round % 2) {
            same(omv_dma_disconnect(dma, node), 0);
            same(omv_dma_disconnect(dma, node), -1);
            same(errno, EINVAL);
        }
        leave();
        same(flushed, some);
    }
}

enum { LINKS = 250 };
static int called, stopped;

/* Starts itself again as long as there is a connection. */
static void for_ever(struct omv_dma_transfer *transfer)
{
    check(!omv_dma_connect(dma, arguments[0], 1, -1), "waited in a callback");
    same(errno, EDEADLK);
    same(omv_dma_cleanup(dma), -1);
    same(errno, EDEADLK);
    __atomic_add_fetch(&called, 1, __ATOMIC_RELAXED);
    if (omv_dma_start(dma, transfer, 1) != 1) {
        same(errno, ENOTCONN);
        stopped++;
    }
}

/* Callbacks that never end hold up nobody: neither what nodes say, nor the end. */
TEST(callbacks_without_end)
{
    static struct omv_dma_transfer links[LINKS];
    reach(0);
    struct omv_dma_buffer *big = look_up(BIG), *ours = allocate(OURS, 4096);
    for (int i = 0; i < LINKS; i++)
        links[i] = (struct omv_dma_transfer){.to = big, .from = ours, .length = 64,
                                             .done = for_ever};
    same(omv_dma_start(dma, links, LINKS), LINKS);
    while (__atomic_load_n(&called, __ATOMIC_RELAXED) < 10 * LINKS)
        usleep(100);
    same(order(ALLOCATE, 63, 4096, both), 0);
    same(omv_dma_free(dma, look_up(63)), 0);
    same(order(FREE, 63, 0, 0), 0);
    same(omv_dma_connected(dma, node), 1);
    leave();
    same(stopped, LINKS);
}

/* What was done when the node went is told as done, also if nobody had asked by then. */
TEST(done_before_the_end)
{
    reach(0);
    struct omv_dma_buffer *ours = allocate(OURS, 4096);
    for (int round = 0; round < 3; round++) {
        struct omv_dma *other = omv_dma_init(NULL, 0, OMV_DMA_LISTEN);
        check(other, "omv_dma_init: %m");
        struct omv_dma_node *near = omv_dma_connect(dma, arguments[2], omv_dma_port(other), 20000);
        check(near, "omv_dma_connect: %m");
        accepted(other);
        struct omv_dma_buffer *theirs = omv_dma_alloc(other, 1, 4096, both);
        struct omv_dma_buffer *seen = omv_dma_lookup(dma, near, 1, 20000);
        check(theirs && seen, "%m");
        /* Some go by the node's library, before pages are mapped. */
        for (int i = 0; i < 100; i++)
            copy(seen, 0, ours, 0, 4096);
        volatile unsigned char *from = omv_dma_address(ours), *to = omv_dma_address(theirs);
        from[4095]++;
        struct omv_dma_transfer one = {.to = seen, .from = ours, .length = 4096};
        same(omv_dma_start(dma, &one, 1), 1);
        while (to[4095] != from[4095])
            ;
        same(omv_dma_cleanup(other), 0);
        while (omv_dma_connected(dma, near))
            usleep(100);
        same(omv_dma_query(dma, &one), 0);
        same(omv_dma_disconnect(dma, near), 0);
    }
    leave();
}

/* Says nothing to every other who connects, and answers the rest late. */
static void *answers_late(void *of)
{
    static const uint8_t hello[8] = "omvdma\1";
    struct rdma_conn_param with = {.private_data = hello, .private_data_len = 8,
                                   .retry_count = 7, .rnr_retry_count = 7};
    struct rdma_cm_event *event;
    for (int number = 0; !rdma_get_cm_event(of, &event);) {
        struct rdma_cm_id *id = event->id;
        bool request = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
        rdma_ack_cm_event(event);
        if (!request || ++number % 2)
            continue;
        struct ibv_qp_init_attr attr = {
            .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
            .qp_type = IBV_QPT_RC};
        usleep(number % 7 * 500);
        /* Who connects may have gone. */
        if (!rdma_create_qp(id, NULL, &attr))
            rdma_accept(id, &with);
    }
    return NULL;
}

/* Connections that are given up while they are made harm nobody, also if the answer comes then. */
TEST(given_up)
{
    enum { MANY = 70 };
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_PASSIVE}, *found;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener;
    pthread_t thread;
    reach(0);
    check(!rdma_getaddrinfo(arguments[2], NULL, &hints, &found), "rdma_getaddrinfo: %m");
    check(channel && !rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id: %m");
    check(!rdma_bind_addr(listener, found->ai_src_addr), "rdma_bind_addr: %m");
    check(!rdma_listen(listener, MANY), "rdma_listen: %m");
    same(pthread_create(&thread, NULL, answers_late, channel), 0);
    for (int i = 0; i < MANY; i++) {
        uint16_t port = ntohs(rdma_get_src_port(listener));
        check(!omv_dma_connect(dma, arguments[2], port, i % 8), "with who says nothing");
        check(errno == ETIMEDOUT || errno == EMFILE, "omv_dma_connect: %m");
        /* Those before are about to be ended. */
        if (errno == EMFILE) {
            usleep(1000);
            i--;
        }
    }
    same(order(LOOK_UP, DESK - 1, 1, 0), 0);
    leave();
}

/* The node is killed in the middle of things (the test has one of its own). */
TEST(killed)
{
    enum { PARTS = 100 };
    static struct omv_dma_transfer parts[PARTS];
    reach(0);
    struct omv_dma_buffer *big = look_up(BIG), *ours = allocate(OURS, 1 << 20);
    copy(big, 0, ours, 0, 1 << 20);
    tell(DIE, 0, 0, 0);
    int started = 0;
    while (omv_dma_connected(dma, node)) {
        for (int i = 0; i < PARTS; i++)
            parts[i] = (struct omv_dma_transfer){.to = i % 2 ? big : ours,
                                                 .from = i % 2 ? ours : big, .length = 10000};
        started = omv_dma_start(dma, parts, PARTS);
        if (started < 0)
            check(errno == ENOTCONN, "omv_dma_start: %m");
        for (int i = 0; i < started; i++)
            while (omv_dma_query(dma, &parts[i]) == EINPROGRESS)
                ;
    }
    refused(big, 0, ours, 0, 1, ENOTCONN);
    check(!omv_dma_lookup(dma, node, BIG, 10000), "found at somebody who is gone");
    same(errno, ENOTCONN);
    same(omv_dma_free(dma, ours), 0);
    same(omv_dma_disconnect(dma, node), 0);
    leave();
}

/* Nobody asks: that the node is gone is noticed all the same. */
TEST(killed_idle)
{
    reach(0);
    tell(DIE, 0, 0, 0);
    while (omv_dma_connected(dma, node))
        usleep(1000);
    leave();
}

static void step(const char *reached)
{
    puts(reached);
    fflush(stdout);
    check(getchar() != EOF, "nobody goes on");
}

/* Connections stay when the daemon dies (the test sees to that); when there is another the death of
 * a node is noticed as before. */
TEST(outlives_the_daemon)
{
    reach(0);
    struct omv_dma_buffer *big = look_up(BIG), *ours = allocate(OURS, BIG_BYTES);
    fill(omv_dma_address(ours), BIG_BYTES, 3);
    struct omv_dma *listener = omv_dma_init(NULL, 0, OMV_DMA_LISTEN);
    check(listener, "omv_dma_init: %m");
    step("connected");
    check(!omv_dma_accept(listener, -1), "nobody can connect any more");
    same(errno, ENODEV);
    same(omv_dma_cleanup(listener), 0);
    copy(big, 0, ours, 0, BIG_BYTES);
    same(order(SUM, BIG, BIG_BYTES, 0), sum_of(omv_dma_address(ours), BIG_BYTES));
    step("alone");
    while (!(listener = omv_dma_init(NULL, 0, OMV_DMA_LISTEN)))
        usleep(1000);
    struct omv_dma_node *near = omv_dma_connect(dma, arguments[2], omv_dma_port(listener), 20000);
    check(near && omv_dma_accept(listener, 20000), "anew: %m");
    same(order(ALLOCATE, 70, 4096, both), 0);
    copy(look_up(70), 0, ours, 0, 4096);
    same(omv_dma_free(dma, ours), 0);
    tell(DIE, 0, 0, 0);
    while (omv_dma_connected(dma, node))
        usleep(1000);
    leave();
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
