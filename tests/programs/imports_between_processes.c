/* Objects of a context that another process imports by a duplicate of its cmd_fd: that one sends
 * from, receives, reads and has written the memory of the first. */
#include "importer_process.h"

/* ---- all operations, between an importer and a peer, which may be on another host ---- */

enum { SENT = 0, RECEIVED = 8192, READ = 16384, WRITTEN = 28000, COUNTER = 36004, SPARE = 50000 };

static void peer_of_importer(int socket)
{
    struct side s = opened();
    struct ibv_qp *qp = qp_make(&s.d, (struct queue_options){.send_cq = s.cq});
    struct address ours = qp_address(&s.d, qp, s.mr), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&s.d, qp, theirs);
    receive(qp, 1, s.memory, 4096, s.mr->lkey);
    fill(s.memory + READ, 9000, 3);
    meet(socket);
    expect(s.cq, 1, IBV_WC_SUCCESS);
    same(unfilled(s.memory, 4096, 1), -1);
    fill(s.memory, 5000, 2);
    post(qp, (struct operation){.opcode = IBV_WR_SEND, .id = 2, .local = s.memory, .bytes = 5000,
                                .lkey = s.mr->lkey});
    expect(s.cq, 2, IBV_WC_SUCCESS);
    fill(s.memory, 3000, 4);
    for (int i = 0; i < 100; i++) {
        post(qp, (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = 3, .local = s.memory,
                                    .bytes = 3000, .lkey = s.mr->lkey,
                                    .remote = theirs.memory + WRITTEN, .rkey = theirs.rkey});
        expect(s.cq, 3, IBV_WC_SUCCESS);
    }
    post(qp, (struct operation){.opcode = IBV_WR_RDMA_READ, .id = 4, .local = s.memory,
                                .bytes = 4096, .lkey = s.mr->lkey,
                                .remote = theirs.memory + SENT, .rkey = theirs.rkey});
    expect(s.cq, 4, IBV_WC_SUCCESS);
    same(unfilled(s.memory, 4096, 1), -1);
    for (int i = 0; i < 10; i++) {
        post(qp, (struct operation){.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .id = 5,
                                    .local = s.memory, .bytes = 8, .lkey = s.mr->lkey,
                                    .remote = theirs.memory + COUNTER, .rkey = theirs.rkey,
                                    .compare_or_add = 7});
        expect(s.cq, 5, IBV_WC_SUCCESS);
    }
    post(qp, (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = 6, .local = s.memory,
                                .bytes = 64, .lkey = s.mr->lkey,
                                .remote = theirs.memory + LENGTH - 63, .rkey = theirs.rkey});
    expect(s.cq, 6, IBV_WC_REM_ACCESS_ERR);
    meet(socket);
    same(unfilled(s.memory + SPARE, 4096, 1), -1);
    meet(socket);
}

static void importer(int socket)
{
    struct side own = opened();
    struct taken t = take(socket, &own);
    struct ibv_qp *qp = qp_make(&t.d, (struct queue_options){.send_cq = t.cq});
    struct address ours = qp_address(&own.d, qp, t.mr), theirs;
    ours.memory = t.offer.address;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&own.d, qp, theirs);
    receive(qp, 2, t.at + RECEIVED, 5000, t.mr->lkey);
    meet(socket);
    struct operation o = {.opcode = IBV_WR_SEND, .id = 1, .local = t.at + SENT, .bytes = 4096,
                          .lkey = t.mr->lkey};
    post(qp, o);
    for (int i = 0; i < 2; i++)
        same(completion(t.cq, 20000).status, IBV_WC_SUCCESS);
    post(qp, (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = 3, .local = t.at + SENT,
                                .bytes = 4096, .lkey = t.mr->lkey,
                                .remote = theirs.memory + SPARE, .rkey = theirs.rkey});
    expect(t.cq, 3, IBV_WC_SUCCESS);
    post(qp, (struct operation){.opcode = IBV_WR_RDMA_READ, .id = 4, .local = t.at + READ,
                                .bytes = 9000, .lkey = t.mr->lkey,
                                .remote = theirs.memory + READ, .rkey = theirs.rkey});
    expect(t.cq, 4, IBV_WC_SUCCESS);
    meet(socket);
    meet(socket); /* the peer has done its part, too */
    same(ibv_destroy_qp(qp), 0);
    leave(&t);
}

TEST(all_operations)
{
    pid_t child[2];
    int socket = beside(importer, &child[0]), peer = spawn(peer_of_importer, &child[1]);
    struct side s = opened();
    struct ibv_mr *mr = middle(&s);
    char *at = s.memory + BEGIN;
    fill(at + SENT, 4096, 1);
    memset(at + COUNTER, 0, 8);
    give(socket, &s, mr);
    struct address one, other;
    get(socket, &one, sizeof one);
    get(peer, &other, sizeof other);
    put(socket, &other, sizeof other);
    put(peer, &one, sizeof one);
    meet(socket);
    meet(peer);
    meet(socket); /* the importer has done its part */
    meet(peer);
    meet(socket);
    meet(peer);
    same(unfilled(at + RECEIVED, 5000, 2), -1);
    same(unfilled(at + READ, 9000, 3), -1);
    same(unfilled(at + WRITTEN, 3000, 4), -1);
    uint64_t counter;
    memcpy(&counter, at + COUNTER, 8);
    same(counter, 70);
    for (int i = 0; i < BEGIN; i++)
        same(s.memory[i], CANARY);
    for (int i = BEGIN + LENGTH; i < BYTES; i++)
        same(s.memory[i], CANARY);
    reap(child[0]);
    reap(child[1]);
    same(ibv_dereg_mr(mr), 0);
}

/* ---- ends ---- */

TEST(deregistered_by_the_owner)
{
    pid_t child;
    int socket = beside(sees_the_end, &child);
    struct side s = opened();
    struct ibv_mr *mr = middle(&s);
    fill(mr->addr, 4096, 1);
    give(socket, &s, mr);
    meet(socket);
    same(ibv_dereg_mr(mr), 0);
    memset(s.memory, CANARY, BYTES);
    meet(socket);
    reap(child);
    for (int i = 0; i < BYTES; i++)
        same(s.memory[i], CANARY);
}

static void destroys(int socket)
{
    struct side own = opened();
    struct taken t = take(socket, &own);
    struct ibv_qp *pair[2];
    pair_of(&t, &own, pair);
    same(ibv_dealloc_pd(t.d.pd), EBUSY); /* it has a queue pair of ours */
    same(ibv_destroy_qp(pair[0]), 0);
    same(ibv_dealloc_pd(t.d.pd), EBUSY); /* it has a region of the owner's */
    same(ibv_dereg_mr(t.mr), 0);
    meet(socket);
    meet(socket);
    same(ibv_dealloc_pd(t.d.pd), 0);
    same(ibv_close_device(t.d.context), 0);
}

TEST(destroyed_by_the_importer)
{
    pid_t child;
    int socket = beside(destroys, &child);
    struct side s = opened();
    same(ibv_dereg_mr(s.mr), 0);
    struct ibv_mr *mr = middle(&s);
    give(socket, &s, mr);
    meet(socket);
    same(ibv_dereg_mr(mr), ENOENT);
    ibv_unimport_mr(mr);
    meet(socket);
    reap(child);
    same(ibv_dealloc_pd(s.d.pd), ENOENT);
    ibv_unimport_pd(s.d.pd);
    same(ibv_destroy_cq(s.cq), 0);
    same(ibv_close_device(s.d.context), 0);
}

static void owner_to_be_killed(int socket)
{
    struct side s = opened();
    struct ibv_mr *mr = middle(&s);
    fill(mr->addr, 4096, 1);
    give(socket, &s, mr);
    pause();
}

/* What was imported stays, as on a kernel's device, and nothing more comes. */
TEST(owner_killed)
{
    pid_t child;
    int socket = beside(owner_to_be_killed, &child), status;
    struct side own = opened();
    struct taken t = take(socket, &own);
    once(&t, &own, 0, sending(&t, IBV_WR_RDMA_WRITE, &own), IBV_WC_SUCCESS);
    same(kill(child, SIGKILL), 0);
    same(waitpid(child, &status, 0), child);
    memset(own.memory, 0, 4096);
    once(&t, &own, 0, sending(&t, IBV_WR_RDMA_WRITE, &own), IBV_WC_SUCCESS);
    same(unfilled(own.memory, 4096, 1), -1);
    once(&t, &own, 1, reaching(&t, &own), IBV_WC_SUCCESS);
    errno = 0;
    check(!ibv_import_pd(t.d.context, t.offer.pd), "imported of the dead");
    same(errno, EIO);
    same(ibv_dereg_mr(t.mr), 0);
    same(ibv_dealloc_pd(t.d.pd), 0);
    int again = dup(t.d.context->cmd_fd);
    same(ibv_destroy_cq(t.cq), 0);
    same(ibv_close_device(t.d.context), 0);
    errno = 0;
    check(!ibv_import_device(again), "a device of the dead");
    same(errno, EOPNOTSUPP);
    close(again);
}

static void importer_to_be_killed(int socket)
{
    struct side own = opened();
    struct taken t = take(socket, &own);
    once(&t, &own, 1, reaching(&t, &own), IBV_WC_SUCCESS);
    meet(socket);
    pause();
}

static int open_files(void)
{
    int count = 0;
    for (int i = 0; i < 1024; i++)
        count += fcntl(i, F_GETFD) >= 0;
    return count;
}

TEST(importer_killed)
{
    struct side s = {0};
    struct ibv_mr *mr = NULL;
    int files = 0;
    for (int turn = 0; turn < 3; turn++) {
        pid_t child;
        int socket = beside(importer_to_be_killed, &child), status;
        if (!turn) {
            s = opened();
            mr = middle(&s);
        }
        give(socket, &s, mr);
        meet(socket);
        check(lines_with("/proc/self/maps", "omniverb-mr"), "the pages are where they were");
        same(kill(child, SIGKILL), 0);
        same(waitpid(child, &status, 0), child);
        close(socket);
        uint64_t late = now_ns() + 20000000000u;
        while (lines_with("/proc/self/maps", "omniverb-mr") || (turn && open_files() > files)) {
            check(now_ns() < late, "pages or descriptors are not given back");
            sleep_ms(1);
        }
        files = turn ? files : open_files();
    }
    same(ibv_dereg_mr(mr), 0);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
