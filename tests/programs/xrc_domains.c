/* Domains of XRC: who has which, and what belongs to them. What comes over connections is in
 * xrc.c. */
#include "xrc.h"

/* Another process has a part of its own, with other numbers. */
static void another_process(int socket)
{
    char path[64];
    get(socket, path, sizeof path);
    int file = open(path, O_RDONLY);
    check(file >= 0, "open: %m");
    begin();
    check(!domain(file, O_CREAT | O_EXCL), "a domain that is there already");
    same(errno, EINVAL);
    struct ibv_xrcd *xrcd = domain(file, 0);
    check(xrcd, "ibv_open_xrcd: %m");
    struct ibv_srq *srq = srq_make(xrcd, d.pd, cq_make(&d, 10));
    uint32_t number;
    same(ibv_get_srq_num(srq, &number), 0);
    put(socket, &number, sizeof number);
}

TEST(domains)
{
    char path[64] = "/tmp/omniverb-xrcd-XXXXXX";
    uint32_t ours, theirs;
    int file = mkstemp(path), socket;
    check(file >= 0, "mkstemp: %m");
    pid_t pid;
    socket = spawn(another_process, &pid);
    begin();
    errno = 0;
    check(!domain(file, 0), "a domain that nobody made");
    same(errno, EAGAIN);
    struct ibv_xrcd *one = domain(file, O_CREAT | O_EXCL), *same_one = domain(file, O_CREAT);
    check(one && same_one, "ibv_open_xrcd: %m");
    check(!domain(file, O_CREAT | O_EXCL), "made a second time");
    same(errno, EINVAL);
    struct ibv_xrcd *apart = domain(-1, O_CREAT);
    check(apart, "ibv_open_xrcd: %m");
    struct ibv_srq *srq = srq_make(one, d.pd, cq_make(&d, 10));
    same(ibv_get_srq_num(srq, &ours), 0);
    put(socket, path, sizeof path);
    get(socket, &theirs, sizeof theirs);
    check(ours != theirs, "two queues of one number");
    reap(pid);
    same(ibv_destroy_srq(srq), 0);

    struct ibv_qp *qp = receiver_make(one), *again = opened(same_one, qp->qp_num);
    check(again && again->qp_num == qp->qp_num && again->qp_context == &d, "ibv_open_qp: %m");
    check(!opened(apart, qp->qp_num), "a queue pair of another domain");
    same(errno, EINVAL);
    check(!opened(one, qp->qp_num + 1), "no queue pair at all");
    same(ibv_close_xrcd(one), EBUSY);
    qp_init(&d, again, ALL_ACCESS);
    same(qp_state(qp), IBV_QPS_INIT);
    same(ibv_destroy_qp(qp), 0);
    same(ibv_close_xrcd(one), 0);
    same(qp_state(again), IBV_QPS_INIT);
    uint32_t number = again->qp_num;
    same(ibv_destroy_qp(again), 0);
    check(!opened(same_one, number), "destroyed");
    same(ibv_close_xrcd(same_one), 0);
    same(ibv_close_xrcd(apart), 0);
    same(unlink(path), 0);
}

/* A forked child has a part of its own: none of its parent's queues, and its queue pair as any
 * process. */
TEST(forked)
{
    FILE *file = tmpfile();
    check(file, "tmpfile: %m");
    begin();
    struct ibv_xrcd *xrcd = domain(fileno(file), O_CREAT | O_EXCL);
    check(xrcd, "ibv_open_xrcd: %m");
    struct ibv_cq *queue = cq_make(&d, 10);
    struct ibv_qp *qp = receiver_make(xrcd);
    uint32_t numbers[2], theirs;
    same(ibv_get_srq_num(srq_make(xrcd, d.pd, queue), &numbers[0]), 0);
    int ends[2];
    check(!pipe(ends), "pipe: %m");
    fflush(NULL);
    pid_t pid = fork();
    check(pid >= 0, "fork: %m");
    if (!pid) {
        begin();
        check(!domain(fileno(file), O_CREAT | O_EXCL), "the parent's domain");
        same(errno, EINVAL);
        xrcd = domain(fileno(file), 0);
        check(xrcd, "ibv_open_xrcd: %m");
        check(opened(xrcd, qp->qp_num), "the parent's queue pair: %m");
        same(ibv_get_srq_num(srq_make(xrcd, d.pd, cq_make(&d, 10)), &theirs), 0);
        check(write(ends[1], &theirs, sizeof theirs) == sizeof theirs, "write: %m");
        _exit(0);
    }
    close(ends[1]);
    check(read(ends[0], &theirs, sizeof theirs) == sizeof theirs, "the child failed");
    reap(pid);
    same(ibv_get_srq_num(srq_make(xrcd, d.pd, queue), &numbers[1]), 0);
    check(theirs != numbers[0] && theirs != numbers[1], "two queues of one number");
}

/* Of those who make a domain at the same moment, and nobody else's, one does. */
TEST(one_is_first)
{
    enum { PROCESSES = 3, FILES = 20 };
    FILE *files[FILES];
    pid_t pids[PROCESSES];
    int go[2], made[2], over[2];
    check(!pipe(go) && !pipe(made) && !pipe(over), "pipe: %m");
    for (int f = 0; f < FILES; f++)
        check(files[f] = tmpfile(), "tmpfile: %m");
    fflush(NULL);
    for (int p = 0; p < PROCESSES; p++) {
        pids[p] = fork();
        check(pids[p] >= 0, "fork: %m");
        if (pids[p])
            continue;
        begin();
        char first[FILES], c;
        check(read(go[0], &c, 1) == 1, "read: %m");
        for (int f = 0; f < FILES; f++)
            first[f] = domain(fileno(files[f]), O_CREAT | O_EXCL) != NULL;
        check(write(made[1], first, FILES) == FILES, "write: %m");
        /* What it has it has until all have tried. */
        close(over[1]);
        same(read(over[0], &c, 1), 0);
        _exit(0);
    }
    check(write(go[1], "ooo", PROCESSES) == PROCESSES, "write: %m");
    close(made[1]);
    int firsts[FILES] = {0};
    for (int p = 0; p < PROCESSES; p++) {
        char first[FILES];
        check(read(made[0], first, FILES) == FILES, "a process failed");
        for (int f = 0; f < FILES; f++)
            firsts[f] += first[f];
    }
    close(over[1]);
    for (int f = 0; f < FILES; f++)
        same(firsts[f], 1);
    for (int p = 0; p < PROCESSES; p++)
        reap(pids[p]);
}

/* What it has not: receives and requests of its own, a number of a basic SRQ. */
TEST(what_it_is_not)
{
    begin();
    struct ibv_xrcd *xrcd = domain(-1, O_CREAT);
    struct ibv_qp *qp = receiver_make(xrcd);
    struct ibv_recv_wr receive = {0}, *bad_receive;
    same(ibv_post_recv(qp, &receive, &bad_receive), EINVAL);
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
    same(ibv_post_send(qp, &send, &bad_send), EINVAL);
    struct ibv_srq_init_attr basic = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(d.pd, &basic);
    uint32_t number;
    same(ibv_get_srq_num(srq, &number), EOPNOTSUPP);
    struct ibv_cq *queue = cq_make(&d, 10);
    for (int type = IBV_QPT_RC; type <= IBV_QPT_UD; type++) {
        struct ibv_qp_init_attr plain = {.qp_type = type, .send_cq = queue, .recv_cq = queue,
                                         .srq = srq_make(xrcd, d.pd, queue)};
        errno = 0;
        check(!ibv_create_qp(d.pd, &plain), "an SRQ for XRC");
        same(errno, EINVAL);
    }
    struct ibv_qp_init_attr without = {.qp_type = IBV_QPT_XRC_RECV};
    check(!ibv_create_qp(d.pd, &without), "one that receives without a domain");
    same(errno, EINVAL);
    struct ibv_xrcd_init_attr half = {.comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1};
    check(!ibv_open_xrcd(d.context, &half), "without flags");
    same(errno, EINVAL);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
