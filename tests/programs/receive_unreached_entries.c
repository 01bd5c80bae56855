/* A receive is checked for the bytes that a message touches, not for its whole list, as rdma_rxe
 * and hardware do it (rxe: copy_data() of rxe_mr.c): it may be wider than its region, and entries
 * that no byte reaches may have any key. */
#include "common.h"

enum { ROOM = 1 << 20, NOT_A_KEY = 0x12345 };

static struct device d;
static struct ibv_cq *sent, *received;
static struct ibv_mr *from, *to;
static char *source, *target;

static void begin(void)
{
    device_open(&d);
    source = aligned_alloc(4096, ROOM);
    target = aligned_alloc(4096, ROOM);
    check(source && target, "memory");
    fill(source, ROOM, 1);
    from = mr_make(&d, source, ROOM, ALL_ACCESS);
    to = mr_make(&d, target, ROOM, ALL_ACCESS);
    sent = cq_make(&d, 64);
    received = cq_make(&d, 64);
}

static struct ibv_sge entry(char *at, uint32_t bytes, uint32_t lkey)
{
    return (struct ibv_sge){(uintptr_t)at, bytes, lkey};
}

/* What a receive with these entries completes with when `bytes` come, by a queue pair of this type,
 * with an SRQ or without. */
static enum ibv_wc_status outcome(enum ibv_qp_type type, bool shared, uint32_t bytes,
                                  struct ibv_sge *list, int entries)
{
    struct ibv_srq_init_attr a = {.attr = {16, 4, 0}};
    struct ibv_srq *srq = shared ? ibv_create_srq(d.pd, &a) : NULL;
    check(!shared || srq, "ibv_create_srq: %m");
    struct queue_options o = {.type = type, .send_cq = sent, .receive_cq = received, .srq = srq};
    struct ibv_qp *pair[2];
    qp_pair(&d, o, pair);
    struct ibv_recv_wr wr = {.wr_id = 5, .sg_list = list, .num_sge = entries}, *bad;
    same(shared ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(pair[1], &wr, &bad), 0);
    struct operation send = {.opcode = IBV_WR_SEND, .id = 6, .local = source, .bytes = bytes,
                             .lkey = from->lkey};
    struct ibv_ah *ah = NULL;
    if (type == IBV_QPT_UD) {
        struct ibv_ah_attr way = rtr_attributes(&d, qp_address(&d, pair[1], NULL)).ah_attr;
        ah = ibv_create_ah(d.pd, &way);
        check(ah, "ibv_create_ah: %m");
        send.ah = ah;
        send.qpn = pair[1]->qp_num;
    }
    post(pair[0], send);
    struct ibv_wc there = completion(received, 5000), here = completion(sent, 5000);
    same(there.wr_id, 5);
    if (type == IBV_QPT_RC)
        same(here.status, there.status ? IBV_WC_REM_OP_ERR : IBV_WC_SUCCESS);
    if (!there.status)
        same(there.byte_len, bytes + (type == IBV_QPT_UD ? 40 : 0));
    if (ah)
        same(ibv_destroy_ah(ah), 0);
    same(ibv_destroy_qp(pair[0]), 0);
    same(ibv_destroy_qp(pair[1]), 0);
    if (srq)
        same(ibv_destroy_srq(srq), 0);
    return there.status;
}

static const struct {
    enum ibv_qp_type type;
    bool shared;
    uint32_t before; /* bytes in front of a message */
} receivers[] = {{IBV_QPT_RC, false, 0}, {IBV_QPT_RC, true, 0}, {IBV_QPT_UC, false, 0},
                 {IBV_QPT_UC, true, 0}, {IBV_QPT_UD, false, 40}, {IBV_QPT_UD, true, 40}};
enum { RECEIVERS = sizeof receivers / sizeof *receivers };

TEST(wider_than_its_region)
{
    begin();
    for (int i = 0; i < RECEIVERS; i++) {
        uint32_t room = 10 + receivers[i].before;
        struct ibv_mr *small = mr_make(&d, target + 100, room, IBV_ACCESS_LOCAL_WRITE);
        struct ibv_sge wide = entry(target + 100, room + 3, small->lkey);
        for (uint32_t bytes = 1; bytes <= 10; bytes++) {
            same(outcome(receivers[i].type, receivers[i].shared, bytes, &wide, 1), IBV_WC_SUCCESS);
            same(unfilled(target + 100 + receivers[i].before, bytes, 1), -1);
        }
        same(outcome(receivers[i].type, receivers[i].shared, 11, &wide, 1), IBV_WC_LOC_PROT_ERR);
        same(ibv_dereg_mr(small), 0);
    }
}

TEST(entries_that_are_not_reached)
{
    begin();
    for (int i = 0; i < RECEIVERS; i++) {
        struct ibv_sge list[] = {entry(target, 16 + receivers[i].before, to->lkey),
                                 entry(target + 64, 16, NOT_A_KEY)};
        for (uint32_t bytes = 15; bytes <= 17; bytes++)
            same(outcome(receivers[i].type, receivers[i].shared, bytes, list, 2),
                 bytes > 16 ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS);
    }
}

TEST(long_messages)
{
    begin();
    for (int i = 0; i < RECEIVERS; i++) {
        if (receivers[i].type == IBV_QPT_UD)
            continue;
        struct ibv_mr *half = mr_make(&d, target, ROOM / 2, IBV_ACCESS_LOCAL_WRITE);
        struct ibv_sge wide = entry(target, ROOM, half->lkey);
        same(outcome(receivers[i].type, receivers[i].shared, ROOM / 2, &wide, 1), IBV_WC_SUCCESS);
        same(unfilled(target, ROOM / 2, 1), -1);
        same(outcome(receivers[i].type, receivers[i].shared, ROOM / 2 + 1, &wide, 1),
             IBV_WC_LOC_PROT_ERR);
        same(ibv_dereg_mr(half), 0);
    }
}

TEST(write_with_immediate)
{
    begin();
    struct ibv_qp *pair[2];
    qp_pair(&d, (struct queue_options){.send_cq = sent, .receive_cq = received}, pair);
    receive(pair[1], 5, target, 64, NOT_A_KEY);
    post(pair[0], (struct operation){.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .id = 6, .local = source,
                                     .bytes = 64, .lkey = from->lkey, .remote = (uintptr_t)target,
                                     .rkey = to->rkey});
    expect(received, 5, IBV_WC_SUCCESS);
    expect(sent, 6, IBV_WC_SUCCESS);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
