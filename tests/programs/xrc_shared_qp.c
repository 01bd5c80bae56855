/* A queue pair that receives in a domain, and that other processes than the one that made it have
 * open. */
#include "xrc_processes.h"

static struct answer ask_of(unsigned owner, enum what what)
{
    return ask((struct request){.what = what, .owner = owner});
}

static int open_at(unsigned owner, uint32_t number)
{
    return ask((struct request){.what = OPEN, .owner = owner, .peer.qpn = number}).error;
}

/* The connection leads to another process than that which has the sockets to the others. */
static void move_to(unsigned owner)
{
    same(ibv_destroy_qp(qp), 0);
    ask_of(0, LEAVE);
    struct ibv_qp_init_attr_ex a = {.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .pd = d.pd,
                                    .cap = {.max_send_wr = 64, .max_send_sge = 4},
                                    .comp_mask = IBV_QP_INIT_ATTR_PD};
    qp = ibv_create_qp_ex(d.context, &a);
    check(qp, "ibv_create_qp_ex: %m");
    struct address here = qp_address(&d, qp, NULL);
    struct request r = {.what = CONNECT, .owner = owner, .peer = here};
    connected = ask(r).here;
    qp_connect(&d, qp, connected);
}

static void all_work(void)
{
    for (unsigned owner = 0; owner < OWNERS; owner++)
        works(owner);
}

/* The other end is gone, or in ERR: what is sent fails. */
static void fails(unsigned owner)
{
    xrc_post(operation(IBV_WR_SEND, owner, 8), numbers[owner]);
    struct ibv_wc wc = completion(cq, 5000);
    check(wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR, "%s",
          ibv_wc_status_str(wc.status));
}

TEST(no_such_number)
{
    all();
    same(open_at(1, connected.qpn + 1), EINVAL);
    /* The sender's, which is no process's of the domain. */
    same(open_at(2, qp->qp_num), EINVAL);
    same(open_at(0, connected.qpn + 1), EINVAL);
    end();
}

/* A process that has opened the domain, and has nothing in it, says so. */
TEST(nothing_there)
{
    FILE *file = tmpfile();
    int here[2], over[2];
    char byte = 0;
    check(file && !pipe(here) && !pipe(over), "tmpfile: %m");
    fflush(NULL);
    pid_t pid = fork();
    check(pid >= 0, "fork: %m");
    if (!pid) {
        close(over[1]);
        begin();
        check(domain(fileno(file), O_CREAT), "ibv_open_xrcd: %m");
        check(write(here[1], &byte, 1) == 1, "write: %m");
        same(read(over[0], &byte, 1), 0);
        _exit(0);
    }
    close(here[1]);
    check(read(here[0], &byte, 1) == 1, "the child failed");
    begin();
    xrcd = domain(fileno(file), 0);
    check(xrcd, "ibv_open_xrcd: %m");
    check(!opened(xrcd, 0x123456), "a queue pair");
    same(errno, EINVAL);
    close(over[1]);
    reap(pid);
}

/* Whoever has it open sees the same. */
TEST(attributes)
{
    all();
    struct ibv_qp_attr known = ask_of(0, STATE).known;
    same(known.dest_qp_num, qp->qp_num);
    for (unsigned owner = 1; owner < OWNERS; owner++) {
        same(open_at(owner, connected.qpn), 0);
        struct ibv_qp_attr seen = ask_of(owner, STATE).known;
        same(seen.qp_state, IBV_QPS_RTS);
        same(seen.cur_qp_state, known.cur_qp_state);
        same(seen.path_mtu, known.path_mtu);
        same(seen.rq_psn, known.rq_psn);
        same(seen.dest_qp_num, known.dest_qp_num);
        same(seen.qp_access_flags, known.qp_access_flags);
        same(seen.max_dest_rd_atomic, known.max_dest_rd_atomic);
        same(seen.min_rnr_timer, known.min_rnr_timer);
        same(seen.timeout, known.timeout);
        same(seen.port_num, known.port_num);
        same(seen.cap.max_send_wr, known.cap.max_send_wr);
        same(seen.ah_attr.is_global, 1);
        same(memcmp(&seen.ah_attr.grh.dgid, &known.ah_attr.grh.dgid, 16), 0);
        same(seen.ah_attr.grh.sgid_index, known.ah_attr.grh.sgid_index);
    }
    all_work();
    end();
}

/* It lives until the last one has closed it. */
TEST(last_one)
{
    all();
    same(open_at(1, connected.qpn), 0);
    same(open_at(2, connected.qpn), 0);
    ask_of(0, LEAVE);
    all_work();
    ask_of(1, LEAVE);
    all_work();
    same(ask_of(2, STATE).state, IBV_QPS_RTS);
    /* Found by who made it, and by others, who do not have it any more. */
    same(open_at(0, connected.qpn), 0);
    same(open_at(1, connected.qpn), 0);
    ask_of(2, LEAVE);
    ask_of(0, LEAVE);
    all_work();
    ask_of(1, NO_EVENT);
    ask_of(1, LEAVE);
    fails(0);
    same(open_at(1, connected.qpn), EINVAL);
    end();
}

/* The domain lives on where it was closed, as long as somebody has the queue pair. */
TEST(domain_closed)
{
    all();
    same(open_at(1, connected.qpn), 0);
    ask_of(0, CLOSE);
    works(1);
    works(2);
    same(open_at(2, connected.qpn), 0);
    ask_of(1, LEAVE);
    works(2);
    ask_of(2, LEAVE);
    fails(1);
    struct request r = {.what = KILL};
    put(there, &r, sizeof r);
    int status;
    check(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "waitpid: %m");
}

/* Who has it open may connect it, and end that. */
TEST(changed_elsewhere)
{
    all();
    same(ibv_destroy_qp(qp), 0);
    ask_of(0, LEAVE);
    connected = ask_of(0, MAKE).here;
    same(open_at(1, connected.qpn), 0);
    same(open_at(2, connected.qpn), 0);
    same(ask_of(1, STATE).state, IBV_QPS_RESET);
    struct ibv_qp_init_attr_ex a = {.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .pd = d.pd,
                                    .cap = {.max_send_wr = 64, .max_send_sge = 4},
                                    .comp_mask = IBV_QP_INIT_ATTR_PD};
    qp = ibv_create_qp_ex(d.context, &a);
    check(qp, "ibv_create_qp_ex: %m");
    struct request join = {.what = JOIN, .owner = 1, .peer = qp_address(&d, qp, NULL)};
    connected.psn = join.peer.psn;
    ask(join);
    qp_connect(&d, qp, connected);
    same(ask_of(2, STATE).state, IBV_QPS_RTS);
    all_work();
    same(ask_of(2, FAIL).error, 0);
    same(ask_of(0, STATE).state, IBV_QPS_ERR);
    same(ask_of(1, STATE).state, IBV_QPS_ERR);
    fails(0);
    end();
}

/* What happens to it is told to all. */
TEST(events)
{
    all();
    same(open_at(1, connected.qpn), 0);
    same(open_at(2, connected.qpn), 0);
    all_work();
    /* A key that is none: the queue pair of the other end refuses that, and is in ERR. */
    struct operation beyond = operation(IBV_WR_RDMA_WRITE, 0, 8);
    beyond.rkey = ~0U;
    xrc_post(beyond, numbers[0]);
    expect(cq, 7, IBV_WC_REM_ACCESS_ERR);
    for (unsigned owner = 0; owner < OWNERS; owner++) {
        same(ask_of(owner, EVENT).event, IBV_EVENT_QP_ACCESS_ERR);
        same(ask_of(owner, STATE).state, IBV_QPS_ERR);
    }
    end();
}

/* A process that has it open is killed. */
TEST(holder_killed)
{
    all();
    same(open_at(1, connected.qpn), 0);
    same(open_at(2, connected.qpn), 0);
    ask_of(2, FORK);
    ask_of(2, KILL);
    works(0);
    ask_of(0, LEAVE);
    works(1);
    works(0);
    ask_of(1, KILL);
    fails(0);
    end();
}

/* The process that made it is killed: it ends with that, and who has it open is told, also if a
 * child of that process has the same descriptors. */
static void maker_is_killed(bool has_child)
{
    all();
    move_to(1);
    same(open_at(0, connected.qpn), 0);
    same(open_at(2, connected.qpn), 0);
    all_work();
    if (has_child)
        ask_of(1, FORK);
    ask_of(1, KILL);
    for (unsigned owner = 0; owner < OWNERS; owner += 2) {
        same(ask_of(owner, EVENT).event, IBV_EVENT_QP_FATAL);
        struct answer a = ask_of(owner, STATE);
        same(a.state, IBV_QPS_ERR);
        same(a.known.dest_qp_num, qp->qp_num);
        same(ask_of(owner, FAIL).error, EIO);
        ask_of(owner, NO_EVENT);
        ask_of(owner, LEAVE);
    }
    if (!has_child)
        same(open_at(2, connected.qpn), EINVAL);
    fails(0);
    end();
}

TEST(maker_killed)
{
    maker_is_killed(false);
}

TEST(maker_killed_whose_child_lives)
{
    maker_is_killed(true);
}

/* Opened and closed, again and again, by two at once. */
TEST(again_and_again)
{
    all();
    for (unsigned round = 0; round < 100; round++) {
        for (unsigned owner = 1; owner < OWNERS; owner++) {
            struct request r = {.what = OPEN, .owner = owner, .peer = connected};
            same(ask(r).error, 0);
        }
        same(ask_of(2, STATE).state, IBV_QPS_RTS);
        ask_of(1, LEAVE);
        ask_of(2, LEAVE);
    }
    all_work();
    end();
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
