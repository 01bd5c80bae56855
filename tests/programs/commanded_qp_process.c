/* See commanded_qp_process.h. */
#include "commanded_qp_process.h"

void manner_connect(struct device *d, struct ibv_qp *qp, struct address peer, struct manner m)
{
    struct ibv_qp_attr rtr = rtr_attributes(d, peer), rts = rts_attributes();
    rtr.path_mtu = m.mtu;
    rtr.rq_psn = rts.sq_psn = m.psn;
    rtr.max_dest_rd_atomic = rts.max_rd_atomic = m.reads;
    rtr.min_rnr_timer = m.rnr_timer;
    rts.rnr_retry = m.rnr_retry;
    rts.timeout = m.timeout;
    rts.retry_cnt = m.retries;
    qp_init(d, qp, ALL_ACCESS & ~IBV_ACCESS_LOCAL_WRITE);
    same(ibv_modify_qp(qp, &rtr, rtr_mask(qp->qp_type)), 0);
    same(ibv_modify_qp(qp, &rts, rts_mask(qp->qp_type)), 0);
}

static void run_far(int socket)
{
    struct device d;
    struct ibv_qp *qp = NULL;
    struct ibv_mr *another = NULL;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 4000);
    char *memory = malloc(FAR_BYTES);
    check(memory, "no memory");
    memset(memory, 0, FAR_BYTES);
    struct ibv_mr *mr = mr_make(&d, memory, FAR_BYTES, ALL_ACCESS);
    for (;;) {
        struct order o;
        struct answer a;
        memset(&a, 0, sizeof a);
        get(socket, &o, sizeof o);
        switch (o.errand) {
        case CONNECT:
            qp = qp_make(&d, (struct queue_options){.type = o.manner.type, .send_cq = cq,
                                                    .receive = 2048});
            manner_connect(&d, qp, o.peer, o.manner);
            a.address = qp_address(&d, qp, mr);
            break;
        case RECEIVES:
            for (uint32_t i = 0; i < o.count; i++)
                receive(qp, i, memory + ((uint64_t)i * o.bytes) % (FAR_BYTES - o.bytes + 1),
                        o.bytes, mr->lkey);
            break;
        case BAD_KEY:
            receive(qp, 0, memory, o.bytes, mr->lkey + 0x1000);
            break;
        case FILL:
            fill(memory, FAR_BYTES, o.word);
            break;
        case VERIFY:
            check(o.offset + o.bytes <= FAR_BYTES, "an order beyond the memory");
            a.at = unfilled(memory + o.offset, o.bytes, o.word);
            break;
        case COMPLETE:
            for (uint64_t until = now_ns() + o.count * 1000000ull; !a.found && now_ns() < until;) {
                a.found = ibv_poll_cq(cq, 1, &a.wc);
                if (!a.found)
                    usleep(50);
            }
            break;
        case REGISTER:
            another = mr_make(&d, memory, o.bytes, ALL_ACCESS);
            a.address = qp_address(&d, qp, another);
            break;
        case DESTROY:
            same(ibv_destroy_qp(qp), 0);
            break;
        case QUIT:
            put(socket, &a, sizeof a);
            return;
        }
        put(socket, &a, sizeof a);
    }
}

struct far far_start(void)
{
    struct far f;
    f.socket = spawn(run_far, &f.pid);
    return f;
}

void far_end(struct far *f)
{
    tell(f, (struct order){.errand = QUIT});
    reap(f->pid);
    close(f->socket);
}

struct answer tell(struct far *f, struct order o)
{
    struct answer a;
    put(f->socket, &o, sizeof o);
    get(f->socket, &a, sizeof a);
    return a;
}

struct ibv_qp *far_connect(struct far *f, struct device *d, struct ibv_cq *cq, struct manner m,
                           struct address *theirs)
{
    struct ibv_qp *qp = qp_make(d, (struct queue_options){.type = m.type, .send_cq = cq,
                                                          .receive = 512, .inline_bytes = 64});
    struct order o = {.errand = CONNECT, .peer = qp_address(d, qp, NULL), .manner = m};
    *theirs = tell(f, o).address;
    manner_connect(d, qp, *theirs, m);
    return qp;
}
