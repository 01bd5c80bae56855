/* Registering memory for remote access may move its pages. Threads keep writing to the buffer, to
 * its first and last page beside it and to small heap objects nearby, while it is registered, used
 * by a peer and deregistered again and again: no store may be lost. Arguments: cycles, seed. */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define PAGE 4096u
#define SPAN (12 * PAGE)  /* one heap block; the MR lies inside it */
#define WRITERS 2
#define SLOTS 24          /* words a writer looks after */
#define LANE (2 * PAGE)   /* the peer's part of the MR */

static uint64_t cycles;
static atomic_bool stopping;

struct work {
    uint64_t address;
    uint32_t bytes, rkey;
    uint64_t word;
    uint32_t count;
};

/* Writes the lane and reads everything, `count` times; says what it read in the end. */
static void peer(int socket)
{
    struct device d;
    struct address theirs;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    static char from[LANE], to[SPAN];
    struct ibv_mr *a = mr_make(&d, from, sizeof from, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *b = mr_make(&d, to, sizeof to, IBV_ACCESS_LOCAL_WRITE);
    struct address ours = qp_address(&d, qp, NULL);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    for (;;) {
        struct work w;
        get(socket, &w, sizeof w);
        if (!w.count)
            return;
        fill(from, LANE, w.word);
        for (uint32_t i = 0; i < w.count; i++) {
            post(qp, (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = 1, .local = from,
                                        .bytes = LANE, .lkey = a->lkey, .remote = w.address,
                                        .rkey = w.rkey});
            expect(cq, 1, 0);
            post(qp, (struct operation){.opcode = IBV_WR_RDMA_READ, .id = 2, .local = to,
                                        .bytes = w.bytes, .lkey = b->lkey, .remote = w.address,
                                        .rkey = w.rkey});
            expect(cq, 2, 0);
            check(unfilled(to, LANE, w.word) < 0, "read back something else");
        }
        put(socket, to + LANE, 1);
    }
}

struct writer {
    pthread_t thread;
    _Atomic uint64_t *slot[SLOTS];
    uint64_t stores;
};

static void *keep_writing(void *argument)
{
    struct writer *w = argument;
    uint64_t value = 1;
    while (!stopping) {
        for (int i = 0; i < SLOTS; i++)
            atomic_store_explicit(w->slot[i], value, memory_order_relaxed);
        for (int i = 0; i < SLOTS; i++) {
            uint64_t seen = atomic_load_explicit(w->slot[i], memory_order_relaxed);
            check(seen == value, "a store was lost: slot %d holds %" PRIu64 ", not %" PRIu64, i,
                  seen, value);
            /* One more on top, so that a page copied meanwhile is caught by the next turn. */
            uint64_t before = atomic_fetch_add_explicit(w->slot[i], 1, memory_order_relaxed);
            check(before == value, "slot %d changed to %" PRIu64, i, before);
        }
        value++;
        for (int i = 0; i < SLOTS; i++) {
            uint64_t seen = atomic_load_explicit(w->slot[i], memory_order_relaxed);
            check(seen == value, "an addition was lost: slot %d holds %" PRIu64 ", not %" PRIu64,
                  i, seen, value);
        }
        w->stores += 2 * SLOTS;
        sched_yield(); /* there may be fewer CPUs than threads */
    }
    return NULL;
}

/* Waits for the peer's answer, and polls meanwhile as a busy server does. */
static void await(int socket, struct ibv_cq *cq)
{
    char c;
    struct ibv_wc wc;
    while (recv(socket, &c, 1, MSG_DONTWAIT) != 1) {
        check(errno == EAGAIN, "the peer is gone");
        same(ibv_poll_cq(cq, 1, &wc), 0);
        sched_yield();
    }
}

TEST(no_store_is_lost)
{
    struct device d;
    struct address theirs;
    struct random r = {.state = argument(1, 1)};
    pid_t pid;
    cycles = argument(0, 20000);
    int socket = spawn(peer, &pid);
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct address ours = qp_address(&d, qp, NULL);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);

    static struct writer writers[WRITERS];
    char *block = malloc(SPAN);
    check(block, "no memory");
    memset(block, 0, SPAN);
    char *lane = block + 1000;                   /* where the MR starts */
    size_t mr_bytes = SPAN - 2000;               /* it ends within the last page too */
    for (int w = 0; w < WRITERS; w++) {
        for (int i = 0; i < SLOTS; i++) {
            size_t place = (size_t)(i * WRITERS + w);
            char *at;
            switch (i % 4) {
            case 0: at = block + place * 8; break;               /* before the MR, same page */
            case 1: at = block + SPAN - 8 - place * 8; break;    /* after it, same page */
            case 2: at = lane + LANE + 24 + place * 400; break;  /* inside, beside the lane */
            default: at = calloc(1, 32); break;                  /* somewhere near */
            }
            writers[w].slot[i] = (_Atomic uint64_t *)(((uintptr_t)at + 7) & ~(uintptr_t)7);
        }
        check(!pthread_create(&writers[w].thread, NULL, keep_writing, &writers[w]), "thread");
    }
    uint64_t start = now_ns();
    for (uint64_t i = 1; i <= cycles; i++) {
        struct ibv_mr *mr = mr_make(&d, lane, mr_bytes, ALL_ACCESS);
        struct work w = {.address = (uintptr_t)lane, .bytes = (uint32_t)mr_bytes, .rkey = mr->rkey,
                         .word = i, .count = 1 + (uint32_t)random_below(&r, 6)};
        put(socket, &w, sizeof w);
        await(socket, cq);
        check(unfilled(lane, LANE, i) < 0, "cycle %" PRIu64 ": the peer's write is not there", i);
        same(ibv_dereg_mr(mr), 0);
        check(unfilled(lane, LANE, i) < 0, "cycle %" PRIu64 ": lost at deregistration", i);
    }
    stopping = true;
    uint64_t stores = 0;
    for (int w = 0; w < WRITERS; w++) {
        pthread_join(writers[w].thread, NULL);
        stores += writers[w].stores;
    }
    struct work end = {.count = 0};
    put(socket, &end, sizeof end);
    reap(pid);
    printf("%" PRIu64 " cycles of %.0f us, %" PRIu64 " stores, none lost\n", cycles,
           (double)(now_ns() - start) / 1e3 / (double)cycles, stores);
    free(block);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
