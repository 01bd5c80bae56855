/* What a direct link forgives, and OMNIVERB_STRICT does not: both ends count from different PSNs,
 * cut messages at different lengths, or ask for more at once than the other serves. */
#include "uncommon_verbs.h"
#include "stderr_capture.h"

struct difference {
    uint32_t sq_psn;
    enum ibv_mtu path_mtu;
    uint8_t max_dest_rd_atomic;
};

/* A pair of queue pairs; the second is not as the first expects. */
static void differing(enum ibv_qp_type type, struct difference by, struct ibv_qp *pair[2])
{
    for (int i = 0; i < 2; i++) {
        pair[i] = qp_make(&d, (struct queue_options){.send_cq = cq, .type = type});
        qp_init(&d, pair[i], ALL_ACCESS);
    }
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr rtr = rtr_attributes(&d, qp_address(&d, pair[!i], NULL));
        struct ibv_qp_attr rts = rts_attributes();
        rtr.path_mtu = i ? by.path_mtu : IBV_MTU_1024;
        rtr.max_dest_rd_atomic = i ? by.max_dest_rd_atomic : 4;
        rts.max_rd_atomic = i ? 1 : 4;
        rts.sq_psn = rtr.rq_psn + (i ? 0 : by.sq_psn);
        same(ibv_modify_qp(pair[i], &rtr, rtr_mask(type)), 0);
        same(ibv_modify_qp(pair[i], &rts, rts_mask(type)), 0);
    }
}

/* What becomes of one operation by such a pair, and whether something was placed. */
static void one(enum ibv_qp_type type, struct difference by, enum ibv_wr_opcode opcode,
                uint32_t bytes, enum ibv_wc_status status, bool arrives)
{
    struct ibv_qp *pair[2];
    differing(type, by, pair);
    memset(memory, 7, HALF);
    memset(memory + HALF, 9, HALF);
    post(pair[0], (struct operation){.opcode = opcode, .id = 3, .local = memory, .bytes = bytes,
                                     .lkey = mr->lkey, .rkey = mr->rkey,
                                     .remote = (uintptr_t)memory + HALF});
    expect(cq, 3, status);
    same(qp_state(pair[0]), status == IBV_WC_SUCCESS ? IBV_QPS_RTS : IBV_QPS_ERR);
    /* UC does not wait until it is there. */
    volatile char *placed = memory + HALF;
    for (int i = 0; arrives && opcode == IBV_WR_RDMA_WRITE && *placed != 7 && i < 5000; i++)
        usleep(1000);
    if (opcode == IBV_WR_RDMA_WRITE)
        same(*placed, arrives ? 7 : 9);
    close_pair(pair);
}

static const struct difference none = {0, IBV_MTU_1024, 4}, psn = {5, IBV_MTU_1024, 4},
                               mtu = {0, IBV_MTU_4096, 4}, few = {0, IBV_MTU_1024, 3};

TEST(what_a_wire_would_not_let_pass)
{
    setenv("OMNIVERB_STRICT", "1", 1);
    listen_to_stderr();
    open_all();
    one(IBV_QPT_RC, none, IBV_WR_RDMA_WRITE, 4096, IBV_WC_SUCCESS, true);
    one(IBV_QPT_RC, none, IBV_WR_RDMA_READ, 4096, IBV_WC_SUCCESS, true);
    one(IBV_QPT_UC, none, IBV_WR_RDMA_WRITE, 4096, IBV_WC_SUCCESS, true);
    for (int again = 0; again < 2; again++) {
        one(IBV_QPT_RC, psn, IBV_WR_RDMA_WRITE, 8, IBV_WC_RETRY_EXC_ERR, false);
        one(IBV_QPT_RC, mtu, IBV_WR_RDMA_WRITE, 1025, IBV_WC_REM_INV_REQ_ERR, false);
        one(IBV_QPT_RC, mtu, IBV_WR_RDMA_READ, 1025, IBV_WC_BAD_RESP_ERR, false);
        one(IBV_QPT_RC, few, IBV_WR_RDMA_READ, 8, IBV_WC_REM_INV_REQ_ERR, false);
    }
    /* One packet is one packet. */
    one(IBV_QPT_RC, mtu, IBV_WR_RDMA_WRITE, 1024, IBV_WC_SUCCESS, true);
    one(IBV_QPT_RC, few, IBV_WR_RDMA_WRITE, 8, IBV_WC_SUCCESS, true);
    /* UC begins anew with each message, and does not say what was lost. */
    one(IBV_QPT_UC, psn, IBV_WR_RDMA_WRITE, 4096, IBV_WC_SUCCESS, true);
    one(IBV_QPT_UC, mtu, IBV_WR_RDMA_WRITE, 4096, IBV_WC_SUCCESS, false);
    static const char *const reasons[] = {"sq_psn", "path_mtu", "max_dest_rd_atomic"};
    int counts[3] = {0};
    char text[500];
    lseek(said, 0, SEEK_SET);
    FILE *lines = fdopen(dup(said), "r");
    while (fgets(text, sizeof text, lines)) {
        check(!strncmp(text, "omniverb: strict: queue pair ", 29), "%s", text);
        for (int i = 0; i < 3; i++)
            counts[i] += strstr(text, reasons[i]) != NULL;
    }
    for (int i = 0; i < 3; i++)
        same(counts[i], 1);
}

TEST(what_passes_otherwise)
{
    unsetenv("OMNIVERB_STRICT");
    open_all();
    one(IBV_QPT_RC, psn, IBV_WR_RDMA_WRITE, 8, IBV_WC_SUCCESS, true);
    one(IBV_QPT_RC, mtu, IBV_WR_RDMA_WRITE, 4096, IBV_WC_SUCCESS, true);
    one(IBV_QPT_RC, mtu, IBV_WR_RDMA_READ, 4096, IBV_WC_SUCCESS, true);
    one(IBV_QPT_RC, few, IBV_WR_RDMA_READ, 8, IBV_WC_SUCCESS, true);
    one(IBV_QPT_UC, mtu, IBV_WR_RDMA_WRITE, 4096, IBV_WC_SUCCESS, true);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
