/* What two processes have of each other's memory that share a window of a virtual machine's, in
 * which one of them is: one-sided operations are executed on pages in it. The peer is elsewhere
 * (TEST_ELSEWHERE) and hostile: it makes itself a second mapping of what it was granted. */
#include "common.h"

#include <poll.h>
#include <sys/mman.h>

#define BYTES (16 * 4096u)
#define COUNTER 8192u
#define LANE 12288u    /* of WRITEs and READs */
#define SECRET 16384u  /* what the owner goes on with */
#define INK 24576u     /* what the peer goes on with */
#define HANGS_NS 60000000000ull
#define MORE 50        /* operations, a millisecond each, until what is mapped is used, too */

enum order { MAP, MEASURE, READ_SECRET, WRITE_INK, SEE_SOMETHING, QUIT };

struct peer {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory;
    struct address theirs;
};

static void operate(struct peer *p, enum ibv_wr_opcode opcode, uint32_t at)
{
    post(p->qp, (struct operation){.id = 1, .opcode = opcode, .local = p->memory, .bytes = 8,
                                   .lkey = p->mr->lkey, .remote = p->theirs.memory + at,
                                   .rkey = p->theirs.rkey, .compare_or_add = 1});
    expect(p->cq, 1, IBV_WC_SUCCESS);
}

/* The first mapping of a window's pages that is as long as the region: nothing else in it is. */
static char *mapped(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], *found = NULL;
    check(maps, "/proc/self/maps: %m");
    while (!found && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        same(sscanf(line, "%lx-%lx", &start, &end), 2);
        bool window = strstr(line, "/dev/dax") || strstr(line, "memfd:omniverb-pair");
        if (window && end - start == BYTES)
            found = (char *)start;
    }
    fclose(maps);
    return found;
}

static int by_size(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return a < b ? -1 : a > b;
}

static double median_us(struct peer *p, enum ibv_wr_opcode opcode, uint32_t at)
{
    static uint64_t took[1000];
    size_t count = sizeof took / sizeof *took;
    for (size_t i = 0; i < count; i++) {
        uint64_t begun = now_ns();
        operate(p, opcode, at);
        took[i] = now_ns() - begun;
    }
    qsort(took, count, sizeof *took, by_size);
    return (double)took[count / 2] / 1e3;
}

static void run_peer(int socket)
{
    struct peer p;
    char *at = NULL, *kept = NULL;
    device_open(&p.d);
    p.cq = cq_make(&p.d, 100);
    p.memory = calloc(1, 4096);
    p.mr = mr_make(&p.d, p.memory, 4096, IBV_ACCESS_LOCAL_WRITE);
    p.qp = qp_make(&p.d, (struct queue_options){.send_cq = p.cq});
    struct address ours = qp_address(&p.d, p.qp, NULL);
    swap(socket, &ours, &p.theirs, sizeof ours);
    qp_connect(&p.d, p.qp, p.theirs);
    meet(socket);
    for (;;) {
        enum order order;
        uint64_t word = 0;
        uint64_t begun = now_ns();
        get(socket, &order, sizeof order);
        switch (order) {
        case MAP:
            for (; !at; word++) {
                check(now_ns() - begun < HANGS_NS, "never mapped");
                operate(&p, IBV_WR_ATOMIC_FETCH_AND_ADD, COUNTER);
                at = mapped();
                poll(NULL, 0, word > 20);
            }
            /* Another thread has mapped it, and says so to the queue pair a moment later. */
            for (unsigned more = 0; more < MORE; more++, word++) {
                operate(&p, IBV_WR_ATOMIC_FETCH_AND_ADD, COUNTER);
                poll(NULL, 0, 1);
            }
            /* Of no bytes: another mapping of the same pages. */
            kept = mremap(at, 0, BYTES, MREMAP_MAYMOVE);
            check(kept != MAP_FAILED, "mremap: %m");
            break;
        case MEASURE:
            printf("us: READ %.2f\n", median_us(&p, IBV_WR_RDMA_READ, LANE));
            if (!at)
                break;
            printf("us: WRITE %.2f, FETCH_ADD %.2f\n", median_us(&p, IBV_WR_RDMA_WRITE, LANE),
                   median_us(&p, IBV_WR_ATOMIC_FETCH_AND_ADD, COUNTER));
            word = 1000;
            break;
        case READ_SECRET: memcpy(&word, kept + SECRET, 8); break;
        case WRITE_INK:
            get(socket, &word, 8);
            memcpy(kept + INK, &word, 8);
            break;
        case SEE_SOMETHING: word = mapped() != NULL; break;
        default: return;
        }
        put(socket, &word, 8);
    }
}

static uint64_t tell(int socket, enum order order)
{
    uint64_t answer;
    put(socket, &order, sizeof order);
    get(socket, &answer, 8);
    return answer;
}

/* Whether the peer sees what the owner writes now, or the owner what the peer writes. */
static bool joined(int socket, char *memory)
{
    static uint64_t word = 0x1234567800000000;
    enum order order = WRITE_INK;
    uint64_t done;
    word++;
    memcpy(memory + SECRET, &word, 8);
    bool sees = tell(socket, READ_SECRET) == word;
    put(socket, &order, sizeof order);
    put(socket, &word, 8);
    get(socket, &done, 8);
    return sees || memcmp(memory + INK, &word, 8) == 0;
}

struct owner {
    struct device d;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory;
    int socket;
    pid_t peer;
};

/* A region, and a queue pair that is connected with the peer's. */
static struct owner owner_open(int access)
{
    struct owner o;
    struct address theirs;
    o.socket = spawn(run_peer, &o.peer);
    device_open(&o.d);
    struct ibv_cq *cq = cq_make(&o.d, 100);
    o.memory = aligned_alloc(4096, BYTES);
    check(o.memory, "no memory");
    memset(o.memory, 0, BYTES);
    o.mr = mr_make(&o.d, o.memory, BYTES, access);
    o.qp = qp_make(&o.d, (struct queue_options){.send_cq = cq});
    struct address ours = qp_address(&o.d, o.qp, o.mr);
    swap(o.socket, &ours, &theirs, sizeof ours);
    qp_connect(&o.d, o.qp, theirs);
    meet(o.socket);
    return o;
}

static void owner_end(struct owner *o)
{
    enum order quit = QUIT;
    put(o->socket, &quit, sizeof quit);
    reap(o->peer);
}

/* The peer's processor does what it asks for, and after ibv_dereg_mr it reaches nothing. */
TEST(what_is_deregistered_no_peer_reaches)
{
    struct owner o = owner_open(ALL_ACCESS);
    uint64_t counted, added = tell(o.socket, MAP);
    check(joined(o.socket, o.memory), "the peer's mapping is not of the region");
    added += tell(o.socket, MEASURE);
    memcpy(&counted, o.memory + COUNTER, 8);
    same(counted, added);
    uint64_t begun = now_ns();
    same(ibv_dereg_mr(o.mr), 0);
    printf("ibv_dereg_mr took %.2f ms\n", (double)(now_ns() - begun) / 1e6);
    memcpy(&counted, o.memory + COUNTER, 8);
    same(counted, added);
    check(!joined(o.socket, o.memory), "the peer reaches what is deregistered");
    owner_end(&o);
}

/* Whoever has a window can write to it: what may only be read is not in one. */
TEST(what_may_only_be_read_stays)
{
    struct owner o = owner_open(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    tell(o.socket, MEASURE);
    check(!tell(o.socket, SEE_SOMETHING), "the peer has it mapped");
    owner_end(&o);
}

/* Until somebody kills one of the two. */
TEST(for_ever)
{
    struct owner o = owner_open(ALL_ACCESS);
    tell(o.socket, MAP);
    for (;;)
        tell(o.socket, MEASURE);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
