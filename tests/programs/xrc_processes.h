/* Processes that have the domain of the same file: the test sends, its child has the connection's
 * other end, and children of its own that have queues. */
#include "xrc.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { OTHERS = 2, OWNERS = 1 + OTHERS };
enum what {
    CONNECT, RECEIVE, RECEIVED, NOTHING, VERIFY, REMOVE, STATE, KILL, CLOSE, HERE, NOISE,
    MAKE, OPEN, JOIN, FAIL, LEAVE, FORK, EVENT, NO_EVENT, STATED, QUIT
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
    struct ibv_qp_attr known;
    enum ibv_event_type event;
    int state, error;
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

/* Where somebody waits who states nothing: nobody is to come there. */
static int door = -1;

static unsigned door_number(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    socklen_t length = sizeof name.sun_family;
    if (door < 0) {
        door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        check(door >= 0 && !bind(door, (void *)&name, length) && !listen(door, 16), "door: %m");
    }
    length = sizeof name;
    same(getsockname(door, (void *)&name, &length), 0);
    char digits[6] = {0};
    memcpy(digits, name.sun_path + 1, 5);
    return (unsigned)strtoul(digits, NULL, 16);
}

static void nobody_came(void)
{
    if (door >= 0)
        check(accept(door, NULL, NULL) < 0 && errno == EAGAIN, "somebody believes the noise");
}

/* Sends it, and less, to all who have a part of a domain here, with a descriptor and without. */
static void make_noise(void)
{
    enum { VERSION = 6, FIRST = 82 }; /* HandOver, HandedOver, OpenQp, QpOpened */
    static const size_t lengths[] = {16 + 40, 16 + 8, 16 + 16, 16 + 16};
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
            unsigned kind = i % 4, number = qp ? qp->qp_num : 3;
            struct noise n = {VERSION, (uint16_t)(FIRST + kind), 0, {0},
                              {1 + i / 4, number, 4, said, i / 4 % 4, 0}, d.gid};
            if (kind > 1) /* number, door, part */
                memcpy(n.words, (uint32_t[]){number, door_number(), said, 0}, 16);
            size_t bytes = i % 7 ? lengths[kind] : i;
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

/* How many locks the processes of this test have where no file has bytes. */
static int stated(void)
{
    char line[256];
    FILE *locks = fopen("/proc/locks", "r");
    int count = 0, pid;
    unsigned long long start;
    check(locks, "/proc/locks: %m");
    while (fgets(line, sizeof line, locks))
        if (sscanf(line, "%*s POSIX %*s %*s %d %*s %llu", &pid, &start) == 2 && start >> 62 &&
            getpgid(pid) == getpgrp())
            count++;
    fclose(locks);
    return count;
}

/* The next event, which is this queue pair's. */
static enum ibv_event_type event_of(const struct ibv_qp *of)
{
    struct ibv_async_event e;
    same(poll(&(struct pollfd){d.context->async_fd, POLLIN, 0}, 1, 20000), 1);
    same(ibv_get_async_event(d.context, &e), 0);
    check(e.element.qp == of, "another queue pair's event %d", e.event_type);
    ibv_ack_async_event(&e);
    return e.event_type;
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
        struct ibv_qp_init_attr init;
        same(ibv_query_qp(qp, &a.known, ~0, &init), 0);
        same(init.qp_type, IBV_QPT_XRC_RECV);
        break;
    case CLOSE:
    case QUIT:
        nobody_came();
        if (srq)
            same(ibv_destroy_srq(srq), 0);
        if (qp)
            same(ibv_destroy_qp(qp), 0);
        same(ibv_close_xrcd(xrcd), 0);
        srq = NULL, qp = NULL;
        break;
    case MAKE:
        qp = receiver_make(xrcd);
        a.here = qp_address(&d, qp, mr);
        break;
    case OPEN:
        errno = 0;
        struct ibv_qp *found = opened(xrcd, r.peer.qpn);
        if (!found) {
            a.error = errno;
            break;
        }
        qp = found;
        same(qp->qp_num, r.peer.qpn);
        same(qp->qp_context == &d, 1);
        a.here = qp_address(&d, qp, mr);
        break;
    case JOIN:
        qp_connect(&d, qp, r.peer);
        break;
    case FAIL: {
        struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
        a.error = ibv_modify_qp(qp, &err, IBV_QP_STATE);
        break;
    }
    case LEAVE:
        same(ibv_destroy_qp(qp), 0);
        qp = NULL;
        break;
    case FORK:
        /* Has all descriptors, until the test is over. */
        fflush(NULL);
        pid_t parent = getppid();
        if (!fork()) {
            for (unsigned i = 0; i < 2000 && !kill(parent, 0); i++)
                sleep_ms(20);
            _exit(0);
        }
        break;
    case EVENT:
        a.event = event_of(qp);
        break;
    case STATED:
        a.state = stated();
        break;
    case NO_EVENT:
        same(poll(&(struct pollfd){d.context->async_fd, POLLIN, 0}, 1, 0), 0);
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

/* Whoever's queue it is, its connection works on. */
static void works(unsigned owner)
{
    receive_at(owner, 3);
    xrc_post(operation(IBV_WR_SEND, owner, 8), numbers[owner]);
    expect(cq, 7, IBV_WC_SUCCESS);
    same(received_at(owner, 3).byte_len, 8);
}
