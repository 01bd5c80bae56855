/* Parent domains with allocators: the queues of what is made there are in memory that the program
 * gives, and nowhere else, and each piece comes back once. A piece has pages around it that nobody
 * may touch, and is unmapped when it comes back: whoever touches more, or later, dies. */
#include "wider.h"

#include <sys/wait.h>

/* resource_type, as docs/limitations.md says: without a driver's number, and as in mlx5dv.h. */
enum { OF_QP = 1, OF_SRQ = 4, OF_CQ = 5 };
enum { PIECES = 64, PAGE = 4096 };

struct piece {
    struct ibv_pd *pd;
    unsigned char *at, *mapping;
    size_t bytes, mapped;
    uint64_t kind;
};

/* What the allocators of one parent domain have done, and are to do. */
struct pool {
    struct piece pieces[PIECES];
    int asked, freed;
    int none_at; /* the number of the call that gives none; 0: all give */
    bool leaves_it, misaligns;
};

static struct piece *piece_at(struct pool *pool, void *at)
{
    for (int i = 0; i < PIECES; i++)
        if (pool->pieces[i].at == at)
            return &pool->pieces[i];
    return NULL;
}

/* The only piece of a kind that is out. */
static struct piece *piece_of(struct pool *pool, uint64_t kind)
{
    struct piece *found = NULL;
    for (int i = 0; i < PIECES; i++)
        if (pool->pieces[i].at && pool->pieces[i].kind == kind) {
            check(!found, "two pieces of kind %" PRIu64, kind);
            found = &pool->pieces[i];
        }
    check(found, "no piece of kind %" PRIu64, kind);
    return found;
}

static int out(struct pool *pool)
{
    int count = 0;
    for (int i = 0; i < PIECES; i++)
        count += pool->pieces[i].at != NULL;
    return count;
}

static void *lend(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t kind)
{
    struct pool *pool = context;
    check(size && alignment && !(alignment & (alignment - 1)) && alignment <= PAGE,
          "%zu bytes aligned to %zu", size, alignment);
    same(size % alignment, 0);
    if (++pool->asked == pool->none_at)
        return NULL;
    if (pool->leaves_it)
        return IBV_ALLOCATOR_USE_DEFAULT;
    struct piece *piece = piece_at(pool, NULL);
    check(piece, "too many pieces");
    size_t inside = (size + PAGE) & ~(size_t)(PAGE - 1);
    unsigned char *mapping = pages(inside + 2 * PAGE, PROT_NONE);
    same(mprotect(mapping + PAGE, inside, PROT_READ | PROT_WRITE), 0);
    /* Against the page behind it; what the library does not write shows. */
    unsigned char *at = mapping + PAGE + inside - size - (pool->misaligns ? alignment / 2 : 0);
    memset(at, 0xa5, size);
    *piece = (struct piece){pd, at, mapping, size, inside + 2 * PAGE, kind};
    return at;
}

static void take_back(struct ibv_pd *pd, void *context, void *at, uint64_t kind)
{
    struct pool *pool = context;
    struct piece *piece = piece_at(pool, at);
    check(at && piece, "%p is not out", at);
    check(piece->pd == pd, "another PD");
    same(piece->kind, kind);
    same(munmap(piece->mapping, piece->mapped), 0);
    memset(piece, 0, sizeof *piece);
    pool->freed++;
}

static struct ibv_pd *domain_of(struct pool *pool)
{
    struct ibv_parent_domain_init_attr a = {
        .pd = d.pd, .alloc = lend, .free = take_back, .pd_context = pool,
        .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
                     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT};
    struct ibv_pd *parent = ibv_alloc_parent_domain(d.context, &a);
    check(parent, "ibv_alloc_parent_domain: %m");
    return parent;
}

static struct ibv_cq *try_cq(struct ibv_pd *parent, uint32_t cqe, uint64_t fields)
{
    struct ibv_cq_init_attr_ex c = {.cqe = cqe, .wc_flags = fields, .parent_domain = parent,
                                    .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD};
    struct ibv_cq_ex *made = ibv_create_cq_ex(d.context, &c);
    return made ? ibv_cq_ex_to_cq(made) : NULL;
}

static struct ibv_srq *try_srq(struct ibv_pd *parent, uint32_t receives)
{
    struct ibv_srq_init_attr s = {.attr = {.max_wr = receives, .max_sge = 2}};
    return ibv_create_srq(parent, &s);
}

static struct ibv_qp *try_qp(struct ibv_pd *parent, struct ibv_cq *in, uint32_t receives,
                             struct ibv_srq *srq)
{
    struct ibv_qp_init_attr q = {
        .send_cq = in, .recv_cq = in, .srq = srq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 64, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 2}};
    return ibv_create_qp(parent, &q);
}

static void srq_receive(struct ibv_srq *srq, uint64_t id, void *at, uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)at, bytes, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    same(ibv_post_srq_recv(srq, &wr, &bad), 0);
}

static void send_from(struct ibv_qp *qp, uint64_t id, uint32_t bytes)
{
    post(qp, (struct operation){.opcode = IBV_WR_SEND, .id = id, .local = memory, .bytes = bytes,
                                .lkey = mr->lkey});
}

/* The number stands somewhere in a piece, or comes to. */
static void appears(struct piece *piece, uint64_t number)
{
    for (int ms = 0; !memmem(piece->at, piece->bytes, &number, sizeof number); ms++) {
        check(ms < 20000, "%" PRIx64 " is not in the piece", number);
        sleep_ms(1);
    }
}

/* So many messages through a pair, each into the next place of the other half. */
static void traffic(struct ibv_qp *pair[2], struct ibv_srq *srq, struct ibv_cq *in, int messages)
{
    enum { LENGTH = 512 };
    for (int i = 0; i < messages; i++) {
        char *to = memory + HALF + (i % (HALF / LENGTH)) * LENGTH;
        fill(memory, LENGTH, i);
        memset(to, 0, LENGTH);
        if (srq)
            srq_receive(srq, 1000 + i, to, LENGTH);
        else
            receive(pair[1], 1000 + i, to, LENGTH, mr->lkey);
        send_from(pair[0], 2000 + i, LENGTH);
        for (int left = 2; left--;) {
            struct ibv_wc wc = completion(in, 20000);
            same(wc.status, IBV_WC_SUCCESS);
            same(wc.wr_id, (wc.opcode == IBV_WC_RECV ? 1000 : 2000) + i);
        }
        same(unfilled(to, LENGTH, i), -1);
    }
}

static void pair_in(struct ibv_pd *parent, struct ibv_cq *in, struct ibv_srq *srq,
                    struct ibv_qp *pair[2])
{
    struct device other = d;
    other.pd = parent;
    qp_pair(&other, (struct queue_options){.send_cq = in, .srq = srq, .receive = 16}, pair);
}

TEST(queues_are_in_the_programs_memory)
{
    open_all();
    static struct pool pool;
    struct ibv_pd *parent = domain_of(&pool);
    struct ibv_cq *in = try_cq(parent, 100, 0);
    check(in, "ibv_create_cq_ex: %m");
    struct ibv_qp *pair[2];
    struct ibv_qp *qp = try_qp(parent, in, 16, NULL);
    check(qp, "ibv_create_qp: %m");
    struct ibv_srq *srq = try_srq(parent, 16);
    check(srq, "ibv_create_srq: %m");
    struct piece *of_cq = piece_of(&pool, OF_CQ), *of_qp = piece_of(&pool, OF_QP);
    struct piece *of_srq = piece_of(&pool, OF_SRQ);
    check(of_cq->pd == parent && of_qp->pd == parent && of_srq->pd == parent, "another PD");
    check(of_cq->bytes >= 100 * sizeof(struct ibv_wc), "%zu bytes for a CQ", of_cq->bytes);
    size_t least = 16 * 2 * sizeof(struct ibv_sge);
    check(of_qp->bytes >= least && of_srq->bytes >= least, "too few for receives");
    same(out(&pool), 3);
    /* What is posted stands there, and what completes. */
    srq_receive(srq, 0x1122334455667788, memory, 64);
    appears(of_srq, 0x1122334455667788);
    same(ibv_destroy_srq(srq), 0);
    same(ibv_destroy_qp(qp), 0);
    same(out(&pool), 1);
    pair_in(parent, in, NULL, pair);
    same(out(&pool), 3);
    fill(memory, 64, 5);
    receive(pair[1], 0x2233445566778899, memory + HALF, 64, mr->lkey);
    send_from(pair[0], 0x33445566778899aa, 64);
    appears(of_cq, 0x33445566778899aa);
    for (int i = 0; i < 2; i++)
        same(completion(in, 20000).status, IBV_WC_SUCCESS);
    same(unfilled(memory + HALF, 64, 5), -1);
    traffic(pair, NULL, in, 3000);
    same(ibv_dealloc_pd(parent), EBUSY);
    close_pair(pair);
    same(out(&pool), 1);
    /* A queue of its own is no use to who has a shared one, or wants none. */
    srq = try_srq(parent, 16);
    pair_in(parent, in, srq, pair);
    qp = try_qp(parent, in, 0, NULL);
    check(srq && qp, "%m");
    same(out(&pool), 2);
    traffic(pair, srq, in, 3000);
    same(ibv_destroy_qp(qp), 0);
    close_pair(pair);
    same(ibv_destroy_srq(srq), 0);
    same(ibv_destroy_cq(in), 0);
    same(out(&pool), 0);
    same(pool.freed, pool.asked);
    same(ibv_dealloc_pd(parent), 0);
}

TEST(completions_wait_there)
{
    open_all();
    static struct pool pool;
    struct ibv_pd *parent = domain_of(&pool);
    uint64_t stamped = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    struct ibv_cq *queues[] = {try_cq(parent, 64, 0), try_cq(parent, 64, stamped)};
    check(queues[0] && queues[1], "ibv_create_cq_ex: %m");
    same(out(&pool), 3); /* the entries of each, and when they came */
    for (int which = 0; which < 2; which++) {
        struct ibv_qp *pair[2];
        pair_in(parent, queues[which], NULL, pair);
        for (uint64_t turn = 0, id = 0; turn < 20; turn++) {
            uint64_t first = id;
            for (int i = 0; i < 16; i++, id++) {
                receive(pair[1], 1000 + id, memory + HALF, 64, mr->lkey);
                send_from(pair[0], 2000 + id, 64);
            }
            uint64_t sent = first, received = first;
            for (int left = 32; left--;) {
                struct ibv_wc wc = completion(queues[which], 20000);
                same(wc.status, IBV_WC_SUCCESS);
                if (wc.opcode == IBV_WC_RECV)
                    same(wc.wr_id, 1000 + received++);
                else
                    same(wc.wr_id, 2000 + sent++);
            }
        }
        close_pair(pair);
        same(ibv_destroy_cq(queues[which]), 0);
    }
    same(out(&pool), 0);
    same(ibv_dealloc_pd(parent), 0);
}

TEST(without_memory_there_is_no_object)
{
    open_all();
    static struct pool pool;
    struct ibv_pd *parent = domain_of(&pool);
    struct ibv_cq *in = try_cq(parent, 10, 0);
    check(in, "ibv_create_cq_ex: %m");
    for (int misaligned = 0; misaligned < 2; misaligned++) {
        pool.misaligns = misaligned;
        for (int nth = 1; nth <= 2; nth++) {
            /* All are given to the end at the end; those that are misaligned, never. */
            pool.none_at = misaligned ? 0 : pool.asked + nth;
            errno = 0;
            check(!try_cq(parent, 10, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP), "a CQ");
            same(errno, ENOMEM);
            same(out(&pool), 1);
        }
        pool.none_at = misaligned ? 0 : pool.asked + 1;
        errno = 0;
        check(!try_qp(parent, in, 8, NULL), "a QP");
        same(errno, ENOMEM);
        pool.none_at = misaligned ? 0 : pool.asked + 1;
        errno = 0;
        check(!try_srq(parent, 8), "an SRQ");
        same(errno, ENOMEM);
        same(out(&pool), 1);
    }
    pool.misaligns = false;
    struct ibv_qp *pair[2];
    pair_in(parent, in, NULL, pair);
    traffic(pair, NULL, in, 100);
    close_pair(pair);
    same(ibv_destroy_cq(in), 0);
    same(out(&pool), 0);
    same(ibv_dealloc_pd(parent), 0);
}

TEST(left_to_the_library)
{
    open_all();
    static struct pool pool = {.leaves_it = true};
    struct ibv_pd *parent = domain_of(&pool);
    struct ibv_cq *in = try_cq(parent, 100, 0);
    struct ibv_srq *srq = try_srq(parent, 16);
    check(in && srq, "%m");
    struct ibv_qp *pair[2];
    pair_in(parent, in, NULL, pair);
    same(pool.asked, 4);
    traffic(pair, NULL, in, 1000);
    close_pair(pair);
    pair_in(parent, in, srq, pair);
    traffic(pair, srq, in, 1000);
    same(ibv_resize_cq(in, 200), 0);
    same(pool.asked, 5);
    /* Each time it is asked anew. */
    pool.leaves_it = false;
    same(ibv_resize_cq(in, 300), 0);
    same(out(&pool), 1);
    traffic(pair, srq, in, 1000);
    close_pair(pair);
    same(ibv_destroy_srq(srq), 0);
    same(pool.freed, 0);
    same(ibv_destroy_cq(in), 0);
    same(pool.freed, 1);
    same(ibv_dealloc_pd(parent), 0);
}

TEST(resized)
{
    open_all();
    static struct pool pool;
    struct ibv_pd *parent = domain_of(&pool);
    struct ibv_cq *in = try_cq(parent, 32, 0);
    struct ibv_srq *srq = try_srq(parent, 8);
    check(in && srq, "%m");
    struct ibv_qp *pair[2];
    pair_in(parent, in, srq, pair);
    traffic(pair, srq, in, 5);
    for (int i = 0; i < 8; i++)
        srq_receive(srq, i, memory + HALF + 64 * i, 64);
    for (int i = 0; i < 4; i++)
        send_from(pair[0], 100 + i, 64);
    appears(piece_of(&pool, OF_CQ), 103);
    /* Receives and completions wait; they go on where they are then. */
    size_t before = piece_of(&pool, OF_CQ)->bytes;
    same(ibv_resize_cq(in, 100), 0);
    check(piece_of(&pool, OF_CQ)->bytes > before, "a CQ that has not grown");
    before = piece_of(&pool, OF_SRQ)->bytes;
    struct ibv_srq_attr a = {.max_wr = 40};
    same(ibv_modify_srq(srq, &a, IBV_SRQ_MAX_WR), 0);
    check(piece_of(&pool, OF_SRQ)->bytes > before, "an SRQ that has not grown");
    same(out(&pool), 2);
    pool.none_at = pool.asked + 1;
    same(ibv_resize_cq(in, 1000), ENOMEM);
    pool.none_at = pool.asked + 1;
    a.max_wr = 200;
    same(ibv_modify_srq(srq, &a, IBV_SRQ_MAX_WR), ENOMEM);
    same(ibv_resize_cq(in, 1), EINVAL);
    a.max_wr = 1;
    same(ibv_modify_srq(srq, &a, IBV_SRQ_MAX_WR), EINVAL);
    same(out(&pool), 2);
    for (int i = 4; i < 8; i++)
        send_from(pair[0], 100 + i, 64);
    int sent = 0, received = 0;
    for (int left = 16; left--;) {
        struct ibv_wc wc = completion(in, 20000);
        same(wc.status, IBV_WC_SUCCESS);
        same(wc.wr_id, wc.opcode == IBV_WC_RECV ? received++ : 100 + sent++);
    }
    traffic(pair, srq, in, 500);
    same(ibv_resize_cq(in, 8), 0);
    a.max_wr = 2;
    same(ibv_modify_srq(srq, &a, IBV_SRQ_MAX_WR), 0);
    traffic(pair, srq, in, 500);
    close_pair(pair);
    same(ibv_destroy_srq(srq), 0);
    same(ibv_destroy_cq(in), 0);
    same(out(&pool), 0);
    same(ibv_dealloc_pd(parent), 0);
}

/* A child's copy of what the parent made is the parent's, and so is the memory. */
TEST(forked_children_give_nothing_back)
{
    open_all();
    static struct pool pool;
    struct ibv_pd *parent = domain_of(&pool);
    struct ibv_cq *in = try_cq(parent, 32, 0), *idle = try_cq(parent, 32, 0);
    struct ibv_srq *srq = try_srq(parent, 8);
    check(in && idle && srq, "%m");
    struct ibv_qp *pair[2];
    pair_in(parent, in, NULL, pair);
    pid_t child = fork();
    check(child >= 0, "fork: %m");
    if (!child) {
        ibv_destroy_qp(pair[0]);
        ibv_destroy_srq(srq);
        ibv_destroy_cq(idle);
        _exit(pool.freed);
    }
    reap(child);
    traffic(pair, NULL, in, 100);
    close_pair(pair);
    same(ibv_destroy_srq(srq), 0);
    same(ibv_destroy_cq(in), 0);
    same(ibv_destroy_cq(idle), 0);
    same(out(&pool), 0);
    same(ibv_dealloc_pd(parent), 0);
}

/* Who writes where it lends loses what stood there, and no more. */
TEST(scribbled_over)
{
    open_all();
    static struct pool pool;
    struct ibv_pd *parent = domain_of(&pool);
    struct ibv_qp *bystanders[2];
    connected(bystanders);
    struct random random = {argument(0, 7)};
    for (int turn = 0; turn < 60; turn++) {
        struct ibv_cq *in = try_cq(parent, 64, 0);
        struct ibv_srq *srq = turn & 1 ? try_srq(parent, 16) : NULL;
        check(in, "%m");
        struct ibv_qp *pair[2];
        pair_in(parent, in, srq, pair);
        for (int i = 0; i < 8; i++) {
            if (srq)
                srq_receive(srq, i, memory + HALF, 64);
            else
                receive(pair[1], i, memory + HALF, 64, mr->lkey);
        }
        for (int i = 0; i < 12; i++) {
            for (int piece = 0; piece < PIECES; piece++)
                for (size_t at = 0; at < pool.pieces[piece].bytes; at++)
                    pool.pieces[piece].at[at] = turn % 4 < 2 ? 0xff : random_next(&random);
            struct operation o = {.opcode = IBV_WR_SEND, .id = i, .local = memory, .bytes = 64,
                                  .lkey = mr->lkey, .flags = IBV_SEND_SIGNALED};
            try_post(pair[0], o);
            struct ibv_wc some[4];
            check(ibv_poll_cq(in, 4, some) >= 0, "ibv_poll_cq");
        }
        close_pair(pair);
        same(srq ? ibv_destroy_srq(srq) : 0, 0);
        same(ibv_destroy_cq(in), 0);
        same(out(&pool), 0);
        traffic(bystanders, NULL, cq, 10);
    }
    close_pair(bystanders);
    same(ibv_dealloc_pd(parent), 0);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
