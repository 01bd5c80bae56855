/* The pages of what is imported: shared by regions, granted before, of device memory, of a file. */
#include "importer_process.h"

static void two_of_a_page(int socket)
{
    struct side own = opened();
    struct taken one = take(socket, &own), other = take(socket, &own);
    check(one.mr->lkey != other.mr->lkey, "one key for two regions");
    struct operation small = {.opcode = IBV_WR_RDMA_READ, .id = 3, .bytes = 1000,
                              .remote = (uintptr_t)own.memory, .rkey = own.mr->rkey};
    for (int turn = 0; turn < 2; turn++) {
        fill(own.memory, 1000, 10 + (uint64_t)turn);
        small.local = other.at, small.lkey = other.mr->lkey;
        once(&other, &own, 0, small, IBV_WC_SUCCESS);
        if (!turn) {
            fill(own.memory, 1000, 20);
            small.local = one.at, small.lkey = one.mr->lkey;
            once(&one, &own, 0, small, IBV_WC_SUCCESS);
            meet(socket);
            meet(socket);
        }
    }
    leave(&other);
    meet(socket);
}

TEST(regions_in_one_page)
{
    pid_t child;
    int socket = beside(two_of_a_page, &child);
    struct side s = opened();
    struct ibv_mr *one = mr_make(&s.d, s.memory + 8192 + 40, 1000, ALL_ACCESS);
    struct ibv_mr *other = mr_make(&s.d, s.memory + 8192 + 1040, 20000, ALL_ACCESS);
    give(socket, &s, one);
    give(socket, &s, other);
    meet(socket);
    same(unfilled(one->addr, 1000, 20), -1);
    same(unfilled(other->addr, 1000, 10), -1);
    same(ibv_dereg_mr(one), 0);
    meet(socket);
    meet(socket);
    same(unfilled(other->addr, 1000, 11), -1);
    reap(child);
}

static void device_memory_of_another(int socket)
{
    struct side own = opened();
    struct taken t = take(socket, &own);
    struct ibv_dm *dm = ibv_import_dm(t.d.context, t.offer.dm);
    check(dm && dm->handle == t.offer.dm, "ibv_import_dm: %m");
    char copy[4096];
    same(ibv_memcpy_from_dm(copy, dm, 4096, 4096), 0);
    same(unfilled(copy, 4096, 9), -1);
    check(ibv_memcpy_from_dm(copy, dm, 4096, 8192), "more than there is");
    /* The owner's region in it, and one of ours. */
    struct operation o = sending(&t, IBV_WR_RDMA_WRITE, &own);
    once(&t, &own, 0, o, IBV_WC_SUCCESS);
    same(unfilled(own.memory, 4096, 9), -1);
    struct ibv_mr *ours = ibv_reg_dm_mr(t.d.pd, dm, 0, 4096, IBV_ACCESS_ZERO_BASED | ALL_ACCESS);
    check(ours, "ibv_reg_dm_mr: %m");
    same(ibv_free_dm(dm), EBUSY);
    fill(own.memory, 4096, 21);
    o = reaching(&t, &own);
    o.remote = 0, o.rkey = ours->rkey;
    once(&t, &own, 1, o, IBV_WC_SUCCESS);
    same(ibv_dereg_mr(ours), 0);
    ibv_unimport_dm(dm);
    errno = 0;
    check(!ibv_import_dm(t.d.context, t.offer.dm + 1000), "a handle of nothing");
    same(errno, ENOENT);
    meet(socket);
    meet(socket);
    leave(&t);
}

TEST(device_memory)
{
    pid_t child;
    int socket = beside(device_memory_of_another, &child);
    struct side s = opened();
    struct ibv_alloc_dm_attr some = {.length = 8192};
    struct ibv_dm *dm = ibv_alloc_dm(s.d.context, &some);
    check(dm, "ibv_alloc_dm: %m");
    char copy[4096];
    fill(copy, 4096, 9);
    same(ibv_memcpy_to_dm(dm, 4096, copy, 4096), 0);
    struct ibv_mr *mr =
        ibv_reg_dm_mr(s.d.pd, dm, 4096, 4096, IBV_ACCESS_ZERO_BASED | ALL_ACCESS);
    check(mr, "ibv_reg_dm_mr: %m");
    struct offer offer = {.pd = s.d.pd->handle, .mr = mr->handle, .rkey = mr->rkey,
                          .dm = dm->handle};
    put_file(socket, s.d.context->cmd_fd);
    put(socket, &offer, sizeof offer);
    meet(socket);
    same(ibv_memcpy_from_dm(copy, dm, 0, 4096), 0);
    same(unfilled(copy, 4096, 21), -1);
    same(ibv_dereg_mr(mr), 0);
    same(ibv_free_dm(dm), 0);
    meet(socket);
    reap(child);
}

static void cannot_have(int socket)
{
    struct side own = opened();
    struct offer offer;
    int file = get_file(socket);
    get(socket, &offer, sizeof offer);
    struct ibv_context *context = ibv_import_device(file);
    check(context, "ibv_import_device: %m");
    struct ibv_pd *pd = ibv_import_pd(context, offer.pd);
    check(pd, "ibv_import_pd: %m");
    errno = 0;
    check(!ibv_import_mr(pd, offer.mr), "a file's pages, in place");
    same(errno, EOPNOTSUPP);
    errno = 0;
    check(!ibv_import_mr(pd, 0x12345), "a handle of nothing");
    same(errno, ENOENT);
    errno = 0;
    check(!ibv_import_pd(context, 0x12345), "a handle of nothing");
    same(errno, ENOENT);
    ibv_unimport_pd(pd);
    same(ibv_close_device(context), 0);
    same(ibv_dereg_mr(own.mr), 0);
}

TEST(memory_of_a_file)
{
    pid_t child;
    int socket = beside(cannot_have, &child);
    struct side s = opened();
    int file = memfd_create("shared", MFD_CLOEXEC);
    same(ftruncate(file, BYTES), 0);
    void *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(at != MAP_FAILED, "mmap: %m");
    struct ibv_mr *mr = mr_make(&s.d, at, BYTES, ALL_ACCESS);
    give(socket, &s, mr);
    reap(child);
    same(ibv_dereg_mr(mr), 0);
}

static void write_one(struct side *s, struct ibv_qp *qp, struct ibv_mr *mr)
{
    post(qp, (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = 3, .bytes = 4096,
                                .local = s->memory + BYTES - 4096, .lkey = s->mr->lkey,
                                .remote = (uintptr_t)mr->addr + 8192, .rkey = mr->rkey});
    expect(s->cq, 3, IBV_WC_SUCCESS);
}

/* Whether a page of ours is on a file. */
static bool is_moved(const char *at)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    check(maps, "/proc/self/maps: %m");
    char line[512];
    bool found = false;
    while (fgets(line, sizeof line, maps)) {
        uintptr_t start, end;
        same(sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &start, &end), 2);
        if (start <= (uintptr_t)at && (uintptr_t)at < end)
            found = strstr(line, "omniverb-mr");
    }
    fclose(maps);
    return found;
}

/* Pages of the region were granted to a peer, which goes on. */
TEST(granted_before)
{
    pid_t child;
    int socket = beside(sees_the_end, &child);
    struct side s = opened();
    struct ibv_mr *mr = middle(&s);
    struct ibv_qp *pair[2];
    qp_pair(&s.d, (struct queue_options){.send_cq = s.cq}, pair);
    fill(mr->addr, 4096, 1);
    uint64_t late = now_ns() + 20000000000u;
    while (!is_moved((char *)mr->addr + 8192)) {
        check(now_ns() < late, "nothing is granted");
        for (int i = 0; i < 100; i++)
            write_one(&s, pair[0], mr);
    }
    give(socket, &s, mr);
    meet(socket);
    for (int i = 0; i < 2000; i++)
        write_one(&s, pair[0], mr);
    same(ibv_dereg_mr(mr), 0);
    meet(socket);
    reap(child);
}

enum { MANY = 320, INSIDE = 8192 + 40 };

static void has_one_inside(int socket)
{
    struct side own = opened();
    struct taken all = take(socket, &own), inside = take(socket, &own);
    once(&inside, &own, 0, sending(&inside, IBV_WR_RDMA_WRITE, &own), IBV_WC_SUCCESS);
    meet(socket);
    meet(socket); /* the one around it is deregistered */
    once(&all, &own, 0, sending(&all, IBV_WR_RDMA_WRITE, &own), IBV_WC_LOC_PROT_ERR);
    once(&inside, &own, 0, sending(&inside, IBV_WR_RDMA_WRITE, &own), IBV_WC_LOC_PROT_ERR);
    ibv_unimport_mr(inside.mr);
    inside.mr = ibv_import_mr(inside.d.pd, inside.offer.mr);
    check(inside.mr, "ibv_import_mr anew: %m");
    once(&inside, &own, 0, sending(&inside, IBV_WR_RDMA_WRITE, &own), IBV_WC_SUCCESS);
    same(unfilled(own.memory, 4096, 2), -1);
    meet(socket);
    leave(&inside);
    leave(&all);
}

/* What ends takes its pages back, also where somebody has imported a part of it. */
TEST(region_inside_another)
{
    pid_t child;
    int socket = beside(has_one_inside, &child);
    struct side s = opened();
    struct ibv_mr *mr = middle(&s);
    struct ibv_mr *inside = mr_make(&s.d, s.memory + INSIDE, 5000, ALL_ACCESS);
    give(socket, &s, mr);
    give(socket, &s, inside);
    meet(socket);
    same(ibv_dereg_mr(mr), 0);
    same(lines_with("/proc/self/maps", "omniverb-mr"), 0);
    fill(inside->addr, 4096, 2);
    meet(socket);
    meet(socket);
    reap(child);
    all_are_back();
}

static void owns_many(int socket)
{
    struct side s = opened();
    uint64_t each = argument(0, 200);
    char *memory = aligned_alloc(4096, MANY * 4096);
    uint32_t handles[MANY];
    check(each <= 4096, "%" PRIu64 " bytes", each);
    for (uint64_t i = 0; i < MANY; i++)
        handles[i] = mr_make(&s.d, memory + i * each, each, ALL_ACCESS)->handle;
    give(socket, &s, s.mr);
    put(socket, handles, sizeof handles);
    meet(socket); /* they are given up */
    all_are_back();
    meet(socket);
}

/* More is given up at once than a socket takes: its owner does not run. The regions lie many in a
 * page, whose moves are what takes time; with 4096 bytes each has its own. */
TEST(many_given_up)
{
    pid_t child;
    int socket = beside(owns_many, &child), status;
    struct side own = opened();
    struct taken t = take(socket, &own);
    uint32_t handles[MANY];
    struct ibv_mr *mr[MANY];
    get(socket, handles, sizeof handles);
    for (int i = 0; i < MANY; i++) {
        mr[i] = ibv_import_mr(t.d.pd, handles[i]);
        check(mr[i], "ibv_import_mr %d: %m", i);
    }
    same(kill(child, SIGSTOP), 0);
    same(waitpid(child, &status, WUNTRACED), child);
    check(WIFSTOPPED(status), "it ends by itself");
    for (int i = 0; i < MANY; i++)
        ibv_unimport_mr(mr[i]);
    ibv_unimport_mr(t.mr);
    same(kill(child, SIGCONT), 0);
    meet(socket);
    meet(socket);
    ibv_unimport_pd(t.d.pd);
    same(ibv_destroy_cq(t.cq), 0);
    same(ibv_close_device(t.d.context), 0);
    reap(child);
}

static void keeps_device_memory(int socket)
{
    struct side own = opened();
    struct taken t = take(socket, &own);
    struct ibv_dm *dm = ibv_import_dm(t.d.context, t.offer.dm);
    check(dm, "ibv_import_dm: %m");
    meet(socket);
    meet(socket); /* the context is closed */
    char bytes[4096];
    memset(bytes, 7, sizeof bytes);
    same(ibv_memcpy_to_dm(dm, 0, bytes, sizeof bytes), 0);
    meet(socket);
    ibv_unimport_dm(dm);
    leave(&t);
}

/* Its owner has given up the handle of device memory, and closed the context. */
TEST(device_memory_of_a_closed_context)
{
    pid_t child;
    int socket = beside(keeps_device_memory, &child);
    struct side s = opened();
    struct ibv_alloc_dm_attr some = {.length = 8192};
    struct ibv_dm *dm = ibv_alloc_dm(s.d.context, &some);
    check(dm, "ibv_alloc_dm: %m");
    struct offer offer = {.pd = s.d.pd->handle, .mr = s.mr->handle, .rkey = s.mr->rkey,
                          .dm = dm->handle};
    put_file(socket, s.d.context->cmd_fd);
    put(socket, &offer, sizeof offer);
    meet(socket);
    ibv_unimport_dm(dm);
    same(ibv_dereg_mr(s.mr), 0);
    same(ibv_dealloc_pd(s.d.pd), 0);
    same(ibv_destroy_cq(s.cq), 0);
    same(ibv_close_device(s.d.context), 0);
    same(lines_with("/proc/self/maps", "omniverb-mr"), 0);
    char *memory = aligned_alloc(4096, 8192);
    memset(memory, CANARY, 8192);
    meet(socket);
    meet(socket);
    for (int i = 0; i < 8192; i++)
        same(memory[i], CANARY);
    reap(child);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
