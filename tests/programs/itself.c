/* Queue pairs that are connected with themselves: everything they send they receive. */
#include "common.h"

static struct device d;
static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_mr *mr;
static char *memory;

enum { BYTES = 1 << 20, HALF = BYTES / 2 };

static struct ibv_qp *alone(enum ibv_qp_type type)
{
    if (!d.context) {
        device_open(&d);
        send_cq = cq_make(&d, 1000);
        receive_cq = cq_make(&d, 1000);
        memory = aligned_alloc(4096, BYTES);
        mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
    }
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.type = type, .send_cq = send_cq,
                                                           .receive_cq = receive_cq});
    qp_connect(&d, qp, qp_address(&d, qp, NULL));
    return qp;
}

static struct operation operation(enum ibv_wr_opcode opcode, uint32_t bytes)
{
    return (struct operation){.opcode = opcode, .id = 7, .local = memory, .bytes = bytes,
                              .lkey = mr->lkey, .remote = (uintptr_t)memory + HALF,
                              .rkey = mr->rkey, .compare_or_add = 5};
}

static const uint32_t sizes[] = {0, 1, 64, 4096, 70000, HALF};
#define EACH_SIZE(s) for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)

static void messages(struct ibv_qp *qp)
{
    EACH_SIZE(s)
    for (uint32_t turn = 0; turn < 20; turn++) {
        fill(memory, sizes[s], turn);
        receive(qp, 9, memory + HALF, HALF, mr->lkey);
        post(qp, operation(IBV_WR_SEND_WITH_IMM, sizes[s]));
        struct ibv_wc wc = expect(receive_cq, 9, IBV_WC_SUCCESS);
        same(wc.byte_len, sizes[s]);
        same(wc.src_qp, qp->qp_num);
        same(unfilled(memory + HALF, sizes[s], turn), -1);
        expect(send_cq, 7, IBV_WC_SUCCESS);
    }
}

static void writes(struct ibv_qp *qp)
{
    EACH_SIZE(s)
    for (uint32_t turn = 0; turn < 60; turn++) { /* also when its pages are mapped */
        fill(memory, sizes[s], turn);
        post(qp, operation(IBV_WR_RDMA_WRITE, sizes[s]));
        expect(send_cq, 7, IBV_WC_SUCCESS);
        if (qp->qp_type == IBV_QPT_RC)
            same(unfilled(memory + HALF, sizes[s], turn), -1);
    }
}

TEST(reliable)
{
    struct ibv_qp *qp = alone(IBV_QPT_RC);
    messages(qp);
    writes(qp);
    EACH_SIZE(s)
    for (uint32_t turn = 0; turn < 60; turn++) {
        fill(memory + HALF, sizes[s], turn);
        post(qp, operation(IBV_WR_RDMA_READ, sizes[s]));
        expect(send_cq, 7, IBV_WC_SUCCESS);
        same(unfilled(memory, sizes[s], turn), -1);
    }
    uint64_t cell = 40;
    memcpy(memory + HALF, &cell, sizeof cell);
    for (uint64_t turn = 0; turn < 60; turn++) {
        post(qp, operation(IBV_WR_ATOMIC_FETCH_AND_ADD, 8));
        expect(send_cq, 7, IBV_WC_SUCCESS);
        memcpy(&cell, memory, sizeof cell);
        same(cell, 40 + 5 * turn);
    }
    same(ibv_destroy_qp(qp), 0);
}

TEST(unreliable)
{
    struct ibv_qp *qp = alone(IBV_QPT_UC);
    messages(qp);
    writes(qp);
    same(ibv_destroy_qp(qp), 0);
}

TEST(many_requests_at_a_time)
{
    struct ibv_qp *qp = alone(IBV_QPT_RC);
    for (uint64_t turn = 0; turn < 100; turn++) {
        for (uint64_t i = 0; i < 60; i++)
            receive(qp, i, memory + HALF, HALF, mr->lkey);
        for (uint64_t i = 0; i < 60; i++) {
            struct operation o = operation(i % 3 ? IBV_WR_SEND : IBV_WR_RDMA_READ, 64);
            o.id = i;
            post(qp, o);
        }
        for (uint64_t i = 0; i < 60; i++)
            expect(send_cq, i, IBV_WC_SUCCESS);
        for (uint64_t i = 0; i < 40; i++)
            expect(receive_cq, i, IBV_WC_SUCCESS);
        for (uint64_t i = 40; i < 60; i++) { /* the receives that are left */
            post(qp, operation(IBV_WR_SEND, 8));
            expect(receive_cq, i, IBV_WC_SUCCESS);
            expect(send_cq, 7, IBV_WC_SUCCESS);
        }
    }
    same(ibv_destroy_qp(qp), 0);
}

TEST(a_late_receive)
{
    struct ibv_qp *qp = alone(IBV_QPT_RC);
    post(qp, operation(IBV_WR_SEND, 64));
    expect_none(receive_cq, 20);
    receive(qp, 9, memory + HALF, HALF, mr->lkey);
    expect(receive_cq, 9, IBV_WC_SUCCESS);
    expect(send_cq, 7, IBV_WC_SUCCESS);
    same(ibv_destroy_qp(qp), 0);
}

TEST(refused_and_used_again)
{
    struct ibv_qp *qp = alone(IBV_QPT_RC);
    for (int turn = 0; turn < 3; turn++) {
        receive(qp, 9, memory, 64, mr->lkey);
        struct operation o = operation(IBV_WR_RDMA_WRITE, 64);
        o.rkey++;
        post(qp, o);
        struct ibv_wc wc = completion(send_cq, 20000);
        /* It has failed when the refusal comes back from a network. */
        check(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_WR_FLUSH_ERR, "%s",
              ibv_wc_status_str(wc.status));
        expect(receive_cq, 9, IBV_WC_WR_FLUSH_ERR);
        qp_move(qp, IBV_QPS_RESET);
        struct address again = qp_address(&d, qp, NULL);
        again.psn = 0x10000u * (unsigned)(turn + 1);
        qp_connect(&d, qp, again);
        messages(qp);
    }
    same(ibv_destroy_qp(qp), 0);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
