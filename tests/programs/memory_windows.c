/* Memory windows of both types: bound, used, ended by their owner and by peers; rights, ranges and
 * queue pairs that they are not for. The owner is another process. */
#include "common.h"

enum { BYTES = 32768, INSIDE = 8192, LENGTH = 4096 };
enum what { CONNECT, BIND, BIND_AGAIN, END, FREE, RECEIVE, RECEIVED, VERIFY, DEREGISTER, QUIT };

struct request {
    enum what what;
    struct address peer;
    enum ibv_mw_type type;
    unsigned access;
    uint64_t length, word;
    uint32_t rkey;
};

struct answer {
    struct address owner;
    uint32_t rkey;
    int status;
    unsigned opcode, flags;
    int64_t wrong;
};

static struct device d;
static struct ibv_cq *cq;
static char memory[BYTES];

/* ---- the owner ---- */

static struct ibv_mr *region;
static struct ibv_mw *window;
static struct ibv_qp *end;

static struct ibv_wc local_work(struct ibv_send_wr wr)
{
    struct ibv_send_wr *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr_id = 4;
    same(ibv_post_send(end, &wr, &bad), 0);
    struct ibv_wc wc = completion(cq, 20000);
    same(wc.wr_id, 4);
    return wc;
}

static struct ibv_wc bind(const struct request *r)
{
    struct ibv_mw_bind_info info = {.mr = region, .addr = (uintptr_t)memory + INSIDE,
                                    .length = r->length, .mw_access_flags = r->access};
    if (r->type == IBV_MW_TYPE_2) {
        struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW,
                                 .bind_mw = {.mw = window, .bind_info = info,
                                             .rkey = ibv_inc_rkey(window->rkey)}};
        struct ibv_wc wc = local_work(wr);
        window->rkey = wr.bind_mw.rkey;
        return wc;
    }
    uint32_t before = window->rkey;
    struct ibv_mw_bind bind = {.wr_id = 4, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};
    same(ibv_bind_mw(end, window, &bind), 0);
    check(window->rkey != before, "a window that was bound has the key it had");
    return completion(cq, 20000);
}

static struct answer obey(const struct request *r)
{
    struct answer a = {0};
    struct ibv_wc wc = {0};
    switch (r->what) {
    case CONNECT:
        if (end)
            same(ibv_destroy_qp(end), 0);
        end = qp_make(&d, (struct queue_options){.send_cq = cq});
        qp_connect(&d, end, r->peer);
        a.owner = qp_address(&d, end, region);
        break;
    case BIND:
        window = ibv_alloc_mw(d.pd, r->type);
        check(window, "ibv_alloc_mw: %m");
        check(window->pd == d.pd && window->context == d.context && window->type == r->type,
              "fields of the window");
        /* fall through */
    case BIND_AGAIN:
        wc = bind(r);
        break;
    case END:
        wc = local_work((struct ibv_send_wr){.opcode = IBV_WR_LOCAL_INV,
                                             .invalidate_rkey = r->rkey});
        break;
    case FREE:
        same(ibv_dealloc_mw(window), 0);
        break;
    case RECEIVE:
        receive(end, 9, memory, 64, region->lkey);
        break;
    case RECEIVED:
        wc = expect(cq, 9, IBV_WC_SUCCESS);
        check(!(wc.wc_flags & IBV_WC_WITH_INV) || wc.invalidated_rkey == r->rkey, "another key");
        break;
    case VERIFY:
        a.wrong = unfilled(memory + INSIDE, LENGTH, r->word);
        break;
    case DEREGISTER:
        a.status = ibv_dereg_mr(region);
        break;
    case QUIT:
        break;
    }
    if (r->what == BIND || r->what == BIND_AGAIN || r->what == END || r->what == RECEIVED) {
        a.status = (int)wc.status;
        a.opcode = wc.opcode;
        a.flags = wc.wc_flags;
    }
    a.rkey = window ? window->rkey : 0;
    return a;
}

static void own(int socket)
{
    struct request r;
    device_open(&d);
    cq = cq_make(&d, 100);
    region = mr_make(&d, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    check(d.attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B, "windows are not offered");
    check(!ibv_alloc_mw(d.pd, (enum ibv_mw_type)3), "a window of type 3");
    do {
        get(socket, &r, sizeof r);
        struct answer a = obey(&r);
        put(socket, &a, sizeof a);
    } while (r.what != QUIT);
}

/* ---- its peer ---- */

static int other;
static pid_t child;
static struct ibv_mr *local;
static struct ibv_qp *qp;
static uint64_t target;
static char buffer[LENGTH];

static struct answer ask(struct request r)
{
    struct answer a;
    put(other, &r, sizeof r);
    get(other, &a, sizeof a);
    return a;
}

/* New queue pairs at both ends. */
static void join(void)
{
    if (qp)
        same(ibv_destroy_qp(qp), 0);
    qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct answer a = ask((struct request){.what = CONNECT, .peer = qp_address(&d, qp, NULL)});
    qp_connect(&d, qp, a.owner);
    target = a.owner.memory + INSIDE;
}

static void begin(void)
{
    other = spawn(own, &child);
    device_open(&d);
    cq = cq_make(&d, 100);
    local = mr_make(&d, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
    join();
}

static void finish(void)
{
    ask((struct request){.what = QUIT});
    reap(child);
}

static uint32_t bound(enum ibv_mw_type type, unsigned access)
{
    struct answer a = ask((struct request){.what = BIND, .type = type, .access = access,
                                           .length = LENGTH});
    same(a.status, IBV_WC_SUCCESS);
    same(a.opcode, IBV_WC_BIND_MW);
    return a.rkey;
}

static void touch(enum ibv_wr_opcode opcode, int64_t offset, uint32_t bytes, uint32_t rkey,
                  enum ibv_wc_status status)
{
    post(qp, (struct operation){.opcode = opcode, .id = 1, .local = buffer, .bytes = bytes,
                                .lkey = local->lkey, .remote = target + (uint64_t)offset,
                                .rkey = rkey});
    struct ibv_wc wc = completion(cq, 20000);
    check(wc.status == status, "opcode %d at %" PRId64 ": %s, not %s", opcode, offset,
          ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
    if (status)
        join();
}

static void use(uint32_t rkey, uint64_t word)
{
    for (unsigned i = 0; i < 60; i++) { /* enough that whatever is set up lazily is */
        fill(buffer, LENGTH, word + i);
        touch(IBV_WR_RDMA_WRITE, 0, LENGTH, rkey, IBV_WC_SUCCESS);
    }
    struct answer a = ask((struct request){.what = VERIFY, .word = word + 59});
    same(a.wrong, -1);
}

TEST(type_2_until_its_peer_ends_it)
{
    begin();
    uint32_t rkey = bound(IBV_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    use(rkey, 100);
    touch(IBV_WR_RDMA_READ, 8, 64, rkey, IBV_WC_SUCCESS);
    same(ask((struct request){.what = DEREGISTER}).status, EBUSY);
    ask((struct request){.what = RECEIVE});
    struct ibv_sge none = {.addr = (uintptr_t)buffer, .length = 64, .lkey = local->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = 2, .sg_list = &none, .num_sge = 1,
                                   .opcode = IBV_WR_SEND_WITH_INV,
                                   .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey};
    same(ibv_post_send(qp, &wr, &bad), 0);
    expect(cq, 2, IBV_WC_SUCCESS);
    same(ask((struct request){.what = RECEIVED, .rkey = rkey}).flags, IBV_WC_WITH_INV);
    touch(IBV_WR_RDMA_WRITE, 0, 64, rkey, IBV_WC_REM_ACCESS_ERR);
    ask((struct request){.what = FREE});
    same(ask((struct request){.what = DEREGISTER}).status, 0);
    finish();
}

TEST(type_2_until_its_owner_ends_it)
{
    begin();
    uint32_t rkey = bound(IBV_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);
    use(rkey, 300);
    struct answer a = ask((struct request){.what = END, .rkey = rkey});
    same(a.status, IBV_WC_SUCCESS);
    same(a.opcode, IBV_WC_LOCAL_INV);
    touch(IBV_WR_RDMA_WRITE, 0, 64, rkey, IBV_WC_REM_ACCESS_ERR);
    a = ask((struct request){.what = BIND_AGAIN, .type = IBV_MW_TYPE_2, .length = LENGTH,
                             .access = IBV_ACCESS_REMOTE_WRITE});
    same(a.status, IBV_WC_SUCCESS);
    check(a.rkey != rkey, "the same key again");
    use(a.rkey, 400);
    /* It is bound: not again before it is ended. */
    a = ask((struct request){.what = BIND_AGAIN, .type = IBV_MW_TYPE_2, .length = LENGTH,
                             .access = IBV_ACCESS_REMOTE_WRITE});
    same(a.status, IBV_WC_MW_BIND_ERR);
    join();
    ask((struct request){.what = FREE});
    finish();
}

TEST(type_1_until_it_is_bound_anew)
{
    begin();
    uint32_t rkey = bound(IBV_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);
    use(rkey, 500);
    struct answer a = ask((struct request){.what = BIND_AGAIN, .type = IBV_MW_TYPE_1,
                                           .length = LENGTH / 2,
                                           .access = IBV_ACCESS_REMOTE_WRITE});
    same(a.status, IBV_WC_SUCCESS);
    touch(IBV_WR_RDMA_WRITE, 0, 64, rkey, IBV_WC_REM_ACCESS_ERR);
    touch(IBV_WR_RDMA_WRITE, 0, LENGTH / 2, a.rkey, IBV_WC_SUCCESS);
    touch(IBV_WR_RDMA_WRITE, 0, LENGTH / 2 + 1, a.rkey, IBV_WC_REM_ACCESS_ERR);
    uint32_t last = a.rkey;
    a = ask((struct request){.what = BIND_AGAIN, .type = IBV_MW_TYPE_1, .length = 0});
    same(a.status, IBV_WC_SUCCESS);
    touch(IBV_WR_RDMA_WRITE, 0, 64, last, IBV_WC_REM_ACCESS_ERR);
    touch(IBV_WR_RDMA_WRITE, 0, 64, a.rkey, IBV_WC_REM_ACCESS_ERR);
    ask((struct request){.what = FREE});
    finish();
}

TEST(what_a_window_does_not_open)
{
    begin();
    uint32_t rkey = bound(IBV_MW_TYPE_1, IBV_ACCESS_REMOTE_READ);
    touch(IBV_WR_RDMA_READ, 0, 64, rkey, IBV_WC_SUCCESS);
    touch(IBV_WR_RDMA_WRITE, 0, 64, rkey, IBV_WC_REM_ACCESS_ERR);
    touch(IBV_WR_RDMA_READ, -1, 64, rkey, IBV_WC_REM_ACCESS_ERR);
    touch(IBV_WR_RDMA_READ, LENGTH - 63, 64, rkey, IBV_WC_REM_ACCESS_ERR);
    touch(IBV_WR_RDMA_READ, 0, 64, rkey, IBV_WC_SUCCESS); /* other queue pairs, the same window */
    ask((struct request){.what = FREE});
    touch(IBV_WR_RDMA_READ, 0, 64, rkey, IBV_WC_REM_ACCESS_ERR);
    rkey = bound(IBV_MW_TYPE_2, IBV_ACCESS_REMOTE_READ);
    touch(IBV_WR_RDMA_READ, 0, 64, rkey, IBV_WC_SUCCESS);
    join();
    touch(IBV_WR_RDMA_READ, 0, 64, rkey, IBV_WC_REM_ACCESS_ERR); /* of another queue pair */
    ask((struct request){.what = FREE});
    finish();
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
