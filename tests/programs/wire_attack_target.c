/* What is attacked over the wire. A process on each side (the second one elsewhere, see TEST_PEERS)
 * holds a connected QP without traffic, a UD QP, a QP in INIT, and memory. Their numbers are
 * printed, ours first; then, until standard input ends, whatever happens must change nothing: no
 * completion, no byte, and afterwards the connection works. */
#include "common.h"

#define BYTES 65536u
#define KEPT 99

struct party {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_qp *connected, *datagrams, *waiting;
    struct ibv_mr *mr, *receives;
    char *memory, *room;
};

static void party_open(struct party *p, int socket)
{
    struct address theirs;
    device_open(&p->d);
    p->cq = cq_make(&p->d, 1000);
    p->memory = aligned_alloc(4096, BYTES);
    p->room = aligned_alloc(4096, BYTES);
    check(p->memory && p->room, "no memory");
    fill(p->memory, BYTES, KEPT);
    fill(p->room, BYTES, KEPT);
    p->mr = mr_make(&p->d, p->memory, BYTES, ALL_ACCESS);
    p->receives = mr_make(&p->d, p->room, BYTES, IBV_ACCESS_LOCAL_WRITE);
    p->connected = qp_make(&p->d, (struct queue_options){.send_cq = p->cq});
    p->waiting = qp_make(&p->d, (struct queue_options){.send_cq = p->cq});
    p->datagrams = qp_make(&p->d, (struct queue_options){.type = IBV_QPT_UD, .send_cq = p->cq});
    struct address ours = qp_address(&p->d, p->connected, p->mr);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&p->d, p->connected, theirs);
    qp_connect(&p->d, p->datagrams, theirs);
    qp_init(&p->d, p->waiting, ALL_ACCESS & ~IBV_ACCESS_LOCAL_WRITE);
    for (unsigned i = 0; i < 8; i++) {
        receive(p->connected, i, p->room, BYTES, p->receives->lkey);
        receive(p->waiting, i, p->room, BYTES, p->receives->lkey);
        receive(p->datagrams, i, p->room, BYTES, p->receives->lkey);
    }
    meet(socket);
}

static void show(struct party *p)
{
    printf("%u %u %u %u %" PRIu64 "\n", p->connected->qp_num, p->datagrams->qp_num,
           p->waiting->qp_num, p->mr->rkey, (uint64_t)(uintptr_t)p->memory);
    fflush(stdout);
}

/* Nothing has happened; what both then send to each other arrives. */
static void party_check(struct party *p, int socket)
{
    expect_none(p->cq, 50);
    check(unfilled(p->memory, BYTES, KEPT) < 0, "the memory has changed");
    check(unfilled(p->room, BYTES, KEPT) < 0, "a message was received");
    same(qp_state(p->connected), IBV_QPS_RTS);
    meet(socket);
    struct operation o = {.opcode = IBV_WR_SEND, .id = 100, .local = p->memory, .bytes = 5000,
                          .lkey = p->mr->lkey};
    post(p->connected, o);
    bool sent = false, received = false;
    while (!sent || !received) {
        struct ibv_wc wc = completion(p->cq, 10000);
        same(wc.status, 0);
        if (wc.wr_id == 100)
            sent = true;
        else
            received = wc.byte_len == 5000;
    }
    check(unfilled(p->room, 5000, KEPT) < 0, "what arrived is not what was sent");
    meet(socket);
}

static void other(int socket)
{
    static struct party p;
    char c;
    party_open(&p, socket);
    meet(socket);
    show(&p);
    get(socket, &c, 1);
    party_check(&p, socket);
}

TEST(two_sides)
{
    static struct party p;
    pid_t pid;
    char c = 'e';
    int socket = spawn(other, &pid);
    party_open(&p, socket);
    show(&p);
    meet(socket);
    while (read(0, &c, 1) > 0) {
    }
    put(socket, &c, 1);
    party_check(&p, socket);
    reap(pid);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
