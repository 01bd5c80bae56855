/* The transport between two processes, perhaps on two hosts: every message length around the path
 * MTU, the wrap of packet sequence numbers, what completions say, and errors.
 * The far process (commanded_qp_process.h) sleeps while it is written to, read from and sent
 * messages. */
#include "commanded_qp_process.h"

#include <arpa/inet.h>

static struct device d;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char *memory;
static struct far far;

static void open_all(void)
{
    far = far_start();
    device_open(&d);
    cq = cq_make(&d, 1000);
    memory = malloc(FAR_BYTES);
    check(memory, "no memory");
    mr = mr_make(&d, memory, FAR_BYTES, ALL_ACCESS);
}

static struct operation operation(enum ibv_wr_opcode opcode, uint32_t bytes, struct address theirs)
{
    return (struct operation){.opcode = opcode, .id = 7, .local = memory, .bytes = bytes,
                              .lkey = mr->lkey, .remote = theirs.memory, .rkey = theirs.rkey};
}

static void far_receives(uint32_t count, uint32_t bytes)
{
    tell(&far, (struct order){.errand = RECEIVES, .count = count, .bytes = bytes});
}

static struct ibv_wc far_completion(enum ibv_wc_status status)
{
    struct answer a = tell(&far, (struct order){.errand = COMPLETE, .count = 20000});
    check(a.found, "no completion at the far side");
    check(a.wc.status == status, "far side: %s", ibv_wc_status_str(a.wc.status));
    return a.wc;
}

static void far_verify(uint32_t offset, uint32_t bytes, uint64_t word)
{
    struct order o = {.errand = VERIFY, .offset = offset, .bytes = bytes, .word = word};
    int64_t at = tell(&far, o).at;
    check(at == -1, "%u bytes: byte %" PRId64 " at the far side is wrong", bytes, at);
}

static void far_destroy(struct ibv_qp *qp)
{
    same(ibv_destroy_qp(qp), 0);
    tell(&far, (struct order){.errand = DESTROY});
}

/* A SEND, a WRITE and, on RC, a READ of so many bytes, checked byte for byte. */
static void one_length(struct ibv_qp *qp, struct address theirs, uint32_t bytes)
{
    static uint64_t word = 1;
    far_receives(1, FAR_BYTES);
    fill(memory, bytes, ++word);
    struct operation o = operation(IBV_WR_SEND_WITH_IMM, bytes, theirs);
    o.immediate = bytes ^ 0xa5a50000;
    post(qp, o);
    expect(cq, 7, 0);
    struct ibv_wc wc = far_completion(0);
    same(wc.byte_len, bytes);
    same(ntohl(wc.imm_data), o.immediate);
    same(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
    far_verify(0, bytes, word);
    fill(memory, bytes, ++word);
    far_receives(1, 0);
    o.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    o.remote += 3;
    post(qp, o);
    expect(cq, 7, 0);
    wc = far_completion(0);
    same(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    same(wc.byte_len, bytes);
    far_verify(3, bytes, word);
    if (qp->qp_type != IBV_QPT_RC)
        return;
    memset(memory, 0x77, FAR_BYTES);
    o.opcode = IBV_WR_RDMA_READ;
    o.local = memory + 1;
    post(qp, o);
    wc = expect(cq, 7, 0);
    same(wc.byte_len, bytes);
    check(unfilled(memory + 1, bytes, word) < 0, "READ of %u bytes", bytes);
    check(memory[0] == 0x77 && memory[bytes + 1] == 0x77, "beside the READ of %u bytes", bytes);
}

static void lengths(enum ibv_qp_type type, enum ibv_mtu mtu, uint32_t psn)
{
    struct manner m = RELIABLE;
    struct address theirs;
    uint32_t packet = 128u << mtu;
    m.type = type;
    m.mtu = mtu;
    m.psn = psn;
    struct ibv_qp *qp = far_connect(&far, &d, cq, m, &theirs);
    const uint32_t of[] = {0, 1, 2, 3, 4, 5, 33, packet - 1, packet, packet + 1, 2 * packet - 1,
                           2 * packet, 2 * packet + 1, 7 * packet - 3, 16 * packet, 65536 + 5};
    for (unsigned i = 0; i < sizeof of / sizeof *of; i++)
        one_length(qp, theirs, of[i]);
    far_destroy(qp);
}

TEST(lengths_around_the_mtu)
{
    open_all();
    for (int mtu = IBV_MTU_256; mtu <= (int)d.port.active_mtu; mtu++)
        lengths(IBV_QPT_RC, (enum ibv_mtu)mtu, 100);
    far_end(&far);
}

/* Only where the network loses nothing. */
TEST(unreliable_lengths)
{
    open_all();
    lengths(IBV_QPT_UC, IBV_MTU_256, 100);
    lengths(IBV_QPT_UC, d.port.active_mtu, 100);
    lengths(IBV_QPT_UC, IBV_MTU_1024, 0xfffffe);
    far_end(&far);
}

TEST(sequence_numbers_wrap)
{
    open_all();
    for (uint32_t before = 1; before < 200; before = before * 3 + 1)
        lengths(IBV_QPT_RC, IBV_MTU_1024, 0x1000000 - before);
    far_end(&far);
}

/* With a window of one and of many; the answers come back in order. */
TEST(reads_and_atomics_under_way)
{
    open_all();
    for (uint8_t reads = 1; reads <= 16; reads *= 4) {
        struct manner m = RELIABLE;
        struct address theirs;
        m.reads = reads;
        struct ibv_qp *qp = far_connect(&far, &d, cq, m, &theirs);
        tell(&far, (struct order){.errand = FILL, .word = 0});
        uint64_t first = 0, old[48];
        fill(&first, 8, 0);
        memset(memory, 0, FAR_BYTES);
        for (unsigned i = 0; i < 48; i++) {
            struct operation o = operation(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, theirs);
            if (i % 3 == 0) {
                o.opcode = IBV_WR_RDMA_READ;
                o.bytes = 5000;
                o.remote += 8;
                o.local = memory + 512 + i * 5000;
            } else {
                o.local = memory + i * 8;
                o.compare_or_add = 1;
            }
            o.id = i;
            post(qp, o);
        }
        for (unsigned i = 0; i < 48; i++)
            expect(cq, i, 0);
        memcpy(old, memory, sizeof old);
        uint64_t added = 0;
        static char want[5008];
        fill(want, sizeof want, 0);
        for (unsigned i = 0; i < 48; i++)
            if (i % 3)
                check(old[i] == first + added++, "atomic %u", i);
            else
                check(!memcmp(memory + 512 + i * 5000, want + 8, 5000), "READ %u", i);
        far_destroy(qp);
    }
    far_end(&far);
}

/* UD: a first message from nowhere, every length, what the GRH says, and an answer. */
TEST(datagrams)
{
    open_all();
    struct manner m = RELIABLE;
    struct address theirs;
    m.type = IBV_QPT_UD;
    struct ibv_qp *qp = far_connect(&far, &d, cq, m, &theirs);
    struct ibv_ah_attr a = rtr_attributes(&d, theirs).ah_attr;
    struct ibv_ah *ah = ibv_create_ah(d.pd, &a);
    check(ah, "ibv_create_ah: %m");
    uint32_t largest = 128u << d.port.active_mtu;
    for (uint32_t bytes = 0; bytes <= largest; bytes = bytes < 5 ? bytes + 1 : bytes * 2 + 1) {
        far_receives(1, 8192);
        fill(memory, bytes, bytes);
        struct operation o = operation(IBV_WR_SEND_WITH_IMM, bytes, theirs);
        o.ah = ah;
        o.qpn = theirs.qpn;
        o.immediate = bytes + 1;
        post(qp, o);
        expect(cq, 7, 0);
        struct ibv_wc wc = far_completion(0);
        same(wc.byte_len, bytes + 40);
        same(wc.src_qp, qp->qp_num);
        same(ntohl(wc.imm_data), bytes + 1);
        check(wc.wc_flags & IBV_WC_GRH, "no GRH");
        far_verify(40, bytes, bytes);
    }
    struct operation o = operation(IBV_WR_SEND, 8, theirs);
    o.ah = ah;
    o.qpn = theirs.qpn ^ 0x5555; /* to nobody: lost */
    post(qp, o);
    expect(cq, 7, 0);
    far_receives(1, 8192); /* nothing may have come */
    struct order wait = {.errand = COMPLETE, .count = 200};
    check(!tell(&far, wait).found, "a message to nobody arrived");
    same(ibv_destroy_ah(ah), 0);
    far_destroy(qp);
    far_end(&far);
}

static void flushed_behind(struct ibv_qp *qp, struct operation o, enum ibv_wc_status status)
{
    struct operation behind = operation(IBV_WR_SEND, 8, (struct address){.memory = 0});
    behind.id = 8;
    post(qp, o);
    post(qp, behind);
    struct ibv_wc wc = completion(cq, 20000);
    check(wc.wr_id == 7 && wc.status == status, "%s, not %s", ibv_wc_status_str(wc.status),
          ibv_wc_status_str(status));
    expect(cq, 8, IBV_WC_WR_FLUSH_ERR);
    same(qp_state(qp), IBV_QPS_ERR);
}

TEST(errors_of_the_far_side)
{
    open_all();
    struct manner m = RELIABLE;
    struct address theirs;
    struct ibv_qp *qp = far_connect(&far, &d, cq, m, &theirs);
    far_receives(1, 1000); /* a message too long for the receive */
    flushed_behind(qp, operation(IBV_WR_SEND, 1001, theirs), IBV_WC_REM_INV_REQ_ERR);
    far_completion(IBV_WC_LOC_LEN_ERR);
    far_destroy(qp);

    qp = far_connect(&far, &d, cq, m, &theirs); /* a receive that names memory it may not */
    tell(&far, (struct order){.errand = BAD_KEY, .bytes = 4096});
    flushed_behind(qp, operation(IBV_WR_SEND, 2000, theirs), IBV_WC_REM_OP_ERR);
    far_completion(IBV_WC_LOC_PROT_ERR);
    far_destroy(qp);

    for (unsigned i = 0; i < 3; i++) { /* beyond the region */
        static const enum ibv_wr_opcode kinds[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                                   IBV_WR_ATOMIC_CMP_AND_SWP};
        tell(&far, (struct order){.errand = FILL, .word = 3});
        qp = far_connect(&far, &d, cq, m, &theirs);
        struct operation o = operation(kinds[i], kinds[i] == IBV_WR_ATOMIC_CMP_AND_SWP ? 8 : 5000,
                                       theirs);
        o.remote += i == 2 ? FAR_BYTES : FAR_BYTES - 4999;
        flushed_behind(qp, o, IBV_WC_REM_ACCESS_ERR);
        far_verify(0, FAR_BYTES, 3);
        far_destroy(qp);
    }

    m.rnr_retry = 2; /* nobody posts a receive */
    qp = far_connect(&far, &d, cq, m, &theirs);
    flushed_behind(qp, operation(IBV_WR_SEND, 8, theirs), IBV_WC_RNR_RETRY_EXC_ERR);
    far_destroy(qp);
    far_end(&far);
}

/* `rnr_retry` 7 waits for ever; what waited arrives in order. */
TEST(receiver_not_ready)
{
    open_all();
    struct manner m = RELIABLE;
    struct address theirs;
    struct ibv_qp *qp = far_connect(&far, &d, cq, m, &theirs);
    for (unsigned i = 0; i < 20; i++) {
        struct operation o = operation(IBV_WR_SEND_WITH_IMM, 3000, theirs);
        o.id = o.immediate = i;
        post(qp, o);
    }
    expect_none(cq, 300);
    far_receives(20, 4096);
    for (unsigned i = 0; i < 20; i++) {
        expect(cq, i, 0);
        same(ntohl(far_completion(0).imm_data), i);
    }
    far_destroy(qp);
    far_end(&far);
}

/* Without any retries a receive may be late all the same between two of ours, and what waits for it
 * arrives when it is there: `rnr_timer` 0 is 655 ms, and nobody waits for that. */
TEST(receiver_late)
{
    open_all();
    struct manner m = RELIABLE;
    struct address theirs;
    m.rnr_retry = m.rnr_timer = 0;
    struct ibv_qp *qp = far_connect(&far, &d, cq, m, &theirs);
    for (unsigned round = 0; round < 5; round++) {
        for (unsigned i = 0; i < 20; i++) {
            struct operation o = operation(IBV_WR_SEND_WITH_IMM, 3000, theirs);
            o.id = o.immediate = i;
            post(qp, o);
        }
        expect_none(cq, 50);
        far_receives(20, 4096);
        for (unsigned i = 0; i < 20; i++) {
            expect(cq, i, 0);
            same(ntohl(far_completion(0).imm_data), i);
        }
    }
    far_destroy(qp);
    far_end(&far);
}

/* A peer that is not there is given up, not for ever. */
static void given_up(struct ibv_qp *qp)
{
    flushed_behind(qp, operation(IBV_WR_SEND, 8, (struct address){.memory = 0}),
                   IBV_WC_RETRY_EXC_ERR);
    same(ibv_destroy_qp(qp), 0);
}

static struct ibv_qp *towards(struct address theirs, uint8_t timeout, uint8_t retries)
{
    struct manner m = RELIABLE;
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    m.timeout = timeout;
    m.retries = retries;
    manner_connect(&d, qp, theirs, m);
    return qp;
}

/* Who is to retry more often is given up later, though it asked first: eight times half a second is
 * longer than the two that a peer is given that nobody has found yet. */
static void given_up_in_turn(struct address theirs)
{
    struct ibv_qp *patient = towards(theirs, 17, 7), *hasty = towards(theirs, 17, 0);
    struct operation o = operation(IBV_WR_SEND, 8, (struct address){.memory = 0});
    post(patient, o);
    o.id = 9;
    post(hasty, o);
    expect(cq, 9, IBV_WC_RETRY_EXC_ERR);
    expect(cq, 7, IBV_WC_RETRY_EXC_ERR);
    same(ibv_destroy_qp(patient), 0);
    same(ibv_destroy_qp(hasty), 0);
}

TEST(nobody_there)
{
    open_all();
    struct manner m = RELIABLE;
    struct address theirs;
    m.timeout = 13; /* 34 ms */
    m.retries = 3;
    struct ibv_qp *qp = far_connect(&far, &d, cq, m, &theirs);
    tell(&far, (struct order){.errand = DESTROY});
    given_up(qp);
    theirs.qpn ^= 0x5a5a; /* a QP that never was */
    given_up_in_turn(theirs);
    theirs.gid.raw[15] = 250; /* an address of the same network that nobody has */
    given_up(towards(theirs, m.timeout, m.retries));
    far_end(&far);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
