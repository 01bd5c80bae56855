/* Large messages from a region that the daemon has mapped: their payload stays where it is until
 * they are complete. Meanwhile another region of the process, which the peer has written to, is
 * taken back again and again, and the process forks. Every byte that arrives is checked, and the
 * memory of a message is used for the next as soon as it is complete. Arguments: messages. */
#include "common.h"

#include <arpa/inet.h>

#define SLOTS 16u
#define SLOT (256u << 10)
#define BYTES (SLOTS * SLOT)
#define OTHER 65536u
#define EVERY 40u /* messages between two disturbances */
#define WRITES 5

static unsigned messages(void)
{
    return (unsigned)argument(0, 600);
}

/* Whatever lies around a page, but long enough to stay in place, mostly. */
static uint32_t length(unsigned number)
{
    return number % 7 == 6 ? 1 + number : SLOT - number * 977 % (SLOT - 8192);
}

static uint32_t skew(unsigned number)
{
    return number * 131 % (SLOT - length(number) + 1);
}

struct side {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr, *room;
    unsigned char *memory, *receives;
    struct address peer;
};

static void side_open(struct side *s, int socket)
{
    device_open(&s->d);
    s->cq = cq_make(&s->d, 1000);
    s->memory = aligned_alloc(4096, BYTES);
    s->receives = aligned_alloc(4096, BYTES);
    check(s->memory && s->receives, "no memory");
    memset(s->memory, 0, BYTES);
    memset(s->receives, 0, BYTES);
    s->mr = mr_make(&s->d, s->memory, BYTES, ALL_ACCESS);
    s->room = mr_make(&s->d, s->receives, BYTES, IBV_ACCESS_LOCAL_WRITE);
    s->qp = qp_make(&s->d, (struct queue_options){.send_cq = s->cq, .send = 64, .receive = 64});
    struct address ours = qp_address(&s->d, s->qp, s->mr);
    swap(socket, &ours, &s->peer, sizeof ours);
    qp_connect(&s->d, s->qp, s->peer);
}

/* ---- the side that receives ---- */

static void disturbed(struct side *s, int socket)
{
    struct address at;
    get(socket, &at, sizeof at);
    for (int i = 0; i < WRITES; i++) {
        struct operation o = {.opcode = IBV_WR_RDMA_WRITE, .id = 5000, .local = s->memory,
                              .bytes = 8, .lkey = s->mr->lkey, .remote = at.memory,
                              .rkey = at.rkey};
        post(s->qp, o);
        sleep_ms(2);
    }
}

static void receiver(int socket)
{
    static struct side s;
    side_open(&s, socket);
    for (unsigned i = 0; i < SLOTS; i++)
        receive(s.qp, i, s.receives + i * SLOT, SLOT, s.room->lkey);
    meet(socket);
    unsigned arrived = 0, written = 0, disturbances = 0;
    while (arrived < messages() || written) {
        if (arrived % EVERY == EVERY / 2 && disturbances == arrived / EVERY) {
            disturbed(&s, socket);
            written = WRITES;
            disturbances++;
        }
        struct ibv_wc wc = completion(s.cq, 20000);
        same(wc.status, 0);
        if (wc.opcode == IBV_WC_RDMA_WRITE) {
            if (!--written)
                put(socket, "w", 1);
            continue;
        }
        if (!(wc.opcode & IBV_WC_RECV))
            continue; /* a credit of ours left */
        unsigned number = ntohl(wc.imm_data);
        same(number, arrived);
        same(wc.byte_len, length(number));
        unsigned char *at = number % 2 ? s.receives + wc.wr_id * SLOT
                                       : s.memory + number % SLOTS * SLOT + skew(number);
        ssize_t wrong = unfilled(at, length(number), number + 1);
        check(wrong < 0, "message %u differs at byte %zd", number, wrong);
        receive(s.qp, wc.wr_id, s.receives + wc.wr_id * SLOT, SLOT, s.room->lkey);
        post(s.qp, (struct operation){.opcode = IBV_WR_SEND, .id = 6000});
        arrived++;
    }
    meet(socket);
}

/* ---- the side that sends ---- */

struct progress {
    unsigned complete, credits;
};

static void wait_for(struct side *s, struct progress *p, unsigned complete, unsigned credits)
{
    while (p->complete < complete || p->credits < credits) {
        struct ibv_wc wc = completion(s->cq, 20000);
        same(wc.status, 0);
        if (wc.opcode & IBV_WC_RECV) {
            p->credits++;
            receive(s->qp, 0, s->receives, 64, s->room->lkey);
        } else {
            same(wc.wr_id, p->complete);
            p->complete++;
        }
    }
}

/* A region that the peer writes to, so that its pages move. */
static struct ibv_mr *other_region(struct side *s, int socket)
{
    char c;
    unsigned char *other = aligned_alloc(4096, OTHER);
    check(other, "no memory");
    memset(other, 0, OTHER);
    struct ibv_mr *mr = mr_make(&s->d, other, OTHER, ALL_ACCESS);
    struct address at = {.memory = (uintptr_t)other, .rkey = mr->rkey};
    put(socket, &at, sizeof at);
    get(socket, &c, 1);
    return mr;
}

static void post_message(struct side *s, unsigned number)
{
    unsigned char *at = s->memory + number % SLOTS * SLOT + skew(number);
    fill(at, length(number), number + 1);
    struct operation o = {
        .opcode = number % 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM, .id = number,
        .local = at, .bytes = length(number), .lkey = s->mr->lkey, .immediate = number,
        .remote = s->peer.memory + number % SLOTS * SLOT + skew(number), .rkey = s->peer.rkey};
    post(s->qp, o);
}

TEST(sources)
{
    static struct side s;
    static struct progress p;
    struct ibv_mr *other = NULL;
    pid_t pid;
    int socket = spawn(receiver, &pid);
    check(messages() % EVERY == 0, "whole rounds of %u messages", EVERY);
    side_open(&s, socket);
    for (unsigned i = 0; i < 64; i++)
        receive(s.qp, 0, s.receives, 64, s.room->lkey);
    meet(socket);
    for (unsigned number = 0; number < messages(); number++) {
        if (number >= SLOTS)
            wait_for(&s, &p, number - SLOTS + 1, number - SLOTS + 1);
        post_message(&s, number);
        if (number == messages() / 2) {
            pid_t child = fork();
            if (!child)
                _exit(0);
            reap(child);
        }
        if (number % EVERY == EVERY / 2 + SLOTS / 2)
            other = other_region(&s, socket);
        if (number % EVERY == EVERY - 1) { /* with this message and others under way */
            void *memory = other->addr;
            same(ibv_dereg_mr(other), 0);
            free(memory);
        }
    }
    wait_for(&s, &p, messages(), messages());
    meet(socket);
    reap(pid);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
