/* A pool of memory that parent domains are given, and what is made there. A piece has pages around
 * it that nobody may touch, and is unmapped when it comes back: whoever touches more, or later,
 * dies. */
#include "uncommon_verbs.h"

/* resource_type (docs/reference/limits/verbs.md): without a driver's number, and as in mlx5dv.h. */
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

static inline struct piece *piece_at(struct pool *pool, void *at)
{
    for (int i = 0; i < PIECES; i++)
        if (pool->pieces[i].at == at)
            return &pool->pieces[i];
    return NULL;
}

/* The only piece of a kind that is out. */
static inline struct piece *piece_of(struct pool *pool, uint64_t kind)
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

static inline int out(struct pool *pool)
{
    int count = 0;
    for (int i = 0; i < PIECES; i++)
        count += pool->pieces[i].at != NULL;
    return count;
}

static inline void *lend(struct ibv_pd *pd, void *context, size_t size, size_t alignment,
                         uint64_t kind)
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

static inline void take_back(struct ibv_pd *pd, void *context, void *at, uint64_t kind)
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

static inline struct ibv_pd *domain_of(struct pool *pool)
{
    struct ibv_parent_domain_init_attr a = {
        .pd = d.pd, .alloc = lend, .free = take_back, .pd_context = pool,
        .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
                     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT};
    struct ibv_pd *parent = ibv_alloc_parent_domain(d.context, &a);
    check(parent, "ibv_alloc_parent_domain: %m");
    return parent;
}

static inline struct ibv_cq *try_cq(struct ibv_pd *parent, uint32_t cqe, uint64_t fields)
{
    struct ibv_cq_init_attr_ex c = {.cqe = cqe, .wc_flags = fields, .parent_domain = parent,
                                    .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD};
    struct ibv_cq_ex *made = ibv_create_cq_ex(d.context, &c);
    return made ? ibv_cq_ex_to_cq(made) : NULL;
}

static inline struct ibv_srq *try_srq(struct ibv_pd *parent, uint32_t receives)
{
    struct ibv_srq_init_attr s = {.attr = {.max_wr = receives, .max_sge = 2}};
    return ibv_create_srq(parent, &s);
}

static inline struct ibv_qp *try_qp(struct ibv_pd *parent, struct ibv_cq *in, uint32_t receives,
                             struct ibv_srq *srq)
{
    struct ibv_qp_init_attr q = {
        .send_cq = in, .recv_cq = in, .srq = srq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 64, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 2}};
    return ibv_create_qp(parent, &q);
}

static inline void srq_receive(struct ibv_srq *srq, uint64_t id, void *at, uint32_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)at, bytes, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    same(ibv_post_srq_recv(srq, &wr, &bad), 0);
}

static inline void send_from(struct ibv_qp *qp, uint64_t id, uint32_t bytes)
{
    post(qp, (struct operation){.opcode = IBV_WR_SEND, .id = id, .local = memory, .bytes = bytes,
                                .lkey = mr->lkey});
}

/* The number stands somewhere in a piece, or comes to. */
static inline void appears(struct piece *piece, uint64_t number)
{
    for (int ms = 0; !memmem(piece->at, piece->bytes, &number, sizeof number); ms++) {
        check(ms < 20000, "%" PRIx64 " is not in the piece", number);
        sleep_ms(1);
    }
}

/* So many messages through a pair, each into the next place of the other half. */
static inline void traffic(struct ibv_qp *pair[2], struct ibv_srq *srq, struct ibv_cq *in,
                           int messages)
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

static inline void pair_in(struct ibv_pd *parent, struct ibv_cq *in, struct ibv_srq *srq,
                    struct ibv_qp *pair[2])
{
    struct device other = d;
    other.pd = parent;
    qp_pair(&other, (struct queue_options){.send_cq = in, .srq = srq, .receive = 16}, pair);
}
