/* Bad use gets the field's errors: what calls refuse, and what fails later with a completion. */
#include "common.h"

#include <sys/mman.h>

static struct device d;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[4][4096];

static void open_all(void)
{
    device_open(&d);
    cq = cq_make(&d, 1000);
    mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
}

static struct operation send_of(uint64_t id, uint32_t bytes)
{
    return (struct operation){.opcode = IBV_WR_SEND, .id = id, .local = memory[0], .bytes = bytes,
                              .lkey = mr->lkey};
}

static void refused_mr(void *at, size_t bytes, unsigned access, const char *what)
{
    errno = 0;
    struct ibv_mr *m = ibv_reg_mr(d.pd, at, bytes, (int)access);
    check(!m, "registered with %s", what);
    check(errno == EINVAL || errno == EOPNOTSUPP || errno == EFAULT || errno == ENOMEM,
          "%s: errno %d", what, errno);
}

TEST(access_flags)
{
    open_all();
    refused_mr(memory, 64, 1u << 15, "an unknown flag");
    refused_mr(memory, 64, IBV_ACCESS_REMOTE_WRITE, "remote write without local write");
    refused_mr(memory, 64, IBV_ACCESS_REMOTE_ATOMIC, "remote atomic without local write");
    int relaxed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
    struct ibv_mr *m = mr_make(&d, memory, 64, relaxed);
    check(m->addr == memory && m->length == 64 && m->pd == d.pd && m->context == d.context,
          "fields of the MR");
    same(ibv_dereg_mr(m), 0);
    m = mr_make(&d, memory, 64, IBV_ACCESS_REMOTE_READ);
    same(ibv_dereg_mr(m), 0);
}

TEST(memory_that_is_not_there)
{
    open_all();
    char *hole = mmap(NULL, 3 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(hole != MAP_FAILED && !munmap(hole + 4096, 4096), "mmap: %m");
    refused_mr(hole, 3 << 12, IBV_ACCESS_LOCAL_WRITE, "a hole");
    refused_mr((void *)(uintptr_t)-4096, 8192, IBV_ACCESS_LOCAL_WRITE, "a range that wraps");
}

TEST(limits_of_creation)
{
    open_all();
    struct ibv_qp_init_attr good = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                    .cap = {1, 1, 1, 1, 0}}, a;
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        a = good;                                                                                  \
        a.field = value;                                                                           \
        errno = 0;                                                                                 \
        check(!ibv_create_qp(d.pd, &a), "created with too much: %s", #field);                      \
        same(errno, EINVAL);                                                                       \
    } while (0)
    REFUSED(cap.max_send_wr, (uint32_t)d.attributes.max_qp_wr + 1);
    REFUSED(cap.max_recv_wr, (uint32_t)d.attributes.max_qp_wr + 1);
    REFUSED(cap.max_send_sge, (uint32_t)d.attributes.max_sge + 1);
    REFUSED(cap.max_recv_sge, (uint32_t)d.attributes.max_sge + 1);
    REFUSED(cap.max_inline_data, 1 << 20);
    REFUSED(cap.max_send_wr, UINT32_MAX);
    a = good;
    a.qp_type = 77;
    check(!ibv_create_qp(d.pd, &a) && (errno == EINVAL || errno == EOPNOTSUPP), "QP type 77");
    check(!ibv_create_cq(d.context, d.attributes.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL,
          "too large a CQ");
    check(!ibv_create_cq(d.context, 0, NULL, NULL, 0) && errno == EINVAL, "a CQ of 0 entries");
    check(!ibv_create_cq(d.context, 10, NULL, NULL, d.context->num_comp_vectors) && errno == EINVAL,
          "a vector that does not exist");
    struct ibv_srq_init_attr srq = {.attr = {(uint32_t)d.attributes.max_srq_wr + 1, 1, 0}};
    check(!ibv_create_srq(d.pd, &srq) && errno == EINVAL, "too large an SRQ");
    union ibv_gid gid;
    check(ibv_query_gid(d.context, 1, 1 << 20, &gid) == -1, "a GID index beyond the table");
    struct ibv_port_attr port;
    same(ibv_query_port(d.context, 2, &port), EINVAL);
    same(ibv_query_port(d.context, 0, &port), EINVAL);
    /* What is advertised works. */
    a = good;
    a.cap.max_send_wr = a.cap.max_recv_wr = (uint32_t)d.attributes.max_qp_wr;
    a.cap.max_send_sge = a.cap.max_recv_sge = (uint32_t)d.attributes.max_sge;
    struct ibv_qp *qp = ibv_create_qp(d.pd, &a);
    check(qp, "a QP of the advertised size: %m");
    same(ibv_destroy_qp(qp), 0);
    struct ibv_cq *large = cq_make(&d, d.attributes.max_cqe);
    check(large->cqe >= d.attributes.max_cqe, "a CQ of the advertised size");
    same(ibv_destroy_cq(large), 0);
}

/* ibv_create_qp(3): "the attributes max_recv_wr and max_recv_sge are ignored" with an SRQ. */
TEST(an_srq_has_the_receives)
{
    open_all();
    struct ibv_srq_init_attr few = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(d.pd, &few);
    check(srq, "ibv_create_srq: %m");
    static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
    for (int at = 0; at < 6; at++) {
        struct ibv_qp_init_attr_ex asked = {
            .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = types[at % 3], .pd = d.pd,
            .comp_mask = IBV_QP_INIT_ATTR_PD, .cap = {1, INT32_MAX, 1, UINT32_MAX, 0}};
        struct ibv_qp_init_attr *plain = (struct ibv_qp_init_attr *)&asked, told;
        struct ibv_qp_attr attr;
        struct ibv_qp *qp =
            at < 3 ? ibv_create_qp(d.pd, plain) : ibv_create_qp_ex(d.context, &asked);
        check(qp, "a QP of type %d with an SRQ: %m", (int)types[at % 3]);
        same(asked.cap.max_recv_wr, 0);
        same(ibv_query_qp(qp, &attr, IBV_QP_CAP, &told), 0);
        same(told.cap.max_recv_wr, 0);
        same(attr.cap.max_recv_sge, 0);
        check(attr.cap.max_send_wr >= 1 && attr.cap.max_send_sge >= 1, "what it sends");
        same(ibv_destroy_qp(qp), 0);
    }
    same(ibv_destroy_srq(srq), 0);
}

TEST(too_many_sges)
{
    open_all();
    struct ibv_qp *pair[2];
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    qp_pair(&d, (struct queue_options){.send_cq = cq, .sge = 2, .inline_bytes = 32}, pair);
    same(ibv_query_qp(pair[0], &a, IBV_QP_CAP, &init), 0);
    int sends = (int)init.cap.max_send_sge + 1, receives = (int)init.cap.max_recv_sge + 1;
    struct ibv_sge sge[200];
    check(sends <= 200 && receives <= 200, "granted too many SGEs to test");
    for (int i = 0; i < 200; i++)
        sge[i] = (struct ibv_sge){(uintptr_t)memory, 1, mr->lkey};
    struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_SEND, .sg_list = sge, .num_sge = sends};
    check(ibv_post_send(pair[0], &wr, &bad) && bad == &wr, "a send with too many SGEs");
    wr.num_sge = -1;
    check(ibv_post_send(pair[0], &wr, &bad) && bad == &wr, "a send with -1 SGEs");
    struct ibv_recv_wr *bad_receive, rr = {.sg_list = sge, .num_sge = receives};
    check(ibv_post_recv(pair[0], &rr, &bad_receive) && bad_receive == &rr,
          "a receive with too many SGEs");
    struct operation o = send_of(1, init.cap.max_inline_data + 1);
    o.flags = IBV_SEND_INLINE;
    check(try_post(pair[0], o), "too much inline data");
    check(init.cap.max_inline_data >= 16 * init.cap.max_send_sge, "as many as entries take");
    o = send_of(1, 8);
    o.opcode = 100;
    check(try_post(pair[0], o), "opcode 100");
    expect_none(cq, 2);
    same(qp_state(pair[0]), IBV_QPS_RTS);
}

TEST(full_queues)
{
    open_all();
    struct ibv_qp *pair[2];
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    qp_pair(&d, (struct queue_options){.send_cq = cq, .send = 16, .receive = 16}, pair);
    same(ibv_query_qp(pair[0], &a, IBV_QP_CAP, &init), 0);
    uint32_t sends = init.cap.max_send_wr, receives = init.cap.max_recv_wr;
    for (unsigned turn = 0; turn < 3; turn++) { /* nobody takes them: the queue fills up */
        for (uint32_t i = 0; i < sends; i++) {
            struct operation o = send_of(i, 8);
            o.flags = IBV_SEND_SIGNALED;
            same(try_post(pair[0], o), 0);
        }
        same(try_post(pair[0], send_of(0, 8)), ENOMEM);
        for (uint32_t i = 0; i < sends; i++) {
            receive(pair[1], i, memory[1], 64, mr->lkey);
            same(completion(cq, 2000).status, 0);
            same(completion(cq, 2000).status, 0);
        }
    }
    for (uint32_t i = 0; i < receives; i++)
        receive(pair[1], i, memory[1], 64, mr->lkey);
    same(try_receive(pair[1], 0, memory[1], 64, mr->lkey), ENOMEM);
    /* A list: what comes before the refused request is posted. */
    struct ibv_send_wr list[64], *bad = NULL;
    check(sends < 60, "granted too many requests to test");
    for (uint32_t i = 0; i < sends + 2; i++)
        list[i] = (struct ibv_send_wr){.wr_id = i, .opcode = IBV_WR_SEND, .next = &list[i + 1],
                                       .send_flags = IBV_SEND_SIGNALED};
    list[sends + 1].next = NULL;
    qp_move(pair[1], IBV_QPS_RESET); /* nobody takes them */
    same(ibv_post_send(pair[0], list, &bad), ENOMEM);
    check(bad == &list[sends], "bad_wr is element %td", bad - list);
}

TEST(local_keys)
{
    open_all();
    struct ibv_pd *other = ibv_alloc_pd(d.context);
    struct ibv_mr *foreign = ibv_reg_mr(other, memory, sizeof memory, ALL_ACCESS);
    struct ibv_mr *small = mr_make(&d, memory[0] + 10, 100, IBV_ACCESS_LOCAL_WRITE);
    check(other && foreign, "second PD: %m");
    struct { void *at; uint32_t bytes, lkey; } bad[] = {
        {memory[0], 64, foreign->lkey}, {memory[0], 64, mr->lkey + 12345}, {memory[0], 64, 0},
        {memory[0] + 9, 64, small->lkey}, {memory[0] + 10, 101, small->lkey},
        {(void *)(uintptr_t)-8, 64, small->lkey}};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        for (unsigned receiving = 0; receiving < 2; receiving++) {
            struct ibv_qp *pair[2];
            qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
            if (receiving) {
                receive(pair[1], 7, bad[i].at, bad[i].bytes, bad[i].lkey);
                post(pair[0], send_of(8, bad[i].bytes));
                enum ibv_wc_status got[2] = {0, 0};
                for (int k = 0; k < 2; k++) {
                    struct ibv_wc wc = completion(cq, 2000);
                    got[wc.wr_id - 7] = wc.status;
                }
                check(got[0] == IBV_WC_LOC_PROT_ERR, "receive %u: status %d", i, got[0]);
                check(got[1] == IBV_WC_REM_OP_ERR, "its sender: status %d", got[1]);
                same(qp_state(pair[1]), IBV_QPS_ERR);
            } else {
                receive(pair[1], 100, memory[1], 256, mr->lkey);
                post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = 9, .local = bad[i].at,
                                                 .bytes = bad[i].bytes, .lkey = bad[i].lkey});
                post(pair[0], send_of(10, 8));
                expect(cq, 9, IBV_WC_LOC_PROT_ERR);
                expect(cq, 10, IBV_WC_WR_FLUSH_ERR);
            }
            same(qp_state(pair[0]), IBV_QPS_ERR);
            same(ibv_destroy_qp(pair[0]), 0);
            same(ibv_destroy_qp(pair[1]), 0);
            struct ibv_wc rest;
            while (ibv_poll_cq(cq, 1, &rest) > 0) {
            }
        }
}

TEST(local_write_is_needed_to_receive)
{
    open_all();
    static char constant[64];
    struct ibv_mr *readable = mr_make(&d, constant, sizeof constant, 0);
    struct ibv_qp *pair[2];
    qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
    memset(memory[0], 1, 64);
    receive(pair[1], 1, constant, 64, readable->lkey);
    post(pair[0], send_of(2, 64));
    enum ibv_wc_status got[3] = {0, 0, 0};
    for (int k = 0; k < 2; k++) {
        struct ibv_wc wc = completion(cq, 2000);
        got[wc.wr_id] = wc.status;
    }
    same(got[1], IBV_WC_LOC_PROT_ERR);
    same(got[2], IBV_WC_REM_OP_ERR);
    qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
    post(pair[0], (struct operation){.opcode = IBV_WR_RDMA_READ, .id = 3, .local = constant,
                                     .bytes = 64, .lkey = readable->lkey,
                                     .remote = (uintptr_t)memory[0], .rkey = mr->rkey});
    struct ibv_wc wc = completion(cq, 2000);
    check(wc.status == IBV_WC_LOC_PROT_ERR || wc.status == IBV_WC_LOC_ACCESS_ERR, "status %d",
          wc.status);
    for (unsigned i = 0; i < 64; i++)
        same(constant[i], 0);
}

TEST(busy_objects)
{
    open_all();
    struct ibv_comp_channel *channel = ibv_create_comp_channel(d.context);
    struct ibv_cq *with_channel = ibv_create_cq(d.context, 10, NULL, channel, 0);
    struct ibv_srq_init_attr srq_attributes = {.attr = {16, 1, 0}};
    struct ibv_srq *srq = ibv_create_srq(d.pd, &srq_attributes);
    check(channel && with_channel && srq, "%m");
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = with_channel, .srq = srq});
    struct ibv_pd *pd = ibv_alloc_pd(d.context);
    struct ibv_mr *m = ibv_reg_mr(pd, memory, 64, 0);
    check(pd && m, "%m");
    same(ibv_destroy_comp_channel(channel), EBUSY);
    same(ibv_destroy_cq(with_channel), EBUSY);
    same(ibv_destroy_srq(srq), EBUSY);
    same(ibv_dealloc_pd(d.pd), EBUSY);
    same(ibv_dealloc_pd(pd), EBUSY);
    same(ibv_dereg_mr(m), 0);
    struct ibv_ah_attr a = rtr_attributes(&d, qp_address(&d, qp, NULL)).ah_attr;
    struct ibv_ah *ah = ibv_create_ah(pd, &a);
    check(ah, "ibv_create_ah: %m");
    same(ibv_dealloc_pd(pd), EBUSY);
    same(ibv_destroy_ah(ah), 0);
    same(ibv_dealloc_pd(pd), 0);
    same(ibv_destroy_qp(qp), 0);
    same(ibv_destroy_srq(srq), 0);
    same(ibv_destroy_cq(with_channel), 0);
    same(ibv_destroy_comp_channel(channel), 0);
    same(ibv_destroy_cq(cq), 0);
    same(ibv_dereg_mr(mr), 0);
    device_close(&d);
}

static void pair_with_rnr(struct ibv_qp *pair[2], uint8_t retries)
{
    for (int i = 0; i < 2; i++)
        pair[i] = qp_make(&d, (struct queue_options){.send_cq = cq});
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr rtr = rtr_attributes(&d, qp_address(&d, pair[!i], NULL));
        struct ibv_qp_attr rts = rts_attributes();
        rts.rnr_retry = retries;
        rtr.min_rnr_timer = 14; /* 1.28 ms */
        qp_init(&d, pair[i], ALL_ACCESS & ~IBV_ACCESS_LOCAL_WRITE);
        same(ibv_modify_qp(pair[i], &rtr, rtr_mask(IBV_QPT_RC)), 0);
        same(ibv_modify_qp(pair[i], &rts, rts_mask(IBV_QPT_RC)), 0);
    }
}

TEST(receiver_not_ready)
{
    open_all();
    struct ibv_qp *pair[2];
    for (uint8_t retries = 0; retries < 7; retries += 3)
        for (int write = 0; write < 2; write++) {
            struct operation o = send_of(1, 8);
            if (write) {
                o.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                o.remote = (uintptr_t)memory[1];
                o.rkey = mr->rkey;
            }
            pair_with_rnr(pair, retries);
            post(pair[0], o);
            post(pair[0], send_of(2, 8));
            expect(cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
            expect(cq, 2, IBV_WC_WR_FLUSH_ERR);
            same(qp_state(pair[0]), IBV_QPS_ERR);
            same(ibv_destroy_qp(pair[0]), 0);
            same(ibv_destroy_qp(pair[1]), 0);
        }
    pair_with_rnr(pair, 7); /* for ever */
    for (unsigned i = 0; i < 10; i++)
        post(pair[0], send_of(i, 8));
    expect_none(cq, 300);
    for (unsigned i = 0; i < 10; i++)
        receive(pair[1], 100 + i, memory[1], 64, mr->lkey);
    uint64_t sent = 0, received = 100;
    while (sent < 10 || received < 110) {
        struct ibv_wc wc = completion(cq, 1000);
        same(wc.status, 0);
        if (wc.wr_id < 100)
            same(wc.wr_id, sent++);
        else
            same(wc.wr_id, received++);
    }
}

TEST(message_too_long)
{
    open_all();
    struct ibv_qp *pair[2];
    for (uint32_t room = 0; room < 4096; room = room * 3 + 100) {
        qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
        memset(memory[1], 0x5a, sizeof memory[1]);
        memset(memory[0], 0x11, sizeof memory[0]);
        receive(pair[1], 1, memory[1], room, mr->lkey);
        receive(pair[1], 0, memory[2], 64, mr->lkey);
        post(pair[0], send_of(2, room + 1));
        bool seen[3] = {false, false, false};
        for (int k = 0; k < 3; k++) {
            static const enum ibv_wc_status want[] = {IBV_WC_WR_FLUSH_ERR, IBV_WC_LOC_LEN_ERR,
                                                      IBV_WC_REM_INV_REQ_ERR};
            struct ibv_wc wc = completion(cq, 2000);
            check(wc.wr_id < 3 && !seen[wc.wr_id], "completion of %" PRIu64, wc.wr_id);
            check(wc.status == want[wc.wr_id], "request %" PRIu64 ": status %d", wc.wr_id,
                  wc.status);
            seen[wc.wr_id] = true;
        }
        for (uint32_t i = room; i < 4096; i++)
            same(memory[1][i], 0x5a);
        same(qp_state(pair[0]), IBV_QPS_ERR);
        same(qp_state(pair[1]), IBV_QPS_ERR);
        same(ibv_destroy_qp(pair[0]), 0);
        same(ibv_destroy_qp(pair[1]), 0);
    }
}

TEST(misaligned_atomic)
{
    open_all();
    struct ibv_qp *pair[2];
    memset(memory[1], 7, 64);
    qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
    post(pair[0], (struct operation){.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .id = 1,
                                     .local = memory[0], .bytes = 8, .lkey = mr->lkey,
                                     .remote = (uintptr_t)memory[1] + 4, .rkey = mr->rkey,
                                     .compare_or_add = 1});
    expect(cq, 1, IBV_WC_REM_INV_REQ_ERR);
    for (int i = 0; i < 64; i++)
        same(memory[1][i], 7);
}

TEST(failure_of_an_unsignalled_request_is_reported)
{
    open_all();
    struct ibv_qp *pair[2];
    qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
    for (unsigned i = 0; i < 3; i++)
        receive(pair[1], 100 + i, memory[2], 64, mr->lkey);
    same(try_post(pair[0], send_of(1, 8)), 0);
    struct operation bad = {.opcode = IBV_WR_RDMA_WRITE, .id = 2, .local = memory, .bytes = 8,
                            .lkey = mr->lkey, .remote = (uintptr_t)memory, .rkey = mr->rkey ^ 77};
    same(try_post(pair[0], bad), 0);
    same(try_post(pair[0], send_of(3, 8)), 0);
    int got[200];
    memset(got, -1, sizeof got);
    for (unsigned i = 0; i < 5; i++) { /* 2 and 3, and the three receives */
        struct ibv_wc wc = completion(cq, 2000);
        got[wc.wr_id] = wc.status;
    }
    same(got[1], -1);
    same(got[2], IBV_WC_REM_ACCESS_ERR);
    same(got[3], IBV_WC_WR_FLUSH_ERR);
    same(got[100], 0);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
