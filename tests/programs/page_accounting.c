/* Whose account the pages of a region are on, and what a fork copies. The owner registers a region
 * that it has never touched; a peer writes and reads it. Arguments: the memory cgroups (folders) to
 * put the owner and the peer in, or nothing; they come through the environment, as OWNER_CGROUP
 * and PEER_CGROUP. */
#include "common.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define MIB (1024u * 1024)
#define REGION (300ull * MIB)
#define STEP (1u * MIB)

static void join_cgroup(const char *variable)
{
    const char *folder = getenv(variable);
    if (!folder || !*folder)
        return;
    char name[4096], number[32];
    snprintf(name, sizeof name, "%s/cgroup.procs", folder);
    int file = open(name, O_WRONLY);
    check(file >= 0, "%s: %m", name);
    int length = snprintf(number, sizeof number, "%d", getpid());
    check(write(file, number, length) == length, "%s: %m", name);
    close(file);
}

/* Bytes on the account of a cgroup; 0 without one. */
static uint64_t charged(const char *variable)
{
    const char *folder = getenv(variable);
    const char *names[] = {"memory.usage_in_bytes", "memory.current"};
    for (int i = 0; folder && *folder && i < 2; i++) {
        char name[4096], text[64] = "";
        snprintf(name, sizeof name, "%s/%s", folder, names[i]);
        FILE *file = fopen(name, "r");
        if (!file)
            continue;
        check(fgets(text, sizeof text, file), "%s: %m", name);
        fclose(file);
        return strtoull(text, NULL, 10);
    }
    return 0;
}

/* Kilobytes of the shared pages that this process has mapped, as the kernel counts them. */
static uint64_t shared_kilobytes(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long kilobytes = 0;
    check(file, "/proc/self/status: %m");
    while (fgets(line, sizeof line, file))
        sscanf(line, "RssShmem: %lu", &kilobytes);
    fclose(file);
    return kilobytes;
}

struct errand {
    enum ibv_wr_opcode opcode;
    uint64_t from, bytes;
    uint32_t step;
    uint32_t times;
};

static void peer(int socket)
{
    join_cgroup("PEER_CGROUP");
    struct device d;
    struct address theirs;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    char *memory = malloc(STEP);
    struct ibv_mr *mr = mr_make(&d, memory, STEP, IBV_ACCESS_LOCAL_WRITE);
    memset(memory, 7, STEP);
    struct address ours = qp_address(&d, qp, NULL);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    for (;;) {
        struct errand e;
        get(socket, &e, sizeof e);
        if (!e.step)
            return;
        for (uint32_t turn = 0; turn < e.times; turn++)
            for (uint64_t at = 0; at < e.bytes; at += e.step) {
                post(qp, (struct operation){.opcode = e.opcode, .id = 1, .local = memory,
                                            .bytes = e.step, .lkey = mr->lkey,
                                            .remote = theirs.memory + e.from + at,
                                            .rkey = theirs.rkey});
                completion(cq, 20000);
            }
        put(socket, &e, 1);
    }
}

struct scene {
    struct device d;
    struct ibv_mr *mr;
    char *memory;
    int socket;
    pid_t child;
};

static struct scene open_scene(void)
{
    struct scene s;
    s.socket = spawn(peer, &s.child);
    join_cgroup("OWNER_CGROUP");
    device_open(&s.d);
    s.memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(s.memory != MAP_FAILED, "no memory");
    s.mr = mr_make(&s.d, s.memory, REGION, ALL_ACCESS);
    struct ibv_cq *cq = cq_make(&s.d, 100);
    struct ibv_qp *qp = qp_make(&s.d, (struct queue_options){.send_cq = cq});
    struct address ours = qp_address(&s.d, qp, s.mr), theirs;
    swap(s.socket, &ours, &theirs, sizeof ours);
    qp_connect(&s.d, qp, theirs);
    meet(s.socket);
    return s;
}

static void order(struct scene *s, struct errand e)
{
    char done;
    put(s->socket, &e, sizeof e);
    get(s->socket, &done, 1);
}

static void close_scene(struct scene *s)
{
    struct errand e = {0};
    put(s->socket, &e, sizeof e);
    reap(s->child);
    same(ibv_dereg_mr(s->mr), 0);
}

/* The peer writes to pages that the owner never touched: they are the owner's. */
TEST(writes_are_on_the_owners_account)
{
    struct scene s = open_scene();
    for (int turn = 0; turn < 2; turn++)
        order(&s, (struct errand){IBV_WR_RDMA_WRITE, 0, REGION, 64 << 10, 1});
    for (uint64_t at = 0; at < REGION; at += STEP)
        same(s.memory[at], 7);
    uint64_t ours = charged("OWNER_CGROUP"), theirs = charged("PEER_CGROUP");
    printf("owner %lu MiB, peer %lu MiB\n", (long)(ours / MIB), (long)(theirs / MIB));
    check(!ours || ours > 290 * MIB, "the owner is charged with %lu only", (long)ours);
    check(theirs < 64 * MIB, "the peer is charged with %lu", (long)theirs);
    close_scene(&s);
}

/* The peer reads where nothing was ever written. */
TEST(reads_of_holes_cost_the_reader_nothing)
{
    struct scene s = open_scene();
    for (int turn = 0; turn < 2; turn++)
        order(&s, (struct errand){IBV_WR_RDMA_READ, 0, REGION, 64 << 10, 1});
    uint64_t theirs = charged("PEER_CGROUP");
    printf("peer %lu MiB\n", (long)(theirs / MIB));
    check(theirs < 64 * MIB, "the peer is charged with %lu", (long)theirs);
    close_scene(&s);
}

/* The owner gives pages back all the time while the peer writes. */
TEST(holes_that_come_and_go)
{
    struct scene s = open_scene();
    order(&s, (struct errand){IBV_WR_RDMA_WRITE, 0, REGION, 64 << 10, 1});
    uint64_t most = 0;
    for (int turn = 0; turn < 6; turn++) {
        /* Works on shared pages, of which there are some, as nothing but a hostile owner would. */
        for (uint64_t at = 0; at < REGION; at += 2 * MIB)
            (void)!madvise(s.memory + at, 2 * MIB, MADV_REMOVE);
        order(&s, (struct errand){IBV_WR_RDMA_WRITE, 0, REGION, 64 << 10, 1});
        uint64_t theirs = charged("PEER_CGROUP");
        most = theirs > most ? theirs : most;
    }
    printf("peer %lu MiB at most\n", (long)(most / MIB));
    check(most < 80 * MIB, "the peer is charged with %lu", (long)most);
    close_scene(&s);
}

/* A peer reads eight bytes of a region of 300 MiB; then the owner forks. */
TEST(a_fork_copies_what_was_moved)
{
    struct scene s = open_scene();
    memset(s.memory, 3, REGION);
    order(&s, (struct errand){IBV_WR_RDMA_READ, 100 * MIB, 8, 8, 200});
    sleep_ms(200);
    order(&s, (struct errand){IBV_WR_RDMA_READ, 100 * MIB, 8, 8, 200});
    uint64_t shared = shared_kilobytes();
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    pid_t child = fork();
    if (!child) {
        for (uint64_t at = 0; at < REGION; at += STEP)
            if (s.memory[at] != 3)
                _exit(1);
        _exit(0);
    }
    int status;
    check(child > 0 && waitpid(child, &status, 0) == child, "fork: %m");
    getrusage(RUSAGE_SELF, &after);
    same(status, 0);
    long faults = after.ru_minflt - before.ru_minflt;
    printf("%lu KiB shared, %ld pages faulted by the fork\n", (long)shared, faults);
    check(shared <= 4096, "%lu KiB are on files", (long)shared);
    check(faults < 4096, "%ld pages were copied", faults);
    close_scene(&s);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
