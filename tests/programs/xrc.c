/* XRC: one connection to a process, and with each request the shared receive queue that it is for.
 * The queues, and the connection's end that receives, are in another process. */
#include "xrc.h"

#include <arpa/inet.h>

enum { QUEUES = 3 };
enum what {
    CONNECT, RECEIVE, RECEIVED, RECEIVED_ONE, VERIFY, REMOVE, STATE, HAND_OVER, EVENT, QUIT
};

struct request {
    enum what what;
    struct address peer;
    unsigned queue;
    uint64_t id, word;
    uint32_t length;
};

struct answer {
    struct address here;
    uint32_t numbers[QUEUES];
    struct ibv_wc wc;
    int64_t wrong;
    int state;
};

/* ---- the process that receives ---- */

static void srq_receive(struct ibv_srq *srq, uint64_t id, void *place, uint32_t length)
{
    struct ibv_sge sge = {(uintptr_t)place, length, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    same(ibv_post_srq_recv(srq, &wr, &bad), 0);
}

/* Opens the queue pair once more, and destroys the object that it was made with. */
static struct ibv_qp *handed_over(struct ibv_xrcd *xrcd, struct ibv_qp *first)
{
    struct ibv_qp *next = opened(xrcd, first->qp_num);
    check(next, "ibv_open_qp: %m");
    struct ibv_qp_attr one, other;
    struct ibv_qp_init_attr made;
    same(ibv_query_qp(first, &one, IBV_QP_AV, &made), 0);
    same(ibv_query_qp(next, &other, IBV_QP_AV, &made), 0);
    same(other.ah_attr.is_global, 1);
    same(memcmp(&one.ah_attr.grh.dgid, &other.ah_attr.grh.dgid, sizeof(union ibv_gid)), 0);
    same(ibv_destroy_qp(first), 0);
    return next;
}

/* Takes events until there is one of this type; all are to be of this object. */
static void event_of(struct ibv_qp *qp, enum ibv_event_type type)
{
    struct ibv_async_event e;
    do {
        same(ibv_get_async_event(d.context, &e), 0);
        check(e.element.qp == qp, "the event is another object's");
        ibv_ack_async_event(&e);
    } while (e.event_type != type);
}

static void receive_side(int socket)
{
    begin();
    struct ibv_xrcd *xrcd = domain(-1, O_CREAT);
    check(xrcd, "ibv_open_xrcd: %m");
    struct ibv_cq *cqs[QUEUES];
    struct ibv_srq *srqs[QUEUES];
    struct ibv_qp *end = NULL;
    struct answer a = {0};
    struct ibv_pd *apart = ibv_alloc_pd(d.context);
    for (int q = 0; q < QUEUES; q++) {
        cqs[q] = cq_make(&d, 100);
        /* The last one is of another protection domain than the memory. */
        srqs[q] = srq_make(xrcd, q < QUEUES - 1 ? d.pd : apart, cqs[q]);
        same(ibv_get_srq_num(srqs[q], &a.numbers[q]), 0);
    }
    struct request r;
    do {
        get(socket, &r, sizeof r);
        switch (r.what) {
        case CONNECT:
            if (end)
                same(ibv_destroy_qp(end), 0);
            end = receiver_make(xrcd);
            qp_connect(&d, end, r.peer);
            a.here = qp_address(&d, end, mr);
            break;
        case RECEIVE:
            srq_receive(srqs[r.queue], r.id, memory, r.length);
            break;
        case RECEIVED:
        case RECEIVED_ONE:
            a.wc = expect(cqs[r.queue], r.id, IBV_WC_SUCCESS);
            for (int q = 0; q < QUEUES && r.what == RECEIVED; q++)
                expect_none(cqs[q], 0);
            break;
        case VERIFY:
            a.wrong = unfilled(memory, r.length, r.word);
            break;
        case REMOVE:
            same(ibv_destroy_srq(srqs[r.queue]), 0);
            srqs[r.queue] = NULL;
            break;
        case STATE:
            a.state = qp_state(end);
            break;
        case HAND_OVER:
            end = handed_over(xrcd, end);
            break;
        case EVENT:
            event_of(end, IBV_EVENT_QP_REQ_ERR);
            break;
        case QUIT:
            break;
        }
        put(socket, &a, sizeof a);
    } while (r.what != QUIT);
    same(ibv_close_xrcd(xrcd), EBUSY);
    for (int q = 0; q < QUEUES; q++)
        if (srqs[q])
            same(ibv_destroy_srq(srqs[q]), 0);
    same(ibv_close_xrcd(xrcd), EBUSY);
    same(ibv_destroy_qp(end), 0);
    same(ibv_close_xrcd(xrcd), 0);
}

/* ---- the process that sends ---- */

static int other;
static pid_t child;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct answer there;

static struct answer ask(struct request r)
{
    struct answer a;
    put(other, &r, sizeof r);
    get(other, &a, sizeof a);
    return a;
}

static void reconnect(void)
{
    if (qp)
        same(ibv_destroy_qp(qp), 0);
    struct ibv_qp_init_attr_ex a = {
        .qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .pd = d.pd,
        .cap = {.max_send_wr = 64, .max_send_sge = 4, .max_inline_data = 64},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE};
    qp = ibv_create_qp_ex(d.context, &a);
    check(qp, "ibv_create_qp_ex: %m");
    there = ask((struct request){.what = CONNECT, .peer = qp_address(&d, qp, NULL)});
    qp_connect(&d, qp, there.here);
}

static void both(void)
{
    other = spawn(receive_side, &child);
    begin();
    cq = cq_make(&d, 100);
    reconnect();
}

static void end(void)
{
    ask((struct request){.what = QUIT});
    reap(child);
    same(ibv_destroy_qp(qp), 0);
}

static void xrc_post(struct operation o, uint32_t number)
{
    struct ibv_sge sge = {(uintptr_t)o.local, o.bytes, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = o.id, .sg_list = &sge, .num_sge = 1, .opcode = o.opcode,
                             .send_flags = IBV_SEND_SIGNALED, .imm_data = o.immediate,
                             .qp_type.xrc.remote_srqn = number},
                       *bad;
    if (o.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = o.remote;
        wr.wr.atomic.rkey = o.rkey;
        wr.wr.atomic.compare_add = o.compare_or_add;
    } else {
        wr.wr.rdma.remote_addr = o.remote;
        wr.wr.rdma.rkey = o.rkey;
    }
    same(ibv_post_send(qp, &wr, &bad), 0);
}

static const uint32_t sizes[] = {1, 64, 1024, 1025, 70000, BYTES};
#define EACH_SIZE(s) for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)

static struct operation operation(enum ibv_wr_opcode opcode, uint32_t bytes)
{
    return (struct operation){.opcode = opcode, .id = 7, .local = memory, .bytes = bytes,
                              .remote = there.here.memory, .rkey = there.here.rkey,
                              .immediate = htonl(0x1234), .compare_or_add = 5};
}

static void taken(unsigned queue, uint64_t id, uint32_t bytes, enum ibv_wc_opcode opcode)
{
    struct ibv_wc wc = ask((struct request){.what = RECEIVED, .queue = queue, .id = id}).wc;
    same(wc.opcode, opcode);
    same(wc.byte_len, bytes);
    same(wc.qp_num, there.here.qpn);
    same(wc.src_qp, qp->qp_num);
}

TEST(messages)
{
    both();
    EACH_SIZE(s)
    for (unsigned turn = 0; turn < 6; turn++) {
        unsigned queue = (turn ^ s) & 1;
        bool write = turn >= 4;
        uint64_t id = turn + 10;
        fill(memory, sizes[s], turn);
        ask((struct request){.what = RECEIVE, .queue = queue, .id = id, .length = BYTES});
        enum ibv_wr_opcode code = write ? IBV_WR_RDMA_WRITE_WITH_IMM
                                        : turn & 1 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM;
        xrc_post(operation(code, sizes[s]), there.numbers[queue]);
        taken(queue, id, sizes[s], write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
        expect(cq, 7, IBV_WC_SUCCESS);
        struct request verify = {.what = VERIFY, .length = sizes[s], .word = turn};
        same(ask(verify).wrong, -1);
    }
    end();
}

TEST(one_sided)
{
    both();
    EACH_SIZE(s)
    for (unsigned turn = 0; turn < 40; turn++) { /* also when pages might be mapped */
        uint32_t number = there.numbers[turn & 1];
        fill(memory, sizes[s], turn);
        xrc_post(operation(IBV_WR_RDMA_WRITE, sizes[s]), number);
        expect(cq, 7, IBV_WC_SUCCESS);
        memset(memory, 0, sizes[s]);
        xrc_post(operation(IBV_WR_RDMA_READ, sizes[s]), number);
        expect(cq, 7, IBV_WC_SUCCESS);
        same(unfilled(memory, sizes[s], turn), -1);
    }
    uint64_t cell = 40;
    memcpy(memory, &cell, sizeof cell);
    xrc_post(operation(IBV_WR_RDMA_WRITE, sizeof cell), there.numbers[0]);
    expect(cq, 7, IBV_WC_SUCCESS);
    for (uint64_t turn = 0; turn < 40; turn++) {
        xrc_post(operation(IBV_WR_ATOMIC_FETCH_AND_ADD, sizeof cell), there.numbers[turn & 1]);
        expect(cq, 7, IBV_WC_SUCCESS);
        memcpy(&cell, memory, sizeof cell);
        same(cell, 40 + turn * 5);
    }
    end();
}

/* Order is that of posting, whichever queues the messages are for. */
TEST(many_at_once)
{
    enum { MANY = 2 * RECEIVES };
    both();
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < MANY; i++)
            xrc_post(operation(IBV_WR_SEND, 1999 * i % 9001), there.numbers[i & 1]);
        /* The first ones find no receive. */
        for (unsigned i = 0; i < MANY; i++)
            ask((struct request){.what = RECEIVE, .queue = i & 1, .id = i, .length = BYTES});
        for (unsigned i = 0; i < MANY; i++)
            expect(cq, 7, IBV_WC_SUCCESS);
        for (unsigned i = 0; i < MANY; i++) {
            struct request r = {.what = RECEIVED_ONE, .queue = i & 1, .id = i};
            same(ask(r).wc.byte_len, 1999 * i % 9001);
        }
    }
    end();
}

static void is_refused(struct operation o, uint32_t number, enum ibv_wc_status status)
{
    xrc_post(o, number);
    expect(cq, 7, status);
    same(qp_state(qp), IBV_QPS_ERR);
    same(ask((struct request){.what = STATE}).state, IBV_QPS_ERR);
    reconnect();
}

TEST(refusals)
{
    both();
    uint32_t unknown = there.numbers[0] + there.numbers[1] + there.numbers[2] + 1;
    is_refused(operation(IBV_WR_SEND, 8), unknown, IBV_WC_REM_INV_REQ_ERR);
    is_refused(operation(IBV_WR_RDMA_READ, 8), unknown, IBV_WC_REM_INV_REQ_ERR);
    is_refused(operation(IBV_WR_SEND, 8), 0, IBV_WC_REM_INV_REQ_ERR);
    /* Its protection domain is not that of the memory. */
    is_refused(operation(IBV_WR_RDMA_WRITE, 8), there.numbers[2], IBV_WC_REM_ACCESS_ERR);
    is_refused(operation(IBV_WR_RDMA_READ, 70000), there.numbers[2], IBV_WC_REM_ACCESS_ERR);
    ask((struct request){.what = REMOVE, .queue = 1});
    is_refused(operation(IBV_WR_SEND, 8), there.numbers[1], IBV_WC_REM_INV_REQ_ERR);
    ask((struct request){.what = RECEIVE, .queue = 0, .id = 3, .length = BYTES});
    xrc_post(operation(IBV_WR_SEND, 8), there.numbers[0]);
    expect(cq, 7, IBV_WC_SUCCESS);
    taken(0, 3, 8, IBV_WC_RECV);
    end();
}

/* Whoever is left of a queue pair's objects gets what it receives, and its events. */
TEST(another_object)
{
    both();
    ask((struct request){.what = HAND_OVER});
    ask((struct request){.what = RECEIVE, .queue = 0, .id = 3, .length = BYTES});
    xrc_post(operation(IBV_WR_SEND, 8), there.numbers[0]);
    expect(cq, 7, IBV_WC_SUCCESS);
    taken(0, 3, 8, IBV_WC_RECV);
    xrc_post(operation(IBV_WR_SEND, 8), 0);
    expect(cq, 7, IBV_WC_REM_INV_REQ_ERR);
    ask((struct request){.what = EVENT});
    end();
}

TEST(builder)
{
    both();
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    check(ex, "ibv_qp_to_qp_ex");
    ask((struct request){.what = RECEIVE, .queue = 1, .id = 3, .length = BYTES});
    fill(memory, 64, 1);
    ibv_wr_start(ex);
    ex->wr_id = 5;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(ex);
    ibv_wr_set_xrc_srqn(ex, there.numbers[1]);
    ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 64);
    same(ibv_wr_complete(ex), 0);
    expect(cq, 5, IBV_WC_SUCCESS);
    taken(1, 3, 64, IBV_WC_RECV);
    same(ask((struct request){.what = VERIFY, .length = 64, .word = 1}).wrong, -1);
    end();
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
