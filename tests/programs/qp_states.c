/* The QP state machine: required and allowed attributes, posting in every state, flushing,
 * resetting, and what ibv_query_qp says. */
#include "common.h"

#include <fcntl.h>

static struct device d;
static struct ibv_cq *cq;

static struct ibv_qp *fresh(enum ibv_qp_type type)
{
    return qp_make(&d, (struct queue_options){.type = type, .send_cq = cq});
}

static void open_all(void)
{
    if (d.context)
        return;
    device_open(&d);
    cq = cq_make(&d, 1000);
}

static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
#define EACH_TYPE(t) for (unsigned t = 0; t < sizeof types / sizeof *types; t++)

/* Every required bit must be there, and no bit that the table does not have. */
static void try_transition(struct ibv_qp *qp, struct ibv_qp_attr a, int mask, int foreign)
{
    enum ibv_qp_state before = qp_state(qp);
    for (int bit = 1; bit <= mask; bit <<= 1)
        if (mask & bit && bit != IBV_QP_STATE)
            check(ibv_modify_qp(qp, &a, mask & ~bit) == EINVAL,
                  "QP type %d to state %d accepted without attribute %#x", qp->qp_type, a.qp_state,
                  (unsigned)bit);
    if (foreign)
        check(ibv_modify_qp(qp, &a, mask | foreign) == EINVAL,
              "QP type %d to state %d accepted attribute %#x", qp->qp_type, a.qp_state,
              (unsigned)foreign);
    check(qp_state(qp) == before, "a refused transition changed the state");
    same(ibv_modify_qp(qp, &a, mask), 0);
    same(qp_state(qp), a.qp_state);
    same(qp->state, a.qp_state);
}

TEST(required_attributes)
{
    open_all();
    EACH_TYPE(t) {
        struct ibv_qp *qp = fresh(types[t]), *peer = fresh(types[t]);
        same(qp_state(qp), IBV_QPS_RESET);
        struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
        int last = types[t] == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
        try_transition(qp, init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | last,
                       IBV_QP_DEST_QPN);
        try_transition(qp, rtr_attributes(&d, qp_address(&d, peer, NULL)), rtr_mask(types[t]),
                       IBV_QP_SQ_PSN);
        try_transition(qp, rts_attributes(), rts_mask(types[t]), IBV_QP_PORT);
        same(ibv_destroy_qp(qp), 0);
        same(ibv_destroy_qp(peer), 0);
    }
}

TEST(forbidden_transitions)
{
    open_all();
    EACH_TYPE(t) {
        struct ibv_qp *qp = fresh(types[t]);
        struct ibv_qp_attr rts = rts_attributes();
        struct ibv_qp_attr rtr = rtr_attributes(&d, qp_address(&d, qp, NULL));
        same(ibv_modify_qp(qp, &rtr, rtr_mask(types[t])), EINVAL);
        same(ibv_modify_qp(qp, &rts, rts_mask(types[t])), EINVAL);
        qp_init(&d, qp, 0);
        same(ibv_modify_qp(qp, &rts, rts_mask(types[t])), EINVAL);
        struct ibv_qp_attr wrong_port = {.qp_state = IBV_QPS_INIT, .port_num = 2};
        same(ibv_modify_qp(qp, &wrong_port, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
        struct ibv_qp_attr nonsense = {.qp_state = 99};
        same(ibv_modify_qp(qp, &nonsense, IBV_QP_STATE), EINVAL);
        same(qp_state(qp), IBV_QPS_INIT);
        same(ibv_destroy_qp(qp), 0);
    }
}

TEST(bad_addresses)
{
    open_all();
    struct ibv_qp *qp = fresh(IBV_QPT_RC);
    qp_init(&d, qp, 0);
    struct ibv_qp_attr a = rtr_attributes(&d, qp_address(&d, qp, NULL));
    a.ah_attr.grh.sgid_index = 200;
    check(ibv_modify_qp(qp, &a, rtr_mask(IBV_QPT_RC)), "an sgid_index beyond the table");
    a = rtr_attributes(&d, qp_address(&d, qp, NULL));
    a.path_mtu = 9;
    same(ibv_modify_qp(qp, &a, rtr_mask(IBV_QPT_RC)), EINVAL);
    a = rtr_attributes(&d, qp_address(&d, qp, NULL));
    a.max_dest_rd_atomic = 255;
    same(ibv_modify_qp(qp, &a, rtr_mask(IBV_QPT_RC)), EINVAL);
    same(qp_state(qp), IBV_QPS_INIT);
    same(ibv_destroy_qp(qp), 0);
}

TEST(posting_in_every_state)
{
    open_all();
    static char memory[64];
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct operation send = {.opcode = IBV_WR_SEND, .local = memory, .bytes = 8, .lkey = mr->lkey,
                             .flags = IBV_SEND_SIGNALED, .id = 1};
    EACH_TYPE(t) {
        struct ibv_qp *qp = fresh(types[t]), *peer = fresh(types[t]);
        struct operation o = send;
        if (types[t] == IBV_QPT_UD) {
            struct ibv_ah_attr ah = rtr_attributes(&d, qp_address(&d, qp, NULL)).ah_attr;
            o.ah = ibv_create_ah(d.pd, &ah);
            check(o.ah, "ibv_create_ah: %m");
            o.qpn = peer->qp_num;
        }
        check(try_post(qp, o), "send accepted in RESET");
        check(try_receive(qp, 2, memory, 8, mr->lkey), "receive accepted in RESET");
        qp_init(&d, qp, 0);
        check(try_post(qp, o), "send accepted in INIT");
        receive(qp, 2, memory, 8, mr->lkey);
        struct ibv_qp_attr a = rtr_attributes(&d, qp_address(&d, peer, NULL));
        same(ibv_modify_qp(qp, &a, rtr_mask(types[t])), 0);
        check(try_post(qp, o), "send accepted in RTR");
        receive(qp, 3, memory, 8, mr->lkey);
        qp_move(qp, IBV_QPS_ERR);
        expect(cq, 2, IBV_WC_WR_FLUSH_ERR);
        expect(cq, 3, IBV_WC_WR_FLUSH_ERR);
        post(qp, o);
        receive(qp, 4, memory, 8, mr->lkey);
        struct ibv_wc first = completion(cq, 1000), second = completion(cq, 1000);
        same(first.status, IBV_WC_WR_FLUSH_ERR);
        same(second.status, IBV_WC_WR_FLUSH_ERR);
        check(first.wr_id + second.wr_id == 5, "flushed %" PRIu64 " and %" PRIu64, first.wr_id,
              second.wr_id);
        same(ibv_destroy_qp(qp), 0);
        same(ibv_destroy_qp(peer), 0);
        if (o.ah)
            same(ibv_destroy_ah(o.ah), 0);
    }
    expect_none(cq, 5);
    same(ibv_dereg_mr(mr), 0);
}

TEST(flush_order)
{
    open_all();
    static char memory[64];
    struct ibv_cq *receive_cq = cq_make(&d, 100);
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
    struct ibv_qp *pair[2];
    qp_pair(&d, (struct queue_options){.send_cq = cq, .receive_cq = receive_cq}, pair);
    for (unsigned i = 0; i < 20; i++)
        receive(pair[0], 100 + i, memory, 8, mr->lkey);
    for (unsigned i = 0; i < 20; i++) { /* nobody posts a receive for these; unsignalled too */
        struct operation o = {.opcode = i % 3 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM,
                              .id = i, .local = memory, .bytes = 8, .lkey = mr->lkey,
                              .remote = (uintptr_t)memory, .rkey = mr->rkey,
                              .flags = i % 2 ? IBV_SEND_SIGNALED : 0};
        same(try_post(pair[0], o), 0);
    }
    expect_none(cq, 20);
    qp_move(pair[0], IBV_QPS_ERR);
    for (unsigned i = 0; i < 20; i++) {
        struct ibv_wc wc = expect(cq, i, IBV_WC_WR_FLUSH_ERR);
        same(wc.qp_num, pair[0]->qp_num);
    }
    for (unsigned i = 0; i < 20; i++)
        expect(receive_cq, 100 + i, IBV_WC_WR_FLUSH_ERR);
    expect_none(cq, 5);
    same(ibv_destroy_qp(pair[0]), 0);
    same(ibv_destroy_qp(pair[1]), 0);
    same(ibv_destroy_cq(receive_cq), 0);
    same(ibv_dereg_mr(mr), 0);
}

TEST(reset_forgets_and_qp_can_be_used_again)
{
    open_all();
    static char memory[2][64];
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
    struct ibv_qp *pair[2];
    qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
    for (unsigned turn = 1; turn <= 20; turn++) {
        receive(pair[1], turn, memory[1], 64, mr->lkey);
        fill(memory[0], 64, turn);
        post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = turn, .local = memory[0],
                                         .bytes = 64, .lkey = mr->lkey});
        expect(cq, turn, 0);
        expect(cq, turn, 0);
        same(unfilled(memory[1], 64, turn), -1);
        /* Leave things behind: receives, and a completion nobody polled. */
        for (unsigned i = 0; i < 5; i++)
            receive(pair[turn & 1], 1000 + i, memory[1], 64, mr->lkey);
        if (turn % 2 == 0) {
            post(pair[1], (struct operation){.opcode = IBV_WR_SEND, .id = 999, .local = memory[0],
                                             .bytes = 64, .lkey = mr->lkey});
            sleep_ms(2);
        }
        qp_move(pair[0], IBV_QPS_RESET);
        qp_move(pair[1], IBV_QPS_RESET);
        expect_none(cq, 2);
        qp_connect(&d, pair[0], qp_address(&d, pair[1], NULL));
        qp_connect(&d, pair[1], qp_address(&d, pair[0], NULL));
    }
    same(ibv_destroy_qp(pair[0]), 0);
    same(ibv_destroy_qp(pair[1]), 0);
    same(ibv_dereg_mr(mr), 0);
}

TEST(query_tells_the_truth)
{
    open_all();
    struct ibv_qp *pair[2];
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    qp_pair(&d, (struct queue_options){.send_cq = cq, .send = 10, .receive = 20, .sge = 3,
                                       .inline_bytes = 16}, pair);
    same(ibv_query_qp(pair[0], &a, (1 << 21) - 1, &init), 0);
    same(a.qp_state, IBV_QPS_RTS);
    same(a.cur_qp_state, IBV_QPS_RTS);
    same(a.path_mtu, IBV_MTU_1024);
    same(a.dest_qp_num, pair[1]->qp_num);
    same(a.qp_access_flags & 0xe, ALL_ACCESS & 0xe);
    same(a.port_num, 1);
    same(a.timeout, 14);
    same(a.retry_cnt, 7);
    same(a.rnr_retry, 7);
    same(a.min_rnr_timer, 12);
    same(a.max_rd_atomic, 16);
    same(a.max_dest_rd_atomic, 16);
    same(a.ah_attr.is_global, 1);
    same(a.ah_attr.grh.sgid_index, d.gid_index);
    check(!memcmp(&a.ah_attr.grh.dgid, &d.gid, 16), "dgid");
    check(init.cap.max_send_wr >= 10 && init.cap.max_recv_wr >= 20 && init.cap.max_send_sge >= 3 &&
              init.cap.max_recv_sge >= 3 && init.cap.max_inline_data >= 16, "capabilities");
    same(init.qp_type, IBV_QPT_RC);
    check(init.send_cq == cq && init.recv_cq == cq && !init.srq, "queues");
    qp_move(pair[0], IBV_QPS_ERR);
    same(qp_state(pair[0]), IBV_QPS_ERR);
    same(ibv_destroy_qp(pair[0]), 0);
    same(ibv_destroy_qp(pair[1]), 0);
}

TEST(sending_to_a_destroyed_peer_fails)
{
    open_all();
    static char memory[64];
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
    for (int when = 0; when < 2; when++) { /* sent before, after */
        struct ibv_qp *pair[2];
        qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
        struct operation o = {.opcode = IBV_WR_SEND, .id = 5, .local = memory, .bytes = 8,
                              .lkey = mr->lkey};
        if (when == 0)
            post(pair[0], o);
        same(ibv_destroy_qp(pair[1]), 0);
        if (when == 1)
            post(pair[0], o);
        /* Who is not there may be on its way, and is given two seconds. */
        struct ibv_wc wc = completion(cq, 20000);
        same(wc.wr_id, 5);
        check(wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR ||
                  wc.status == IBV_WC_RNR_RETRY_EXC_ERR, "status %d", wc.status);
        same(qp_state(pair[0]), IBV_QPS_ERR);
        same(ibv_destroy_qp(pair[0]), 0);
    }
    same(ibv_dereg_mr(mr), 0);
}

/* Attributes of the half that an end of XRC does not have: Linux takes their bits out of the mask
 * before a driver looks (modify_qp_mask() of uverbs_cmd.c), and perftest sets them. */
TEST(ignored_attributes)
{
    open_all();
    struct ibv_xrcd_init_attr domain = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
        .oflags = O_CREAT};
    struct ibv_xrcd *xrcd = ibv_open_xrcd(d.context, &domain);
    check(xrcd, "ibv_open_xrcd: %m");
    struct ibv_qp_init_attr_ex sends = {
        .qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .cap = {8, UINT32_MAX, 1, UINT32_MAX, 0},
        .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = d.pd};
    struct ibv_qp_init_attr_ex receives = {.qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd,
                                           .comp_mask = IBV_QP_INIT_ATTR_XRCD};
    struct ibv_qp *pair[2] = {ibv_create_qp_ex(d.context, &sends),
                              ibv_create_qp_ex(d.context, &receives)};
    check(pair[0] && pair[1], "ibv_create_qp_ex: %m");
    for (int end = 0; end < 2; end++) {
        qp_init(&d, pair[end], 0);
        struct ibv_qp_attr rtr = rtr_attributes(&d, qp_address(&d, pair[!end], NULL));
        /* Nor do values count whose bits do not. */
        if (end == 0)
            rtr.max_dest_rd_atomic = 255;
        same(ibv_modify_qp(pair[end], &rtr, rtr_mask(IBV_QPT_RC)), 0);
        struct ibv_qp_attr rts = rts_attributes();
        if (end == 1)
            rts.max_rd_atomic = 255;
        same(ibv_modify_qp(pair[end], &rts, rts_mask(IBV_QPT_RC)), 0);
        same(qp_state(pair[end]), IBV_QPS_RTS);
    }
    same(ibv_destroy_qp(pair[0]), 0);
    same(ibv_destroy_qp(pair[1]), 0);
    same(ibv_close_xrcd(xrcd), 0);
}

/* State numbers beyond ERR are refused (modify_qp() of uverbs_cmd.c), in the mask's words only. */
TEST(states_that_do_not_exist)
{
    open_all();
    struct ibv_qp *qp = fresh(IBV_QPT_RC);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET, .cur_qp_state = IBV_QPS_UNKNOWN};
    same(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
    same(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
    qp_connect(&d, qp, qp_address(&d, qp, NULL));
    a.qp_state = IBV_QPS_RTS;
    same(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
    a.cur_qp_state = IBV_QPS_RTS;
    same(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_CUR_STATE), 0);
    a.qp_state = IBV_QPS_UNKNOWN;
    same(ibv_modify_qp(qp, &a, IBV_QP_STATE), EINVAL);
    same(ibv_destroy_qp(qp), 0);
}

/* The kernel hands on whole bytes, and devices take as many bits of them as there are. */
TEST(ignored_bits)
{
    open_all();
    struct ibv_qp *qp = fresh(IBV_QPT_RC);
    qp_init(&d, qp, 0);
    struct ibv_qp_attr rtr = rtr_attributes(&d, qp_address(&d, qp, NULL)), told;
    struct ibv_qp_init_attr init;
    rtr.dest_qp_num |= 0xff000000;
    rtr.min_rnr_timer = 0xe0 | 12;
    same(ibv_modify_qp(qp, &rtr, rtr_mask(IBV_QPT_RC)), 0);
    struct ibv_qp_attr rts = rts_attributes();
    rts.retry_cnt = rts.rnr_retry = 0xff;
    same(ibv_modify_qp(qp, &rts, rts_mask(IBV_QPT_RC)), 0);
    same(ibv_query_qp(qp, &told, IBV_QP_STATE, &init), 0);
    same(told.dest_qp_num, qp->qp_num);
    same(told.min_rnr_timer, 12);
    same(told.retry_cnt, 7);
    same(told.rnr_retry, 7);
    same(ibv_modify_qp(qp, &rts, IBV_QP_STATE | 1 << 24), EOPNOTSUPP);
    same(ibv_destroy_qp(qp), 0);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
