/* Parent domains with allocators: the queues of what is made there are in memory that the program
 * gives, and nowhere else, and each piece comes back once. */
#include "parent_domain_allocators.h"

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
