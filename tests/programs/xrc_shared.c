/* XRC over processes: one connection leads to a process, and the shared receive queues that its
 * requests name are those of others that have the domain of the same file, too. The sender is the
 * test; its child has the connection's other end, and children of its own that have queues. */
#include "xrc.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { OTHERS = 2, OWNERS = 1 + OTHERS };
enum what {
    CONNECT, RECEIVE, RECEIVED, NOTHING, VERIFY, REMOVE, STATE, KILL, CLOSE, HERE, NOISE,
    OPEN, QUIT
};

struct request {
    enum what what;
    unsigned owner; /* 0: who has the connection */
    struct address peer;
    uint64_t id, word;
    uint32_t length;
};

struct answer {
    struct address here;
    uint32_t number;
    struct ibv_wc wc;
    int64_t wrong;
    int state;
};

/* ---- who receives ---- */

static struct ibv_xrcd *xrcd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_qp *qp;

static void queue_make(int file, int flags)
{
    begin();
    xrcd = domain(file, flags);
    check(xrcd, "ibv_open_xrcd: %m");
    cq = cq_make(&d, 100);
    srq = srq_make(xrcd, d.pd, cq);
}

/* What a control message looks like (rnic/session): a process asks another one to take its
 * requests, or says who does. Half of it comes from nobody in particular, half from who has taken
 * the name of a part; but nobody states it of the file, so it is to count for nothing. */
struct noise {
    uint16_t version, kind;
    uint32_t errno_, tag[2];
    uint32_t words[6];
    union ibv_gid gid;
};

/* Sends it, and less, to all who have a part of a domain here, with a descriptor and without. */
static void make_noise(void)
{
    enum { VERSION = 6, HAND_OVER = 82, HANDED_OVER = 83, ASK = 16 + 40, ANSWER = 16 + 8 };
    char line[256], name[108];
    FILE *sockets = fopen("/proc/net/unix", "r");
    int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), found = 0;
    check(sockets && from >= 0, "/proc/net/unix: %m");
    while (fgets(line, sizeof line, sockets)) {
        char *at = strstr(line, "@omniverb/xrcd/");
        if (!at || sscanf(at, "%107s", name) != 1)
            continue;
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        size_t length = strlen(name);
        memcpy(to.sun_path + 1, name + 1, length - 1);
        found++;
        /* A part that nobody has. */
        enum { FREE = 4000 };
        struct sockaddr_un mine = to;
        int named = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        char *slash = strrchr(mine.sun_path + 1, '/');
        check(named >= 0 && slash, "socket: %m");
        size_t prefix = (size_t)(slash + 1 - mine.sun_path);
        int digits = snprintf(slash + 1, 8, "%d", FREE);
        same(bind(named, (void *)&mine,
                  offsetof(struct sockaddr_un, sun_path) + prefix + (size_t)digits), 0);
        for (unsigned i = 0; i < 800; i++) {
            unsigned said = i < 400 ? i % 3 : FREE;
            struct noise n = {VERSION, i & 1 ? HANDED_OVER : HAND_OVER, 0, {0},
                              {1 + i / 4, qp ? qp->qp_num : 3, 4, said, i % 4, 0}, d.gid};
            size_t bytes = i % 7 ? i & 1 ? ANSWER : ASK : i;
            struct iovec part = {&n, bytes < sizeof n ? bytes : sizeof n};
            char control[CMSG_SPACE(sizeof(int))] = {0};
            struct msghdr m = {.msg_name = &to,
                               .msg_namelen = offsetof(struct sockaddr_un, sun_path) + length,
                               .msg_iov = &part, .msg_iovlen = 1};
            if (i % 5 == 0) {
                m.msg_control = control;
                m.msg_controllen = sizeof control;
                struct cmsghdr *c = CMSG_FIRSTHDR(&m);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(c), &from, sizeof from);
            }
            /* There may be no room, and newer kernels refuse descriptors. */
            sendmsg(i < 400 ? from : named, &m, MSG_DONTWAIT);
        }
        close(named);
    }
    fclose(sockets);
    close(from);
    check(found >= OWNERS, "%d parts", found);
}

static struct answer answered(struct request r)
{
    struct answer a = {0};
    struct ibv_sge sge = {(uintptr_t)memory, r.length, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = r.id, .sg_list = &sge, .num_sge = 1}, *bad;
    switch (r.what) {
    case CONNECT:
        if (qp)
            same(ibv_destroy_qp(qp), 0);
        qp = receiver_make(xrcd);
        qp_connect(&d, qp, r.peer);
        a.here = qp_address(&d, qp, mr);
        break;
    case HERE:
        a.here = (struct address){.memory = (uintptr_t)memory, .rkey = mr->rkey};
        same(ibv_get_srq_num(srq, &a.number), 0);
        break;
    case RECEIVE:
        same(ibv_post_srq_recv(srq, &wr, &bad), 0);
        break;
    case RECEIVED:
        a.wc = expect(cq, r.id, IBV_WC_SUCCESS);
        break;
    case NOTHING:
        expect_none(cq, 0);
        break;
    case VERIFY:
        a.wrong = unfilled(memory, r.length, r.word);
        break;
    case REMOVE:
        same(ibv_destroy_srq(srq), 0);
        srq = NULL;
        break;
    case STATE:
        a.state = qp_state(qp);
        break;
    case CLOSE:
    case QUIT:
        if (srq)
            same(ibv_destroy_srq(srq), 0);
        if (qp)
            same(ibv_destroy_qp(qp), 0);
        same(ibv_close_xrcd(xrcd), 0);
        srq = NULL, qp = NULL;
        break;
    case OPEN:
        /* The queue pair is another process's (docs/limitations.md). */
        check(!opened(xrcd, r.peer.qpn), "another process's queue pair");
        same(errno, EOPNOTSUPP);
        break;
    case NOISE:
        make_noise();
        break;
    case KILL:
        raise(SIGKILL);
        break;
    }
    return a;
}

/* Has a queue, and nothing else. */
static void other_side(int socket, const char *path)
{
    /* A description of its own of the file, or the one that it has from its parent. */
    int file = path[0] == '/' ? open(path, O_RDONLY) : atoi(path);
    check(file >= 0, "open: %m");
    queue_make(file, 0);
    struct request r;
    do {
        get(socket, &r, sizeof r);
        struct answer a = answered(r);
        put(socket, &a, sizeof a);
    } while (r.what != QUIT);
}

/* Has the connection, a queue, and the way to the others. */
static void connected_side(int socket)
{
    char path[64] = "/tmp/omniverb-xrcd-XXXXXX", number[16];
    int file = mkstemp(path), others[OTHERS], made[2];
    pid_t pids[OTHERS];
    check(file >= 0 && !pipe(made), "mkstemp: %m");
    for (int i = 0; i < OTHERS; i++) {
        int ends[2];
        check(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair: %m");
        fflush(NULL);
        pids[i] = fork();
        check(pids[i] >= 0, "fork: %m");
        if (!pids[i]) {
            char byte;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(ends[0]);
            check(read(made[0], &byte, 1) == 1, "read: %m");
            snprintf(number, sizeof number, "%d", file);
            other_side(ends[1], i ? number : path);
            fflush(NULL);
            _exit(0);
        }
        close(ends[1]);
        others[i] = ends[0];
    }
    queue_make(file, O_CREAT | O_EXCL);
    check(write(made[1], "oo", OTHERS) == OTHERS, "write: %m");
    bool removed = false;
    struct request r;
    do {
        struct answer a = {0};
        get(socket, &r, sizeof r);
        if (r.what == QUIT) {
            for (int i = 0; i < OTHERS; i++)
                if (pids[i]) {
                    put(others[i], &r, sizeof r);
                    get(others[i], &a, sizeof a);
                    reap(pids[i]);
                }
            a = answered(r);
        } else if (!r.owner) {
            a = answered(r);
        } else {
            int i = (int)r.owner - 1;
            put(others[i], &r, sizeof r);
            if (r.what == KILL) {
                check(waitpid(pids[i], NULL, 0) == pids[i], "waitpid: %m");
                pids[i] = 0;
            } else {
                get(others[i], &a, sizeof a);
            }
        }
        if (!removed && r.what == HERE && r.owner == OTHERS) {
            same(unlink(path), 0);
            removed = true;
        }
        put(socket, &a, sizeof a);
    } while (r.what != QUIT);
}

/* ---- who sends ---- */

static int there;
static pid_t child;
static struct address connected, keys[OWNERS];
static uint32_t numbers[OWNERS];

static struct answer ask(struct request r)
{
    struct answer a;
    put(there, &r, sizeof r);
    get(there, &a, sizeof a);
    return a;
}

static void reconnect(void)
{
    if (qp)
        same(ibv_destroy_qp(qp), 0);
    struct ibv_qp_init_attr_ex a = {.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .pd = d.pd,
                                    .cap = {.max_send_wr = 64, .max_send_sge = 4},
                                    .comp_mask = IBV_QP_INIT_ATTR_PD};
    qp = ibv_create_qp_ex(d.context, &a);
    check(qp, "ibv_create_qp_ex: %m");
    connected = ask((struct request){.what = CONNECT, .peer = qp_address(&d, qp, NULL)}).here;
    qp_connect(&d, qp, connected);
}

static void all(void)
{
    there = spawn(connected_side, &child);
    begin();
    cq = cq_make(&d, 100);
    for (unsigned owner = 0; owner < OWNERS; owner++) {
        struct answer a = ask((struct request){.what = HERE, .owner = owner});
        keys[owner] = a.here;
        numbers[owner] = a.number;
        for (unsigned i = 0; i < owner; i++)
            check(numbers[i] != numbers[owner], "two queues of one number");
    }
    reconnect();
}

static void end(void)
{
    ask((struct request){.what = QUIT});
    reap(child);
    same(ibv_destroy_qp(qp), 0);
}

static void xrc_post(struct operation o, uint32_t number)
{
    struct ibv_sge sge = {(uintptr_t)o.local, o.bytes, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = o.id, .sg_list = &sge, .num_sge = 1, .opcode = o.opcode,
                             .send_flags = IBV_SEND_SIGNALED, .imm_data = o.immediate,
                             .qp_type.xrc.remote_srqn = number},
                       *bad;
    if (o.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || o.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = o.remote;
        wr.wr.atomic.rkey = o.rkey;
        wr.wr.atomic.compare_add = o.compare_or_add;
        wr.wr.atomic.swap = o.swap;
    } else {
        wr.wr.rdma.remote_addr = o.remote;
        wr.wr.rdma.rkey = o.rkey;
    }
    same(ibv_post_send(qp, &wr, &bad), 0);
}

static const uint32_t sizes[] = {1, 64, 1024, 1025, 70000, BYTES};
#define EACH_SIZE(s) for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)

static struct operation operation(enum ibv_wr_opcode opcode, unsigned owner, uint32_t bytes)
{
    return (struct operation){.opcode = opcode, .id = 7, .local = memory, .bytes = bytes,
                              .remote = keys[owner].memory, .rkey = keys[owner].rkey,
                              .immediate = htonl(0x1234), .compare_or_add = 5};
}

static void receive_at(unsigned owner, uint64_t id)
{
    ask((struct request){.what = RECEIVE, .owner = owner, .id = id, .length = BYTES});
}

static struct ibv_wc received_at(unsigned owner, uint64_t id)
{
    return ask((struct request){.what = RECEIVED, .owner = owner, .id = id}).wc;
}

/* A message of each kind and size, to each of the queues. */
TEST(messages)
{
    static const enum ibv_wr_opcode codes[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
                                               IBV_WR_RDMA_WRITE_WITH_IMM};
    all();
    EACH_SIZE(s)
    for (unsigned turn = 0; turn < 3 * OWNERS; turn++) {
        unsigned owner = turn % OWNERS;
        enum ibv_wr_opcode code = codes[turn / OWNERS];
        bool write = code == IBV_WR_RDMA_WRITE_WITH_IMM;
        fill(memory, sizes[s], turn);
        receive_at(owner, turn + 10);
        xrc_post(operation(code, owner, sizes[s]), numbers[owner]);
        struct ibv_wc wc = received_at(owner, turn + 10);
        same(wc.opcode, write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
        same(wc.byte_len, sizes[s]);
        same(wc.qp_num, connected.qpn);
        same(wc.src_qp, qp->qp_num);
        same(wc.wc_flags & IBV_WC_WITH_IMM, code == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM);
        if (code != IBV_WR_SEND)
            same(ntohl(wc.imm_data), 0x1234);
        expect(cq, 7, IBV_WC_SUCCESS);
        struct request verify = {.what = VERIFY, .owner = owner, .length = sizes[s], .word = turn};
        same(ask(verify).wrong, -1);
        for (unsigned i = 0; i < OWNERS; i++)
            ask((struct request){.what = NOTHING, .owner = i});
    }
    end();
}

TEST(one_sided)
{
    all();
    EACH_SIZE(s)
    for (unsigned turn = 0; turn < 4 * OWNERS; turn++) {
        unsigned owner = turn % OWNERS;
        fill(memory, sizes[s], turn);
        xrc_post(operation(IBV_WR_RDMA_WRITE, owner, sizes[s]), numbers[owner]);
        expect(cq, 7, IBV_WC_SUCCESS);
        struct request verify = {.what = VERIFY, .owner = owner, .length = sizes[s], .word = turn};
        same(ask(verify).wrong, -1);
        memset(memory, 0, sizes[s]);
        xrc_post(operation(IBV_WR_RDMA_READ, owner, sizes[s]), numbers[owner]);
        expect(cq, 7, IBV_WC_SUCCESS);
        same(unfilled(memory, sizes[s], turn), -1);
    }
    uint64_t cell = 40;
    for (unsigned owner = 0; owner < OWNERS; owner++) {
        memcpy(memory, &cell, sizeof cell);
        xrc_post(operation(IBV_WR_RDMA_WRITE, owner, sizeof cell), numbers[owner]);
        expect(cq, 7, IBV_WC_SUCCESS);
    }
    for (uint64_t turn = 0; turn < 10 * OWNERS; turn++) {
        unsigned owner = turn % OWNERS;
        xrc_post(operation(IBV_WR_ATOMIC_FETCH_AND_ADD, owner, sizeof cell), numbers[owner]);
        expect(cq, 7, IBV_WC_SUCCESS);
        memcpy(&cell, memory, sizeof cell);
        same(cell, 40 + turn / OWNERS * 5);
    }
    struct operation swap = operation(IBV_WR_ATOMIC_CMP_AND_SWP, 1, sizeof cell);
    swap.compare_or_add = 40 + 10 * 5;
    swap.swap = 3;
    xrc_post(swap, numbers[1]);
    expect(cq, 7, IBV_WC_SUCCESS);
    xrc_post(operation(IBV_WR_RDMA_READ, 1, sizeof cell), numbers[1]);
    expect(cq, 7, IBV_WC_SUCCESS);
    memcpy(&cell, memory, sizeof cell);
    same(cell, 3);
    end();
}

/* Order is that of posting, whoever's queues the messages are for; and a queue that is empty holds
 * up what is behind. */
TEST(many_at_once)
{
    enum { EACH = RECEIVES, MANY = EACH * OWNERS };
    all();
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < MANY; i++)
            xrc_post(operation(IBV_WR_SEND, 0, 1999 * i % 9001), numbers[i % OWNERS]);
        for (unsigned i = 0; i < MANY; i++)
            receive_at(i % OWNERS, i);
        for (unsigned i = 0; i < MANY; i++)
            expect(cq, 7, IBV_WC_SUCCESS);
        for (unsigned i = 0; i < MANY; i++)
            same(received_at(i % OWNERS, i).byte_len, 1999 * i % 9001);
    }
    end();
}

static void is_refused(struct operation o, uint32_t number, enum ibv_wc_status status)
{
    xrc_post(o, number);
    expect(cq, 7, status);
    same(qp_state(qp), IBV_QPS_ERR);
    same(ask((struct request){.what = STATE}).state, IBV_QPS_ERR);
    reconnect();
}

/* Whoever's queue it is, its connection works on. */
static void works(unsigned owner)
{
    receive_at(owner, 3);
    xrc_post(operation(IBV_WR_SEND, owner, 8), numbers[owner]);
    expect(cq, 7, IBV_WC_SUCCESS);
    same(received_at(owner, 3).byte_len, 8);
}

TEST(refusals)
{
    all();
    /* Another part of the domain, without that queue; and one that is nobody's. */
    is_refused(operation(IBV_WR_SEND, 1, 8), numbers[1] + 1, IBV_WC_REM_INV_REQ_ERR);
    is_refused(operation(IBV_WR_SEND, 1, 8), 0xfff001, IBV_WC_REM_INV_REQ_ERR);
    /* Keys are those of the process that has the queue. */
    is_refused(operation(IBV_WR_RDMA_WRITE, 0, 8), numbers[1], IBV_WC_REM_ACCESS_ERR);
    is_refused(operation(IBV_WR_RDMA_READ, 0, 70000), numbers[2], IBV_WC_REM_ACCESS_ERR);
    struct operation beyond = operation(IBV_WR_RDMA_READ, 1, 8);
    beyond.remote += BYTES - 4;
    is_refused(beyond, numbers[1], IBV_WC_REM_ACCESS_ERR);
    works(1);
    ask((struct request){.what = REMOVE, .owner = 1});
    is_refused(operation(IBV_WR_SEND, 1, 8), numbers[1], IBV_WC_REM_INV_REQ_ERR);
    works(2);
    works(0);
    ask((struct request){.what = OPEN, .owner = 2, .peer = connected});
    end();
}

/* A message that is longer than the receive ends both the receive and the connection. */
TEST(too_long)
{
    all();
    ask((struct request){.what = RECEIVE, .owner = 2, .id = 4, .length = 8});
    is_refused(operation(IBV_WR_SEND, 2, 70000), numbers[2], IBV_WC_REM_INV_REQ_ERR);
    end();
}

/* Whoever is in the namespace may say anything to those who have the domain, before and after they
 * have found each other. */
TEST(noise)
{
    all();
    ask((struct request){.what = NOISE});
    works(1);
    ask((struct request){.what = NOISE});
    works(2);
    works(1);
    ask((struct request){.what = NOISE, .owner = 2});
    works(0);
    works(1);
    works(2);
    end();
}

/* Connections come and go, and what went on from them. */
TEST(again_and_again)
{
    all();
    for (unsigned round = 0; round < 150; round++) {
        works(1);
        works(2);
        reconnect();
    }
    end();
}

/* For so many seconds, whatever becomes of the daemon meanwhile; a new connection finds its way
 * afterwards, too. */
TEST(goes_on)
{
    all();
    uint64_t until = now_ns() + argument(0, 0) * 1000000000;
    do
        for (unsigned owner = 0; owner < OWNERS; owner++)
            works(owner);
    while (now_ns() < until);
    reconnect();
    works(1);
    works(2);
    end();
}

/* The process that has the connection is killed while a request is with another one. */
TEST(front_killed)
{
    all();
    works(1);
    xrc_post(operation(IBV_WR_SEND, 1, 8), numbers[1]);
    expect_none(cq, 50);
    struct request r = {.what = KILL};
    put(there, &r, sizeof r);
    expect(cq, 7, IBV_WC_RETRY_EXC_ERR);
    int status;
    check(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "waitpid: %m");
}

/* The process that has the queue closes its domain. */
TEST(closed)
{
    all();
    works(1);
    works(2);
    ask((struct request){.what = CLOSE, .owner = 2});
    is_refused(operation(IBV_WR_SEND, 2, 8), numbers[2], IBV_WC_REM_INV_REQ_ERR);
    works(1);
    ask((struct request){.what = KILL, .owner = 2});
    end();
}

/* The process that has the queue is killed: before a message, and while one waits for a receive. */
TEST(killed)
{
    all();
    works(1);
    works(2);
    ask((struct request){.what = KILL, .owner = 2});
    is_refused(operation(IBV_WR_SEND, 2, 8), numbers[2], IBV_WC_REM_INV_REQ_ERR);
    works(1);
    xrc_post(operation(IBV_WR_SEND, 1, 8), numbers[1]);
    xrc_post(operation(IBV_WR_SEND, 0, 8), numbers[0]);
    expect_none(cq, 50);
    ask((struct request){.what = KILL, .owner = 1});
    expect(cq, 7, IBV_WC_REM_INV_REQ_ERR);
    expect(cq, 7, IBV_WC_WR_FLUSH_ERR);
    reconnect();
    works(0);
    end();
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
