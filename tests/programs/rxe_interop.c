/* Two devices of different makers, over a wire: every operation, sizes around the MTU, PSNs that
 * wrap, every byte checked. Each test runs on both sides, `interop TEST [OPTIONS] -p PORT` on
 * one and the same with an ADDRESS behind it on the other; each side asks and serves in turn. */
#include "rxe_interop_end.h"

#define GUARD 64
/* Bytes that nobody may write, around a place for some. */
static void clear(unsigned char *at, size_t bytes)
{
    memset(at - GUARD, EMPTY, bytes + 2 * GUARD);
}

/* The place must hold what belongs to `word`, and nothing around it. */
static void holds(const unsigned char *at, size_t bytes, uint64_t word)
{
    ssize_t wrong = unfilled(at, bytes, word);
    check(wrong < 0, "byte %zd of %zu is %#x", wrong, bytes, at[wrong]);
    for (int i = 0; i < GUARD; i++)
        check(at[bytes + (size_t)i] == EMPTY && at[-1 - i] == EMPTY,
              "a byte %d away from %zu is not what it was", i, bytes);
}

#define SIZES 17
static uint32_t size(unsigned number)
{
    const uint32_t all[SIZES] = {0,       1,    2,    3,    4,    5,    33,    mtu - 1, mtu,
                                 mtu + 1, 1023, 1024, 1025, 4095, 4097, 10001, 65537};
    return all[number];
}

static struct end e;
static enum ibv_qp_type type;
static uint32_t bytes;  /* of this step */
static unsigned step;
static uint64_t places; /* offset of this step's data in both rooms: seldom aligned */

static uint64_t word(int kind)
{
    return step * 8u + (unsigned)kind;
}

static void set_step(unsigned number)
{
    step = number;
    bytes = size(number);
    places = 2 * GUARD + 7 * number;
}

static struct operation operation(enum ibv_wr_opcode opcode)
{
    return (struct operation){
        .opcode = opcode, .id = step, .local = outgoing + places, .bytes = bytes, .lkey = mr->lkey,
        .remote = e.peer.memory + places, .rkey = e.peer.rkey, .immediate = 0xabcd0000u + step};
}

/* ---- SEND ---- */

static void ask_send(void)
{
    fill(outgoing + places, bytes, word(1));
    meet(other); /* a receive is posted */
    post(e.qp, operation(step & 1 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND));
    same(expect(e.send_cq, step, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);
}

static void serve_send(void)
{
    clear(incoming + places, bytes);
    receive(e.qp, 100 + step, incoming + places, bytes + GUARD, mr->lkey);
    meet(other);
    struct ibv_wc wc = expect(e.receive_cq, 100 + step, IBV_WC_SUCCESS);
    same(wc.opcode, IBV_WC_RECV);
    same(wc.byte_len, bytes);
    same(wc.wc_flags & IBV_WC_WITH_IMM, step & 1 ? IBV_WC_WITH_IMM : 0);
    if (step & 1)
        same(ntohl(wc.imm_data), 0xabcd0000u + step);
    holds(incoming + places, bytes, word(1));
}

/* ---- WRITE, and WRITE with immediate data behind it, which says that both have arrived ---- */

static void ask_write(void)
{
    uint64_t second = places + bytes + 2 * GUARD;
    fill(outgoing + places, bytes, word(2));
    fill(outgoing + second, bytes, word(3));
    meet(other);
    post(e.qp, operation(IBV_WR_RDMA_WRITE));
    struct operation o = operation(IBV_WR_RDMA_WRITE_WITH_IMM);
    o.local = outgoing + second;
    o.remote = e.peer.memory + second;
    post(e.qp, o);
    same(expect(e.send_cq, step, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_WRITE);
    same(expect(e.send_cq, step, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_WRITE);
}

static void serve_write(void)
{
    uint64_t second = places + bytes + 2 * GUARD;
    clear(incoming + places, bytes);
    clear(incoming + second, bytes);
    receive(e.qp, 100 + step, NULL, 0, 0);
    meet(other);
    struct ibv_wc wc = expect(e.receive_cq, 100 + step, IBV_WC_SUCCESS);
    same(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    same(wc.byte_len, bytes);
    check(wc.wc_flags & IBV_WC_WITH_IMM, "no immediate data");
    same(ntohl(wc.imm_data), 0xabcd0000u + step);
    holds(incoming + places, bytes, word(2));
    holds(incoming + second, bytes, word(3));
}

/* ---- READ and atomics ---- */

static void ask_read(void)
{
    clear(outgoing + places, bytes);
    meet(other); /* there is something to read */
    post(e.qp, operation(IBV_WR_RDMA_READ));
    same(expect(e.send_cq, step, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_READ);
    holds(outgoing + places, bytes, word(4));
    meet(other);
}

static void serve_read(void)
{
    fill(incoming + places, bytes, word(4));
    meet(other);
    meet(other);
}

#define COUNTER (ROOM - 8) /* of the responder's incoming */

static uint64_t atomic(enum ibv_wr_opcode opcode, uint64_t compare_or_add, uint64_t swapped)
{
    struct operation o = operation(opcode);
    o.local = outgoing + COUNTER;
    o.bytes = 8;
    o.remote = e.peer.memory + COUNTER;
    o.compare_or_add = compare_or_add;
    o.swap = swapped;
    post(e.qp, o);
    same(expect(e.send_cq, step, IBV_WC_SUCCESS).opcode,
         opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP);
    uint64_t original;
    memcpy(&original, outgoing + COUNTER, 8);
    return original;
}

#define START 0x1122334455667788u

static void ask_atomic(void)
{
    meet(other);
    same(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, UINT64_MAX - 4, 0), START);
    same(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, START, 7), START - 5); /* no match */
    same(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, START - 5, ~START), START - 5);
    same(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0), ~START);
    meet(other);
}

static void serve_atomic(void)
{
    uint64_t value = START;
    memcpy(incoming + COUNTER, &value, 8);
    meet(other);
    meet(other);
    memcpy(&value, incoming + COUNTER, 8);
    same(value, ~START);
}

/* ---- connected services ---- */

static void run_steps(void (*const steps[])(void), int count)
{
    e = join(type, 7);
    for (unsigned i = 0; i < SIZES; i++) {
        set_step(i);
        for (int k = 0; k < count; k++)
            steps[k]();
    }
    part(&e);
}

static void ask_connected(void)
{
    run_steps((void (*const[])(void)){ask_send, ask_write, ask_read, ask_atomic},
              type == IBV_QPT_RC ? 4 : 2);
}

static void serve_connected(void)
{
    run_steps((void (*const[])(void)){serve_send, serve_write, serve_read, serve_atomic},
              type == IBV_QPT_RC ? 4 : 2);
}

TEST(rc)
{
    type = IBV_QPT_RC;
    both_ways(ask_connected, serve_connected);
}

TEST(uc)
{
    type = IBV_QPT_UC;
    both_ways(ask_connected, serve_connected);
}

/* ---- datagrams ---- */

#define GRH 40

static void ask_datagrams(void)
{
    e = join(IBV_QPT_UD, 0);
    struct ibv_ah_attr a = rtr_attributes(&d, e.peer).ah_attr;
    struct ibv_ah *ah = ibv_create_ah(d.pd, &a);
    check(ah, "ibv_create_ah: %m");
    for (unsigned i = 0; i < SIZES; i++) {
        set_step(i);
        if (bytes > mtu)
            continue;
        fill(outgoing + places, bytes, word(1));
        receive(e.qp, 50, outgoing + ROOM / 2, GRH + 64, mr->lkey);
        meet(other);
        struct operation o = operation(step & 1 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND);
        o.ah = ah;
        o.qpn = e.peer.qpn;
        post(e.qp, o);
        expect(e.send_cq, step, IBV_WC_SUCCESS);
        expect(e.receive_cq, 50, IBV_WC_SUCCESS); /* an answer to an address from a completion */
        same(unfilled(outgoing + ROOM / 2 + GRH, 64, word(2)), -1);
    }
    same(ibv_destroy_ah(ah), 0);
    part(&e);
}

/* What stands before a datagram says where it came from. */
static void check_header(const unsigned char *header)
{
    if (over_ipv6) {
        same(header[0] >> 4, 6);
        check(!memcmp(header + 8, e.peer.gid.raw, 16), "wrong source in the IPv6 header");
        check(!memcmp(header + 24, d.gid.raw, 16), "wrong destination in the IPv6 header");
    } else {
        same(header[20], 0x45);
        check(!memcmp(header + 32, e.peer.gid.raw + 12, 4), "wrong source in the IPv4 header");
        check(!memcmp(header + 36, d.gid.raw + 12, 4), "wrong destination in the IPv4 header");
    }
}

/* To whom it came from, by means of the completion alone. */
static void answer(struct ibv_wc *wc, struct ibv_grh *header)
{
    struct ibv_ah *back = ibv_create_ah_from_wc(d.pd, wc, header, 1);
    check(back, "ibv_create_ah_from_wc: %m");
    fill(outgoing, 64, word(2));
    post(e.qp, (struct operation){.opcode = IBV_WR_SEND, .id = 60, .local = outgoing, .bytes = 64,
                                  .lkey = mr->lkey, .ah = back, .qpn = wc->src_qp});
    expect(e.send_cq, 60, IBV_WC_SUCCESS);
    same(ibv_destroy_ah(back), 0);
}

static void serve_datagrams(void)
{
    e = join(IBV_QPT_UD, 0);
    for (unsigned i = 0; i < SIZES; i++) {
        set_step(i);
        if (bytes > mtu)
            continue;
        unsigned char *at = incoming + places + GRH;
        clear(at, bytes);
        receive(e.qp, 100, incoming + places, GRH + bytes, mr->lkey);
        meet(other);
        struct ibv_wc wc = expect(e.receive_cq, 100, IBV_WC_SUCCESS);
        same(wc.byte_len, GRH + bytes);
        same(wc.src_qp, e.peer.qpn);
        check(wc.wc_flags & IBV_WC_GRH, "no GRH flag");
        same(wc.wc_flags & IBV_WC_WITH_IMM, step & 1 ? IBV_WC_WITH_IMM : 0);
        if (step & 1)
            same(ntohl(wc.imm_data), 0xabcd0000u + step);
        check_header(incoming + places);
        answer(&wc, (struct ibv_grh *)(incoming + places));
        memset(incoming + places, EMPTY, GRH);
        holds(at, bytes, word(1));
    }
    part(&e);
}

TEST(ud)
{
    both_ways(ask_datagrams, serve_datagrams);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
