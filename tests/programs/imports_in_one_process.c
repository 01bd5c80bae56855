/* Objects that are imported by a duplicate of a context's cmd_fd within a process, where they are
 * the same. Those of another process: imports_between_processes.c. */
#include "uncommon_verbs.h"

#include <fcntl.h>
#include <pthread.h>

static struct ibv_context *imported_context(void)
{
    struct ibv_context *context = ibv_import_device(dup(d.context->cmd_fd));
    check(context, "ibv_import_device: %m");
    check(context != d.context && context->device == d.context->device, "another device");
    return context;
}

static struct ibv_qp *qp_of(struct ibv_context *context, struct ibv_pd *pd)
{
    struct device of = d;
    of.context = context, of.pd = pd;
    return qp_make(&of, (struct queue_options){.send_cq = cq});
}

/* A queue pair of the imported PD reaches by the keys of the imported region what it is of. */
TEST(domain_and_region)
{
    open_all();
    struct ibv_context *context = imported_context();
    struct ibv_pd *pd = ibv_import_pd(context, d.pd->handle);
    check(pd && pd->context == context && pd->handle == d.pd->handle, "ibv_import_pd: %m");
    struct ibv_mr *again = ibv_import_mr(pd, mr->handle);
    check(again && again->pd == pd && again->context == context, "ibv_import_mr: %m");
    check(!again->addr && again->length == BYTES, "what there is of it");
    check(again->lkey == mr->lkey && again->rkey == mr->rkey, "its keys");
    struct ibv_qp *pair[2] = {qp_of(context, pd), qp_of(d.context, d.pd)};
    for (int i = 0; i < 2; i++)
        qp_connect(&d, pair[i], qp_address(&d, pair[!i], NULL));
    struct operation o = {.opcode = IBV_WR_RDMA_WRITE, .id = 3, .local = memory, .bytes = 4096,
                          .lkey = again->lkey, .remote = (uintptr_t)memory + HALF,
                          .rkey = again->rkey};
    for (int from = 0; from < 2; from++) {
        fill(memory, 4096, 5 + (uint64_t)from);
        post(pair[from], o);
        expect(cq, 3, IBV_WC_SUCCESS);
        same(unfilled(memory + HALF, 4096, 5 + (uint64_t)from), -1);
    }
    /* As programs do it: given up before what was made with it. */
    ibv_unimport_mr(again);
    ibv_unimport_pd(pd);
    fill(memory, 4096, 8);
    post(pair[0], o);
    expect(cq, 3, IBV_WC_SUCCESS);
    same(unfilled(memory + HALF, 4096, 8), -1);
    close_pair(pair);
    same(ibv_close_device(context), 0);
    write_to((uintptr_t)memory + HALF, mr->rkey, 64, IBV_WC_SUCCESS);
}

/* A PD that only a queue pair of an import is in. */
TEST(domain_in_use)
{
    open_all();
    struct ibv_context *context = imported_context();
    struct ibv_pd *own = ibv_alloc_pd(d.context), *pd = ibv_import_pd(context, own->handle);
    check(pd, "ibv_import_pd: %m");
    struct ibv_qp *qp = qp_of(context, pd);
    ibv_unimport_pd(pd);
    same(ibv_dealloc_pd(own), EBUSY);
    same(ibv_destroy_qp(qp), 0);
    same(ibv_dealloc_pd(own), 0);
    same(ibv_close_device(context), 0);
}

/* Whoever destroys an object destroys it for all. */
TEST(destroyed_by_who_imported)
{
    open_all();
    struct ibv_context *context = imported_context();
    struct ibv_pd *ours = ibv_alloc_pd(context), *theirs = ibv_import_pd(d.context, ours->handle);
    check(theirs, "ibv_import_pd of what an imported context made: %m");
    struct ibv_mr *m = ibv_reg_mr(ours, memory, BYTES, ALL_ACCESS);
    struct ibv_mr *same_m = ibv_import_mr(theirs, m->handle);
    check(m && same_m, "ibv_import_mr: %m");
    same(ibv_dealloc_pd(ours), EBUSY);
    same(ibv_dealloc_pd(theirs), EBUSY);
    uint32_t handle = m->handle, pd_handle = ours->handle;
    same(ibv_dereg_mr(same_m), 0);
    same(ibv_dereg_mr(m), ENOENT);
    errno = 0;
    check(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS), "it lives again");
    same(errno, ENOENT);
    check(ibv_rereg_mr(m, IBV_REREG_MR_CHANGE_PD, d.pd, NULL, 0, 0), "it lives again");
    write_to((uintptr_t)memory, m->rkey, 64, IBV_WC_REM_ACCESS_ERR);
    ibv_unimport_mr(m);
    errno = 0;
    check(!ibv_import_mr(ours, handle), "imported after its end");
    same(errno, ENOENT);
    same(ibv_dealloc_pd(theirs), 0);
    same(ibv_dealloc_pd(ours), ENOENT);
    ibv_unimport_pd(ours);
    errno = 0;
    check(!ibv_import_pd(context, pd_handle), "imported after its end");
    same(errno, ENOENT);
    same(ibv_close_device(context), 0);
}

TEST(device_memory)
{
    open_all();
    struct ibv_context *context = imported_context();
    struct ibv_alloc_dm_attr some = {.length = 8192};
    struct ibv_dm *dm = ibv_alloc_dm(d.context, &some), *again;
    check(dm, "ibv_alloc_dm: %m");
    again = ibv_import_dm(context, dm->handle);
    check(again && again->handle == dm->handle && again->context == context, "ibv_import_dm: %m");
    char copy[4096];
    fill(copy, 4096, 9);
    same(ibv_memcpy_to_dm(dm, 4096, copy, 4096), 0);
    memset(copy, 0, sizeof copy);
    same(ibv_memcpy_from_dm(copy, again, 4096, 4096), 0);
    same(unfilled(copy, 4096, 9), -1);
    struct ibv_pd *pd = ibv_import_pd(context, d.pd->handle);
    unsigned access = IBV_ACCESS_ZERO_BASED | ALL_ACCESS;
    struct ibv_mr *m = ibv_reg_dm_mr(pd, again, 0, 8192, access);
    check(m, "ibv_reg_dm_mr: %m");
    same(ibv_free_dm(dm), EBUSY);
    fill(memory, 4096, 21);
    write_to(0, m->rkey, 4096, IBV_WC_SUCCESS);
    same(ibv_memcpy_from_dm(copy, dm, 0, 4096), 0);
    same(unfilled(copy, 4096, 21), -1);
    same(ibv_dereg_mr(m), 0);
    ibv_unimport_dm(again);
    same(ibv_free_dm(dm), 0);
    ibv_unimport_pd(pd);
    errno = 0;
    check(!ibv_import_dm(context, 0), "a handle of nothing");
    same(errno, ENOENT);
    same(ibv_close_device(context), 0);
}

/* What another context made has no handle here. */
TEST(other_families)
{
    open_all();
    struct ibv_context *other = ibv_open_device(d.context->device);
    check(other, "ibv_open_device: %m");
    errno = 0;
    check(!ibv_import_pd(other, d.pd->handle), "a PD of another context");
    same(errno, ENOENT);
    struct ibv_pd *pd = ibv_alloc_pd(other);
    errno = 0;
    check(!ibv_import_mr(pd, mr->handle), "a region of another context");
    same(errno, ENOENT);
    same(ibv_dealloc_pd(pd), 0);
    int kept = dup(other->cmd_fd);
    same(ibv_close_device(other), 0);
    int wrong[3] = {-1, STDIN_FILENO, open("/dev/null", O_RDWR)};
    for (int i = 0; i < 3; i++) {
        errno = 0;
        check(!ibv_import_device(wrong[i]), "no context at all");
        same(errno, EINVAL);
    }
    check(!ibv_import_device(kept), "a context that is closed");
    same(errno, EOPNOTSUPP);
    check(fcntl(kept, F_GETFD) >= 0 && fcntl(wrong[2], F_GETFD) >= 0,
          "a descriptor that was not taken is closed");
    close(kept);
    close(wrong[2]);
}

/* What a child inherits by is the descriptor alone. */
TEST(forked_child)
{
    open_all();
    pid_t child = fork();
    if (!child) {
        struct ibv_context *context = ibv_import_device(dup(d.context->cmd_fd));
        check(context, "ibv_import_device: %m");
        struct ibv_pd *pd = ibv_import_pd(context, d.pd->handle);
        struct ibv_mr *again = pd ? ibv_import_mr(pd, mr->handle) : NULL;
        check(again && again->rkey == mr->rkey && again->length == BYTES, "the parent's: %m");
        _exit(0);
    }
    reap(child);
}

static void *registers(void *end)
{
    while (!__atomic_load_n((bool *)end, __ATOMIC_RELAXED))
        same(ibv_dereg_mr(mr_make(&d, memory, 4096, IBV_ACCESS_LOCAL_WRITE)), 0);
    return NULL;
}

/* A child destroys its copies, whatever another thread did at the moment of the fork. */
TEST(destroyed_in_children)
{
    open_all();
    struct ibv_pd *pd = ibv_alloc_pd(d.context);
    struct ibv_mr *m = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
    check(m, "ibv_reg_mr: %m");
    bool end = false;
    pthread_t thread;
    same(pthread_create(&thread, NULL, registers, &end), 0);
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (!child) {
            alarm(30);
            _exit(ibv_dereg_mr(m) || ibv_dealloc_pd(pd));
        }
        reap(child);
    }
    __atomic_store_n(&end, true, __ATOMIC_RELAXED);
    same(pthread_join(thread, NULL), 0);
    same(ibv_dereg_mr(m), 0);
    same(ibv_dealloc_pd(pd), 0);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
