/* What the mapping of a peer's region gives, against what the region's flags give: all of them.
 * The initiator is hostile: it looks for the pages in its own address space and does there what
 * its operations may not. The owner is a stock process, in the same place or, with TEST_PEERS, in
 * another. Argument: 1 if whoever may write is trusted with reading. */
#include "common.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#define BYTES (16 * 4096u)
#define READ IBV_ACCESS_REMOTE_READ
#define WRITE IBV_ACCESS_REMOTE_WRITE
#define ATOMIC IBV_ACCESS_REMOTE_ATOMIC

/* One file serves all: where others may read it, atomics alone do not make it writable. */
static bool may_store(int flags)
{
    return flags & WRITE || (flags & (READ | ATOMIC)) == ATOMIC;
}

/* The owner: one queue pair and one region for each combination of flags. */
static void owner(int socket)
{
    struct device d;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    for (;;) {
        int flags;
        get(socket, &flags, sizeof flags);
        if (flags < 0)
            return;
        char *memory = aligned_alloc(4096, BYTES);
        check(memory, "no memory");
        memset(memory, 0, BYTES);
        int access = flags | (flags & (WRITE | ATOMIC) ? IBV_ACCESS_LOCAL_WRITE : 0);
        struct ibv_mr *mr = mr_make(&d, memory, BYTES, access);
        struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
        struct address ours = qp_address(&d, qp, mr), theirs;
        swap(socket, &ours, &theirs, sizeof ours);
        qp_connect(&d, qp, theirs);
        meet(socket);
        meet(socket); /* the peer has done what it does */
        for (uint32_t i = 0; i < 64; i++)
            check(!memory[8192 + i] || may_store(flags), "flags %#x: written to", flags);
        same(ibv_destroy_qp(qp), 0);
        same(ibv_dereg_mr(mr), 0);
        free(memory);
        meet(socket);
    }
}

struct found {
    char *at;
    size_t bytes;
    char rights[8];
    int count;
};

/* Pages of others that are mapped here. */
static struct found find(void)
{
    struct found found = {0};
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    check(maps, "/proc/self/maps: %m");
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char rights[8];
        if (!strstr(line, "memfd:omniverb-mr"))
            continue;
        same(sscanf(line, "%lx-%lx %7s", &start, &end, rights), 3);
        found.at = (char *)start;
        found.bytes = end - start;
        memcpy(found.rights, rights, sizeof rights);
        found.count++;
    }
    fclose(maps);
    return found;
}

static sigjmp_buf back;
static void fault(int signal)
{
    (void)signal;
    siglongjmp(back, 1);
}

/* Whether a byte of the mapping can be stored, by whatever means there are. */
static bool can_store(struct found *found)
{
    char *at = found->at + 8192;
    bool stored = false;
    if (sigsetjmp(back, 1) == 0) {
        *(volatile char *)at = 1;
        stored = true;
    }
    if (!stored && mprotect(found->at, found->bytes, PROT_READ | PROT_WRITE) == 0)
        stored = true;
    /* A new mapping of the same file. */
    char name[80];
    snprintf(name, sizeof name, "/proc/self/map_files/%lx-%lx", (unsigned long)found->at,
             (unsigned long)found->at + found->bytes);
    int file = open(name, O_RDWR);
    if (file >= 0) {
        char byte = 1;
        void *again = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 8192);
        stored |= again != MAP_FAILED || pwrite(file, &byte, 1, 8192) == 1;
        stored |= fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 4096) == 0;
        if (again != MAP_FAILED)
            munmap(again, 4096);
        close(file);
    }
    return stored;
}

TEST(mappings_give_what_the_flags_give)
{
    pid_t child;
    int socket = spawn(owner, &child);
    bool trusted = argument(0, 0);
    struct device d;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    char *memory = malloc(BYTES);
    struct ibv_mr *mr = mr_make(&d, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
    signal(SIGSEGV, fault);
    signal(SIGBUS, fault);
    for (int flags = 0; flags < 16; flags++) {
        if (flags & 1) /* local write, which says nothing of others */
            continue;
        put(socket, &flags, sizeof flags);
        struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
        struct address ours = qp_address(&d, qp, NULL), theirs;
        swap(socket, &ours, &theirs, sizeof ours);
        qp_connect(&d, qp, theirs);
        meet(socket);
        bool readable = flags & READ || (trusted && flags);
        bool mapped = flags & READ || (trusted && flags);
        struct operation o = {.id = 1, .local = memory, .bytes = 8, .lkey = mr->lkey,
                              .remote = theirs.memory + 4096, .rkey = theirs.rkey};
        struct found found = {0};
        for (int i = 0; i < 300 && flags; i++) {
            if (flags & WRITE) {
                o.opcode = IBV_WR_RDMA_WRITE;
                post(qp, o);
                expect(cq, 1, 0);
            }
            if (flags & READ) {
                o.opcode = IBV_WR_RDMA_READ;
                post(qp, o);
                expect(cq, 1, 0);
            }
            if (flags & ATOMIC) {
                o.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                o.compare_or_add = 1;
                post(qp, o);
                expect(cq, 1, 0);
            }
            found = find();
            if (found.count && i > 20)
                break;
            poll(NULL, 0, found.count || !mapped ? 1 : 10);
        }
        printf("flags %#4x%s: %s\n", flags, trusted ? ", trusted" : "",
               found.count ? found.rights : "not mapped");
        same(found.count, mapped);
        if (found.count) {
            check(readable, "flags %#x: can be read", flags);
            same(can_store(&found), may_store(flags));
        }
        meet(socket);
        same(ibv_destroy_qp(qp), 0);
        meet(socket);
    }
    int over = -1;
    put(socket, &over, sizeof over);
    reap(child);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
