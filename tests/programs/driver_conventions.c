/* What drivers take and refuse, and what programs expect of them besides: memory that may not be
 * used, odd attributes, CQs that overrun. */
#include "uncommon_verbs.h"

TEST(memory_that_may_not_be_used)
{
    open_all();
    char *none = pages(BYTES, PROT_NONE), *fixed = pages(BYTES, PROT_READ);
    check(!ibv_reg_mr(d.pd, none, BYTES, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT, "no access");
    check(!ibv_reg_mr(d.pd, none, BYTES, 0) && errno == EFAULT, "no access, to be read");
    check(!ibv_reg_mr(d.pd, fixed, BYTES, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT, "read-only");
    struct ibv_mr *m = mr_make(&d, fixed, BYTES, IBV_ACCESS_REMOTE_READ);
    same(ibv_dereg_mr(m), 0);
    check(!ibv_reg_mr_iova(d.pd, memory, 4096, 0x10001, IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL,
          "another offset in the page");
    m = ibv_reg_mr_iova(d.pd, memory + 4, 4096, 0x10004, ALL_ACCESS);
    check(m, "ibv_reg_mr_iova: %m");
    write_to(0x10004, m->rkey, 64, IBV_WC_SUCCESS);
    same(ibv_dereg_mr(m), 0);
    m = mr_make(&d, memory, 4096, ALL_ACCESS | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB);
    write_to(0, m->rkey, 64, IBV_WC_SUCCESS);
    same(ibv_dereg_mr(m), 0);
    munmap(none, BYTES);
    munmap(fixed, BYTES);
}

/* A page in the middle of others that may not be used, or is not there: at whichever place. */
TEST(memory_with_a_page_that_may_not_be_used)
{
    open_all();
    const size_t page = 4096, count = 16;
    const int both = PROT_READ | PROT_WRITE;
    char *at = pages(count * page, both);
    struct ibv_mr *m = mr_make(&d, at, count * page, ALL_ACCESS);
    same(ibv_dereg_mr(m), 0);
    for (size_t i = 0; i < count; i++) {
        for (int protection = PROT_NONE; protection <= PROT_READ; protection += PROT_READ) {
            same(mprotect(at + i * page, page, protection), 0);
            check(!ibv_reg_mr(d.pd, at, count * page, ALL_ACCESS) && errno == EFAULT,
                  "page %zu, protection %d", i, protection);
            m = ibv_reg_mr(d.pd, at, count * page, IBV_ACCESS_REMOTE_READ);
            check(protection == PROT_READ ? !!m : !m && errno == EFAULT,
                  "page %zu, protection %d, to be read: %m", i, protection);
            if (m)
                same(ibv_dereg_mr(m), 0);
        }
        same(mprotect(at + i * page, page, both), 0);
        m = mr_make(&d, at, count * page, ALL_ACCESS);
        same(ibv_dereg_mr(m), 0);
    }
    m = mr_make(&d, at, page, ALL_ACCESS);
    same(munmap(at + 7 * page, page), 0);
    check(!ibv_reg_mr(d.pd, at, count * page, IBV_ACCESS_REMOTE_READ) && errno == EFAULT, "a hole");
    check(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, at, count * page, 0) &&
              errno == EFAULT, "a hole, registered anew: %m");
    same(ibv_dereg_mr(m), 0);
    for (size_t part = 0; part < 2; part++) {
        m = mr_make(&d, at + part * 8 * page, (7 + part) * page, ALL_ACCESS);
        same(ibv_dereg_mr(m), 0);
    }
    /* What the library has mapped into the hole stays. */
    munmap(at, 7 * page);
    munmap(at + 8 * page, (count - 8) * page);
}

TEST(overrun_that_is_ignored)
{
    open_all();
    struct ibv_cq_init_attr_ex c = {.cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
                                    .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN};
    struct ibv_cq_ex *ex = ibv_create_cq_ex(d.context, &c);
    check(ex, "ibv_create_cq_ex: %m");
    struct ibv_cq *small = ibv_cq_ex_to_cq(ex);
    struct ibv_qp *pair[2];
    qp_pair(&d, (struct queue_options){.send_cq = small, .receive_cq = cq}, pair);
    for (uint64_t i = 0; i < 50; i++) {
        receive(pair[1], i, memory + HALF, HALF, mr->lkey);
        post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = i, .local = memory,
                                         .bytes = 64, .lkey = mr->lkey});
        expect(cq, i, IBV_WC_SUCCESS);
    }
    for (uint64_t i = 46; i < 50; i++)
        expect(small, i, IBV_WC_SUCCESS);
    expect_none(small, 5);
    same(qp_state(pair[0]), IBV_QPS_RTS);
    close_pair(pair);
    same(ibv_destroy_cq(small), 0);
}

TEST(attributes_that_drivers_take_and_refuse)
{
    open_all();
    struct ibv_qp *pair[2] = {qp_make(&d, (struct queue_options){.send_cq = cq}),
                              qp_make(&d, (struct queue_options){.send_cq = cq})};
    for (int i = 0; i < 2; i++) {
        unsigned more = IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |
                        IBV_ACCESS_HUGETLB | 3u << 8 | IBV_ACCESS_RELAXED_ORDERING;
        qp_init(&d, pair[i], (int)(more | ALL_ACCESS));
        struct ibv_qp_attr rtr = rtr_attributes(&d, qp_address(&d, pair[!i], NULL));
        struct ibv_qp_attr rts = rts_attributes();
        rtr.rq_psn = 0xab123456;
        rts.sq_psn = 0xcd123456;
        rts.max_rd_atomic = 0;
        same(ibv_modify_qp(pair[i], &rtr, rtr_mask(IBV_QPT_RC)), 0);
        same(ibv_modify_qp(pair[i], &rts, rts_mask(IBV_QPT_RC) | IBV_QP_ALT_PATH), EINVAL);
        same(ibv_modify_qp(pair[i], &rts, rts_mask(IBV_QPT_RC)), 0);
        struct ibv_qp_init_attr init;
        same(ibv_query_qp(pair[i], &rtr, IBV_QP_RQ_PSN | IBV_QP_SQ_PSN, &init), 0);
        same(rtr.rq_psn, 0x123456);
        same(rtr.sq_psn, 0x123456);
    }
    struct operation o = {.opcode = IBV_WR_SEND, .id = 3, .local = memory, .bytes = 64,
                          .lkey = mr->lkey};
    o.opcode = IBV_WR_RDMA_READ;
    o.remote = (uintptr_t)memory + HALF;
    o.rkey = mr->rkey;
    post(pair[0], o);
    expect(cq, 3, IBV_WC_LOC_QP_OP_ERR);
    close_pair(pair);
    struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}};
    static const int wrong[] = {0, 99};
    for (int i = 0; i < 2; i++) {
        a.qp_type = (enum ibv_qp_type)wrong[i];
        check(!ibv_create_qp(d.pd, &a) && errno == EINVAL, "QP type %d: %m", wrong[i]);
    }
    a.qp_type = IBV_QPT_RAW_PACKET;
    check(!ibv_create_qp(d.pd, &a) && errno == EOPNOTSUPP, "a raw packet QP: %m");
}

/* Providers test for the flags that they know, and leave others alone: mlx5, rxe and most. */
TEST(unknown_send_flags)
{
    open_all();
    struct ibv_qp *pair[2];
    connected(pair);
    receive(pair[1], 4, memory + HALF, HALF, mr->lkey);
    memset(memory, 9, 64);
    post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = 3, .local = memory, .bytes = 64,
                                     .lkey = mr->lkey, .flags = ~15u});
    for (int i = 0; i < 2; i++)
        same(completion(cq, 5000).status, IBV_WC_SUCCESS);
    check(!memcmp(memory, memory + HALF, 64), "other bytes");
    close_pair(pair);
}

/* rdma_rxe: an atomic needs room for eight bytes, and writes no more. */
TEST(atomics_into_long_lists)
{
    open_all();
    struct ibv_qp *pair[2];
    uint64_t there = 40, *here = (uint64_t *)memory;
    for (int entries = 1; entries <= 2; entries++) {
        connected(pair);
        memcpy(memory + HALF, &there, 8);
        memset(memory, 9, 64);
        struct ibv_sge list[] = {{(uintptr_t)memory, entries == 1 ? 64 : 8, mr->lkey},
                                 {(uintptr_t)memory + 64, 8, mr->lkey + 12345}};
        struct ibv_send_wr *bad, wr = {.wr_id = 3, .sg_list = list, .num_sge = entries,
                                       .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                       .send_flags = IBV_SEND_SIGNALED};
        wr.wr.atomic.remote_addr = (uintptr_t)memory + HALF;
        wr.wr.atomic.rkey = mr->rkey;
        wr.wr.atomic.compare_add = 2;
        same(ibv_post_send(pair[0], &wr, &bad), 0);
        expect(cq, 3, IBV_WC_SUCCESS);
        same(*here, 40);
        for (int i = 8; i < 64; i++)
            same(memory[i], 9);
        memcpy(here, memory + HALF, 8);
        same(*here, 42);
        close_pair(pair);
    }
}

/* Drivers do not look at what is of XRC when an SRQ is not; what is refused changes nothing. */
TEST(attributes_of_shared_queues)
{
    open_all();
    struct ibv_srq_init_attr_ex a = {
        .attr = {.max_wr = 8, .max_sge = 1, .srq_limit = UINT32_MAX}, .srq_type = IBV_SRQT_BASIC,
        .pd = d.pd, .cq = cq,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                     IBV_SRQ_INIT_ATTR_CQ};
    struct ibv_srq *srq = ibv_create_srq_ex(d.context, &a);
    check(srq, "ibv_create_srq_ex: %m");
    struct ibv_srq_attr size = {.max_wr = 16, .srq_limit = 17}, told;
    same(ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), EINVAL);
    same(ibv_query_srq(srq, &told), 0);
    same(told.max_wr, 8);
    same(told.srq_limit, 0);
    same(ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR | 1 << 9), 0);
    same(ibv_query_srq(srq, &told), 0);
    same(told.max_wr, 16);
    same(ibv_destroy_srq(srq), 0);
}

/* A datagram from the device's GID to itself: what the low bits of its service level say. */
static int network_type(void)
{
    struct ibv_qp *pair[2];
    int found = -1;
    qp_pair(&d, (struct queue_options){.type = IBV_QPT_UD, .send_cq = cq}, pair);
    struct ibv_ah_attr a = rtr_attributes(&d, qp_address(&d, pair[1], NULL)).ah_attr;
    struct ibv_ah *ah = ibv_create_ah(d.pd, &a);
    check(ah, "ibv_create_ah: %m");
    receive(pair[1], 4, memory + HALF, HALF, mr->lkey);
    post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = 3, .local = memory, .bytes = 64,
                                     .lkey = mr->lkey, .ah = ah, .qpn = pair[1]->qp_num});
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = completion(cq, 20000);
        same(wc.status, IBV_WC_SUCCESS);
        if (wc.wr_id == 4)
            found = wc.sl & 3;
    }
    same(ibv_destroy_ah(ah), 0);
    close_pair(pair);
    return found;
}

TEST(network_type_of_datagrams)
{
    enum { IPV6 = 1, IPV4 = 2 };
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    static const union ibv_gid none;
    int seen[3] = {0, 0, 0};
    open_all();
    for (d.gid_index = 0; d.gid_index < d.port.gid_tbl_len; d.gid_index++) {
        if (ibv_query_gid(d.context, 1, d.gid_index, &d.gid) ||
            !memcmp(&d.gid, &none, sizeof none))
            continue;
        int type = memcmp(d.gid.raw, mapped, sizeof mapped) ? IPV6 : IPV4;
        same(network_type(), type);
        seen[type]++;
    }
    check(seen[IPV4] && seen[IPV6], "%d GIDs of IPv4 and %d of IPv6", seen[IPV4], seen[IPV6]);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
