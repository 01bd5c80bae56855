/* Two processes that have no descriptor left, as programs have at their limit (RLIMIT_NOFILE): they
 * make connections all the same, and lose none that they have. */
#include "common.h"

#include <fcntl.h>
#include <sys/resource.h>

#define LIMIT 128
#define ROUNDS 8
#define BYTES (64u << 10)

static int last_resort[LIMIT];
static int taken;

/* Takes every descriptor that there is. */
static void crowd(void)
{
    struct rlimit limit = {LIMIT, LIMIT};
    same(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (;;) {
        int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (file < 0)
            break;
        check(taken < LIMIT, "too many descriptors");
        last_resort[taken++] = file;
    }
    same(errno, EMFILE);
}

static void side(int socket, bool writes)
{
    struct device d;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    char *memory = aligned_alloc(4096, BYTES);
    memset(memory, 1, BYTES);
    struct ibv_mr *mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
    crowd();
    struct ibv_qp *qps[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
        struct address ours = qp_address(&d, qp, mr), theirs;
        swap(socket, &ours, &theirs, sizeof ours);
        qp_connect(&d, qp, theirs);
        receive(qp, 1, memory, 8, mr->lkey);
        meet(socket);
        struct operation o = {.opcode = IBV_WR_SEND, .id = 2, .local = memory + 64, .bytes = 8,
                              .lkey = mr->lkey};
        post(qp, o);
        for (int i = 0; i < 2; i++)
            same(completion(cq, 10000).status, IBV_WC_SUCCESS);
        /* So much that pages would be asked for. */
        o.opcode = IBV_WR_RDMA_WRITE;
        o.bytes = BYTES / 2;
        o.remote = theirs.memory + BYTES / 2;
        o.rkey = theirs.rkey;
        for (int i = 0; i < 100 && writes; i++) {
            post(qp, o);
            expect(cq, 2, 0);
        }
        meet(socket);
        qps[round] = qp;
    }
    for (int round = 0; round < ROUNDS; round++)
        same(ibv_destroy_qp(qps[round]), 0);
    same(ibv_dereg_mr(mr), 0);
    while (taken)
        close(last_resort[--taken]);
    meet(socket);
}

static void other(int socket)
{
    side(socket, false);
}

TEST(connections_without_a_descriptor_left)
{
    pid_t child;
    int socket = spawn(other, &child);
    side(socket, true);
    reap(child);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
