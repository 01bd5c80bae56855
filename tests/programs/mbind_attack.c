/* A hostile peer says by mbind where the memory is that both share: that holds for all who have the
 * file. It may choose the node, and nothing else changes: what goes over the link, and what is in
 * pages that were granted, is what it was. Argument: the node. */
#include "common.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define BYTES (64u * 4096)
#define PIECE 16384u
#define TURNS 200
#define POLICY_BIND 2
#define MOVE_PAGES 2

/* Binds all memory that this process shares by files of ours; how many mappings. */
static int bind_shared(unsigned node)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int bound = 0;
    check(maps, "/proc/self/maps: %m");
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end, nodes = 1ul << node;
        char rights[8];
        if (!strstr(line, "memfd:omniverb") ||
            sscanf(line, "%lx-%lx %7s", &start, &end, rights) != 3 || rights[3] != 's')
            continue;
        if (syscall(SYS_mbind, start, end - start, POLICY_BIND, &nodes, 64, MOVE_PAGES) == 0)
            bound++;
        else
            check(errno == EPERM || errno == ENOSYS || errno == EIO, "mbind: %m");
    }
    fclose(maps);
    return bound;
}

static void hostile(int socket)
{
    struct device d;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    char *memory = aligned_alloc(4096, BYTES);
    struct ibv_mr *mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct address ours = qp_address(&d, qp, mr), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    int before = bind_shared((unsigned)argument(0, 0));
    meet(socket);
    /* Half way: what was granted meanwhile, too. */
    meet(socket);
    int bound = bind_shared((unsigned)argument(0, 0));
    printf("%d mappings bound before, %d later\n", before, bound);
    meet(socket);
    meet(socket);
}

TEST(a_peer_chooses_a_node)
{
    struct device d;
    pid_t child;
    int socket = spawn(hostile, &child);
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    char *memory = aligned_alloc(4096, BYTES);
    struct ibv_mr *mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct address ours = qp_address(&d, qp, mr), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    meet(socket);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        uint64_t at = turn % (BYTES / PIECE) * PIECE;
        if (turn == TURNS / 2) {
            meet(socket);
            meet(socket);
        }
        fill(memory, PIECE, turn);
        memset(memory + PIECE, 0, PIECE);
        post(qp, (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = 1, .local = memory,
                                    .bytes = PIECE, .lkey = mr->lkey,
                                    .remote = theirs.memory + at, .rkey = theirs.rkey});
        expect(cq, 1, IBV_WC_SUCCESS);
        post(qp, (struct operation){.opcode = IBV_WR_RDMA_READ, .id = 2, .local = memory + PIECE,
                                    .bytes = PIECE, .lkey = mr->lkey,
                                    .remote = theirs.memory + at, .rkey = theirs.rkey});
        expect(cq, 2, IBV_WC_SUCCESS);
        check(!memcmp(memory, memory + PIECE, PIECE), "turn %u: other bytes", turn);
    }
    meet(socket);
    reap(child);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
