/* ATOMIC WRITE and FLUSH at another process: what they do, in which order, and who refuses them.
 * Debian's header lacks what newer ones have for FLUSH; its numbers and its slot are here. */
#include "common.h"

enum { PLACEMENT_GLOBAL = 1, PLACEMENT_PERSISTENT = 2, LEVEL_RANGE = 0, LEVEL_REGION = 1 };
enum { ACCESS_GLOBAL = 1 << 8, ACCESS_PERSISTENT = 1 << 9 };
enum { WC_FLUSH = 8, EX_WITH_FLUSH = 1 << 11 };
#define CAP_FLUSH_GLOBAL (1ull << 38)
#define CAP_FLUSH_PERSISTENT (1ull << 39)
#define CAP_ATOMIC_WRITE (1ull << 40)

enum { BYTES = 3 * 65536 };
enum what { OPEN, VERIFY, QUIT };

struct request {
    enum what what;
    struct address peer;
    int of_queue, of_region;
    uint64_t word, offset;
};

struct answer {
    struct address owner;
    int64_t wrong;
    unsigned char eight[8];
};

static struct device d;
static struct ibv_cq *cq;
static char memory[BYTES] __attribute__((aligned(4096)));

static void connect(struct ibv_qp *qp, struct address peer, int access)
{
    qp_connect(&d, qp, peer);
    struct ibv_qp_attr a = {.qp_access_flags = (unsigned)access};
    same(ibv_modify_qp(qp, &a, IBV_QP_ACCESS_FLAGS), 0);
}

/* ---- the owner of the memory ---- */

static void own(int socket)
{
    struct ibv_qp *qp = NULL;
    struct ibv_mr *mr = NULL;
    device_open(&d);
    cq = cq_make(&d, 100);
    for (;;) {
        struct request r;
        struct answer a = {0};
        get(socket, &r, sizeof r);
        if (r.what == QUIT)
            break;
        if (r.what == VERIFY) {
            a.wrong = unfilled(memory, BYTES, r.word);
            memcpy(a.eight, memory + r.offset, 8);
        } else {
            if (qp) {
                same(ibv_destroy_qp(qp), 0);
                same(ibv_dereg_mr(mr), 0);
            }
            mr = mr_make(&d, memory, sizeof memory, r.of_region);
            qp = qp_make(&d, (struct queue_options){.send_cq = cq});
            connect(qp, r.peer, r.of_queue);
            a.owner = qp_address(&d, qp, mr);
        }
        put(socket, &a, sizeof a);
    }
    same(ibv_destroy_qp(qp), 0);
    same(ibv_dereg_mr(mr), 0);
    same(ibv_destroy_cq(cq), 0);
    device_close(&d);
}

/* ---- who asks ---- */

static int owner;
static pid_t child;
static struct ibv_mr *mr;
static struct address theirs;

static struct answer ask(struct request r)
{
    struct answer a;
    put(owner, &r, sizeof r);
    get(owner, &a, sizeof a);
    return a;
}

static struct ibv_qp_ex *begin(int of_queue, int of_region)
{
    if (!mr) {
        owner = spawn(own, &child);
        device_open(&d);
        cq = cq_make(&d, 100);
        mr = mr_make(&d, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    }
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {64, 64, 2, 2, 0},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = d.pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_WRITE | EX_WITH_FLUSH};
    struct ibv_qp *qp = ibv_create_qp_ex(d.context, &init);
    check(qp, "ibv_create_qp_ex: %m");
    theirs = ask((struct request){.what = OPEN, .peer = qp_address(&d, qp, NULL),
                                  .of_queue = of_queue, .of_region = of_region}).owner;
    connect(qp, theirs, 0);
    return ibv_qp_to_qp_ex(qp);
}

static void end(struct ibv_qp_ex *ex)
{
    same(ibv_destroy_qp(&ex->qp_base), 0);
}

static void quit(void)
{
    put(owner, &(struct request){.what = QUIT}, sizeof(struct request));
    reap(child);
    same(ibv_dereg_mr(mr), 0);
    same(ibv_destroy_cq(cq), 0);
    device_close(&d);
}

static struct answer verify(uint64_t word, uint64_t offset)
{
    return ask((struct request){.what = VERIFY, .word = word, .offset = offset});
}

static void wr_flush(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address, size_t length,
                     uint8_t placement, uint8_t level)
{
    void (*slot)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
    memcpy(&slot, (char *)ex + 352, sizeof slot);
    check(slot, "the slot of FLUSH is empty");
    slot(ex, rkey, address, length, placement, level);
}

static int try_flush(struct ibv_qp_ex *ex, uint64_t id, uint64_t offset, size_t length,
                     int placement, int level)
{
    ibv_wr_start(ex);
    ex->wr_id = id;
    ex->wr_flags = IBV_SEND_SIGNALED;
    wr_flush(ex, theirs.rkey, theirs.memory + offset, length, (uint8_t)placement, (uint8_t)level);
    return ibv_wr_complete(ex);
}

/* Its completion has this status. */
static void flush(struct ibv_qp_ex *ex, uint64_t offset, size_t length, int placement, int level,
                  enum ibv_wc_status status)
{
    same(try_flush(ex, 9, offset, length, placement, level), 0);
    struct ibv_wc wc = expect(cq, 9, status);
    if (!status)
        same(wc.opcode, WC_FLUSH);
}

static void store(struct ibv_qp_ex *ex, uint64_t offset, const void *eight,
                  enum ibv_wc_status status)
{
    ibv_wr_start(ex);
    ex->wr_id = 5;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_atomic_write(ex, theirs.rkey, theirs.memory + offset, eight);
    same(ibv_wr_complete(ex), 0);
    struct ibv_wc wc = expect(cq, 5, status);
    if (!status)
        same(wc.opcode, IBV_WC_ATOMIC_WRITE);
}

static struct operation writing(uint64_t offset, uint32_t bytes)
{
    return (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = 3, .local = memory + offset,
                              .bytes = bytes, .lkey = mr->lkey, .remote = theirs.memory + offset,
                              .rkey = theirs.rkey};
}

TEST(what_is_offered)
{
    device_open(&d);
    struct ibv_device_attr_ex a;
    same(ibv_query_device_ex(d.context, NULL, &a), 0);
    uint64_t newer = CAP_FLUSH_GLOBAL | CAP_FLUSH_PERSISTENT | CAP_ATOMIC_WRITE;
    same(a.device_cap_flags_ex & newer, CAP_FLUSH_GLOBAL | CAP_ATOMIC_WRITE);
    same(a.device_cap_flags_ex & 0xffffffff, a.orig_attr.device_cap_flags);
    /* Nothing here survives a loss of power. */
    errno = 0;
    check(!ibv_reg_mr(d.pd, memory, 4096, ALL_ACCESS | ACCESS_PERSISTENT), "it is registered");
    same(errno, EINVAL);
    struct ibv_mr *only = mr_make(&d, memory, 4096, ACCESS_GLOBAL);
    same(ibv_dereg_mr(only), 0);
    device_close(&d);
}

/* Again and again, so that pages are mapped where they can be: what was written before a FLUSH that
 * has completed is there. */
TEST(a_flush_follows_writes)
{
    struct ibv_qp_ex *ex = begin(ALL_ACCESS | ACCESS_GLOBAL, ALL_ACCESS | ACCESS_GLOBAL);
    for (uint64_t word = 1; word < 60; word++) {
        fill(memory, BYTES, word);
        uint32_t half = BYTES / 2 - 100 + (uint32_t)word;
        post(&ex->qp_base, writing(0, half));
        post(&ex->qp_base, writing(half, BYTES - half));
        int region = word % 3 == 0;
        size_t length = region ? (size_t)word << 33 : BYTES;
        same(try_flush(ex, 9, 0, length, PLACEMENT_GLOBAL, region ? LEVEL_REGION : LEVEL_RANGE), 0);
        expect(cq, 3, 0);
        expect(cq, 3, 0);
        same(expect(cq, 9, 0).opcode, WC_FLUSH);
        same(verify(word, 0).wrong, -1);
        flush(ex, 4096, 8192, PLACEMENT_GLOBAL, LEVEL_RANGE, 0);
    }
    flush(ex, 5, 0, PLACEMENT_GLOBAL, LEVEL_RANGE, 0);
    end(ex);
    quit();
}

TEST(eight_bytes_at_once)
{
    struct ibv_qp_ex *ex = begin(ALL_ACCESS, ALL_ACCESS);
    memset(memory, 0, BYTES);
    post(&ex->qp_base, writing(0, BYTES));
    expect(cq, 3, 0);
    for (uint64_t value = 1; value < 200; value++) {
        uint64_t offset = value * 1016 % BYTES & ~7ull;
        unsigned char bytes[9];
        fill(bytes, sizeof bytes, value);
        if (value % 2) { /* from no place in particular */
            store(ex, offset, bytes + 1, 0);
            check(!memcmp(verify(0, offset).eight, bytes + 1, 8), "other bytes");
        } else { /* as an ordinary request, too */
            memcpy(memory + offset, bytes, 8);
            struct operation o = writing(offset, 8);
            o.opcode = IBV_WR_ATOMIC_WRITE;
            post(&ex->qp_base, o);
            same(expect(cq, 3, 0).opcode, IBV_WC_ATOMIC_WRITE);
            check(!memcmp(verify(0, offset).eight, bytes, 8), "other bytes");
        }
    }
    end(ex);
    quit();
}

TEST(atomic_writes_that_are_refused)
{
    struct { int of_queue, of_region; uint64_t offset; enum ibv_wc_status status; } cases[] = {
        {ALL_ACCESS & ~IBV_ACCESS_REMOTE_WRITE, ALL_ACCESS, 0, IBV_WC_REM_INV_REQ_ERR},
        {ALL_ACCESS, ALL_ACCESS & ~IBV_ACCESS_REMOTE_WRITE, 0, IBV_WC_REM_ACCESS_ERR},
        {ALL_ACCESS, ALL_ACCESS, 4, IBV_WC_REM_INV_REQ_ERR},
        {ALL_ACCESS, ALL_ACCESS, BYTES, IBV_WC_REM_ACCESS_ERR},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ibv_qp_ex *ex = begin(cases[i].of_queue, cases[i].of_region);
        store(ex, cases[i].offset, "overwrite", cases[i].status);
        end(ex);
    }
    struct ibv_qp_ex *ex = begin(ALL_ACCESS, ALL_ACCESS);
    struct operation o = writing(0, 16);
    o.opcode = IBV_WR_ATOMIC_WRITE;
    post(&ex->qp_base, o);
    expect(cq, 3, IBV_WC_LOC_LEN_ERR);
    end(ex);
    quit();
}

TEST(flushes_that_are_refused)
{
    enum { BOTH = ACCESS_GLOBAL | ACCESS_PERSISTENT };
    struct { int of_queue, of_region, placement, level; enum ibv_wc_status status; } cases[] = {
        {ALL_ACCESS, ALL_ACCESS | ACCESS_GLOBAL, PLACEMENT_GLOBAL, LEVEL_RANGE,
         IBV_WC_REM_INV_REQ_ERR},
        {ALL_ACCESS | BOTH, ALL_ACCESS, PLACEMENT_GLOBAL, LEVEL_RANGE, IBV_WC_REM_ACCESS_ERR},
        {ALL_ACCESS | BOTH, ALL_ACCESS, PLACEMENT_GLOBAL, LEVEL_REGION, IBV_WC_REM_ACCESS_ERR},
        {ALL_ACCESS | BOTH, ALL_ACCESS | ACCESS_GLOBAL, PLACEMENT_PERSISTENT, LEVEL_RANGE,
         IBV_WC_REM_ACCESS_ERR},
        {ALL_ACCESS | BOTH, ALL_ACCESS | ACCESS_GLOBAL, PLACEMENT_PERSISTENT | PLACEMENT_GLOBAL,
         LEVEL_REGION, IBV_WC_REM_ACCESS_ERR},
    };
    struct ibv_qp_ex *ex;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ex = begin(cases[i].of_queue, cases[i].of_region);
        flush(ex, 0, 4096, cases[i].placement, cases[i].level, cases[i].status);
        end(ex);
    }
    ex = begin(ALL_ACCESS | BOTH, ALL_ACCESS | ACCESS_GLOBAL);
    flush(ex, 1, BYTES, PLACEMENT_GLOBAL, LEVEL_RANGE, IBV_WC_REM_ACCESS_ERR);
    end(ex);
    ex = begin(ALL_ACCESS | BOTH, ALL_ACCESS | ACCESS_GLOBAL);
    same(try_flush(ex, 1, 0, 1ull << 32, PLACEMENT_GLOBAL, LEVEL_RANGE), EINVAL);
    same(try_flush(ex, 1, 0, 8, 0, LEVEL_RANGE), EINVAL);
    same(try_flush(ex, 1, 0, 8, 4, LEVEL_RANGE), EINVAL);
    same(try_flush(ex, 1, 0, 8, PLACEMENT_GLOBAL, 2), EINVAL);
    /* The ordinary request has no place for how far and how much. */
    struct operation o = writing(0, 0);
    o.opcode = (enum ibv_wr_opcode)14;
    same(try_post(&ex->qp_base, o), EINVAL);
    flush(ex, 0, BYTES, PLACEMENT_GLOBAL, LEVEL_RANGE, 0);
    end(ex);
    quit();
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
