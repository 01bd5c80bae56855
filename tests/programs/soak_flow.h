/* The flows of the soak test. One way of a QP pair is a flow: an initiator that posts the steps of
 * a plan and checks what comes back, and a target that knows the same plan, posts fitting receives
 * and checks what arrives. */
#ifndef SOAK_FLOW_H
#define SOAK_FLOW_H

#include "soak_memory.h"
#include "soak_plan.h"

#include <arpa/inet.h>
#include <pthread.h>

#define SEND_DEPTH 128
#define RECEIVE_DEPTH 64
#define INLINE_BYTES 64
#define BATCH 8
#define SEQUENCE ((UINT64_C(1) << 47) - 1) /* of a wr_id; above: receive bit, pair */

static uint32_t largest; /* message */

/* ---- one side of a thread: its QPs and the flows over them ---- */

struct pending {
    struct step step;
    struct chunk chunk;
    uint32_t capacity;
    bool signalled;
    unsigned char *expected; /* READ: what the model said */
};
struct initiator {
    struct plan plan;
    struct arena arena;
    unsigned char *expected; /* as large as the arena; used at the same offsets */
    struct pending pending[SEND_DEPTH];
    uint64_t posted, retired;
    uint32_t left, unsignalled, unsignalled_bytes;
};
struct target {
    struct plan plan;
    struct arena arena;
    struct pending pending[RECEIVE_DEPTH];
    uint64_t posted, arrived;
    uint32_t left;
    unsigned char *heap, *memory; /* allocation, start of the MR */
    struct ibv_mr *mr;
};
struct end {
    struct ibv_qp *qp;
    struct initiator out;
    struct target in;
    struct address peer;
    struct step next; /* a step that found no room yet */
    bool has_next;
    struct step wanted; /* the receive that found no room yet */
    bool has_wanted;
};
struct side {
    pthread_t thread;
    struct device *device;
    unsigned number;  /* 0 or 1 */
    unsigned index;   /* of the thread */
    int socket;       /* to the same thread of the other side */
    struct random random; /* choices that the other side need not know */
    struct ibv_cq *cq;
    struct end *ends;
    unsigned char *scratch;
    uint64_t bytes, shared_sum;
    struct ibv_mr *shared_mr;
    struct address shared_peer;
};

/* ---- initiator ---- */

static bool prepare(struct side *s, struct end *e, unsigned index, struct ibv_send_wr *wr,
                    struct ibv_sge *sge)
{
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct initiator *o = &e->out;
    struct pending *p = &o->pending[o->posted % SEND_DEPTH];
    if (o->posted - o->retired == SEND_DEPTH)
        return false;
    if (!e->has_next) {
        if (!o->left)
            return false;
        o->left--;
        e->next = plan_next(&o->plan);
        e->has_next = true;
    }
    p->step = e->next;
    struct step *t = &p->step;
    if (!chunk_take(&o->arena, &s->random, t->bytes, &p->chunk))
        return false;
    e->has_next = false;
    if (t->kind >= READ) {
        chunk_each_gap(&o->arena, &p->chunk, t->bytes, false);
        p->expected = o->expected + p->chunk.start;
        if (t->kind == READ) /* later steps change the model, so keep what it says now */
            memcpy(p->expected, o->plan.model + t->offset, t->bytes);
        else
            memcpy(p->expected, &t->before, 8);
    } else {
        fill(s->scratch, t->bytes, t->word);
        chunk_scatter(&o->arena, &p->chunk, s->scratch);
    }
    o->unsignalled++;
    o->unsignalled_bytes += p->chunk.end - p->chunk.start;
    p->signalled = o->unsignalled == 32 || o->unsignalled_bytes > largest + 256 || !o->left ||
                   random_below(&s->random, 4) == 0;
    if (p->signalled)
        o->unsignalled = o->unsignalled_bytes = 0;
    *wr = (struct ibv_send_wr){
        .wr_id = (uint64_t)index << 48 | o->posted, .opcode = opcodes[t->kind], .sg_list = sge,
        .num_sge = chunk_sges(&o->arena, &p->chunk, sge), .imm_data = htonl(t->immediate),
        .send_flags = (p->signalled ? IBV_SEND_SIGNALED : 0u) | (t->fence ? IBV_SEND_FENCE : 0u)};
    if (t->kind < READ && t->bytes <= INLINE_BYTES && t->word & 2)
        wr->send_flags |= IBV_SEND_INLINE;
    if (consumes_receive(t->kind) && t->word & 4)
        wr->send_flags |= IBV_SEND_SOLICITED;
    if (t->kind >= SWAP) {
        wr->wr.atomic.remote_addr = e->peer.memory + t->offset;
        wr->wr.atomic.rkey = e->peer.rkey;
        wr->wr.atomic.compare_add = t->compare;
        wr->wr.atomic.swap = t->swap;
        if (t->kind == ADD_SHARED) {
            wr->wr.atomic.remote_addr = s->shared_peer.memory;
            wr->wr.atomic.rkey = s->shared_peer.rkey;
            s->shared_sum += t->compare;
        }
    } else if (t->kind >= WRITE) {
        wr->wr.rdma.remote_addr = e->peer.memory + t->offset;
        wr->wr.rdma.rkey = e->peer.rkey;
    }
    o->posted++;
    return true;
}

static bool post_some(struct side *s, unsigned index)
{
    struct end *e = &s->ends[index];
    struct ibv_send_wr wr[BATCH], *bad;
    struct ibv_sge sge[BATCH][SEGMENTS];
    unsigned count = 0, batch = 1 + (unsigned)random_below(&s->random, BATCH);
    while (count < batch && prepare(s, e, index, &wr[count], sge[count])) {
        if (count)
            wr[count - 1].next = &wr[count];
        count++;
    }
    if (!count)
        return false;
    int error = ibv_post_send(e->qp, wr, &bad);
    check(!error, "ibv_post_send: %s", strerror(error));
    for (unsigned i = 0; i < count; i++) /* inline data may be reused at once */
        if (wr[i].send_flags & IBV_SEND_INLINE)
            for (int k = 0; k < wr[i].num_sge; k++)
                memset((void *)(uintptr_t)sge[i][k].addr, 0, sge[i][k].length);
    return true;
}

static void retire(struct side *s, struct end *e, const struct ibv_wc *wc)
{
    static const enum ibv_wc_opcode opcodes[] = {
        IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ,
        IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_FETCH_ADD};
    struct initiator *o = &e->out;
    uint64_t number = wc->wr_id & SEQUENCE;
    check(number >= o->retired && number < o->posted, "completion %" PRIu64 " out of order",
          number);
    for (;; o->retired++) {
        struct pending *p = &o->pending[o->retired % SEND_DEPTH];
        struct step *t = &p->step;
        if (t->kind == ADD_SHARED) {
            chunk_each_gap(&o->arena, &p->chunk, 8, true);
        } else if (t->kind >= READ) {
            check(chunk_equals(&o->arena, &p->chunk, p->expected, t->bytes),
                  "operation %" PRIu64 " kind %d of %u bytes at %u returned wrong data",
                  o->retired, t->kind, t->bytes, t->offset);
            chunk_each_gap(&o->arena, &p->chunk, t->bytes, true);
        }
        s->bytes += t->bytes;
        o->arena.tail = p->chunk.end;
        if (o->retired == number) {
            check(p->signalled, "completion of an unsignalled operation");
            check(wc->opcode == opcodes[t->kind], "completion opcode %d", wc->opcode);
            break;
        }
        check(!p->signalled, "a completion is missing");
    }
    o->retired++;
    if (o->retired == o->posted)
        o->arena.head = o->arena.tail = 0;
}

/* ---- target ---- */

static bool post_receive(struct side *s, unsigned index)
{
    struct end *e = &s->ends[index];
    struct target *t = &e->in;
    if (t->posted - t->arrived == RECEIVE_DEPTH)
        return false;
    while (!e->has_wanted) {
        if (!t->left)
            return false;
        t->left--;
        e->wanted = plan_next(&t->plan);
        e->has_wanted = consumes_receive(e->wanted.kind);
    }
    struct pending *p = &t->pending[t->posted % RECEIVE_DEPTH];
    p->step = e->wanted;
    uint32_t message = p->step.kind == WRITE_IMM ? 0 : p->step.bytes;
    p->capacity = message + (uint32_t)random_below(&s->random, 3) * 20;
    if (!chunk_take(&t->arena, &s->random, p->capacity, &p->chunk))
        return false;
    e->has_wanted = false;
    chunk_each_gap(&t->arena, &p->chunk, message, false);
    struct ibv_sge sge[SEGMENTS];
    struct ibv_recv_wr *bad, wr = {.wr_id = (uint64_t)index << 48 | 1ull << 47 | t->posted,
                                   .sg_list = sge,
                                   .num_sge = chunk_sges(&t->arena, &p->chunk, sge)};
    int error = ibv_post_recv(e->qp, &wr, &bad);
    check(!error, "ibv_post_recv: %s", strerror(error));
    t->posted++;
    return true;
}

static void arrive(struct side *s, struct end *e, const struct ibv_wc *wc)
{
    struct target *t = &e->in;
    struct pending *p = &t->pending[t->arrived % RECEIVE_DEPTH];
    struct step *step = &p->step;
    bool write = step->kind == WRITE_IMM, immediate = step->kind != SEND;
    check((wc->wr_id & SEQUENCE) == t->arrived, "receive %" PRIu64 " out of order",
          wc->wr_id & SEQUENCE);
    check(wc->opcode == (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV), "receive opcode %d",
          wc->opcode);
    check(wc->byte_len == step->bytes, "received %u bytes, not %u", wc->byte_len, step->bytes);
    check(!!(wc->wc_flags & IBV_WC_WITH_IMM) == immediate, "receive flags %#x", wc->wc_flags);
    if (immediate)
        check(ntohl(wc->imm_data) == step->immediate, "wrong immediate");
    uint32_t message = write ? 0 : step->bytes;
    fill(s->scratch, message, step->word);
    check(chunk_equals(&t->arena, &p->chunk, s->scratch, message),
          "message %" PRIu64 " of %u bytes arrived damaged", t->arrived, message);
    chunk_each_gap(&t->arena, &p->chunk, message, true);
    t->arena.tail = p->chunk.end;
    if (++t->arrived == t->posted)
        t->arena.head = t->arena.tail = 0;
}

#endif
