/* Completion counters of the newest release: every operation, with and without an entry in the CQ,
 * as it is asked for here and done to us there. With TEST_PEERS the second process is elsewhere.
 * Debian's header does not have them, so their prototypes are here and their names are looked
 * up. */
#include "common.h"

#include <dlfcn.h>

struct counter {
    struct ibv_context *context;
    uint32_t handle;
};
struct counter_init {
    uint32_t mask, type, flags;
};
struct counter_attach {
    uint32_t mask, operations;
};
struct counter_caps {
    uint64_t most;
    uint32_t counters, operations;
};
enum { REQUESTS, BYTES };
enum { SEND = 1, RECV = 2, READ = 4, READ_BY_PEER = 8, WRITE = 16, WRITE_BY_PEER = 32, ALL = 63 };

static int (*query_caps)(struct ibv_context *, struct counter_caps *, size_t);
static struct counter *(*create)(struct ibv_context *, struct counter_init *);
static int (*destroy)(struct counter *);
static int (*attach)(struct ibv_qp *, struct counter *, struct counter_attach *);
static int (*set_done)(struct counter *, uint64_t), (*set_failed)(struct counter *, uint64_t);
static int (*add_done)(struct counter *, uint64_t), (*add_failed)(struct counter *, uint64_t);
static int (*read_done)(struct counter *, uint64_t *), (*read_failed)(struct counter *, uint64_t *);

static struct device d;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char *memory;
enum { MEMORY = 8 << 20 };

static void find(void *function, const char *name)
{
    void *found = dlvsym(RTLD_DEFAULT, name, "IBVERBS_1.18");
    check(found, "%s", name);
    memcpy(function, &found, sizeof found);
}

static void open_all(void)
{
    device_open(&d);
    find(&query_caps, "_ibv_query_comp_cntr_caps");
    find(&create, "ibv_create_comp_cntr");
    find(&destroy, "ibv_destroy_comp_cntr");
    find(&attach, "ibv_qp_attach_comp_cntr");
    find(&set_done, "ibv_set_comp_cntr");
    find(&set_failed, "ibv_set_err_comp_cntr");
    find(&add_done, "ibv_inc_comp_cntr");
    find(&add_failed, "ibv_inc_err_comp_cntr");
    find(&read_done, "ibv_read_comp_cntr");
    find(&read_failed, "ibv_read_err_comp_cntr");
    cq = cq_make(&d, 4000);
    memory = aligned_alloc(4096, MEMORY);
    check(memory, "no memory");
    memset(memory, 1, MEMORY);
    mr = mr_make(&d, memory, MEMORY, ALL_ACCESS);
}

static struct counter *counter_of(uint32_t type)
{
    struct counter_init init = {.type = type};
    struct counter *counter = create(d.context, &init);
    check(counter && counter->context == d.context, "ibv_create_comp_cntr: %m");
    return counter;
}

static int try_attach(struct ibv_qp *qp, struct counter *counter, uint32_t operations)
{
    struct counter_attach attributes = {.operations = operations};
    return attach(qp, counter, &attributes);
}

static uint64_t done(struct counter *counter)
{
    uint64_t value = ~0ull;
    same(read_done(counter, &value), 0);
    return value;
}

static uint64_t failed(struct counter *counter)
{
    uint64_t value = ~0ull;
    same(read_failed(counter, &value), 0);
    return value;
}

/* Reads until it is so many. Nobody polls meanwhile. */
static void await(struct counter *counter, uint64_t number)
{
    uint64_t until = now_ns() + 20000000000ull, found;
    while ((found = done(counter)) != number) {
        check(found < number, "%" PRIu64 " instead of %" PRIu64, found, number);
        check(now_ns() < until, "%" PRIu64 " of %" PRIu64 ", %" PRIu64 " failed", found, number,
              failed(counter));
    }
}

static struct ibv_qp *queue(void)
{
    return qp_make(&d, (struct queue_options){.send_cq = cq});
}

/* Not signalled. */
static void silently(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t bytes,
                     struct address theirs)
{
    same(try_post(qp, (struct operation){.opcode = opcode, .local = memory, .bytes = bytes,
                                         .lkey = mr->lkey, .remote = theirs.memory,
                                         .rkey = theirs.rkey}), 0);
}

TEST(what_is_refused)
{
    open_all();
    struct {
        struct counter_caps caps;
        uint64_t more;
    } newer = {.more = ~0ull};
    struct counter_caps *caps = &newer.caps;
    same(query_caps(d.context, caps, sizeof *caps - 1), EINVAL);
    same(query_caps(d.context, caps, sizeof newer), 0);
    check(caps->most == ~0ull && caps->counters > 1000 && caps->operations == ALL, "limits");
    same(newer.more, 0);
    static const struct counter_init wrong[] = {{1, 0, 0}, {0, 2, 0}, {0, 0, 1}};
    for (unsigned i = 0; i < 3; i++) {
        struct counter_init init = wrong[i];
        errno = 0;
        check(!create(d.context, &init), "made");
        same(errno, EOPNOTSUPP);
    }
    struct counter *one = counter_of(REQUESTS), *other = counter_of(BYTES);
    check(one->handle != other->handle, "the same handle");
    struct ibv_qp *qp = queue();
    struct counter_attach longer = {.mask = 1, .operations = SEND};
    same(attach(qp, one, &longer), EOPNOTSUPP);
    same(try_attach(qp, one, 0), EINVAL);
    same(try_attach(qp, one, ALL + 1), EOPNOTSUPP);
    same(try_attach(qp, one, SEND | READ), 0);
    same(try_attach(qp, one, SEND), EBUSY);
    same(try_attach(qp, other, ALL), EBUSY);
    same(destroy(other), 0);
    other = counter_of(BYTES);
    qp_init(&d, qp, 0);
    same(try_attach(qp, other, RECV | WRITE), 0);
    same(destroy(one), EBUSY);
    same(destroy(other), EBUSY);
    qp_move(qp, IBV_QPS_RESET);
    same(destroy(one), EBUSY);
    qp_connect(&d, qp, qp_address(&d, qp, NULL));
    struct counter *late = counter_of(REQUESTS);
    same(try_attach(qp, late, READ_BY_PEER), EINVAL);
    qp_move(qp, IBV_QPS_ERR);
    same(try_attach(qp, late, READ_BY_PEER), EINVAL);
    same(ibv_destroy_qp(qp), 0);
    same(destroy(one), 0);
    same(destroy(other), 0);
    same(destroy(late), 0);
    /* As many as there may be, and not more. */
    struct counter **all = calloc(caps->counters + 1, sizeof *all);
    struct counter_init init = {0};
    uint32_t count = 0;
    while (count <= caps->counters && (all[count] = create(d.context, &init)))
        count++;
    same(count, caps->counters);
    same(errno, ENOMEM);
    while (count)
        same(destroy(all[--count]), 0);
    free(all);
}

TEST(numbers)
{
    open_all();
    struct counter *counter = counter_of(REQUESTS);
    same(done(counter), 0);
    same(failed(counter), 0);
    same(set_done(counter, 5), 0);
    same(set_failed(counter, ~0ull), 0);
    same(add_done(counter, 7), 0);
    same(done(counter), 12);
    check(failed(counter) == ~0ull, "the largest number");
    same(add_failed(counter, 1), 0);
    same(failed(counter), 0);
    same(set_done(counter, ~0ull), 0);
    struct ibv_qp *pair[2];
    for (int i = 0; i < 2; i++) {
        pair[i] = queue();
        same(try_attach(pair[i], counter, SEND), 0);
    }
    struct address one = qp_address(&d, pair[0], NULL), other = qp_address(&d, pair[1], NULL);
    qp_init(&d, pair[1], 0);
    receive(pair[1], 1, memory, 8, mr->lkey);
    qp_connect(&d, pair[0], other);
    qp_connect(&d, pair[1], one);
    silently(pair[0], IBV_WR_SEND, 8, other);
    expect(cq, 1, 0);
    uint64_t until = now_ns() + 10000000000ull;
    while (done(counter)) /* behind the largest comes 0 */
        check(now_ns() < until, "%" PRIu64, done(counter));
    same(failed(counter), 0);
    same(ibv_destroy_qp(pair[0]), 0);
    same(destroy(counter), EBUSY);
    same(ibv_destroy_qp(pair[1]), 0);
    same(destroy(counter), 0);
}

/* Two queue pairs, connected with each other, of one counter for each thing; receives of an SRQ. */
TEST(two_queue_pairs_add_to_one)
{
    open_all();
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 100, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(d.pd, &shared);
    check(srq, "ibv_create_srq: %m");
    struct counter *sends = counter_of(REQUESTS), *receives = counter_of(BYTES);
    struct ibv_qp *qp[2];
    for (int i = 0; i < 2; i++) {
        qp[i] = qp_make(&d, (struct queue_options){.send_cq = cq, .srq = srq});
        same(try_attach(qp[i], sends, SEND), 0);
        same(try_attach(qp[i], receives, RECV), 0);
    }
    struct address ends[2] = {qp_address(&d, qp[0], NULL), qp_address(&d, qp[1], NULL)};
    qp_connect(&d, qp[0], ends[1]);
    qp_connect(&d, qp[1], ends[0]);
    for (unsigned i = 0; i < 20; i++) {
        struct ibv_sge sge = {(uintptr_t)memory + 4096, 1000, mr->lkey};
        struct ibv_recv_wr work = {.sg_list = &sge, .num_sge = 1}, *bad;
        same(ibv_post_srq_recv(srq, &work, &bad), 0);
    }
    for (unsigned i = 0; i < 20; i++)
        silently(qp[i % 2], IBV_WR_SEND, 100 + i, ends[0]);
    await(receives, 20 * 100 + 190);
    await(sends, 20);
    same(failed(sends) + failed(receives), 0);
    struct ibv_wc wc;
    for (unsigned i = 0; i < 20; i++)
        same(ibv_poll_cq(cq, 1, &wc), 1);
    same(ibv_poll_cq(cq, 1, &wc), 0);
    for (int i = 0; i < 2; i++)
        same(ibv_destroy_qp(qp[i]), 0);
    same(ibv_destroy_srq(srq), 0);
    same(destroy(sends), 0);
    same(destroy(receives), 0);
}

static void await_failed(struct counter *counter, uint64_t number)
{
    uint64_t until = now_ns() + 20000000000ull, found;
    while ((found = failed(counter)) < number)
        check(now_ns() < until, "%" PRIu64 " of %" PRIu64, found, number);
    same(found, number);
}

TEST(errors_and_what_is_flushed)
{
    open_all();
    struct counter *ours = counter_of(REQUESTS), *theirs = counter_of(REQUESTS);
    struct ibv_qp *qp[2] = {queue(), queue()};
    same(try_attach(qp[0], ours, ALL), 0);
    same(try_attach(qp[1], theirs, ALL), 0);
    struct address ends[2] = {qp_address(&d, qp[0], mr), qp_address(&d, qp[1], mr)};
    qp_connect(&d, qp[0], ends[1]);
    qp_connect(&d, qp[1], ends[0]);
    for (unsigned i = 0; i < 3; i++) {
        receive(qp[0], i, memory, 8, mr->lkey);
        receive(qp[1], i, memory, 8, mr->lkey);
    }
    silently(qp[0], IBV_WR_SEND, 8, ends[1]);
    await(ours, 1);
    await(theirs, 1);
    ends[1].rkey ^= 0x55555500;
    silently(qp[0], IBV_WR_RDMA_WRITE, 8, ends[1]);
    /* It, and three receives; the refusal, and two receives. */
    await_failed(ours, 4);
    await_failed(theirs, 3);
    silently(qp[0], IBV_WR_RDMA_READ, 8, ends[1]);
    await_failed(ours, 5);
    same(done(ours), 1);
    same(done(theirs), 1);
    for (int i = 0; i < 2; i++)
        same(ibv_destroy_qp(qp[i]), 0);
    same(destroy(ours), 0);
    same(destroy(theirs), 0);
}

enum { ROUNDS = 300, LARGE = 1 << 20 };

/* What the second process says it has counted. */
struct counted {
    uint64_t receives, bytes_read, written, failed;
};

static void served(int socket)
{
    open_all();
    struct counter *receives = counter_of(REQUESTS), *bytes_read = counter_of(BYTES),
                   *written = counter_of(REQUESTS);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq, .receive = ROUNDS});
    same(try_attach(qp, receives, RECV), 0);
    same(try_attach(qp, bytes_read, READ_BY_PEER), 0);
    same(try_attach(qp, written, WRITE_BY_PEER), 0);
    qp_init(&d, qp, ALL_ACCESS);
    for (unsigned i = 0; i < ROUNDS; i++)
        receive(qp, i, memory, 64, mr->lkey);
    struct address ours = qp_address(&d, qp, mr), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    await(receives, ROUNDS);
    await(written, 2 * ROUNDS);
    await(bytes_read, (uint64_t)ROUNDS * LARGE);
    struct counted found = {done(receives), done(bytes_read), done(written),
                            failed(receives) + failed(bytes_read) + failed(written)};
    meet(socket); /* all of it is done at the other side, too */
    put(socket, &found, sizeof found);
    meet(socket);
    same(ibv_destroy_qp(qp), 0);
    same(destroy(receives), 0);
    same(destroy(bytes_read), 0);
    same(destroy(written), 0);
}

/* One counts what it asks for, the other what is done to it, though its memory would otherwise be
 * mapped; neither polls, and nothing but receives has an entry in a CQ. */
TEST(two_processes)
{
    pid_t pid;
    int socket = spawn(served, &pid);
    open_all();
    struct counter *sends = counter_of(REQUESTS), *reads = counter_of(BYTES),
                   *writes = counter_of(BYTES);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq, .send = 16});
    same(try_attach(qp, sends, SEND), 0);
    same(try_attach(qp, reads, READ), 0);
    same(try_attach(qp, writes, WRITE), 0);
    struct address ours = qp_address(&d, qp, NULL), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        silently(qp, IBV_WR_RDMA_WRITE, LARGE, theirs);
        silently(qp, IBV_WR_RDMA_WRITE, 8, theirs);
        silently(qp, IBV_WR_RDMA_READ, LARGE, theirs);
        silently(qp, IBV_WR_SEND, 64, theirs);
        if (i % 3)
            continue; /* up to twelve at once in a queue of sixteen */
        await(writes, i * (LARGE + 8));
        await(reads, i * LARGE);
        await(sends, i);
    }
    same(failed(sends) + failed(reads) + failed(writes), 0);
    expect_none(cq, 10);
    struct counted found;
    meet(socket);
    get(socket, &found, sizeof found);
    same(found.receives, ROUNDS);
    same(found.written, 2 * ROUNDS);
    same(found.bytes_read, (uint64_t)ROUNDS * LARGE);
    same(found.failed, 0);
    meet(socket);
    same(ibv_destroy_qp(qp), 0);
    same(destroy(sends), 0);
    same(destroy(reads), 0);
    same(destroy(writes), 0);
    reap(pid);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
