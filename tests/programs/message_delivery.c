/* What each operation delivers: fields of work completions, UD and UC, SRQ, address handles from
 * completions, zero length, very large messages, several SGEs, both ends in one process. */
#include "common.h"

#include <arpa/inet.h>
#include <sys/mman.h>

/* An unreliable message for which no receive is posted may wait for one, but not longer. */
#define LOST_MS 2500 /* a receiver that is merely late loses nothing for up to a second */

static struct device d;
static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_mr *mr;
static char memory[4][8192];

static void open_all(void)
{
    device_open(&d);
    send_cq = cq_make(&d, 1000);
    receive_cq = cq_make(&d, 1000);
    mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
}

static void pair_of(enum ibv_qp_type type, struct ibv_qp *pair[2])
{
    qp_pair(&d, (struct queue_options){.type = type, .send_cq = send_cq, .receive_cq = receive_cq,
                                       .inline_bytes = 64}, pair);
}

static void close_pair(struct ibv_qp *pair[2])
{
    same(ibv_destroy_qp(pair[0]), 0);
    same(ibv_destroy_qp(pair[1]), 0);
}

TEST(connected_sizes)
{
    open_all();
    static const uint32_t sizes[] = {0, 1, 7, 8, 63, 64, 65, 1023, 1024, 1025, 4095, 4096, 8192};
    for (int type = IBV_QPT_RC; type <= IBV_QPT_UC; type++)
        for (int immediate = 0; immediate < 2; immediate++)
            for (int in_line = 0; in_line < 2; in_line++) {
                struct ibv_qp *pair[2];
                pair_of((enum ibv_qp_type)type, pair);
                for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                    if (in_line && sizes[i] > 64)
                        break;
                    fill(memory[0], sizes[i], i);
                    memset(memory[1], 0x33, sizeof memory[1]);
                    receive(pair[1], 50 + i, memory[1], 8192, mr->lkey);
                    struct operation o = {
                        .opcode = immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, .id = i,
                        .local = memory[0], .bytes = sizes[i], .lkey = in_line ? 0 : mr->lkey,
                        .immediate = 0xabcd0000u + i, .flags = in_line ? IBV_SEND_INLINE : 0};
                    post(pair[0], o);
                    struct ibv_wc wc = expect(receive_cq, 50 + i, 0);
                    same(wc.opcode, IBV_WC_RECV);
                    same(wc.byte_len, sizes[i]);
                    same(wc.qp_num, pair[1]->qp_num);
                    same(wc.wc_flags & IBV_WC_WITH_IMM, immediate ? IBV_WC_WITH_IMM : 0);
                    if (immediate)
                        same(ntohl(wc.imm_data), 0xabcd0000u + i);
                    same(unfilled(memory[1], sizes[i], i), -1);
                    for (uint32_t k = sizes[i]; k < 8192; k++)
                        same(memory[1][k], 0x33);
                    wc = expect(send_cq, i, 0);
                    same(wc.opcode, IBV_WC_SEND);
                    same(wc.qp_num, pair[0]->qp_num);
                }
                close_pair(pair);
            }
}

TEST(unreliable_connected)
{
    open_all();
    struct ibv_qp *pair[2];
    pair_of(IBV_QPT_UC, pair);
    struct operation o = {.opcode = IBV_WR_SEND, .id = 1, .local = memory[0], .bytes = 64,
                          .lkey = mr->lkey};
    post(pair[0], o); /* nobody waits for it: lost, and the sender does not care */
    expect(send_cq, 1, 0);
    sleep_ms(LOST_MS);
    receive(pair[1], 2, memory[1], 8192, mr->lkey);
    expect_none(receive_cq, 20);
    fill(memory[0], 64, 5);
    post(pair[0], o);
    expect(send_cq, 1, 0);
    expect(receive_cq, 2, 0);
    same(unfilled(memory[1], 64, 5), -1);
    o.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    o.remote = (uintptr_t)memory[2];
    o.rkey = mr->rkey;
    receive(pair[1], 3, NULL, 0, 0);
    post(pair[0], o);
    expect(send_cq, 1, 0);
    struct ibv_wc wc = expect(receive_cq, 3, 0);
    same(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    same(wc.byte_len, 64);
    same(unfilled(memory[2], 64, 5), -1);
    o.opcode = IBV_WR_RDMA_READ;
    check(try_post(pair[0], o), "READ accepted on UC");
    o.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    o.bytes = 8;
    check(try_post(pair[0], o), "atomic accepted on UC");
    /* A wrong key is dropped; the sender completes, the QP goes on. */
    memset(memory[2], 1, 64);
    o.opcode = IBV_WR_RDMA_WRITE;
    o.rkey = mr->rkey + 999;
    post(pair[0], o);
    expect(send_cq, 1, 0);
    sleep_ms(5);
    same(memory[2][0], 1);
    same(qp_state(pair[0]), IBV_QPS_RTS);
    close_pair(pair);
}

TEST(datagrams)
{
    open_all();
    struct ibv_qp *qp[3];
    for (int i = 0; i < 3; i++) {
        qp[i] = qp_make(&d, (struct queue_options){.type = IBV_QPT_UD, .send_cq = send_cq,
                                                   .receive_cq = receive_cq, .inline_bytes = 64});
        qp_connect(&d, qp[i], qp_address(&d, qp[i], NULL));
    }
    struct ibv_ah_attr a = rtr_attributes(&d, qp_address(&d, qp[0], NULL)).ah_attr;
    struct ibv_ah *ah = ibv_create_ah(d.pd, &a);
    check(ah, "ibv_create_ah: %m");
    uint32_t mtu = 128u << d.port.active_mtu;
    for (uint32_t bytes = 0; bytes <= mtu; bytes = bytes < 8 ? bytes + 1 : bytes * 2) {
        fill(memory[0], bytes, bytes);
        receive(qp[2], 60, memory[1], 8192, mr->lkey);
        struct operation o = {.opcode = IBV_WR_SEND_WITH_IMM, .id = 1, .local = memory[0],
                              .bytes = bytes, .lkey = mr->lkey, .immediate = 42, .ah = ah,
                              .qpn = qp[2]->qp_num};
        post(qp[bytes & 1], o);
        expect(send_cq, 1, 0);
        struct ibv_wc wc = expect(receive_cq, 60, 0);
        same(wc.byte_len, bytes + 40);
        same(wc.src_qp, qp[bytes & 1]->qp_num);
        check(wc.wc_flags & IBV_WC_GRH, "no GRH flag");
        same(ntohl(wc.imm_data), 42);
        same(unfilled(memory[1] + 40, bytes, bytes), -1);
        /* Answer by means of the completion alone. */
        struct ibv_ah *back = ibv_create_ah_from_wc(d.pd, &wc, (struct ibv_grh *)memory[1], 1);
        check(back, "ibv_create_ah_from_wc: %m");
        receive(qp[bytes & 1], 61, memory[2], 8192, mr->lkey);
        o.ah = back;
        o.qpn = wc.src_qp;
        post(qp[2], o);
        expect(send_cq, 1, 0);
        expect(receive_cq, 61, 0);
        same(ibv_destroy_ah(back), 0);
    }
    struct operation o = {.opcode = IBV_WR_SEND, .id = 1, .local = memory[0], .bytes = 8,
                          .lkey = mr->lkey, .ah = ah, .qpn = 0xabcdef};
    post(qp[0], o); /* to nobody: lost */
    expect(send_cq, 1, 0);
    o.qpn = qp[1]->qp_num; /* no receive posted: lost */
    post(qp[0], o);
    expect(send_cq, 1, 0);
    sleep_ms(LOST_MS);
    struct ibv_qp_attr other_key = {.qkey = QKEY + 1};
    same(ibv_modify_qp(qp[1], &other_key, IBV_QP_QKEY), 0);
    receive(qp[1], 62, memory[1], 8192, mr->lkey);
    post(qp[0], o); /* wrong Q_Key: dropped */
    expect(send_cq, 1, 0);
    expect_none(receive_cq, 20);
    o.opcode = IBV_WR_RDMA_WRITE;
    check(try_post(qp[0], o), "WRITE accepted on UD");
    for (int i = 0; i < 3; i++)
        same(ibv_destroy_qp(qp[i]), 0);
    same(ibv_destroy_ah(ah), 0);
}

TEST(one_sided)
{
    open_all();
    struct ibv_qp *pair[2];
    pair_of(IBV_QPT_RC, pair);
    struct operation o = {.id = 1, .local = memory[0], .bytes = 8192, .lkey = mr->lkey,
                          .remote = (uintptr_t)memory[1], .rkey = mr->rkey};
    fill(memory[0], 8192, 1);
    o.opcode = IBV_WR_RDMA_WRITE;
    post(pair[0], o);
    same(expect(send_cq, 1, 0).opcode, IBV_WC_RDMA_WRITE);
    same(unfilled(memory[1], 8192, 1), -1);
    o.opcode = IBV_WR_RDMA_READ;
    fill(memory[1], 8192, 2);
    post(pair[0], o);
    struct ibv_wc wc = expect(send_cq, 1, 0);
    same(wc.opcode, IBV_WC_RDMA_READ);
    same(wc.byte_len, 8192);
    same(unfilled(memory[0], 8192, 2), -1);
    uint64_t value = 100;
    memcpy(memory[1], &value, 8);
    o.bytes = 8;
    o.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    o.compare_or_add = 23;
    post(pair[0], o);
    same(expect(send_cq, 1, 0).opcode, IBV_WC_FETCH_ADD);
    memcpy(&value, memory[0], 8);
    same(value, 100);
    memcpy(&value, memory[1], 8);
    same(value, 123);
    o.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    o.swap = 7;
    for (int hit = 0; hit < 2; hit++) {
        o.compare_or_add = hit ? 123 : 5;
        post(pair[0], o);
        wc = expect(send_cq, 1, 0);
        same(wc.opcode, IBV_WC_COMP_SWAP);
        memcpy(&value, memory[0], 8);
        same(value, 123);
        memcpy(&value, memory[1], 8);
        same(value, hit ? 7 : 123);
    }
    close_pair(pair);
}

/* Takes much memory: `argument` MiB for each of two buffers. */
TEST(large_messages)
{
    open_all();
    size_t bytes = argument(0, 512) << 20;
    char *from = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(from != MAP_FAILED && to != MAP_FAILED, "mmap: %m");
    struct ibv_mr *a = mr_make(&d, from, bytes, ALL_ACCESS);
    struct ibv_mr *b = mr_make(&d, to, bytes, ALL_ACCESS);
    uint32_t length = (uint32_t)bytes - 3;
    check(d.port.max_msg_sz >= length, "max_msg_sz");
    struct ibv_qp *pair[2];
    pair_of(IBV_QPT_RC, pair);
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
    for (unsigned i = 0; i < 3; i++) {
        bool reading = opcodes[i] == IBV_WR_RDMA_READ;
        char *source = reading ? to : from, *sink = reading ? from : to;
        fill(source + 1, length, i);
        receive(pair[1], 2, to + 1, length, b->lkey);
        post(pair[0], (struct operation){.opcode = opcodes[i], .id = 1, .local = from + 1,
                                         .bytes = length, .lkey = a->lkey,
                                         .remote = (uintptr_t)to + 1, .rkey = b->rkey});
        struct ibv_wc wc = completion(send_cq, 30000);
        same(wc.status, 0);
        if (opcodes[i] == IBV_WR_SEND)
            same(completion(receive_cq, 30000).byte_len, length);
        same(unfilled(sink + 1, length, i), -1);
    }
    close_pair(pair);
}

TEST(shared_receive_queue)
{
    open_all();
    struct ibv_srq_init_attr init = {.attr = {64, 1, 0}};
    struct ibv_srq *srq = ibv_create_srq(d.pd, &init);
    check(srq, "ibv_create_srq: %m");
    struct ibv_qp *client[8], *server[8];
    for (int i = 0; i < 8; i++) {
        client[i] = qp_make(&d, (struct queue_options){.send_cq = send_cq});
        server[i] = qp_make(&d, (struct queue_options){.send_cq = receive_cq, .srq = srq});
        qp_connect(&d, client[i], qp_address(&d, server[i], NULL));
        qp_connect(&d, server[i], qp_address(&d, client[i], NULL));
    }
    for (unsigned turn = 0; turn < 200; turn++) {
        for (unsigned i = 0; i < 8; i++) { /* sent before there is a receive */
            fill(memory[0] + 64 * i, 64, turn * 8 + i);
            post(client[i], (struct operation){.opcode = IBV_WR_SEND_WITH_IMM, .id = i,
                                               .local = memory[0] + 64 * i, .bytes = 64,
                                               .lkey = mr->lkey, .immediate = i});
        }
        for (unsigned i = 0; i < 8; i++) {
            struct ibv_sge sge = {(uintptr_t)memory[1] + 64 * i, 64, mr->lkey};
            struct ibv_recv_wr *bad, wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1};
            same(ibv_post_srq_recv(srq, &wr, &bad), 0);
        }
        /* Queue pairs are served by whoever is there, this thread or that of the library: what was
         * taken from the SRQ first need not be complete first. */
        unsigned seen = 0, taken = 0;
        for (unsigned i = 0; i < 8; i++) {
            struct ibv_wc wc = completion(receive_cq, 2000);
            same(wc.status, 0);
            check(wc.wr_id < 8 && !(taken & 1u << wc.wr_id), "receive %" PRIu64, wc.wr_id);
            taken |= 1u << wc.wr_id;
            unsigned from = ntohl(wc.imm_data);
            same(wc.qp_num, server[from]->qp_num);
            same(unfilled(memory[1] + 64 * wc.wr_id, 64, turn * 8 + from), -1);
            seen |= 1u << from;
        }
        same(seen, 255);
        for (unsigned i = 0; i < 8; i++)
            same(completion(send_cq, 2000).status, 0);
    }
    for (int i = 0; i < 8; i++) {
        same(ibv_destroy_qp(client[i]), 0);
        same(ibv_destroy_qp(server[i]), 0);
    }
    same(ibv_destroy_srq(srq), 0);
}

TEST(every_gid_of_the_table)
{
    open_all();
    int found = 0;
    for (int i = 0; i < d.port.gid_tbl_len; i++) {
        union ibv_gid gid, none;
        memset(&none, 0, sizeof none);
        same(ibv_query_gid(d.context, 1, i, &gid), 0);
        if (!memcmp(&gid, &none, 16))
            continue;
        same(found++, i); /* dense */
        struct ibv_qp *pair[2];
        d.gid = gid;
        d.gid_index = i;
        pair_of(IBV_QPT_RC, pair);
        receive(pair[1], 2, memory[1], 64, mr->lkey);
        post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = 1, .local = memory[0],
                                         .bytes = 64, .lkey = mr->lkey});
        expect(send_cq, 1, 0);
        expect(receive_cq, 2, 0);
        close_pair(pair);
    }
    check(found, "no GID");
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
