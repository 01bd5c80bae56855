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

/* Datagrams of one queue pair to another and back, by every pair of addresses that the device has;
 * the first of them may be no address that any network knows. */
TEST(datagrams_by_every_address)
{
    static union ibv_gid gids[32], none;
    alone(IBV_QPT_UC);
    unsigned count = 0;
    while (count < 32 && !ibv_query_gid(d.context, 1, (int)count, &gids[count]) &&
           memcmp(&gids[count], &none, sizeof none))
        count++;
    check(count >= 2, "%u addresses", count);
    for (unsigned i = 0; i < count * count; i++) {
        unsigned from = i / count, to = i % count;
        struct ibv_qp *pair[2];
        for (int side = 0; side < 2; side++) {
            pair[side] = qp_make(&d, (struct queue_options){.type = IBV_QPT_UD, .send_cq = send_cq,
                                                            .receive_cq = receive_cq});
            qp_connect(&d, pair[side], (struct address){0});
            receive(pair[side], 9, memory + HALF, 4096, mr->lkey);
        }
        struct ibv_ah_attr way = {.port_num = 1, .is_global = 1,
                                  .grh = {.dgid = gids[to], .sgid_index = (uint8_t)from,
                                          .hop_limit = 64}};
        struct ibv_ah *ah = ibv_create_ah(d.pd, &way);
        check(ah, "ibv_create_ah from %u to %u: %m", from, to);
        for (int side = 0; side < 2; side++) {
            struct operation o = operation(IBV_WR_SEND, 64);
            o.ah = ah;
            o.qpn = pair[!side]->qp_num;
            fill(memory, 64, i);
            post(pair[side], o);
            expect(send_cq, 7, IBV_WC_SUCCESS);
            struct ibv_wc wc = completion(receive_cq, 5000);
            same(wc.status, IBV_WC_SUCCESS);
            same(wc.src_qp, pair[side]->qp_num);
            same(unfilled(memory + HALF + 40, 64, i), -1);
        }
        same(ibv_destroy_ah(ah), 0);
        same(ibv_destroy_qp(pair[0]), 0);
        same(ibv_destroy_qp(pair[1]), 0);
    }
}

/* The table has the addresses of the device's interface. Loopback addresses are in it only where
 * there are no others; they lead to the device itself all the same. */
TEST(listed_addresses)
{
    static struct ibv_gid_entry known[64];
    alone(IBV_QPT_UC);
    ssize_t count = ibv_query_gid_table(d.context, known, 64, 0);
    check(count >= 2, "%zd addresses", count);
    ssize_t at_home = 0, loops = 0;
    for (ssize_t i = 0; i < count; i++) {
        at_home += known[i].ndev_ifindex == 1;
        loops += known[i].gid.raw[10] == 0xff && known[i].gid.raw[12] == 127;
    }
    check(at_home == 0 || at_home == count, "%zd of %zd addresses are of lo", at_home, count);
    same(loops, at_home ? 1 : 0);
}

TEST(loopback_address)
{
    alone(IBV_QPT_UC);
    union ibv_gid home = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = send_cq,
                                                           .receive_cq = receive_cq});
    struct address to = qp_address(&d, qp, NULL);
    to.gid = home;
    qp_connect(&d, qp, to);
    messages(qp);
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
