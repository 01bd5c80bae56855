/* Two devices of different makers, over a wire: many requests under way at once, and what must
 * fail. See rxe_interop.c for how to run it. */
#include "rxe_interop_end.h"

static struct end e;

/* ---- a pipeline of all operations, PSNs wrapping in the middle of it ---- */

#define STEPS 240
#define DEPTH 16 /* requests under way */
#define SLOT 6000
#define SLOTS 16 /* of the responder, each written by many steps */
#define READABLE (SLOTS * SLOT) /* offset of what READs read */
#define COUNTER (ROOM - 8)
#define RECEIVES 8
#define TEXT 12345 /* word of what READs read */

enum kind { WRITE, SEND, READ, ADD };
static struct step {
    enum kind kind;
    uint32_t slot, bytes, at;
} plan[STEPS];

/* Both sides make the same plan. */
static void make_plan(uint64_t seed)
{
    struct random r = {seed};
    for (int k = 0; k < STEPS; k++) {
        struct step *s = &plan[k];
        s->kind = (enum kind)random_below(&r, no_answers ? 2 : 4);
        s->slot = (uint32_t)random_below(&r, SLOTS);
        s->at = (uint32_t)random_below(&r, SLOT);
        s->bytes = 1 + (uint32_t)random_below(&r, SLOT);
        if (s->kind == WRITE) /* always the same length, so that the last one alone is seen */
            s->bytes = 1 + s->slot * 397;
    }
}

static unsigned char *local(unsigned k)
{
    return outgoing + k % DEPTH * SLOT;
}

static void ask_step(unsigned k)
{
    struct step s = plan[k];
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ,
                                                 IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct operation o = {.opcode = opcodes[s.kind], .id = k, .local = local(k), .bytes = s.bytes,
                          .lkey = mr->lkey, .rkey = e.peer.rkey, .compare_or_add = 3};
    if (s.kind == WRITE) {
        o.remote = e.peer.memory + s.slot * SLOT;
    } else if (s.kind == READ) {
        o.remote = e.peer.memory + READABLE + (s.at & ~7u);
    } else if (s.kind == ADD) {
        o.remote = e.peer.memory + COUNTER;
        o.bytes = 8;
    }
    if (s.kind == WRITE || s.kind == SEND)
        fill(local(k), s.bytes, k);
    else
        memset(local(k), EMPTY, SLOT);
    post(e.qp, o);
}

static void check_step(unsigned k, uint64_t *added)
{
    static unsigned char text[2 * SLOT];
    struct step s = plan[k];
    fill(text, sizeof text, TEXT);
    if (s.kind == READ) {
        check(!memcmp(local(k), text + (s.at & ~7u), s.bytes), "READ %u brought something else", k);
    } else if (s.kind == ADD) {
        uint64_t original;
        memcpy(&original, local(k), 8);
        same(original, *added);
        *added += 3;
    }
}

static void ask_pipeline(void)
{
    uint64_t added = 0;
    e = join(IBV_QPT_RC, 7);
    make_plan(42);
    meet(other);
    for (unsigned posted = 0, done = 0; done < STEPS; done++) {
        while (posted < STEPS && posted - done < DEPTH)
            ask_step(posted++);
        struct ibv_wc wc = completion(e.send_cq, 10000);
        check(wc.wr_id == done && !wc.status, "completion of %" PRIu64 " with %s, not of %u",
              wc.wr_id, ibv_wc_status_str(wc.status), done);
        check_step(done, &added);
    }
    part(&e);
}

static void serve_pipeline(void)
{
    int last[SLOTS];
    uint64_t adds = 0;
    memset(last, -1, sizeof last);
    e = join(IBV_QPT_RC, 7);
    make_plan(42);
    fill(incoming + READABLE, 2 * SLOT, TEXT);
    memset(incoming + COUNTER, 0, 8);
    for (int i = 0; i < RECEIVES; i++) /* fewer than may be under way: there will be RNR NAKs */
        receive(e.qp, (uint64_t)i, outgoing + i * SLOT, SLOT, mr->lkey);
    meet(other);
    for (int k = 0, i = 0; k < STEPS; k++) {
        if (plan[k].kind == WRITE)
            last[plan[k].slot] = k;
        adds += plan[k].kind == ADD;
        if (plan[k].kind != SEND)
            continue;
        struct ibv_wc wc = completion(e.receive_cq, 10000);
        check((int)wc.wr_id == i && !wc.status, "receive %d: %s", i, ibv_wc_status_str(wc.status));
        same(wc.byte_len, plan[k].bytes);
        same(unfilled(outgoing + i * SLOT, wc.byte_len, (uint64_t)k), -1);
        receive(e.qp, (uint64_t)i, outgoing + i * SLOT, SLOT, mr->lkey);
        i = (i + 1) % RECEIVES;
    }
    meet(other); /* as part() does over there */
    for (unsigned i = 0; i < SLOTS; i++)
        if (last[i] >= 0)
            same(unfilled(incoming + i * SLOT, 1 + i * 397, (uint64_t)last[i]), -1);
    uint64_t value;
    memcpy(&value, incoming + COUNTER, 8);
    same(value, 3 * adds);
    same(ibv_destroy_qp(e.qp), 0);
    same(ibv_destroy_cq(e.send_cq), 0);
    same(ibv_destroy_cq(e.receive_cq), 0);
}

TEST(pipeline)
{
    both_ways(ask_pipeline, serve_pipeline);
}

/* ---- what must fail, and how ---- */

static struct operation request(enum ibv_wr_opcode opcode)
{
    return (struct operation){.opcode = opcode, .id = 1, .local = outgoing, .bytes = 64,
                              .lkey = mr->lkey, .remote = e.peer.memory, .rkey = e.peer.rkey};
}

/* Asks for something; it must end with one of two statuses. */
static void ask_one(struct operation o, enum ibv_wc_status status, enum ibv_wc_status or)
{
    meet(other);
    o.flags = IBV_SEND_SIGNALED;
    if (try_post(e.qp, o)) { /* a library may see for itself that an atomic is not aligned */
        check(o.remote % 8 && status == IBV_WC_REM_INV_REQ_ERR, "a request is refused");
        part(&e);
        return;
    }
    struct ibv_wc wc = completion(e.send_cq, 5000);
    check(wc.status == status || wc.status == or, "a request ended with %s, not with %s",
          ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
    for (int turn = 0; status && turn < 500 && qp_state(e.qp) != IBV_QPS_ERR; turn++)
        sleep_ms(1); /* the state may follow the completion */
    same(qp_state(e.qp), status ? IBV_QPS_ERR : IBV_QPS_RTS);
    part(&e);
}

static void ask_wrongly(struct operation o, enum ibv_wc_status status)
{
    ask_one(o, status, status);
}

static void ask_errors(void)
{
    struct operation o;
    static const enum ibv_wr_opcode all[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                             IBV_WR_ATOMIC_FETCH_AND_ADD};
    for (int i = 0; i < 3; i++) {
        e = join(IBV_QPT_RC, 7);
        o = request(all[i]);
        o.bytes = i == 2 ? 8 : 64;
        o.rkey += 0x1000; /* nobody's */
        ask_wrongly(o, IBV_WC_REM_ACCESS_ERR);

        e = join(IBV_QPT_RC, 7);
        o.rkey = e.peer.rkey;
        o.remote = e.peer.memory + ROOM - (i == 2 ? 0 : 63); /* one byte too many */
        ask_wrongly(o, IBV_WC_REM_ACCESS_ERR);
    }
    e = join(IBV_QPT_RC, 7);
    o = request(IBV_WR_ATOMIC_FETCH_AND_ADD);
    o.bytes = 8;
    o.remote += 4;
    ask_wrongly(o, IBV_WC_REM_INV_REQ_ERR);

    e = join(IBV_QPT_RC, 7);
    /* Longer than the receive. The specification wants the first, rxe answers the second. */
    ask_one(request(IBV_WR_SEND), IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR);

    e = join(IBV_QPT_RC, 7);
    ask_one(request(IBV_WR_SEND), IBV_WC_SUCCESS, IBV_WC_SUCCESS); /* the receive comes late */

    e = join(IBV_QPT_RC, 2);
    ask_wrongly(request(IBV_WR_SEND), IBV_WC_RNR_RETRY_EXC_ERR); /* or never */
}

static void serve_errors(void)
{
    memset(incoming, EMPTY, ROOM);
    for (int i = 0; i < 7; i++) {
        e = join(IBV_QPT_RC, 7);
        meet(other);
        part(&e);
    }
    for (uint32_t i = 0; i < ROOM; i++)
        same(incoming[i], EMPTY);
    e = join(IBV_QPT_RC, 7);
    receive(e.qp, 1, incoming, 32, mr->lkey);
    meet(other);
    check(completion(e.receive_cq, 5000).status, "a message longer than its receive was accepted");
    part(&e);

    e = join(IBV_QPT_RC, 7);
    meet(other);
    sleep_ms(30);
    receive(e.qp, 1, incoming, 64, mr->lkey);
    expect(e.receive_cq, 1, IBV_WC_SUCCESS);
    part(&e);

    e = join(IBV_QPT_RC, 7);
    meet(other);
    part(&e);
}

TEST(errors)
{
    both_ways(ask_errors, serve_errors);
}

/* ---- SEND with invalidate ---- */

/* What can be named: a memory window if there are windows, which ends; else a region, which does
 * not, and the connection is over. A sender may be told so, or that its message has arrived. */
struct named {
    uint32_t rkey;
    uint32_t mortal;
};

static void ask_invalidate(void)
{
    struct named named;
    e = join(IBV_QPT_RC, 7);
    get(other, &named, sizeof named);
    struct operation o = request(IBV_WR_RDMA_WRITE);
    o.rkey = named.rkey;
    fill(outgoing, 64, 77);
    post(e.qp, o);
    expect(e.send_cq, 1, IBV_WC_SUCCESS);
    o = request(IBV_WR_SEND_WITH_INV);
    o.immediate = ntohl(named.rkey); /* the same place in a request */
    post(e.qp, o);
    struct ibv_wc wc = completion(e.send_cq, 10000);
    check(wc.status == IBV_WC_SUCCESS || (!named.mortal && wc.status == IBV_WC_REM_ACCESS_ERR),
          "%s", ibv_wc_status_str(wc.status));
    meet(other);
    if (named.mortal) {
        o = request(IBV_WR_RDMA_WRITE);
        o.rkey = named.rkey;
        post(e.qp, o);
        expect(e.send_cq, 1, IBV_WC_REM_ACCESS_ERR);
    }
    part(&e);
}

/* A key for `bytes` at incoming to be invalidated: of a memory window if there are windows,
 * else of a region. */
static uint32_t mortal_key(struct ibv_mr **region, struct ibv_mw **window, size_t size)
{
    *window = ibv_alloc_mw(d.pd, IBV_MW_TYPE_2);
    int access = *window ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_WRITE;
    *region = mr_make(&d, incoming, size, IBV_ACCESS_LOCAL_WRITE | access);
    if (!*window)
        return (*region)->rkey;
    struct ibv_send_wr *bad, wr = {
        .wr_id = 5, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
        .bind_mw = {.mw = *window, .rkey = ibv_inc_rkey((*window)->rkey),
                    .bind_info = {.mr = *region, .addr = (uintptr_t)incoming, .length = size,
                                  .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}}};
    same(ibv_post_send(e.qp, &wr, &bad), 0);
    expect(e.send_cq, 5, IBV_WC_SUCCESS);
    return wr.bind_mw.rkey;
}

static void serve_invalidate(void)
{
    struct ibv_mr *region;
    struct ibv_mw *window;
    e = join(IBV_QPT_RC, 7);
    memset(incoming, EMPTY, ROOM);
    receive(e.qp, 9, incoming + ROOM / 2, 64, mr->lkey);
    uint32_t rkey = mortal_key(&region, &window, 4096);
    struct named named = {.rkey = rkey, .mortal = window != NULL};
    put(other, &named, sizeof named);
    struct ibv_wc wc =
        expect(e.receive_cq, 9, window ? IBV_WC_SUCCESS : IBV_WC_REM_INV_REQ_ERR);
    if (window) {
        same(wc.byte_len, 64);
        /* librxe hands out the kernel's flag, which means something else here. */
        check(wc.wc_flags & (IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK), "no flag: %#x", wc.wc_flags);
        same(wc.invalidated_rkey, rkey);
    } else {
        same(qp_state(e.qp), IBV_QPS_ERR);
    }
    same(unfilled(incoming, 64, 77), -1);
    memset(incoming, EMPTY, 64);
    meet(other);
    part(&e);
    same(incoming[0], EMPTY);
    if (window)
        same(ibv_dealloc_mw(window), 0);
    same(ibv_dereg_mr(region), 0);
}

TEST(invalidate)
{
    both_ways(ask_invalidate, serve_invalidate);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
