/* Processes that have the daemon keep things for them: they ask, or are sent to, and then stand
 * still. Each says "kept", with a queue pair's number, and stops itself for good. */
#include "common.h"
#include <signal.h>

static void stand_still(uint32_t qpn)
{
    printf("kept %u\n", qpn);
    fflush(stdout);
    raise(SIGSTOP);
}

/* A UD queue pair that never receives: whoever started this sends it datagrams. */
TEST(datagrams)
{
    static struct device d;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 16);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.type = IBV_QPT_UD, .send_cq = cq});
    qp_connect(&d, qp, qp_address(&d, qp, NULL));
    stand_still(qp->qp_num);
}

#define READ_BYTES (256u << 10)
#define READS 8
#define QPS_MAX 64

struct reader {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    char *memory;
    struct ibv_qp *qps[QPS_MAX];
};

static unsigned connect_all(struct reader *r, int socket, struct address *theirs)
{
    unsigned count = (unsigned)argument(0, 32);
    check(count <= QPS_MAX, "%u are too many", count);
    device_open(&r->d);
    r->cq = cq_make(&r->d, 4096);
    r->memory = aligned_alloc(4096, READ_BYTES);
    check(r->memory, "no memory");
    memset(r->memory, 7, READ_BYTES);
    r->mr = mr_make(&r->d, r->memory, READ_BYTES, ALL_ACCESS);
    for (unsigned i = 0; i < count; i++) {
        r->qps[i] = qp_make(&r->d, (struct queue_options){.send_cq = r->cq, .send = READS});
        struct address ours = qp_address(&r->d, r->qps[i], r->mr);
        swap(socket, &ours, theirs, sizeof ours);
        qp_connect(&r->d, r->qps[i], *theirs);
        meet(socket);
    }
    return count;
}

/* Asks for much on each connection, and takes none of it. */
static void asks(int socket)
{
    static struct reader r;
    struct address theirs;
    unsigned count = connect_all(&r, socket, &theirs);
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < READS; k++)
            post(r.qps[i], (struct operation){.opcode = IBV_WR_RDMA_READ, .id = k,
                                              .local = r.memory, .bytes = READ_BYTES,
                                              .lkey = r.mr->lkey, .remote = theirs.memory,
                                              .rkey = theirs.rkey});
    stand_still(r.qps[0]->qp_num);
}

TEST(reads)
{
    static struct reader r;
    struct address theirs;
    pid_t child;
    char c;
    int socket = spawn(asks, &child);
    connect_all(&r, socket, &theirs);
    while (read(0, &c, 1) > 0) {
    }
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
