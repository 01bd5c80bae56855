/* Verbs beyond the everyday ones: registering anew, null MRs, device memory, memory that is paged
 * on demand, domains, clocks, SRQs that grow. */
#include "uncommon_verbs.h"

TEST(registered_anew)
{
    open_all();
    char *one = pages(BYTES, PROT_READ | PROT_WRITE), *two = pages(BYTES, PROT_READ | PROT_WRITE);
    struct ibv_mr *m = mr_make(&d, one, BYTES, IBV_ACCESS_LOCAL_WRITE);
    uint32_t lkey = m->lkey, rkey = m->rkey;
    write_to((uintptr_t)one, rkey, 64, IBV_WC_REM_ACCESS_ERR);
    same(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS), 0);
    check(m->lkey == lkey && m->rkey == rkey, "other keys");
    fill(memory, 4096, 11);
    for (int i = 0; i < 60; i++)
        write_to((uintptr_t)one, rkey, 4096, IBV_WC_SUCCESS);
    same(unfilled(one, 4096, 11), -1);
    same(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, two, HALF, 0), 0);
    check(m->addr == two && m->length == HALF, "fields of the MR");
    write_to((uintptr_t)one, rkey, 64, IBV_WC_REM_ACCESS_ERR);
    write_to((uintptr_t)two, rkey, HALF, IBV_WC_SUCCESS);
    write_to((uintptr_t)two + 1, rkey, HALF, IBV_WC_REM_ACCESS_ERR);
    struct ibv_pd *other = ibv_alloc_pd(d.context);
    check(other, "ibv_alloc_pd: %m");
    same(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0), 0);
    check(m->pd == other, "the PD of the MR");
    same(ibv_dealloc_pd(other), EBUSY);
    write_to((uintptr_t)two, rkey, 64, IBV_WC_REM_ACCESS_ERR);
    same(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_PD, d.pd, NULL, 0, 0), 0);
    same(ibv_dealloc_pd(other), 0);
    write_to((uintptr_t)two, rkey, 64, IBV_WC_SUCCESS);
    check(ibv_rereg_mr(m, 1 << 9, NULL, NULL, 0, 0) < 0, "an unknown change");
    check(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) < 0,
          "remote write without local write");
    write_to((uintptr_t)two, rkey, 64, IBV_WC_SUCCESS); /* as it was */
    same(ibv_dereg_mr(m), 0);
    /* One that peers have mapped: what they may not any more they cannot. */
    m = mr_make(&d, one, BYTES, ALL_ACCESS);
    struct ibv_qp *pair[2];
    connected(pair);
    struct operation o = {.opcode = IBV_WR_RDMA_WRITE, .id = 3, .local = memory, .bytes = 4096,
                          .lkey = mr->lkey, .remote = (uintptr_t)one, .rkey = m->rkey};
    for (int i = 0; i < 200; i++) {
        post(pair[0], o);
        expect(cq, 3, IBV_WC_SUCCESS);
    }
    same(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), 0);
    memset(one, 0x55, BYTES);
    post(pair[0], o);
    expect(cq, 3, IBV_WC_REM_ACCESS_ERR);
    for (int i = 0; i < 4096; i++)
        same(one[i], 0x55);
    close_pair(pair);
    same(ibv_dereg_mr(m), 0);
    munmap(one, BYTES);
    munmap(two, BYTES);
}

TEST(null_regions)
{
    open_all();
    struct ibv_mr *nothing = ibv_alloc_null_mr(d.pd);
    check(nothing, "ibv_alloc_null_mr: %m");
    struct ibv_qp *pair[2];
    connected(pair);
    fill(memory, 8192, 5);
    memset(memory + HALF, 0x33, HALF);
    /* The middle of a message goes nowhere. */
    struct ibv_sge parts[3] = {{(uintptr_t)memory + HALF, 100, mr->lkey},
                               {0xdead0000, 4000, nothing->lkey},
                               {(uintptr_t)memory + HALF + 100, 100, mr->lkey}};
    struct ibv_recv_wr *bad, wr = {.wr_id = 4, .sg_list = parts, .num_sge = 3};
    same(ibv_post_recv(pair[1], &wr, &bad), 0);
    post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = 3, .local = memory,
                                     .bytes = 4200, .lkey = mr->lkey});
    for (int i = 0; i < 2; i++)
        same(completion(cq, 20000).status, IBV_WC_SUCCESS);
    check(!memcmp(memory + HALF, memory, 100) && !memcmp(memory + HALF + 100, memory + 4100, 100) &&
              memory[HALF + 200] == 0x33, "the parts around it");
    close_pair(pair);
    same(ibv_dereg_mr(nothing), 0);
}

TEST(device_memory)
{
    open_all();
    struct ibv_device_attr_ex a;
    same(ibv_query_device_ex(d.context, NULL, &a), 0);
    check(a.max_dm_size >= 1 << 16, "%llu bytes", (unsigned long long)a.max_dm_size);
    struct ibv_alloc_dm_attr much = {.length = a.max_dm_size + 1}, some = {.length = 8192};
    check(!ibv_alloc_dm(d.context, &much), "more than there is");
    struct ibv_dm *dm = ibv_alloc_dm(d.context, &some);
    check(dm, "ibv_alloc_dm: %m");
    int access = IBV_ACCESS_ZERO_BASED | ALL_ACCESS;
    check(!ibv_reg_dm_mr(d.pd, dm, 0, 8196, (unsigned)access) && errno == EINVAL, "beyond its end");
    struct ibv_mr *m = ibv_reg_dm_mr(d.pd, dm, 4096, 4096, (unsigned)access);
    check(m, "ibv_reg_dm_mr: %m");
    same(ibv_free_dm(dm), EBUSY);
    fill(memory, 4096, 21);
    write_to(0, m->rkey, 4096, IBV_WC_SUCCESS);
    write_to(4, m->rkey, 4096, IBV_WC_REM_ACCESS_ERR);
    char copy[4096];
    same(ibv_memcpy_from_dm(copy, dm, 4096, 4096), 0);
    same(unfilled(copy, 4096, 21), -1);
    same(ibv_memcpy_to_dm(dm, 0, copy, 4096), 0);
    check(ibv_memcpy_to_dm(dm, 2, copy, 4) && ibv_memcpy_from_dm(copy, dm, 0, 3) &&
              ibv_memcpy_from_dm(copy, dm, 8192, 4), "boundaries");
    same(ibv_dereg_mr(m), 0);
    same(ibv_free_dm(dm), 0);
}

TEST(memory_that_comes_and_goes)
{
    open_all();
    struct ibv_device_attr_ex a;
    same(ibv_query_device_ex(d.context, NULL, &a), 0);
    check(a.odp_caps.general_caps & IBV_ODP_SUPPORT, "not offered");
    char *at = pages(4 * 4096, PROT_READ | PROT_WRITE);
    struct ibv_mr *some = mr_make(&d, at, 4 * 4096, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
    struct ibv_mr *all = ibv_reg_mr(d.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
    check(all, "all of memory: %m");
    struct ibv_mr *both[2] = {some, all};
    for (int i = 0; i < 2; i++) {
        fill(memory, 4096, 31);
        write_to((uintptr_t)at + 4096, both[i]->rkey, 4096, IBV_WC_SUCCESS);
        same(unfilled(at + 4096, 4096, 31), -1);
        same(munmap(at + 4096, 4096), 0);
        write_to((uintptr_t)at + 4000, both[i]->rkey, 4096, IBV_WC_REM_ACCESS_ERR);
        write_to((uintptr_t)at, both[i]->rkey, 4096, IBV_WC_SUCCESS);
        check(mmap(at + 4096, 4096, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + 4096, "mmap: %m");
        write_to((uintptr_t)at + 4096, both[i]->rkey, 4096, IBV_WC_SUCCESS);
        same(unfilled(at + 4096, 4096, 31), -1);
        struct ibv_sge sge = {(uintptr_t)at, 4 * 4096, both[i]->lkey};
        for (int advice = 0; advice < 3; advice++)
            same(ibv_advise_mr(d.pd, (enum ib_uverbs_advise_mr_advice)advice, 1, &sge, 1), 0);
        sge.lkey++;
        check(ibv_advise_mr(d.pd, (enum ib_uverbs_advise_mr_advice)0, 0, &sge, 1), "a wrong key");
    }
    /* What a peer may not touch it is refused; nobody dies of it. */
    const unsigned page = 4096;
    for (int i = 0; i < 2; i++) {
        uint32_t rkey = both[i]->rkey;
        same(mprotect(at + page, page, PROT_READ), 0);
        write_to((uintptr_t)at + page, rkey, 64, IBV_WC_REM_ACCESS_ERR);
        write_to((uintptr_t)at, rkey, 3 * page, IBV_WC_REM_ACCESS_ERR);
        go_to((uintptr_t)at, rkey, 3 * page, IBV_WR_RDMA_READ, IBV_WC_SUCCESS);
        same(mprotect(at + page, page, PROT_NONE), 0);
        go_to((uintptr_t)at + page, rkey, 64, IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR);
        go_to((uintptr_t)at, rkey, 3 * page, IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR);
        same(mprotect(at + page, page, PROT_READ | PROT_WRITE), 0);
        write_to((uintptr_t)at, rkey, 3 * page, IBV_WC_SUCCESS);
    }
    same(ibv_dereg_mr(some), 0);
    same(ibv_dereg_mr(all), 0);
    munmap(at, 4 * 4096);
}

static void *never(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t kind)
{
    (void)pd, (void)context, (void)size, (void)alignment, (void)kind;
    return IBV_ALLOCATOR_USE_DEFAULT;
}

static void freed(struct ibv_pd *pd, void *context, void *pointer, uint64_t kind)
{
    (void)pd, (void)context, (void)pointer, (void)kind;
}

TEST(domains)
{
    open_all();
    struct ibv_td_init_attr none = {0};
    struct ibv_td *td = ibv_alloc_td(d.context, &none);
    check(td, "ibv_alloc_td: %m");
    struct ibv_parent_domain_init_attr a = {
        .pd = d.pd, .td = td, .alloc = never, .free = freed,
        .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
                     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT};
    struct ibv_pd *parent = ibv_alloc_parent_domain(d.context, &a);
    check(parent && parent->context == d.context, "ibv_alloc_parent_domain: %m");
    same(ibv_dealloc_td(td), EBUSY);
    struct ibv_cq_init_attr_ex c = {.cqe = 10, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
                                    .parent_domain = parent};
    struct ibv_cq_ex *in_it = ibv_create_cq_ex(d.context, &c);
    check(in_it, "ibv_create_cq_ex: %m");
    /* What is made in one goes with what is made in the other. */
    struct device other = d;
    other.pd = parent;
    struct ibv_qp *pair[2];
    qp_pair(&other, (struct queue_options){.send_cq = cq}, pair);
    receive(pair[1], 4, memory + HALF, HALF, mr->lkey);
    post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = 3, .local = memory, .bytes = 64,
                                     .lkey = mr->lkey});
    for (int i = 0; i < 2; i++)
        same(completion(cq, 20000).status, IBV_WC_SUCCESS);
    same(ibv_dealloc_pd(parent), EBUSY);
    close_pair(pair);
    same(ibv_dealloc_pd(parent), EBUSY);
    same(ibv_destroy_cq(ibv_cq_ex_to_cq(in_it)), 0);
    same(ibv_dealloc_pd(parent), 0);
    same(ibv_dealloc_td(td), 0);
}

TEST(clocks)
{
    open_all();
    struct ibv_device_attr_ex a;
    same(ibv_query_device_ex(d.context, NULL, &a), 0);
    check(a.hca_core_clock && a.completion_timestamp_mask, "no clock");
    struct ibv_cq_init_attr_ex c = {
        .cqe = 10, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                               IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
    struct ibv_cq_ex *stamped = ibv_create_cq_ex(d.context, &c);
    check(stamped, "ibv_create_cq_ex: %m");
    struct ibv_modify_cq_attr moderation = {.attr_mask = IBV_CQ_ATTR_MODERATE};
    same(ibv_modify_cq(ibv_cq_ex_to_cq(stamped), &moderation), 0);
    struct ibv_qp *pair[2];
    qp_pair(&d, (struct queue_options){.send_cq = ibv_cq_ex_to_cq(stamped)}, pair);
    struct ibv_values_ex before = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK}, after = before;
    struct timespec wall;
    for (int turn = 0; turn < 20; turn++) {
        same(ibv_query_rt_values_ex(d.context, &before), 0);
        clock_gettime(CLOCK_REALTIME, &wall);
        receive(pair[1], 4, memory + HALF, HALF, mr->lkey);
        post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = 3, .local = memory,
                                         .bytes = 64, .lkey = mr->lkey});
        for (int left = 2; left;) {
            struct ibv_poll_cq_attr none = {0};
            if (ibv_start_poll(stamped, &none))
                continue;
            same(stamped->status, IBV_WC_SUCCESS);
            same(ibv_query_rt_values_ex(d.context, &after), 0);
            uint64_t at = ibv_wc_read_completion_ts(stamped);
            uint64_t at_wall = ibv_wc_read_completion_wallclock_ns(stamped);
            check((uint64_t)before.raw_clock.tv_nsec <= at &&
                      at <= (uint64_t)after.raw_clock.tv_nsec, "a stamp out of time");
            uint64_t wall_ns = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
            check(at_wall + 60000000000ull > wall_ns && at_wall < wall_ns + 600000000000ull,
                  "another time on the wall");
            ibv_end_poll(stamped);
            left--;
        }
    }
    close_pair(pair);
    same(ibv_destroy_cq(ibv_cq_ex_to_cq(stamped)), 0);
}

TEST(shared_queues_that_grow_and_shrink)
{
    open_all();
    check(d.attributes.device_cap_flags & IBV_DEVICE_SRQ_RESIZE, "not offered");
    struct ibv_pd *other = ibv_alloc_pd(d.context);
    struct ibv_mr *theirs = ibv_reg_mr(other, memory + HALF, HALF, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_srq_init_attr a = {.attr = {.max_wr = 5, .max_sge = 2}};
    struct ibv_srq *srq = ibv_create_srq(other, &a);
    check(other && theirs && srq, "an SRQ in another PD: %m");
    struct ibv_qp *pair[2];
    qp_pair(&d, (struct queue_options){.send_cq = cq, .srq = srq}, pair);
    struct ibv_sge sge = {(uintptr_t)memory + HALF, 64, theirs->lkey};
    struct ibv_recv_wr *bad, wr = {.sg_list = &sge, .num_sge = 1};
    for (wr.wr_id = 100; wr.wr_id < 105; wr.wr_id++)
        same(ibv_post_srq_recv(srq, &wr, &bad), 0);
    same(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
    struct ibv_srq_attr size = {.max_wr = 20};
    same(ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR), 0);
    for (; wr.wr_id < 120; wr.wr_id++)
        same(ibv_post_srq_recv(srq, &wr, &bad), 0);
    same(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
    size.max_wr = 19;
    same(ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR), EINVAL);
    same(ibv_query_srq(srq, &size), 0);
    check(size.max_wr >= 20, "smaller than it is");
    for (unsigned i = 0; i < 15; i++) {
        post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = 3, .local = memory,
                                         .bytes = 64, .lkey = mr->lkey});
        for (unsigned k = 0; k < 2; k++) {
            struct ibv_wc wc = completion(cq, 20000);
            check(!wc.status && (wc.wr_id == 3 || wc.wr_id == 100 + i), "%" PRIu64 ": %s",
                  wc.wr_id, ibv_wc_status_str(wc.status));
        }
    }
    size.max_wr = 5;
    same(ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR), 0);
    same(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
    close_pair(pair);
    same(ibv_destroy_srq(srq), 0);
    same(ibv_dereg_mr(theirs), 0);
    same(ibv_dealloc_pd(other), 0);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
