/* A program that polls now and then has its peers' operations done in between: it is woken for
 * them, as one that sleeps would be. Its polls are the clock: what they do not do takes fewer of
 * them. Argument: how many operations. */
#include "common.h"

#include <fcntl.h>
#include <sys/socket.h>

#define BYTES 65536u

/* Polls twice a millisecond until it is told to stop; says how often it did. */
static void polls_seldom(int socket)
{
    struct device d;
    char *memory = calloc(1, BYTES), c;
    uint64_t polls = 0;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 8);
    struct ibv_mr *mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct address ours = qp_address(&d, qp, mr), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    for (; recv(socket, &c, 1, MSG_DONTWAIT) != 1; polls++) {
        struct ibv_wc wc;
        usleep(500);
        same(ibv_poll_cq(cq, 1, &wc), 0);
    }
    put(socket, &polls, sizeof polls);
    get(socket, &c, 1);
}

/* Waits for a completion asleep. */
static void sleep_until(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
    struct ibv_cq *told;
    void *context;
    same(ibv_get_cq_event(channel, &told, &context), 0);
    ibv_ack_cq_events(cq, 1);
    same(ibv_req_notify_cq(cq, 0), 0);
}

static void once(enum ibv_wr_opcode opcode, uint32_t bytes, bool sleeps, uint64_t times)
{
    struct device d;
    struct address theirs;
    char *memory = calloc(1, BYTES), c = 0;
    uint64_t polls;
    pid_t pid;
    setenv("OMNIVERB_ADOPTION", "off", 1); /* it takes the peer to do them */
    int socket = spawn(polls_seldom, &pid);
    device_open(&d);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(d.context);
    check(channel, "ibv_create_comp_channel: %m");
    struct ibv_cq *cq = ibv_create_cq(d.context, 8, NULL, channel, 0);
    check(cq, "ibv_create_cq: %m");
    struct ibv_mr *mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct address ours = qp_address(&d, qp, mr);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    if (sleeps)
        same(ibv_req_notify_cq(cq, 0), 0);
    for (uint64_t i = 0; i < times; i++) {
        post(qp, (struct operation){.opcode = opcode, .id = i, .local = memory, .bytes = bytes,
                                    .lkey = mr->lkey, .remote = theirs.memory,
                                    .rkey = theirs.rkey});
        if (sleeps)
            sleep_until(channel, cq);
        expect(cq, i, IBV_WC_SUCCESS);
    }
    put(socket, &c, 1);
    get(socket, &polls, sizeof polls);
    put(socket, &c, 1);
    reap(pid);
    printf("%s of %u bytes, %s: %" PRIu64 " took %" PRIu64 " polls of the peer's\n",
           opcode == IBV_WR_RDMA_READ ? "READ" : "WRITE", bytes, sleeps ? "asleep" : "polling",
           times, polls);
    check(polls < times * 3 / 4, "they wait for the peer's polls");
    close(socket);
    same(ibv_destroy_qp(qp), 0);
    same(ibv_dereg_mr(mr), 0);
    same(ibv_destroy_cq(cq), 0);
    same(ibv_destroy_comp_channel(channel), 0);
    device_close(&d);
    free(memory);
}

TEST(served_between_polls)
{
    uint64_t times = argument(0, 400);
    for (int i = 0; i < 8; i++)
        once(i & 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, i & 2 ? BYTES : 64, i & 4, times);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
