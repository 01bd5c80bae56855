/* Remote keys. Another process owns the target memory; we attack it with keys, ranges and
 * operations that it did not grant. Each attack must end in a remote access error with the memory
 * untouched, on a fresh connection (`cold`) and on one that has moved much good data before
 * (`warm`), when the implementation may have found a faster way. */
#include "remote_keys_victim.h"

static struct device d;
static struct ibv_cq *cq;
static struct ibv_mr *local;
static unsigned char *buffer;
static struct victim victim, bystander;

static void open_all(void)
{
    victim.socket = spawn(target, &victim.pid);
    bystander.socket = spawn(target, &bystander.pid);
    device_open(&d);
    cq = cq_make(&d, 100);
    buffer = malloc(BYTES);
    local = mr_make(&d, buffer, BYTES, IBV_ACCESS_LOCAL_WRITE);
}

static void close_all(void)
{
    ask(&victim, (struct request){.command = QUIT});
    ask(&bystander, (struct request){.command = QUIT});
    reap(victim.pid);
    reap(bystander.pid);
}

static struct ibv_qp *connect_to(struct victim *v)
{
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct request r = {.command = CONNECT, .peer = qp_address(&d, qp, NULL)};
    qp_connect(&d, qp, ask(v, r));
    return qp;
}

static struct operation operation(enum ibv_wr_opcode opcode, uint64_t at, uint32_t bytes,
                                  uint32_t rkey)
{
    return (struct operation){.opcode = opcode, .id = 77, .local = buffer, .bytes = bytes,
                              .lkey = local->lkey, .remote = at, .rkey = rkey,
                              .compare_or_add = 0x1234567};
}

/* Moves enough good data that whatever the implementation sets up lazily is set up. */
static void warm_up(struct ibv_qp *qp, struct address a, enum ibv_wr_opcode opcode)
{
    bool atomic = opcode >= IBV_WR_ATOMIC_CMP_AND_SWP;
    for (unsigned i = 0; i < 60; i++) {
        post(qp, operation(opcode, a.memory, atomic ? 8 : (uint32_t)a.length & ~7u, a.rkey));
        expect(cq, 77, 0);
        if (i % 20 == 19)
            sleep_ms(5);
    }
}

static const struct {
    enum ibv_wr_opcode opcode;
    int need; /* access flag */
    uint32_t bytes;
} kinds[] = {
    {IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE, 4096},
    {IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE, 1},
    {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ, 4096},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC, 8},
    {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_ACCESS_REMOTE_ATOMIC, 8},
};
#define EACH_KIND(k) for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++)
#define EACH_WARMTH(w) for (int w = 0; w < 2; w++)

static uint64_t word = 1000;

static struct address region(struct victim *v, enum command how, int access)
{
    return ask(v, (struct request){.command = how, .access = access});
}

static void forget(struct victim *v)
{
    ask(v, (struct request){.command = DEREGISTER, .word = ++word});
}

static void attack(struct ibv_qp *qp, struct operation o, const char *what)
{
    memset(buffer, 0xee, BYTES);
    post(qp, o);
    struct ibv_wc wc = completion(cq, 3000);
    check(wc.status == IBV_WC_REM_ACCESS_ERR, "%s, opcode %d: %s", what, o.opcode,
          ibv_wc_status_str(wc.status));
    same(qp_state(qp), IBV_QPS_ERR);
    for (uint32_t i = 0; i < o.bytes; i++)
        check(buffer[i] == 0xee, "%s, opcode %d: read %#x", what, o.opcode, buffer[i]);
    sleep_ms(1);
}

/* Fills the whole target memory with a pattern through the owner, so that VERIFY can see a change.
 * DEREGISTER fills; a region is registered again after it. */
static struct address patterned(enum command how, int access)
{
    region(&victim, REGISTER, ALL_ACCESS);
    forget(&victim);
    return region(&victim, how, access);
}

static void untouched(const char *what)
{
    struct address a = ask(&victim, (struct request){.command = VERIFY, .word = word});
    check((int64_t)a.memory == -1, "%s: byte %" PRId64 " of the target changed", what,
          (int64_t)a.memory);
}

/* Warming up with READ leaves the pattern alone. */
static void one(unsigned k, int warm, int64_t shift, uint32_t more, uint32_t key_change,
                const char *what)
{
    struct address a = patterned(REGISTER, ALL_ACCESS);
    struct ibv_qp *qp = connect_to(&victim);
    if (warm)
        warm_up(qp, a, IBV_WR_RDMA_READ);
    uint64_t at = shift < 0 ? a.memory + (uint64_t)shift
                            : a.memory + a.length - kinds[k].bytes + (uint64_t)shift;
    attack(qp, operation(kinds[k].opcode, at, kinds[k].bytes + more, a.rkey + key_change), what);
    untouched(what);
    same(ibv_destroy_qp(qp), 0);
    forget(&victim);
}

TEST(out_of_bounds)
{
    open_all();
    EACH_KIND(k) EACH_WARMTH(w) {
        bool atomic = kinds[k].bytes == 8;
        one(k, w, atomic ? -8 : -1, 0, 0, "before the start");
        one(k, w, atomic ? 8 : 1, 0, 0, "beyond the end");
        one(k, w, -(1 << 20), 0, 0, "far before");
        one(k, w, 1ll << 40, 0, 0, "far beyond");
        if (!atomic) {
            one(k, w, 0, 1, 0, "one byte too long");
            one(k, w, 4096, 0, 0, "the page after");
        }
    }
    close_all();
}

TEST(guessed_keys)
{
    open_all();
    EACH_KIND(k) EACH_WARMTH(w) {
        one(k, w, 0, 0, 1, "the next key");
        one(k, w, 0, 0, UINT32_MAX, "the key before");
        one(k, w, 0, 0, 0x100, "key + 256");
        one(k, w, 0, 0, 0x80000000u, "high bit");
    }
    close_all();
}

/* Drivers of kernels give one number for both keys, and programs send their L_Key to peers. */
TEST(one_number)
{
    open_all();
    static char ours[4096];
    for (int access = 0; access < 2; access++) {
        struct ibv_mr *m = mr_make(&d, ours, sizeof ours,
                                   access ? ALL_ACCESS : IBV_ACCESS_LOCAL_WRITE);
        same(m->lkey, m->rkey);
        uint32_t key = m->lkey;
        same(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
                          access ? IBV_ACCESS_LOCAL_WRITE : ALL_ACCESS), 0);
        same(m->lkey, key);
        same(m->rkey, key);
        struct ibv_mr *other = mr_make(&d, ours, sizeof ours, ALL_ACCESS);
        same(other->lkey, other->rkey);
        check(other->lkey != key, "a key twice");
        struct ibv_mw *window = ibv_alloc_mw(d.pd, IBV_MW_TYPE_1);
        check(window && window->rkey != key && window->rkey != other->rkey, "a window's key");
        same(ibv_dealloc_mw(window), 0);
        same(ibv_dereg_mr(other), 0);
        same(ibv_dereg_mr(m), 0);
    }
    close_all();
}

TEST(wrong_access)
{
    open_all();
    EACH_KIND(k) EACH_WARMTH(w) {
        int access = ALL_ACCESS & ~kinds[k].need;
        struct address a = patterned(REGISTER, access);
        struct ibv_qp *qp = connect_to(&victim);
        if (w && access & IBV_ACCESS_REMOTE_READ)
            warm_up(qp, a, IBV_WR_RDMA_READ);
        if (w && !(access & IBV_ACCESS_REMOTE_READ)) {
            post(qp, (struct operation){.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .id = 77,
                                        .local = buffer, .bytes = 8, .lkey = local->lkey,
                                        .remote = a.memory, .rkey = a.rkey});
            expect(cq, 77, 0);
        }
        attack(qp, operation(kinds[k].opcode, a.memory, kinds[k].bytes, a.rkey), "wrong access");
        untouched("wrong access");
        same(ibv_destroy_qp(qp), 0);
        forget(&victim);
    }
    close_all();
}

TEST(wrong_protection_domain)
{
    open_all();
    EACH_KIND(k) {
        struct address a = patterned(FOREIGN, ALL_ACCESS);
        struct ibv_qp *qp = connect_to(&victim);
        attack(qp, operation(kinds[k].opcode, a.memory, kinds[k].bytes, a.rkey), "other PD");
        untouched("other PD");
        same(ibv_destroy_qp(qp), 0);
        forget(&victim);
    }
    close_all();
}

TEST(deregistered)
{
    open_all();
    EACH_KIND(k) EACH_WARMTH(w) {
        struct address a = patterned(REGISTER, ALL_ACCESS);
        struct ibv_qp *qp = connect_to(&victim);
        if (w)
            warm_up(qp, a, kinds[k].opcode);
        forget(&victim);
        attack(qp, operation(kinds[k].opcode, a.memory, kinds[k].bytes, a.rkey), "deregistered");
        untouched("deregistered");
        same(ibv_destroy_qp(qp), 0);
    }
    close_all();
}

/* The key goes while operations that use it are under way: they work until it is gone, then fail,
 * and nothing is written, or read of what the owner does with its memory afterwards. `warm` so that
 * the fast way is taken, if there is one; several under way at a time, in whole pages and not. */
static void while_under_way(unsigned k, uint64_t skip, uint32_t bytes, unsigned depth)
{
    static unsigned char after[BYTES + 8192];
    struct address a = patterned(REGISTER, ALL_ACCESS);
    struct ibv_qp *qp = connect_to(&victim);
    bool reads = kinds[k].opcode == IBV_WR_RDMA_READ;
    warm_up(qp, a, IBV_WR_RDMA_READ);
    memset(buffer, 0xee, BYTES);
    struct operation o = operation(kinds[k].opcode, a.memory + skip, bytes, a.rkey);
    for (unsigned i = 0; i < 20; i++) {
        post(qp, o);
        expect(cq, 77, 0);
    }
    struct request gone = {.command = DEREGISTER, .word = ++word};
    fill(after, sizeof after, word);
    put(victim.socket, &gone, sizeof gone);
    for (unsigned i = 0; i < depth; i++)
        post(qp, o);
    unsigned long done = 0;
    uint64_t deadline = now_ns() + 30000000000ull;
    for (unsigned left = depth; left;) {
        struct ibv_wc wc = completion(cq, 20000);
        if (wc.status) {
            if (left-- == depth)
                check(wc.status == IBV_WC_REM_ACCESS_ERR, "%s", ibv_wc_status_str(wc.status));
            continue;
        }
        done++;
        /* The owner's next pattern, fetched by an operation that succeeded. */
        check(!reads || bytes < 64 || memcmp(buffer, after + SKEW + skip, bytes),
              "read what was written after the deregistration");
        check(now_ns() < deadline, "still not deregistered");
        post(qp, o);
    }
    struct address answer;
    get(victim.socket, &answer, sizeof answer);
    sleep_ms(5);
    untouched("deregistered under way");
    printf("opcode %d, %u bytes, %u at a time: %lu done before the key was gone\n",
           kinds[k].opcode, bytes, depth, done);
    same(ibv_destroy_qp(qp), 0);
}

TEST(deregistered_under_way)
{
    uint64_t page = 4096 - SKEW;
    open_all();
    EACH_KIND(k) {
        if (kinds[k].bytes != 4096)
            continue;
        for (uint64_t turn = 0; turn < argument(0, 3); turn++) {
            while_under_way(k, page, 4096, 1);
            while_under_way(k, page, 4096, 8);
            while_under_way(k, page, BYTES - 8192, 4);
            while_under_way(k, page + 1000, 64, 8);
            while_under_way(k, 0, 20000, 4);
        }
    }
    close_all();
}

/* A region is not its peers' to end: whoever asks for it has lost his connection, and everybody
 * else goes on as before. */
TEST(invalidated)
{
    open_all();
    EACH_WARMTH(w) {
        struct address a = patterned(REGISTER, ALL_ACCESS);
        struct ibv_qp *qp = connect_to(&victim);
        if (w)
            warm_up(qp, a, IBV_WR_RDMA_READ);
        ask(&victim, (struct request){.command = RECEIVE});
        struct ibv_sge none = {.addr = (uintptr_t)buffer, .length = 0, .lkey = local->lkey};
        struct ibv_send_wr *bad, end_it = {.wr_id = 78, .sg_list = &none, .num_sge = 1,
                                           .opcode = IBV_WR_SEND_WITH_INV,
                                           .send_flags = IBV_SEND_SIGNALED,
                                           .invalidate_rkey = a.rkey};
        same(ibv_post_send(qp, &end_it, &bad), 0);
        expect(cq, 78, IBV_WC_REM_ACCESS_ERR);
        same(qp_state(qp), IBV_QPS_ERR);
        same(ibv_destroy_qp(qp), 0);
        qp = connect_to(&victim);
        warm_up(qp, a, IBV_WR_RDMA_READ);
        untouched("invalidated");
        same(ibv_destroy_qp(qp), 0);
        forget(&victim);
    }
    close_all();
}

TEST(registered_anew_at_the_same_place)
{
    open_all();
    EACH_KIND(k) {
        struct address old = patterned(REGISTER, ALL_ACCESS);
        struct ibv_qp *qp = connect_to(&victim);
        warm_up(qp, old, kinds[k].opcode);
        forget(&victim);
        struct address a = region(&victim, REGISTER, ALL_ACCESS);
        attack(qp, operation(kinds[k].opcode, old.memory, kinds[k].bytes, old.rkey), "the old key");
        untouched("the old key");
        same(ibv_destroy_qp(qp), 0);
        qp = connect_to(&victim);
        warm_up(qp, a, kinds[k].opcode);
        same(ibv_destroy_qp(qp), 0);
        forget(&victim);
    }
    close_all();
}

TEST(key_of_another_process)
{
    open_all();
    EACH_KIND(k) {
        struct address a = patterned(REGISTER, ALL_ACCESS);
        struct address other = region(&bystander, REGISTER, ALL_ACCESS);
        struct ibv_qp *qp = connect_to(&victim);
        warm_up(qp, a, IBV_WR_RDMA_READ);
        if (other.rkey != a.rkey)
            attack(qp, operation(kinds[k].opcode, a.memory, kinds[k].bytes, other.rkey), "foreign");
        untouched("foreign");
        same(ibv_destroy_qp(qp), 0);
        forget(&victim);
        forget(&bystander);
    }
    close_all();
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
