/* Unreliable messages between two processes, while the network may lose some: what arrives is
 * whole, in order, once, and byte for byte. Arguments: messages, least share that must arrive
 * (percent), greatest share (to see that something was lost at all). */
#include "common.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#define DEPTH 256
#define LARGEST 8192u

static uint32_t size_of(uint32_t number, uint32_t largest)
{
    struct random r = {number};
    return (uint32_t)random_below(&r, random_below(&r, 2) ? largest + 1 : 64);
}

struct party {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory;
    struct address peer;
};

static void party_open(struct party *p, int socket, enum ibv_qp_type type)
{
    device_open(&p->d);
    p->cq = cq_make(&p->d, 4 * DEPTH);
    p->memory = malloc(DEPTH * LARGEST);
    check(p->memory, "no memory");
    p->mr = mr_make(&p->d, p->memory, DEPTH * LARGEST, ALL_ACCESS);
    p->qp = qp_make(&p->d, (struct queue_options){.type = type, .send_cq = p->cq,
                                                  .receive = DEPTH});
    struct address ours = qp_address(&p->d, p->qp, p->mr);
    swap(socket, &ours, &p->peer, sizeof ours);
    qp_connect(&p->d, p->qp, p->peer);
}

static enum ibv_qp_type type;

static void post_one(struct party *p, uint32_t slot)
{
    receive(p->qp, slot, p->memory + slot * LARGEST, LARGEST, p->mr->lkey);
}

/* Receives until the sender has finished and nothing comes any more; tells how much came. */
static void receiver(int socket)
{
    struct party p;
    uint32_t count = 0, header = type == IBV_QPT_UD ? 40 : 0;
    int64_t last = -1;
    party_open(&p, socket, type);
    uint32_t largest = header ? 128u << p.d.port.active_mtu : LARGEST - 64;
    for (uint32_t i = 0; i < DEPTH; i++)
        post_one(&p, i);
    meet(socket);
    uint64_t quiet = now_ns();
    bool done = false;
    while (!done || now_ns() - quiet < 1000000000) {
        struct ibv_wc wc;
        char c;
        if (!done && recv(socket, &c, 1, MSG_DONTWAIT) == 1) {
            done = true;
            quiet = now_ns();
        }
        int n = ibv_poll_cq(p.cq, 1, &wc);
        if (!n) {
            usleep(100);
            continue;
        }
        quiet = now_ns();
        same(wc.status, 0);
        uint32_t number = ntohl(wc.imm_data), bytes = size_of(number, largest);
        check((int64_t)number > last, "message %u after %" PRId64, number, last);
        last = number;
        same(wc.byte_len, bytes + header);
        check(unfilled(p.memory + wc.wr_id * LARGEST + header, bytes, number) < 0,
              "message %u of %u bytes is damaged", number, bytes);
        count++;
        post_one(&p, (uint32_t)wc.wr_id);
    }
    put(socket, &count, sizeof count);
}

static void run(enum ibv_qp_type of, const char *name)
{
    struct party p;
    pid_t pid;
    uint32_t messages = (uint32_t)argument(0, 3000), arrived;
    struct ibv_ah *ah = NULL;
    type = of;
    int socket = spawn(receiver, &pid);
    party_open(&p, socket, type);
    uint32_t largest = type == IBV_QPT_UD ? 128u << p.d.port.active_mtu : LARGEST - 64;
    if (type == IBV_QPT_UD) {
        struct ibv_ah_attr a = rtr_attributes(&p.d, p.peer).ah_attr;
        check((ah = ibv_create_ah(p.d.pd, &a)), "ibv_create_ah: %m");
    }
    meet(socket);
    for (uint32_t i = 0; i < messages; i++) {
        char *at = p.memory + (i % 16) * LARGEST;
        uint32_t bytes = size_of(i, largest);
        fill(at, bytes, i);
        post(p.qp, (struct operation){.opcode = IBV_WR_SEND_WITH_IMM, .id = i, .local = at,
                                      .bytes = bytes, .lkey = p.mr->lkey, .immediate = i, .ah = ah,
                                      .qpn = p.peer.qpn});
        expect(p.cq, i, 0);
        if (i % 8 == 7)
            usleep(500); /* not faster than a receiver on a busy machine */
    }
    put(socket, "e", 1);
    get(socket, &arrived, sizeof arrived);
    printf("%s: %u of %u messages arrived\n", name, arrived, messages);
    check(arrived * 100ull >= messages * argument(1, 95), "too few");
    check(arrived * 100ull <= messages * argument(2, 100), "nothing was lost");
    reap(pid);
}

TEST(connected)
{
    run(IBV_QPT_UC, "UC");
}

TEST(datagrams)
{
    run(IBV_QPT_UD, "UD");
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
