/* Pages of a region that their owner made unreachable after it had registered them: protected,
 * write-protected, guarded, unmapped, cut off from their file. A peer that reads and writes them is
 * refused, or reaches what it could reach before; nobody dies of it. The owner sleeps meanwhile, so
 * that what a peer asks for is done by no thread of its own. */
#include "common.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102 /* Linux 6.13 */
#endif

#define PAGE 4096u
#define PAGES 16u
#define BYTES (PAGES * PAGE)
#define SPOILT 8u /* the page */

enum spoil { PROTECTED, WRITE_PROTECTED, GUARDED, UNMAPPED, CUT, SPOILS, FLIPPED = SPOILS };
static const char *const names[] = {"protected", "write-protected", "guarded", "unmapped",
                                    "cut off"};
enum command { PREPARE, SPOIL, FLIP, STOP, TIDY, QUIT };

struct request {
    enum command command;
    enum spoil spoil;
    struct address peer;
};

/* ---- the owner ---- */

static char *memory;
static int file;

static char *map(enum spoil spoil)
{
    char *at;
    file = -1;
    if (spoil == CUT) {
        file = memfd_create("cut", 0);
        check(file >= 0 && ftruncate(file, BYTES) == 0, "memfd: %m");
        at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    } else {
        at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    check(at != MAP_FAILED, "mmap: %m");
    memset(at, 1, BYTES);
    return at;
}

/* False: this kernel cannot. */
static bool spoil(enum spoil how)
{
    char *page = memory + SPOILT * PAGE;
    switch (how) {
    case PROTECTED:
        return mprotect(page, PAGE, PROT_NONE) == 0;
    case WRITE_PROTECTED:
        return mprotect(page, PAGE, PROT_READ) == 0;
    case GUARDED:
        return madvise(page, PAGE, MADV_GUARD_INSTALL) == 0;
    case UNMAPPED:
        return munmap(page, PAGE) == 0;
    default:
        return ftruncate(file, SPOILT * PAGE) == 0;
    }
}

static atomic_bool stopped;

static void *flip(void *none)
{
    char *page = memory + SPOILT * PAGE;
    while (!stopped) {
        mprotect(page, PAGE, PROT_NONE);
        mprotect(page, PAGE, PROT_READ);
        mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    }
    return none;
}

static void owner(int socket)
{
    struct device d;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_mr *mr = NULL;
    struct ibv_qp *qp = NULL;
    pthread_t flipping;
    for (;;) {
        struct request r;
        get(socket, &r, sizeof r);
        struct address answer = {0};
        switch (r.command) {
        case PREPARE:
            memory = map(r.spoil);
            /* Of this no page is wholly in the region, so that it stays where it is. */
            if (r.spoil == FLIPPED)
                mr = mr_make(&d, memory + SPOILT * PAGE - 64, 128, ALL_ACCESS);
            else
                mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
            qp = qp_make(&d, (struct queue_options){.send_cq = cq});
            answer = qp_address(&d, qp, mr);
            qp_connect(&d, qp, r.peer);
            receive(qp, 1, NULL, 0, 0);
            break;
        case SPOIL:
            answer.length = spoil(r.spoil);
            break;
        case FLIP:
            stopped = false;
            same(pthread_create(&flipping, NULL, flip, NULL), 0);
            break;
        case STOP:
            stopped = true;
            same(pthread_join(flipping, NULL), 0);
            break;
        case TIDY:
            same(ibv_destroy_qp(qp), 0);
            same(ibv_dereg_mr(mr), 0);
            munmap(memory, BYTES);
            if (file >= 0)
                close(file);
            while (ibv_poll_cq(cq, 1, &(struct ibv_wc){0}))
                ;
            break;
        case QUIT:
            device_close(&d);
            return;
        }
        put(socket, &answer, sizeof answer);
    }
}

/* ---- the peer ---- */

static struct device d;
static struct ibv_cq *cq;
static char *buffer;
static struct ibv_mr *local;
static int owners_end;
static pid_t child;

static struct address ask(enum command command, enum spoil how, struct address peer)
{
    struct request r = {command, how, peer};
    struct address answer;
    put(owners_end, &r, sizeof r);
    get(owners_end, &answer, sizeof answer);
    return answer;
}

static void begin(void)
{
    owners_end = spawn(owner, &child);
    device_open(&d);
    cq = cq_make(&d, 100);
    buffer = calloc(1, BYTES);
    local = mr_make(&d, buffer, BYTES, IBV_ACCESS_LOCAL_WRITE);
}

static void end(void)
{
    struct request quit = {.command = QUIT};
    put(owners_end, &quit, sizeof quit);
    reap(child);
}

static const struct {
    const char *name;
    enum ibv_wr_opcode opcode;
    uint32_t before; /* bytes in front of the page */
    uint32_t bytes;
} kinds[] = {
    {"WRITE", IBV_WR_RDMA_WRITE, 0, 8},
    {"WRITE across", IBV_WR_RDMA_WRITE, 5 * PAGE, 7 * PAGE},
    {"WRITE with immediate data", IBV_WR_RDMA_WRITE_WITH_IMM, 4, 8},
    {"READ", IBV_WR_RDMA_READ, 0, 8},
    {"READ across", IBV_WR_RDMA_READ, 5 * PAGE, 7 * PAGE},
    {"fetch and add", IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8},
    {"compare and swap", IBV_WR_ATOMIC_CMP_AND_SWP, 0, 8},
};
#define KINDS (sizeof kinds / sizeof *kinds)

static struct operation operation(unsigned kind, struct address at)
{
    return (struct operation){.opcode = kinds[kind].opcode, .id = 7, .local = buffer,
                              .bytes = kinds[kind].bytes, .lkey = local->lkey,
                              .remote = at.memory + SPOILT * PAGE - kinds[kind].before,
                              .rkey = at.rkey};
}

/* Moves so much that whatever is set up lazily is set up. */
static void warm_up(struct ibv_qp *qp, struct operation o)
{
    o.remote -= o.remote % PAGE;
    for (int i = 0; i < 60; i++) {
        post(qp, o);
        expect(cq, 7, 0);
        if (i % 20 == 19)
            sleep_ms(5);
    }
}

static void each(bool warm)
{
    begin();
    for (enum spoil how = 0; how < SPOILS; how++) {
        for (unsigned kind = 0; kind < KINDS; kind++) {
            struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
            struct address at = ask(PREPARE, how, qp_address(&d, qp, NULL));
            qp_connect(&d, qp, at);
            struct operation o = operation(kind, at);
            bool reads = o.opcode == IBV_WR_RDMA_READ;
            /* What has a receive once only is not repeated. */
            if (warm && o.opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
                warm_up(qp, o);
            if (!ask(SPOIL, how, at).length) {
                printf("no page can be %s here\n", names[how]);
                kind = KINDS;
            } else {
                post(qp, o);
                struct ibv_wc wc = completion(cq, 10000);
                bool may_succeed = warm || (how == WRITE_PROTECTED && reads);
                bool may_fail = !(how == WRITE_PROTECTED && reads);
                check((wc.status == IBV_WC_REM_ACCESS_ERR && may_fail)
                          || (wc.status == IBV_WC_SUCCESS && may_succeed),
                      "%s of what is %s: %s", kinds[kind].name, names[how],
                      ibv_wc_status_str(wc.status));
            }
            ask(TIDY, how, at);
            same(ibv_destroy_qp(qp), 0);
        }
    }
    end();
}

TEST(unreachable_pages_are_refused)
{
    each(false);
}

/* The same after the peer was given the pages, if it was. */
TEST(unreachable_pages_that_were_granted)
{
    each(true);
}

/* A thread of the owner's protects the page all the time. */
TEST(protected_in_the_middle)
{
    begin();
    unsigned refused = 0, done = 0;
    for (unsigned round = 0; round < 60; round++) {
        struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
        struct address at = ask(PREPARE, FLIPPED, qp_address(&d, qp, NULL));
        qp_connect(&d, qp, at);
        ask(FLIP, PROTECTED, at);
        struct operation o = operation(round % 2 ? 3 : 0, at); /* READ and WRITE */
        o.remote = at.memory + 56;
        o.bytes = 16;
        for (unsigned i = 0; i < 200; i++) {
            post(qp, o);
            struct ibv_wc wc = completion(cq, 10000);
            if (wc.status != IBV_WC_SUCCESS) {
                same(wc.status, IBV_WC_REM_ACCESS_ERR);
                refused++;
                break;
            }
            done++;
        }
        ask(STOP, PROTECTED, at);
        ask(TIDY, PROTECTED, at);
        same(ibv_destroy_qp(qp), 0);
    }
    printf("%u refused, %u done\n", refused, done);
    end();
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
