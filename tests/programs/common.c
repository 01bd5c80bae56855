/* See common.h. */
#include "common.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <time.h>

struct test *tests;
int arguments_count;
char **arguments;

int run_tests(int count, char **words)
{
    int ran = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    arguments_count = count > 2 ? count - 2 : 0;
    arguments = words + 2;
    for (struct test *t = tests; t; t = t->next) {
        if (count >= 2 && strcmp(words[1], t->name))
            continue;
        t->run();
        printf("ok %s\n", t->name);
        ran++;
    }
    check(ran, "no such test: %s", count < 2 ? "(none)" : words[1]);
    return 0;
}

uint64_t argument(int index, uint64_t otherwise)
{
    return index < arguments_count ? strtoull(arguments[index], NULL, 0) : otherwise;
}

void die_at(const char *file, int line, const char *format, ...)
{
    va_list list;
    fflush(stdout);
    fprintf(stderr, "%s:%d: [%d] ", basename(file), line, getpid());
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    _exit(1);
}

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sleep_ms(unsigned ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

uint64_t random_next(struct random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t random_below(struct random *r, uint64_t limit)
{
    return (uint64_t)(((__uint128_t)random_next(r) * limit) >> 64);
}

static uint64_t fill_word(uint64_t word, size_t index)
{
    uint64_t z = (word ^ (word >> 31)) + (index + 1) * 0x9e3779b97f4a7c15u;
    return z ^ (z >> 29);
}

void fill(void *memory, size_t bytes, uint64_t word)
{
    char *at = memory;
    size_t i = 0;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t value = fill_word(word, i++);
        memcpy(at, &value, 8);
    }
    uint64_t value = fill_word(word, i);
    memcpy(at, &value, bytes);
}

ssize_t unfilled(const void *memory, size_t bytes, uint64_t word)
{
    const unsigned char *at = memory;
    for (size_t done = 0; done < bytes;) {
        uint64_t value = fill_word(word, done / 8);
        size_t part = bytes - done < 8 ? bytes - done : 8;
        if (memcmp(at + done, &value, part))
            for (size_t i = 0;; i++)
                if (at[done + i] != ((unsigned char *)&value)[i])
                    return (ssize_t)(done + i);
        done += part;
    }
    return -1;
}

void device_open(struct device *d)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    memset(d, 0, sizeof *d);
    check(list && count >= 1, "no RDMA device");
    check((d->context = ibv_open_device(list[0])), "ibv_open_device: %m");
    ibv_free_device_list(list);
    d->pd = ibv_alloc_pd(d->context);
    check(d->pd, "ibv_alloc_pd: %m");
    same(ibv_query_device(d->context, &d->attributes), 0);
    same(ibv_query_port(d->context, 1, &d->port), 0);
    bool six = getenv("TEST_IPV6");
    for (d->gid_index = 0; d->gid_index < d->port.gid_tbl_len; d->gid_index++) {
        static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
        if (!ibv_query_gid(d->context, 1, d->gid_index, &d->gid) &&
            (getenv("TEST_VIRTUAL") ||
             (six ? d->gid.raw[0] == 0xfd : !memcmp(d->gid.raw, mapped, sizeof mapped))))
            return;
    }
    die("no GID for an IPv%d address", six ? 6 : 4);
}

void device_close(struct device *d)
{
    same(ibv_dealloc_pd(d->pd), 0);
    same(ibv_close_device(d->context), 0);
}

struct ibv_cq *cq_make(struct device *d, int depth)
{
    struct ibv_cq *cq = ibv_create_cq(d->context, depth, NULL, NULL, 0);
    check(cq, "ibv_create_cq: %m");
    return cq;
}

struct ibv_qp *qp_make(struct device *d, struct queue_options o)
{
    struct ibv_qp_init_attr attributes = {
        .send_cq = o.send_cq,
        .recv_cq = o.receive_cq ? o.receive_cq : o.send_cq,
        .srq = o.srq,
        .qp_type = o.type ? o.type : IBV_QPT_RC,
        .sq_sig_all = o.all_signalled,
        .cap = {.max_send_wr = o.send ? o.send : 64,
                .max_recv_wr = o.srq ? 0 : o.receive ? o.receive : 64,
                .max_send_sge = o.sge ? o.sge : 4,
                .max_recv_sge = o.srq ? 0 : o.sge ? o.sge : 4,
                .max_inline_data = o.inline_bytes},
    };
    struct ibv_qp *qp = ibv_create_qp(d->pd, &attributes);
    check(qp, "ibv_create_qp: %m");
    return qp;
}

struct address qp_address(struct device *d, struct ibv_qp *qp, struct ibv_mr *mr)
{
    struct address a = {.gid = d->gid, .qpn = qp->qp_num};
    if (mr) {
        a.rkey = mr->rkey;
        a.memory = (uintptr_t)mr->addr;
        a.length = mr->length;
    }
    return a;
}

void qp_init(struct device *d, struct ibv_qp *qp, int access)
{
    (void)d;
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
                            .qp_access_flags = (unsigned)access};
    int last = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    int error = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | last);
    check(!error, "modify to INIT: %s", strerror(error));
}

struct ibv_qp_attr rtr_attributes(struct device *d, struct address peer)
{
    return (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn,
        .max_dest_rd_atomic = 16, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1,
                    .grh = {.dgid = peer.gid, .sgid_index = (uint8_t)d->gid_index,
                            .hop_limit = 64}}};
}

int rtr_mask(enum ibv_qp_type type)
{
    if (type == IBV_QPT_UD)
        return IBV_QP_STATE;
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return mask;
}

int rts_mask(enum ibv_qp_type type)
{
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (type == IBV_QPT_XRC_RECV)
        mask |= IBV_QP_TIMEOUT;
    if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    return mask;
}

struct ibv_qp_attr rts_attributes(void)
{
    const char *timeout = getenv("TEST_TIMEOUT");
    return (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .retry_cnt = 7, .rnr_retry = 7,
                                .timeout = timeout ? (uint8_t)atoi(timeout) : 14,
                                .max_rd_atomic = 16};
}

void qp_connect(struct device *d, struct ibv_qp *qp, struct address peer)
{
    qp_init(d, qp, ALL_ACCESS & ~IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp_attr rtr = rtr_attributes(d, peer), rts = rts_attributes();
    rtr.rq_psn = rts.sq_psn = peer.psn;
    same(ibv_modify_qp(qp, &rtr, rtr_mask(qp->qp_type)), 0);
    same(ibv_modify_qp(qp, &rts, rts_mask(qp->qp_type)), 0);
}

void qp_pair(struct device *d, struct queue_options o, struct ibv_qp *pair[2])
{
    pair[0] = qp_make(d, o);
    pair[1] = qp_make(d, o);
    qp_connect(d, pair[0], qp_address(d, pair[1], NULL));
    qp_connect(d, pair[1], qp_address(d, pair[0], NULL));
}

enum ibv_qp_state qp_state(struct ibv_qp *qp)
{
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    same(ibv_query_qp(qp, &a, IBV_QP_STATE, &init), 0);
    return a.qp_state;
}

void qp_move(struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr a = {.qp_state = state};
    same(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
}

struct ibv_mr *mr_make(struct device *d, void *memory, size_t bytes, int access)
{
    struct ibv_mr *mr = ibv_reg_mr(d->pd, memory, bytes, access);
    check(mr, "ibv_reg_mr: %m");
    return mr;
}

int try_post(struct ibv_qp *qp, struct operation o)
{
    struct ibv_sge sge = {(uintptr_t)o.local, o.bytes, o.lkey};
    struct ibv_send_wr *bad = NULL, wr = {
        .wr_id = o.id, .opcode = o.opcode, .send_flags = o.flags, .sg_list = &sge,
        .num_sge = o.bytes ? 1 : 0, .imm_data = htonl(o.immediate)};
    if (o.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || o.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = o.remote;
        wr.wr.atomic.rkey = o.rkey;
        wr.wr.atomic.compare_add = o.compare_or_add;
        wr.wr.atomic.swap = o.swap;
    } else if (o.ah) {
        wr.wr.ud.ah = o.ah;
        wr.wr.ud.remote_qpn = o.qpn;
        wr.wr.ud.remote_qkey = QKEY;
    } else {
        wr.wr.rdma.remote_addr = o.remote;
        wr.wr.rdma.rkey = o.rkey;
    }
    int error = ibv_post_send(qp, &wr, &bad);
    check(!error || bad == &wr, "bad_wr does not point at the refused request");
    return error;
}

void post(struct ibv_qp *qp, struct operation o)
{
    o.flags |= IBV_SEND_SIGNALED;
    int error = try_post(qp, o);
    check(!error, "ibv_post_send: %s", strerror(error));
}

int try_receive(struct ibv_qp *qp, uint64_t id, void *memory, uint32_t bytes, uint32_t lkey)
{
    struct ibv_sge sge = {(uintptr_t)memory, bytes, lkey};
    struct ibv_recv_wr *bad = NULL,
                       wr = {.wr_id = id, .sg_list = &sge, .num_sge = bytes ? 1 : 0};
    int error = ibv_post_recv(qp, &wr, &bad);
    check(!error || bad == &wr, "bad_wr does not point at the refused request");
    return error;
}

void receive(struct ibv_qp *qp, uint64_t id, void *memory, uint32_t bytes, uint32_t lkey)
{
    int error = try_receive(qp, id, memory, bytes, lkey);
    check(!error, "ibv_post_recv: %s", strerror(error));
}

struct ibv_wc completion(struct ibv_cq *cq, unsigned limit_ms)
{
    uint64_t deadline = 0;
    for (unsigned turn = 1;; turn++) {
        struct ibv_wc wc;
        int n = ibv_poll_cq(cq, 1, &wc);
        check(n >= 0, "ibv_poll_cq: %d", n);
        if (n)
            return wc;
        if (turn % 64 == 0) {
            if (!deadline)
                deadline = now_ns() + limit_ms * 1000000ull;
            check(now_ns() < deadline, "no completion for %u ms", limit_ms);
            usleep(turn > 4096 ? 100 : 0);
        }
    }
}

struct ibv_wc expect(struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status)
{
    struct ibv_wc wc = completion(cq, 20000);
    check(wc.wr_id == id && wc.status == status,
          "completion of %" PRIu64 " with %s, not of %" PRIu64 " with %s", wc.wr_id,
          ibv_wc_status_str(wc.status), id, ibv_wc_status_str(status));
    return wc;
}

void expect_none(struct ibv_cq *cq, unsigned ms)
{
    uint64_t deadline = now_ns() + ms * 1000000ull;
    do {
        struct ibv_wc wc;
        int n = ibv_poll_cq(cq, 1, &wc);
        check(n == 0, "unexpected completion of %" PRIu64 ": %s", wc.wr_id,
              ibv_wc_status_str(wc.status));
        sleep_ms(1);
    } while (now_ns() < deadline);
}
