/* A process whose memory a peer reads and writes by way of a daemon, which may do so by itself: in
 * a virtual machine, where the pages are. Every byte is checked. The owner stores to its memory all
 * the time, forks, and has its kernel move pages about; what it has deregistered nobody writes to
 * any more. The owner is the second process, which may run elsewhere. Arguments: cycles, rounds. */
#include "common.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define BYTES (1u << 20)
#define WRITTEN (BYTES / 2) /* by the peer; the owner fills the rest, but for its last page */
#define CHUNK 65536u
#define UNDER_WAY 16

static unsigned cycles(void)
{
    return (unsigned)argument(0, 5);
}

static unsigned rounds(void)
{
    return (unsigned)argument(1, 40);
}

struct side {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *memory;
    struct address peer;
};

static void side_begin(struct side *s, int socket)
{
    s->memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(s->memory != MAP_FAILED, "no memory");
    memset(s->memory, 0, BYTES);
    s->cq = cq_make(&s->d, 200);
    s->mr = mr_make(&s->d, s->memory, BYTES, ALL_ACCESS);
    s->qp = qp_make(&s->d, (struct queue_options){.send_cq = s->cq});
    struct address ours = qp_address(&s->d, s->qp, s->mr);
    swap(socket, &ours, &s->peer, sizeof ours);
    qp_connect(&s->d, s->qp, s->peer);
    meet(socket);
}

static void side_end(struct side *s)
{
    same(ibv_destroy_qp(s->qp), 0);
    if (s->mr)
        same(ibv_dereg_mr(s->mr), 0);
    same(ibv_destroy_cq(s->cq), 0);
    same(munmap(s->memory, BYTES), 0);
}

/* ---- the owner ---- */

static volatile uint64_t *counter;
static volatile int stores;

static void *storing(void *nothing)
{
    (void)nothing;
    for (uint64_t number = 1; stores; number++) {
        for (unsigned i = 0; i < 512; i++)
            counter[i] = number;
        for (unsigned i = 0; i < 512; i++)
            check(counter[i] == number, "store %" PRIu64 " to word %u is lost", number, i);
        sleep_ms(1);
    }
    return NULL;
}

/* What else a process does, and its kernel. */
static void disturb(unsigned round)
{
    if (round % 8 == 3) {
        pid_t child = fork();
        check(child >= 0, "no child");
        if (!child)
            _exit(0);
        int status;
        same(waitpid(child, &status, 0), child);
    }
    if (round % 8 == 5) {
        int file = open("/proc/sys/vm/compact_memory", O_WRONLY | O_CLOEXEC);
        if (file >= 0) {
            check(write(file, "1", 1) == 1, "no compaction");
            close(file);
        }
    }
}

static uint64_t word(unsigned cycle, unsigned round, unsigned what)
{
    return 1 + what + 2 * (round + 1000u * cycle);
}

static void owner_cycle(struct side *s, int socket, unsigned cycle)
{
    side_begin(s, socket);
    counter = (volatile uint64_t *)(void *)(s->memory + BYTES - 4096);
    stores = 1;
    pthread_t thread;
    same(pthread_create(&thread, NULL, storing, NULL), 0);
    for (unsigned round = 0; round < rounds(); round++) {
        fill(s->memory + WRITTEN, WRITTEN - 4096, word(cycle, round, 0));
        meet(socket); /* the peer reads, and writes */
        disturb(round);
        meet(socket);
        ssize_t wrong = unfilled(s->memory, WRITTEN, word(cycle, round, 1));
        check(wrong < 0, "round %u: byte %zd that the peer wrote", round, wrong);
    }
    stores = 0;
    same(pthread_join(thread, NULL), 0);
    /* The peer writes without end. */
    meet(socket);
    sleep_ms(20 + cycle % 5 * 7);
    uint64_t begun = now_ns();
    same(ibv_dereg_mr(s->mr), 0);
    uint64_t taken = now_ns() - begun;
    s->mr = NULL;
    static unsigned char then[BYTES];
    memcpy(then, s->memory, BYTES);
    put(socket, "d", 1);
    sleep_ms(50);
    check(!memcmp(then, s->memory, BYTES), "written to after it was deregistered");
    memset(s->memory, 0x5a, BYTES);
    meet(socket); /* the peer was refused */
    for (unsigned i = 0; i < BYTES; i++)
        check(s->memory[i] == 0x5a, "byte %u written to after it was deregistered", i);
    printf("deregistered in %" PRIu64 " us\n", taken / 1000);
    side_end(s);
}

static void owner(int socket)
{
    static struct side s;
    device_open(&s.d);
    for (unsigned cycle = 0; cycle < cycles(); cycle++)
        owner_cycle(&s, socket, cycle);
    device_close(&s.d);
}

/* ---- the peer ---- */

static struct operation at(struct side *s, enum ibv_wr_opcode opcode, uint32_t offset,
                           uint32_t bytes)
{
    return (struct operation){.opcode = opcode, .id = opcode, .local = s->memory + offset,
                              .bytes = bytes, .lkey = s->mr->lkey,
                              .remote = s->peer.memory + offset, .rkey = s->peer.rkey};
}

static void do_all(struct side *s, enum ibv_wr_opcode opcode, uint32_t from, uint32_t bytes)
{
    unsigned count = 0;
    for (uint32_t done = 0; done < bytes; done += CHUNK, count++)
        post(s->qp, at(s, opcode, from + done, bytes - done < CHUNK ? bytes - done : CHUNK));
    while (count--)
        same(completion(s->cq, 20000).status, IBV_WC_SUCCESS);
}

/* Writes until it is refused. */
static void write_on(struct side *s, int socket)
{
    unsigned under_way = 0, number = 0, refused = 0, done = 0;
    for (;;) {
        while (!refused && under_way < UNDER_WAY) {
            memset(s->memory, (int)++number, 4096);
            post(s->qp, at(s, IBV_WR_RDMA_WRITE, number % 8 * CHUNK, CHUNK));
            under_way++;
        }
        if (!under_way)
            break;
        struct ibv_wc wc = completion(s->cq, 20000);
        under_way--;
        if (wc.status == IBV_WC_SUCCESS) {
            check(!refused, "a WRITE after one that was refused");
            done++;
        } else {
            same(wc.status, refused++ ? IBV_WC_WR_FLUSH_ERR : IBV_WC_REM_ACCESS_ERR);
        }
    }
    char word;
    get(socket, &word, 1);
    same(word, 'd');
    printf("%u WRITEs of %u bytes before it was deregistered\n", done, CHUNK);
}

static void peer_cycle(struct side *s, int socket, unsigned cycle)
{
    side_begin(s, socket);
    uint64_t begun = now_ns();
    for (unsigned round = 0; round < rounds(); round++) {
        meet(socket);
        do_all(s, IBV_WR_RDMA_READ, WRITTEN, WRITTEN - 4096);
        ssize_t wrong = unfilled(s->memory + WRITTEN, WRITTEN - 4096, word(cycle, round, 0));
        check(wrong < 0, "round %u: byte %zd that was read", round, wrong);
        fill(s->memory, WRITTEN, word(cycle, round, 1));
        do_all(s, IBV_WR_RDMA_WRITE, 0, WRITTEN);
        meet(socket);
    }
    printf("%u rounds in %" PRIu64 " ms\n", rounds(), (now_ns() - begun) / 1000000);
    meet(socket);
    write_on(s, socket);
    meet(socket);
    side_end(s);
}

TEST(owner_and_peer)
{
    static struct side s;
    pid_t child;
    int socket = spawn(owner, &child);
    device_open(&s.d);
    for (unsigned cycle = 0; cycle < cycles(); cycle++)
        peer_cycle(&s, socket, cycle);
    device_close(&s.d);
    reap(child);
}

/* What stands in a page that is somebody else's now. */
static uint64_t mark(size_t word)
{
    return word * 0x9e3779b97f4a7c15u | 1;
}

/* Takes most of the memory that is free, at once, fills it, and looks at it for a while. */
static void settle(void)
{
    size_t words = (size_t)sysconf(_SC_AVPHYS_PAGES) / 4 * 3 * 4096 / 8;
    uint64_t *memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "no memory");
    for (size_t i = 0; i < words; i++)
        memory[i] = mark(i);
    for (unsigned look = 0; look < 5; look++) {
        sleep_ms(100);
        for (size_t i = 0; i < words; i++)
            check(memory[i] == mark(i), "word %zu of somebody else's was written to", i);
    }
    printf("%zu pages are as they were filled\n", words / 512);
    fflush(stdout);
}

/* The owner is killed while the peer writes; its kernel gives the pages to others, who find theirs
 * as they left them. The harness says when, by SIGUSR1; until then the owner goes on. */
static void victim(int socket)
{
    static struct side s;
    sigset_t when;
    const struct timespec look = {.tv_nsec = 100000000};
    int status;
    sigemptyset(&when);
    sigaddset(&when, SIGUSR1);
    same(sigprocmask(SIG_BLOCK, &when, NULL), 0);
    pid_t owner = fork();
    check(owner >= 0, "fork");
    if (owner == 0) {
        device_open(&s.d);
        side_begin(&s, socket);
        printf("to be killed\n");
        fflush(stdout);
        for (;;)
            sleep_ms(1000);
    }
    close(socket);
    while (sigtimedwait(&when, NULL, &look) < 0)
        check(waitpid(owner, &status, WNOHANG) == 0, "the owner has ended by itself");
    same(kill(owner, SIGKILL), 0);
    same(waitpid(owner, &status, 0), owner);
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the owner ended: %#x",
          (unsigned)status);
    settle();
}

TEST(owner_is_killed)
{
    static struct side s;
    pid_t child;
    int socket = spawn(victim, &child);
    device_open(&s.d);
    side_begin(&s, socket);
    unsigned under_way = 0, failed = 0, done = 0;
    while (!failed || under_way) {
        while (!failed && under_way < UNDER_WAY) {
            post(s.qp, at(&s, IBV_WR_RDMA_WRITE, done % 8 * CHUNK, CHUNK));
            under_way++;
        }
        struct ibv_wc wc = completion(s.cq, 60000);
        under_way--;
        if (wc.status == IBV_WC_SUCCESS)
            done++;
        else
            failed++;
    }
    printf("%u WRITEs before its end\n", done);
    side_end(&s);
    device_close(&s.d);
    reap(child);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
