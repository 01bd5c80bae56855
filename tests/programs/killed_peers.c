/* A peer is killed at a random instant, again and again. The survivor must get a completion for
 * everything it had posted, and go on. Arguments: times, seed. */
#include "common.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define QPS 3
#define DEPTH 16
#define BYTES 65536u
#define HANGS_NS 20000000000ull

struct party {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_qp *qp[QPS];
    struct ibv_mr *mr;
    char *memory; /* first half: written by the peer; second half: ours */
    struct address peer[QPS];
    struct random random;
    unsigned sends[QPS], receives[QPS]; /* outstanding */
};

/* False when the other process died first. */
static bool handshake(struct party *p, int socket)
{
    struct address ours[QPS];
    p->mr = mr_make(&p->d, p->memory, 2 * BYTES, ALL_ACCESS);
    for (int i = 0; i < QPS; i++) {
        p->qp[i] = qp_make(&p->d, (struct queue_options){.send_cq = p->cq, .send = DEPTH,
                                                         .receive = DEPTH});
        ours[i] = qp_address(&p->d, p->qp[i], p->mr);
        p->sends[i] = p->receives[i] = 0;
    }
    if (send(socket, ours, sizeof ours, MSG_NOSIGNAL) != sizeof ours ||
        recv(socket, p->peer, sizeof p->peer, MSG_WAITALL) != sizeof p->peer)
        return false;
    for (int i = 0; i < QPS; i++)
        qp_connect(&p->d, p->qp[i], p->peer[i]);
    return true;
}

static void post_random(struct party *p, int i)
{
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND};
    struct operation o = {.opcode = opcodes[random_below(&p->random, 6)], .id = (uint64_t)i << 1,
                          .local = p->memory + BYTES, .lkey = p->mr->lkey,
                          .remote = p->peer[i].memory, .rkey = p->peer[i].rkey};
    static const uint32_t limits[] = {64, 4096, BYTES};
    o.bytes = o.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD
                  ? 8
                  : (uint32_t)random_below(&p->random, limits[random_below(&p->random, 3)] + 1);
    if (p->receives[i] < DEPTH) {
        receive(p->qp[i], (uint64_t)i << 1 | 1, p->memory, BYTES, p->mr->lkey);
        p->receives[i]++;
    }
    if (p->sends[i] < DEPTH) {
        post(p->qp[i], o);
        p->sends[i]++;
    }
}

/* Takes completions; returns how many were errors. */
static unsigned collect(struct party *p)
{
    struct ibv_wc wc[16];
    unsigned errors = 0;
    int count = ibv_poll_cq(p->cq, 16, wc);
    check(count >= 0, "ibv_poll_cq: %d", count);
    for (int k = 0; k < count; k++) {
        unsigned *left = wc[k].wr_id & 1 ? p->receives : p->sends;
        check(left[wc[k].wr_id >> 1], "more completions than requests");
        left[wc[k].wr_id >> 1]--;
        errors += wc[k].status != 0;
    }
    return errors;
}

static void victim(int socket)
{
    static struct party p;
    p.random.state = (uint64_t)getpid();
    device_open(&p.d);
    p.cq = cq_make(&p.d, QPS * DEPTH * 2);
    p.memory = malloc(2 * BYTES);
    if (!handshake(&p, socket))
        return;
    for (;;) {
        for (int i = 0; i < QPS; i++)
            post_random(&p, i);
        if (collect(&p))
            die("the victim got an error before it was killed");
    }
}

static bool outstanding(struct party *p)
{
    unsigned left = 0;
    for (int i = 0; i < QPS; i++)
        left += p->sends[i] + p->receives[i];
    return left > 0;
}

static void once(struct party *p, bool *connected, uint64_t *worst)
{
    pid_t pid;
    int socket = spawn(victim, &pid);
    /* Half of the time while it sets itself up, half of the time in the middle of traffic. */
    uint64_t when = now_ns() + random_below(&p->random, random_below(&p->random, 2) ? 12000000
                                                                                    : 60000000);
    bool dead = false;
    uint64_t died = 0;
    if (random_below(&p->random, 8) == 0) { /* before it knows us */
        sleep_ms((unsigned)random_below(&p->random, 10));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        dead = true;
        died = now_ns();
    }
    *connected = handshake(p, socket);
    while (!dead || (*connected && outstanding(p))) {
        if (!dead && now_ns() >= when) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            dead = true;
            died = now_ns();
        }
        if (*connected && !dead)
            for (int i = 0; i < QPS; i++)
                post_random(p, i);
        unsigned errors = *connected ? collect(p) : 0;
        check(!errors || dead || waitpid(pid, NULL, WNOHANG) == 0, "the victim ended by itself");
        check(!errors || dead, "an error while the peer was alive");
        if (dead && now_ns() - died > HANGS_NS) {
            for (int i = 0; i < QPS; i++)
                fprintf(stderr, "QP %#x: state %d, %u sends and %u receives left\n",
                        p->qp[i]->qp_num, qp_state(p->qp[i]), p->sends[i], p->receives[i]);
            die("no completion for everything after the peer's death");
        }
    }
    if (*connected && now_ns() - died > *worst)
        *worst = now_ns() - died;
    for (int i = 0; i < QPS; i++) {
        while (*connected && qp_state(p->qp[i]) != IBV_QPS_ERR) /* also if nothing was posted */
            check(now_ns() - died < HANGS_NS, "QP %#x is still in state %d", p->qp[i]->qp_num,
                  qp_state(p->qp[i]));
        same(ibv_destroy_qp(p->qp[i]), 0);
    }
    same(ibv_dereg_mr(p->mr), 0);
    close(socket);
}

TEST(peer_dies)
{
    static struct party p;
    unsigned times = (unsigned)argument(0, 200), connected = 0;
    uint64_t worst = 0;
    p.random.state = argument(1, 42);
    p.memory = malloc(2 * BYTES);
    device_open(&p.d);
    p.cq = cq_make(&p.d, QPS * DEPTH * 2);
    for (unsigned i = 0; i < times; i++) {
        bool was;
        once(&p, &was, &worst);
        connected += was;
    }
    printf("%u of %u victims died connected; the last completion came after at most %.1f ms\n",
           connected, times, (double)worst / 1e6);
    check(connected > times / 4, "too few victims lived long enough to be connected");
    /* Tables are looked at from outside now. */
    same(ibv_destroy_cq(p.cq), 0);
    device_close(&p.d);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
