/* Registering memory for remote access may move its pages. Threads keep writing to the buffer, to
 * its first and last page beside it and to small heap objects nearby, while it is registered, used
 * by a peer and deregistered again and again: no store may be lost. Arguments: cycles, seed, and,
 * for a slow machine, how many uses more there are in a cycle: then the threads nap, so that others
 * have a turn. */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define PAGE 4096u
#define SPAN (12 * PAGE)  /* one heap block; the MR lies inside it */
#define WRITERS 2
#define SLOTS 24          /* words a writer looks after */
#define LANE (2 * PAGE)   /* the peer's part of the MR */

static uint64_t cycles, more;
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
            /* The first page lies partly outside the MR, and is never granted; what is behind it
             * is, once it was named. */
            for (uint32_t left = LANE; left > 0; left -= PAGE) {
                uint32_t at = left - PAGE;
                post(qp, (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = 1,
                                            .local = from + at, .bytes = PAGE, .lkey = a->lkey,
                                            .remote = w.address + at, .rkey = w.rkey});
                expect(cq, 1, 0);
            }
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
        if (more)
            sleep_ms(1);
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
    more = argument(2, 0);
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
                         .word = i, .count = 1 + (uint32_t)(more + random_below(&r, 6))};
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

/* ---- io_uring with registered buffers, of which neither a mapping nor a descriptor tells ---- */

#define NO_MMAP (1u << 14)
#define REGISTERED_FD_ONLY (1u << 15)
#define THROUGH_REGISTERED (1u << 31)
#define ENTER_REGISTERED (1u << 4)
#define READ_FIXED 4

struct parameters {
    uint32_t entries[2], flags, more[7], submission[8];
    uint64_t submission_memory;
    uint32_t completion[8];
    uint64_t completion_memory;
};

struct submission {
    uint8_t opcode, flags;
    uint16_t priority;
    int32_t file;
    uint64_t offset, memory;
    uint32_t bytes, how;
    uint64_t id;
    uint16_t buffer, person;
    uint32_t more[5];
};

static char *pages(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "%m");
    memset(memory, 0, bytes);
    return memory;
}

/* Begins to read from `file` into all of `memory`; false: there is no such io_uring here. */
static bool begin_read(int file, char *memory, size_t bytes, char **ring)
{
    struct submission *entries = (struct submission *)pages(PAGE);
    *ring = pages(PAGE);
    struct parameters p = {.flags = NO_MMAP | REGISTERED_FD_ONLY,
                           .submission_memory = (uintptr_t)entries,
                           .completion_memory = (uintptr_t)*ring};
    long slot = syscall(SYS_io_uring_setup, 1, &p);
    if (slot < 0)
        return false;
    struct iovec buffer = {.iov_base = memory, .iov_len = bytes};
    same(syscall(SYS_io_uring_register, slot, THROUGH_REGISTERED, &buffer, 1), 0);
    entries[0] = (struct submission){.opcode = READ_FIXED, .file = file,
                                     .memory = (uintptr_t)memory, .bytes = (uint32_t)bytes};
    uint32_t *tail = (uint32_t *)(*ring + p.submission[1]);
    uint32_t *order = (uint32_t *)(*ring + p.submission[6]);
    order[0] = 0;
    __atomic_store_n(tail, 1, __ATOMIC_RELEASE);
    same(syscall(SYS_io_uring_enter, slot, 1, 0, ENTER_REGISTERED, NULL, 0), 1);
    return true;
}

/* What the kernel reads into a buffer that a peer has named meanwhile is there. */
TEST(kernel_stores_arrive)
{
    struct device d;
    struct address theirs;
    pid_t pid;
    int pipes[2];
    char *ring;
    int socket = spawn(peer, &pid);
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct address ours = qp_address(&d, qp, NULL);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    char *block = pages(SPAN);
    struct ibv_mr *mr = mr_make(&d, block, SPAN, ALL_ACCESS);
    same(pipe(pipes), 0);
    char *target = block + LANE; /* the peer does not write there */
    bool begun = begin_read(pipes[0], target, PAGE, &ring);
    if (!begun)
        printf("not tried: no io_uring without mappings here (%m)\n");
    struct work w = {.address = (uintptr_t)block, .bytes = SPAN, .rkey = mr->rkey, .word = 7};
    for (int turn = 0; begun && turn < 20; turn++) {
        w.count = 10;
        put(socket, &w, sizeof w);
        await(socket, cq);
        sleep_ms(5);
    }
    char message[PAGE];
    fill(message, PAGE, 99);
    if (begun) {
        same(write(pipes[1], message, PAGE), PAGE);
        uint64_t limit = now_ns() + 5000000000u;
        while (unfilled(target, PAGE, 99) >= 0 && now_ns() < limit) {
            sleep_ms(1); /* the kernel completes it in the course of a system call of ours */
        }
        check(unfilled(target, PAGE, 99) < 0, "what io_uring stored is lost");
    }
    w.count = 0;
    put(socket, &w, sizeof w);
    reap(pid);
    same(ibv_dereg_mr(mr), 0);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
