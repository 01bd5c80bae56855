/* Sleeping and being woken: completion channels, asynchronous events, SRQ limits. */
#include "common.h"

#include <fcntl.h>
#include <poll.h>

struct party {
    struct device d;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char memory[4096];
};

static void party_open(struct party *p, int socket)
{
    device_open(&p->d);
    p->channel = ibv_create_comp_channel(p->d.context);
    check(p->channel, "ibv_create_comp_channel: %m");
    p->cq = ibv_create_cq(p->d.context, 200, p, p->channel, 0);
    check(p->cq, "ibv_create_cq: %m");
    p->mr = mr_make(&p->d, p->memory, sizeof p->memory, ALL_ACCESS);
    p->qp = qp_make(&p->d, (struct queue_options){.send_cq = p->cq});
    if (socket >= 0) {
        struct address ours = qp_address(&p->d, p->qp, NULL), theirs;
        swap(socket, &ours, &theirs, sizeof ours);
        qp_connect(&p->d, p->qp, theirs);
        meet(socket);
    }
}

static bool readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int n = poll(&p, 1, ms);
    check(n >= 0, "poll: %m");
    return n > 0;
}

static void take_event(struct party *p)
{
    struct ibv_cq *cq;
    void *context;
    check(readable(p->channel->fd, 5000), "a wake-up was lost: none for 5 s");
    same(ibv_get_cq_event(p->channel, &cq, &context), 0);
    check(cq == p->cq && context == p, "event for another CQ");
    ibv_ack_cq_events(cq, 1);
}

/* ---- ping-pong in which both sides sleep before every message ---- */

static uint64_t turns;

static void play(struct party *p, bool first)
{
    struct ibv_wc wc;
    uint64_t received = 0, sent = 0;
    for (unsigned i = 0; i < 32; i++)
        receive(p->qp, 1, p->memory, 64, p->mr->lkey);
    same(ibv_req_notify_cq(p->cq, 0), 0);
    while (received < turns || sent < turns) {
        if (sent < turns && (first ? sent == received : sent < received)) {
            struct operation o = {.opcode = IBV_WR_SEND, .local = p->memory + 64, .bytes = 8,
                                  .lkey = p->mr->lkey,
                                  .flags = sent % 32 == 31 ? IBV_SEND_SIGNALED : 0};
            same(try_post(p->qp, o), 0);
            sent++;
            continue;
        }
        take_event(p);
        same(ibv_req_notify_cq(p->cq, 0), 0);
        while (ibv_poll_cq(p->cq, 1, &wc) > 0) {
            same(wc.status, 0);
            if (wc.wr_id == 1) {
                received++;
                receive(p->qp, 1, p->memory, 64, p->mr->lkey);
            }
        }
    }
}

static void answer(int socket)
{
    static struct party p;
    party_open(&p, socket);
    play(&p, false);
    meet(socket);
}

TEST(ping_pong_asleep)
{
    static struct party p;
    pid_t pid;
    turns = argument(0, 10000);
    int socket = spawn(answer, &pid);
    party_open(&p, socket);
    uint64_t start = now_ns();
    play(&p, true);
    meet(socket);
    printf("%" PRIu64 " round trips, %.1f us each\n", turns,
           (double)(now_ns() - start) / 1e3 / (double)turns);
    reap(pid);
}

/* ---- datagrams between two who sleep before every one ---- */

static void say(struct party *from, struct ibv_ah *ah, struct party *to)
{
    post(from->qp, (struct operation){.opcode = IBV_WR_SEND, .local = from->memory, .bytes = 8,
                                      .lkey = from->mr->lkey, .flags = IBV_SEND_SIGNALED,
                                      .ah = ah, .qpn = to->qp->qp_num});
    struct party *both[] = {from, to};
    for (unsigned i = 0; i < 2; i++) {
        struct ibv_wc wc;
        do {
            take_event(both[i]);
            same(ibv_req_notify_cq(both[i]->cq, 0), 0);
        } while (ibv_poll_cq(both[i]->cq, 1, &wc) == 0);
        same(wc.status, 0);
    }
    receive(to->qp, 1, to->memory + 64, 48, to->mr->lkey);
}

TEST(datagrams_asleep)
{
    static struct party a, b;
    party_open(&a, -1);
    party_open(&b, -1);
    struct party *both[] = {&a, &b};
    struct ibv_ah *ah[2];
    for (unsigned i = 0; i < 2; i++) {
        struct party *p = both[i];
        same(ibv_destroy_qp(p->qp), 0);
        p->qp = qp_make(&p->d, (struct queue_options){.type = IBV_QPT_UD, .send_cq = p->cq});
        qp_connect(&p->d, p->qp, (struct address){0});
        receive(p->qp, 1, p->memory + 64, 48, p->mr->lkey);
        same(ibv_req_notify_cq(p->cq, 0), 0);
        struct ibv_ah_attr way = rtr_attributes(&p->d, qp_address(&p->d, p->qp, NULL)).ah_attr;
        ah[i] = ibv_create_ah(p->d.pd, &way);
        check(ah[i], "ibv_create_ah: %m");
    }
    for (unsigned i = 0; i < 100; i++) {
        say(&a, ah[0], &b);
        say(&b, ah[1], &a);
    }
}

/* ---- arming rules ---- */

TEST(one_event_for_each_arming)
{
    static struct party a, b;
    party_open(&a, -1);
    party_open(&b, -1);
    qp_connect(&a.d, a.qp, qp_address(&b.d, b.qp, NULL));
    qp_connect(&b.d, b.qp, qp_address(&a.d, a.qp, NULL));
    struct operation o = {.opcode = IBV_WR_SEND, .id = 9, .local = a.memory, .bytes = 8,
                          .lkey = a.mr->lkey};
    fcntl(b.channel->fd, F_SETFL, fcntl(b.channel->fd, F_GETFL) | O_NONBLOCK);
    struct ibv_cq *cq;
    void *context;
    same(ibv_get_cq_event(b.channel, &cq, &context), -1);
    same(errno, EAGAIN);
    for (unsigned i = 0; i < 8; i++)
        receive(b.qp, i, b.memory, 64, b.mr->lkey);

    post(a.qp, o); /* not armed: no event */
    check(!readable(b.channel->fd, 50), "an event that nobody asked for");
    expect(b.cq, 0, 0);
    same(ibv_req_notify_cq(b.cq, 0), 0);
    post(a.qp, o);
    post(a.qp, o);
    check(readable(b.channel->fd, 1000), "no event");
    check(readable(b.channel->fd, 0), "not level-triggered");
    take_event(&b);
    check(!readable(b.channel->fd, 20), "two events for one arming");
    expect(b.cq, 1, 0);
    expect(b.cq, 2, 0);

    same(ibv_req_notify_cq(b.cq, 1), 0); /* solicited only */
    post(a.qp, o);
    check(!readable(b.channel->fd, 50), "an event for an unsolicited message");
    o.flags = IBV_SEND_SOLICITED;
    post(a.qp, o);
    take_event(&b);
    expect(b.cq, 3, 0);
    expect(b.cq, 4, 0);

    same(ibv_req_notify_cq(b.cq, 1), 0); /* an error counts as solicited */
    qp_move(b.qp, IBV_QPS_ERR);
    take_event(&b);
    expect(b.cq, 5, IBV_WC_WR_FLUSH_ERR);
}

/* What is there when a queue is armed raises no event: programs look after arming. But those that
 * take a few an event, and leave others, are told of these. */
TEST(what_is_there_already)
{
    static struct party a, b;
    party_open(&a, -1);
    party_open(&b, -1);
    qp_connect(&a.d, a.qp, qp_address(&b.d, b.qp, NULL));
    qp_connect(&b.d, b.qp, qp_address(&a.d, a.qp, NULL));
    struct operation o = {.opcode = IBV_WR_SEND, .id = 9, .local = a.memory, .bytes = 8,
                          .lkey = a.mr->lkey};
    struct ibv_wc wc[8];
    for (unsigned i = 0; i < 8; i++)
        receive(b.qp, i, b.memory, 64, b.mr->lkey);

    post(a.qp, o);
    expect(a.cq, 9, 0);
    check(!readable(b.channel->fd, 50), "not armed");
    same(ibv_req_notify_cq(b.cq, 0), 0);
    check(!readable(b.channel->fd, 100), "an event for what came before");
    same(ibv_poll_cq(b.cq, 8, wc), 1);
    check(!readable(b.channel->fd, 50), "an event for what was polled");

    post(a.qp, o); /* as ibv_rc_pingpong: an event, one more, armed, both polled */
    take_event(&b);
    post(a.qp, o);
    expect(a.cq, 9, 0);
    expect(a.cq, 9, 0);
    check(!readable(b.channel->fd, 50), "not armed");
    same(ibv_req_notify_cq(b.cq, 0), 0);
    same(ibv_poll_cq(b.cq, 8, wc), 2);
    check(!readable(b.channel->fd, 100), "an event for what was polled");

    for (unsigned i = 0; i < 3; i++)
        post(a.qp, o);
    for (unsigned i = 0; i < 3; i++) { /* one an event, armed before it is taken */
        take_event(&b);
        same(ibv_req_notify_cq(b.cq, 0), 0);
        expect(b.cq, 3 + i, 0);
    }
    if (readable(b.channel->fd, 50)) /* of the last, when the queue was armed */
        take_event(&b);
    same(ibv_poll_cq(b.cq, 8, wc), 0);
    same(ibv_req_notify_cq(b.cq, 0), 0);
    post(a.qp, o);
    post(a.qp, o);
    for (unsigned i = 0; i < 2; i++) { /* and after it */
        take_event(&b);
        expect(b.cq, 6 + i, 0);
        same(ibv_req_notify_cq(b.cq, 0), 0);
    }
    check(!readable(b.channel->fd, 50), "nothing is left");
}

/* ---- asynchronous events ---- */

static struct ibv_async_event take_async(struct ibv_context *context, int ms)
{
    struct ibv_async_event e;
    check(readable(context->async_fd, ms), "no asynchronous event for %d ms", ms);
    same(ibv_get_async_event(context, &e), 0);
    return e;
}

static struct ibv_srq *srq_make(struct party *p, uint32_t size)
{
    struct ibv_srq_init_attr a = {.attr = {size, 2, 0}};
    struct ibv_srq *srq = ibv_create_srq(p->d.pd, &a);
    check(srq, "ibv_create_srq: %m");
    check(a.attr.max_wr >= size && a.attr.max_sge >= 2, "granted less than asked");
    return srq;
}

static void srq_receive(struct party *p, struct ibv_srq *srq, uint64_t id)
{
    struct ibv_sge sge = {(uintptr_t)p->memory, 64, p->mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
    same(ibv_post_srq_recv(srq, &wr, &bad), 0);
}

static int eventfds(void)
{
    return descriptors("anon_inode:[eventfd]");
}

/* A channel takes its descriptor with it, whoever of the library looks at its queues just now. */
TEST(channels_that_come_and_go)
{
    struct device d;
    device_open(&d);
    struct ibv_cq *other = cq_make(&d, 10);
    struct ibv_qp *pair[2];
    qp_pair(&d, (struct queue_options){.send_cq = other}, pair); /* somebody looks */
    int before = eventfds();
    for (int i = 0; i < 2000; i++) {
        struct ibv_comp_channel *channel = ibv_create_comp_channel(d.context);
        struct ibv_cq *cq = ibv_create_cq(d.context, 10, NULL, channel, 0);
        check(channel && cq, "%m");
        same(ibv_req_notify_cq(cq, 0), 0);
        same(eventfds(), before + 1);
        same(ibv_destroy_cq(cq), 0);
        same(ibv_destroy_comp_channel(channel), 0);
        same(eventfds(), before);
    }
}

TEST(srq_limit_and_last_request)
{
    static struct party p;
    party_open(&p, -1);
    struct ibv_srq *srq = srq_make(&p, 32);
    struct ibv_qp *pair[2];
    qp_pair(&p.d, (struct queue_options){.send_cq = p.cq, .srq = srq}, pair);
    struct ibv_srq_attr a = {.srq_limit = 5}, seen;
    for (unsigned i = 0; i < 10; i++)
        srq_receive(&p, srq, i);
    same(ibv_modify_srq(srq, &a, IBV_SRQ_LIMIT), 0);
    same(ibv_query_srq(srq, &seen), 0);
    same(seen.srq_limit, 5);
    struct operation o = {.opcode = IBV_WR_SEND, .id = 99, .local = p.memory + 64, .bytes = 8,
                          .lkey = p.mr->lkey};
    for (unsigned i = 0; i < 8; i++) {
        if (i == 5)
            check(!readable(p.d.context->async_fd, 20), "limit event too early");
        post(pair[i & 1], o);
        completion(p.cq, 1000);
        completion(p.cq, 1000);
    }
    struct ibv_async_event e = take_async(p.d.context, 1000);
    same(e.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    check(e.element.srq == srq, "another SRQ");
    ibv_ack_async_event(&e);
    check(!readable(p.d.context->async_fd, 20), "the limit event came twice");
    same(ibv_query_srq(srq, &seen), 0);
    same(seen.srq_limit, 0);
    qp_move(pair[0], IBV_QPS_ERR);
    e = take_async(p.d.context, 1000);
    same(e.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    check(e.element.qp == pair[0], "another QP");
    ibv_ack_async_event(&e);
    /* The SRQ goes on serving the other QP's kind. */
    same(ibv_destroy_qp(pair[0]), 0);
    same(ibv_destroy_qp(pair[1]), 0);
    struct ibv_qp *again[2];
    qp_pair(&p.d, (struct queue_options){.send_cq = p.cq, .srq = srq}, again);
    post(again[0], o);
    completion(p.cq, 1000);
    completion(p.cq, 1000);
    same(ibv_destroy_qp(again[0]), 0);
    same(ibv_destroy_qp(again[1]), 0);
    same(ibv_destroy_srq(srq), 0);
}

TEST(full_srq)
{
    static struct party p;
    party_open(&p, -1);
    struct ibv_srq_init_attr init = {.attr = {8, 1, 0}};
    struct ibv_srq *srq = ibv_create_srq(p.d.pd, &init);
    check(srq, "ibv_create_srq: %m");
    for (uint32_t i = 0; i < init.attr.max_wr; i++)
        srq_receive(&p, srq, i);
    struct ibv_recv_wr *bad = NULL, wr = {.wr_id = 1};
    same(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
    check(bad == &wr, "bad_wr");
    struct ibv_srq_attr a = {.srq_limit = init.attr.max_wr + 1};
    same(ibv_modify_srq(srq, &a, IBV_SRQ_LIMIT), EINVAL);
    same(ibv_destroy_srq(srq), 0);
}

TEST(cq_overrun)
{
    static struct party p;
    party_open(&p, -1);
    struct ibv_cq *small = cq_make(&p.d, 4);
    int room = small->cqe;
    struct ibv_qp *pair[2];
    qp_pair(&p.d, (struct queue_options){.send_cq = small, .receive_cq = p.cq, .send = 4096,
                                         .receive = 4096}, pair);
    for (int i = 0; i < room + 1; i++) {
        receive(pair[1], 1, p.memory, 64, p.mr->lkey);
        post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = 2, .local = p.memory + 64,
                                         .bytes = 8, .lkey = p.mr->lkey});
        completion(p.cq, 1000);
    }
    struct ibv_async_event e = take_async(p.d.context, 1000);
    check(e.event_type == IBV_EVENT_CQ_ERR && e.element.cq == small, "event %d", e.event_type);
    ibv_ack_async_event(&e);
}

TEST(async_descriptor)
{
    static struct party p;
    struct ibv_async_event e;
    party_open(&p, -1);
    int flags = fcntl(p.d.context->async_fd, F_GETFL);
    check(flags >= 0, "async_fd: %m");
    same(fcntl(p.d.context->async_fd, F_SETFL, flags | O_NONBLOCK), 0);
    same(ibv_get_async_event(p.d.context, &e), -1);
    same(errno, EAGAIN);
    check(fcntl(p.d.context->cmd_fd, F_GETFD) >= 0, "cmd_fd: %m");
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
