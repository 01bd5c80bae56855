/* The extended interfaces: work-request builders (ibv_qp_ex) on RC, UC and UD, and reading
 * completions through ibv_cq_ex. */
#include "common.h"

#include <arpa/inet.h>

static struct device d;
static struct ibv_cq_ex *cq;
static struct ibv_mr *mr;
static char memory[4][4096];

#define SEND_OPS                                                                                   \
    (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM)
#define UC_OPS (SEND_OPS | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
#define RC_OPS                                                                                     \
    (UC_OPS | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |                       \
     IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)

static void open_all(void)
{
    device_open(&d);
    mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
    struct ibv_cq_init_attr_ex a = {
        .cqe = 500, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM |
                                IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP |
                                IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL};
    cq = ibv_create_cq_ex(d.context, &a);
    check(cq, "ibv_create_cq_ex: %m");
}

static struct ibv_qp_ex *make(enum ibv_qp_type type, uint64_t operations)
{
    struct ibv_qp_init_attr_ex a = {
        .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = type,
        .cap = {64, 64, 4, 4, 64},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = d.pd, .send_ops_flags = operations};
    struct ibv_qp *qp = ibv_create_qp_ex(d.context, &a);
    check(qp, "ibv_create_qp_ex: %m");
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    check(ex, "ibv_qp_to_qp_ex");
    check(a.cap.max_send_wr >= 64 && a.cap.max_inline_data >= 64, "granted less");
    return ex;
}

static struct ibv_ah *pair_of(enum ibv_qp_type type, uint64_t operations, struct ibv_qp_ex *pair[2])
{
    for (int i = 0; i < 2; i++)
        pair[i] = make(type, operations);
    for (int i = 0; i < 2; i++)
        qp_connect(&d, &pair[i]->qp_base, qp_address(&d, &pair[!i]->qp_base, NULL));
    if (type != IBV_QPT_UD)
        return NULL;
    struct ibv_ah_attr a = rtr_attributes(&d, qp_address(&d, &pair[0]->qp_base, NULL)).ah_attr;
    struct ibv_ah *ah = ibv_create_ah(d.pd, &a);
    check(ah, "ibv_create_ah: %m");
    return ah;
}

static void close_pair(struct ibv_qp_ex *pair[2], struct ibv_ah *ah)
{
    same(ibv_destroy_qp(&pair[0]->qp_base), 0);
    same(ibv_destroy_qp(&pair[1]->qp_base), 0);
    if (ah)
        same(ibv_destroy_ah(ah), 0);
}

/* Waits for a completion and leaves the poll open so that its fields can be read. */
static void begin(uint64_t id, enum ibv_wc_status status)
{
    struct ibv_poll_cq_attr a = {0};
    uint64_t deadline = now_ns() + 3000000000ull;
    int error;
    while ((error = ibv_start_poll(cq, &a)) == ENOENT)
        check(now_ns() < deadline, "no completion of %" PRIu64, id);
    same(error, 0);
    check(cq->wr_id == id && cq->status == status, "completion of %" PRIu64 " with %s", cq->wr_id,
          ibv_wc_status_str(cq->status));
}

static void next(uint64_t id, enum ibv_wc_status status)
{
    uint64_t deadline = now_ns() + 3000000000ull;
    int error;
    while ((error = ibv_next_poll(cq)) == ENOENT)
        check(now_ns() < deadline, "no completion of %" PRIu64, id);
    same(error, 0);
    check(cq->wr_id == id && cq->status == status, "completion of %" PRIu64 " with %s", cq->wr_id,
          ibv_wc_status_str(cq->status));
}

/* A send and the receive that it meets, in either order. */
static void both(uint64_t sent, uint64_t received, uint32_t bytes, bool immediate, bool write)
{
    bool seen[2] = {false, false};
    for (int i = 0; i < 2; i++) {
        struct ibv_poll_cq_attr a = {0};
        uint64_t deadline = now_ns() + 3000000000ull;
        while (ibv_start_poll(cq, &a))
            check(now_ns() < deadline, "no completion");
        same(cq->status, 0);
        if (cq->wr_id == received) {
            seen[1] = true;
            same(ibv_wc_read_opcode(cq), write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
            same(ibv_wc_read_byte_len(cq), bytes);
            same(!!(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM), immediate);
            if (immediate)
                same(ntohl(ibv_wc_read_imm_data(cq)), 0x7777);
        } else {
            same(cq->wr_id, sent);
            seen[0] = true;
            same(ibv_wc_read_opcode(cq), write ? IBV_WC_RDMA_WRITE : IBV_WC_SEND);
        }
        same(ibv_wc_read_vendor_err(cq), 0);
        ibv_end_poll(cq);
    }
    check(seen[0] && seen[1], "the same completion twice");
}

static void one_send(struct ibv_qp_ex *pair[2], struct ibv_ah *ah, int form, bool immediate)
{
    struct ibv_qp_ex *q = pair[0];
    uint32_t header = ah ? 40 : 0;
    fill(memory[0], 60, (uint64_t)form);
    receive(&pair[1]->qp_base, 2, memory[1], 4096, mr->lkey);
    ibv_wr_start(q);
    q->wr_id = 1;
    q->wr_flags = IBV_SEND_SIGNALED;
    if (immediate)
        ibv_wr_send_imm(q, htonl(0x7777));
    else
        ibv_wr_send(q);
    if (ah)
        ibv_wr_set_ud_addr(q, ah, pair[1]->qp_base.qp_num, QKEY);
    struct ibv_sge sges[2] = {{(uintptr_t)memory[0], 20, mr->lkey},
                              {(uintptr_t)memory[0] + 20, 40, mr->lkey}};
    struct ibv_data_buf buffers[2] = {{memory[0], 7}, {memory[0] + 7, 53}};
    switch (form) {
    case 0: ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory[0], 60); break;
    case 1: ibv_wr_set_sge_list(q, 2, sges); break;
    case 2: ibv_wr_set_inline_data(q, memory[0], 60); break;
    case 3: ibv_wr_set_inline_data_list(q, 2, buffers); break;
    }
    same(ibv_wr_complete(q), 0);
    both(1, 2, 60 + header, immediate, false);
    same(unfilled(memory[1] + header, 60, (uint64_t)form), -1);
}

TEST(sends)
{
    open_all();
    static const struct { enum ibv_qp_type type; uint64_t operations; } types[] = {
        {IBV_QPT_RC, RC_OPS}, {IBV_QPT_UC, UC_OPS}, {IBV_QPT_UD, SEND_OPS}};
    for (int t = 0; t < 3; t++) {
        struct ibv_qp_ex *pair[2];
        struct ibv_ah *ah = pair_of(types[t].type, types[t].operations, pair);
        for (int form = 0; form < 4; form++)
            for (int immediate = 0; immediate < 2; immediate++)
                one_send(pair, ah, form, immediate);
        close_pair(pair, ah);
    }
}

TEST(one_sided)
{
    open_all();
    struct ibv_qp_ex *pair[2];
    pair_of(IBV_QPT_RC, RC_OPS, pair);
    struct ibv_qp_ex *q = pair[0];
    uint64_t value = 40, old[2];
    memcpy(memory[3], &value, 8);
    fill(memory[0], 1000, 1);
    memset(memory[2], 0, 1000);
    receive(&pair[1]->qp_base, 50, memory[1], 64, mr->lkey);
    /* One batch of everything. */
    ibv_wr_start(q);
    q->wr_flags = 0;
    q->wr_id = 1;
    ibv_wr_rdma_write(q, mr->rkey, (uintptr_t)memory[1]);
    ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory[0], 1000);
    q->wr_flags = IBV_SEND_SIGNALED;
    q->wr_id = 2;
    ibv_wr_rdma_read(q, mr->rkey, (uintptr_t)memory[1]);
    ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory[2], 1000);
    q->wr_id = 3;
    ibv_wr_atomic_fetch_add(q, mr->rkey, (uintptr_t)memory[3], 2);
    ibv_wr_set_sge(q, mr->lkey, (uintptr_t)&memory[3][64], 8);
    q->wr_id = 4;
    ibv_wr_atomic_cmp_swp(q, mr->rkey, (uintptr_t)memory[3], 42, 99);
    ibv_wr_set_sge(q, mr->lkey, (uintptr_t)&memory[3][72], 8);
    same(ibv_wr_complete(q), 0);
    begin(2, 0);
    same(ibv_wc_read_opcode(cq), IBV_WC_RDMA_READ);
    same(ibv_wc_read_byte_len(cq), 1000);
    same(ibv_wc_read_qp_num(cq), q->qp_base.qp_num);
    next(3, 0);
    same(ibv_wc_read_opcode(cq), IBV_WC_FETCH_ADD);
    next(4, 0);
    same(ibv_wc_read_opcode(cq), IBV_WC_COMP_SWAP);
    ibv_end_poll(cq);
    same(unfilled(memory[2], 1000, 1), -1);
    memcpy(old, &memory[3][64], 16);
    same(old[0], 40);
    same(old[1], 42);
    memcpy(&value, memory[3], 8);
    same(value, 99);

    ibv_wr_start(q);
    q->wr_id = 5;
    ibv_wr_rdma_write_imm(q, mr->rkey, (uintptr_t)memory[1], htonl(0x7777));
    ibv_wr_set_inline_data(q, memory[0], 16);
    same(ibv_wr_complete(q), 0);
    both(5, 50, 16, true, true);
    close_pair(pair, NULL);
}

TEST(abort_posts_nothing)
{
    open_all();
    struct ibv_qp_ex *pair[2];
    pair_of(IBV_QPT_RC, RC_OPS, pair);
    struct ibv_qp_ex *q = pair[0];
    receive(&pair[1]->qp_base, 2, memory[1], 4096, mr->lkey);
    ibv_wr_start(q);
    q->wr_id = 1;
    q->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(q);
    ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory[0], 60);
    ibv_wr_abort(q);
    expect_none(ibv_cq_ex_to_cq(cq), 20);
    /* More than the queue holds: an error from complete, nothing posted. */
    ibv_wr_start(q);
    for (unsigned i = 0; i < 100000; i++) {
        q->wr_id = 100;
        ibv_wr_send(q);
        ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory[0], 60);
    }
    same(ibv_wr_complete(q), ENOMEM);
    expect_none(ibv_cq_ex_to_cq(cq), 20);
    /* Too much inline data. */
    static char much[1 << 16];
    ibv_wr_start(q);
    ibv_wr_send(q);
    ibv_wr_set_inline_data(q, much, sizeof much);
    check(ibv_wr_complete(q), "64 KiB inline");
    one_send((struct ibv_qp_ex *[]){pair[0], pair[1]}, NULL, 0, false);
    close_pair(pair, NULL);
}

TEST(what_is_not_offered)
{
    open_all();
    struct ibv_qp_init_attr_ex a = {
        .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_UD,
        .cap = {4, 4, 1, 1, 0}, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = d.pd, .send_ops_flags = IBV_QP_EX_WITH_RDMA_READ};
    check(!ibv_create_qp_ex(d.context, &a) && (errno == EOPNOTSUPP || errno == EINVAL),
          "a UD QP that reads: errno %d", errno);
    a.qp_type = IBV_QPT_UC;
    check(!ibv_create_qp_ex(d.context, &a) && (errno == EOPNOTSUPP || errno == EINVAL),
          "a UC QP that reads: errno %d", errno);
    a.qp_type = IBV_QPT_RC;
    a.send_ops_flags = UINT64_C(1) << 60;
    check(!ibv_create_qp_ex(d.context, &a) && (errno == EOPNOTSUPP || errno == EINVAL),
          "an unknown operation: errno %d", errno);
    struct ibv_qp *classic = qp_make(&d, (struct queue_options){.send_cq = ibv_cq_ex_to_cq(cq)});
    check(!ibv_qp_to_qp_ex(classic), "a classic QP has no builder");
    struct ibv_device_attr_ex attributes;
    same(ibv_query_device_ex(d.context, NULL, &attributes), 0);
    same(attributes.orig_attr.max_qp, d.attributes.max_qp);
}

TEST(errors_through_the_extended_queue)
{
    open_all();
    struct ibv_qp_ex *pair[2];
    pair_of(IBV_QPT_RC, RC_OPS, pair);
    struct ibv_qp_ex *q = pair[0];
    ibv_wr_start(q);
    q->wr_flags = 0;
    q->wr_id = 8;
    ibv_wr_rdma_write(q, mr->rkey ^ 0x10, (uintptr_t)memory[1]);
    ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory[0], 8);
    q->wr_id = 9;
    ibv_wr_send(q);
    ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory[0], 8);
    same(ibv_wr_complete(q), 0);
    begin(8, IBV_WC_REM_ACCESS_ERR);
    next(9, IBV_WC_WR_FLUSH_ERR);
    ibv_end_poll(cq);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
