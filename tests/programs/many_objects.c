/* Many of everything: QPs on one CQ, clients of one server, pairs of processes. */
#include "common.h"

#include <arpa/inet.h>
#include <sys/wait.h>

/* ---- many QPs on one CQ ---- */

TEST(queue_pairs_on_one_cq)
{
    struct device d;
    struct random r = {.state = 5};
    unsigned count = (unsigned)argument(0, 1000);
    device_open(&d);
    struct ibv_cq *send_cq = cq_make(&d, 4000), *one = cq_make(&d, 4000);
    struct ibv_qp **qps = calloc(count, sizeof *qps), **peers = calloc(count, sizeof *peers);
    uint32_t *memory = calloc(2 * count, sizeof *memory);
    check(qps && peers && memory, "no memory");
    struct ibv_mr *mr = mr_make(&d, memory, 8 * count, ALL_ACCESS);
    uint64_t start = now_ns();
    for (unsigned i = 0; i < count; i++) {
        struct queue_options o = {.send_cq = send_cq, .receive_cq = one, .send = 4, .receive = 4};
        qps[i] = qp_make(&d, o);
        peers[i] = qp_make(&d, o);
        qp_connect(&d, qps[i], qp_address(&d, peers[i], NULL));
        qp_connect(&d, peers[i], qp_address(&d, qps[i], NULL));
    }
    printf("%u pairs connected in %.2f s\n", count, (double)(now_ns() - start) / 1e9);
    for (unsigned turn = 0; turn < 3; turn++)
        for (unsigned i = 0; i < count; i++) {
            unsigned k = (unsigned)random_below(&r, count);
            memory[k] = i * 3 + turn;
            receive(peers[k], k, memory + count + k, 4, mr->lkey);
            post(qps[k], (struct operation){.opcode = IBV_WR_SEND, .id = k, .local = memory + k,
                                            .bytes = 4, .lkey = mr->lkey});
            struct ibv_wc wc = expect(one, k, 0);
            same(wc.qp_num, peers[k]->qp_num);
            same(memory[count + k], i * 3 + turn);
            expect(send_cq, k, 0);
        }
    /* All at once. */
    for (unsigned k = 0; k < count; k++)
        receive(peers[k], k, memory + count + k, 4, mr->lkey);
    for (unsigned k = 0; k < count; k++)
        post(qps[k], (struct operation){.opcode = IBV_WR_SEND, .id = k, .local = memory + k,
                                        .bytes = 4, .lkey = mr->lkey});
    char *seen = calloc(count, 1);
    for (unsigned k = 0; k < count; k++) {
        struct ibv_wc wc = completion(one, 2000);
        check(!wc.status && wc.wr_id < count && !seen[wc.wr_id]++, "completion %" PRIu64, wc.wr_id);
        completion(send_cq, 2000);
    }
}

/* ---- a server with many client processes ---- */

static unsigned rounds;

/* Asks and is answered; writes to and reads from its part of the server's memory. */
static void client(int socket)
{
    struct device d;
    struct address theirs;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    static char memory[3][1024];
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct address ours = qp_address(&d, qp, NULL);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t word = (uint64_t)qp->qp_num << 32 | i;
        struct operation o = {.opcode = IBV_WR_SEND_WITH_IMM, .id = 1, .local = memory[0],
                              .bytes = 1 + i % 1024, .lkey = mr->lkey, .immediate = i};
        fill(memory[0], o.bytes, word);
        receive(qp, 2, memory[1], 1024, mr->lkey);
        post(qp, o);
        for (int k = 0; k < 2; k++) {
            struct ibv_wc wc = completion(cq, 20000);
            same(wc.status, 0);
            if (wc.wr_id == 2)
                same(wc.byte_len, o.bytes);
        }
        check(unfilled(memory[1], o.bytes, word) < 0, "the answer is not the question");
        o.opcode = IBV_WR_RDMA_WRITE;
        o.remote = theirs.memory;
        o.rkey = theirs.rkey;
        post(qp, o);
        struct ibv_wc wc = completion(cq, 20000);
        same(wc.status, 0);
        o.opcode = IBV_WR_RDMA_READ;
        o.local = memory[2];
        post(qp, o);
        wc = completion(cq, 20000);
        same(wc.status, 0);
        check(unfilled(memory[2], o.bytes, word) < 0, "read back something else");
    }
    meet(socket);
}

TEST(clients_of_one_server)
{
    struct device d;
    unsigned count = (unsigned)argument(0, 64);
    rounds = (unsigned)argument(1, 300);
    pid_t *pids = calloc(count, sizeof *pids);
    int *sockets = calloc(count, sizeof *sockets);
    struct ibv_qp **qps = calloc(count, sizeof *qps);
    char(*memory)[2][1024] = calloc(count, sizeof *memory);
    check(pids && sockets && qps && memory, "no memory");
    for (unsigned i = 0; i < count; i++)
        sockets[i] = spawn(client, &pids[i]);
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, (int)count * 4);
    for (unsigned i = 0; i < count; i++) {
        struct address theirs;
        struct ibv_mr *mr = mr_make(&d, memory[i], sizeof memory[i], ALL_ACCESS);
        qps[i] = qp_make(&d, (struct queue_options){.send_cq = cq, .send = 4, .receive = 4});
        struct address ours = qp_address(&d, qps[i], mr);
        ours.memory += 1024;
        swap(sockets[i], &ours, &theirs, sizeof ours);
        qp_connect(&d, qps[i], theirs);
        receive(qps[i], i << 1 | 1, memory[i][0], 1024, mr->lkey);
        qps[i]->qp_context = mr;
    }
    for (unsigned i = 0; i < count; i++)
        meet(sockets[i]);
    for (uint64_t left = (uint64_t)count * rounds * 2; left; left--) {
        struct ibv_wc wc = completion(cq, 20000);
        unsigned i = (unsigned)(wc.wr_id >> 1);
        check(!wc.status && i < count, "completion of %" PRIu64 ": %s", wc.wr_id,
              ibv_wc_status_str(wc.status));
        if (!(wc.wr_id & 1))
            continue;
        struct ibv_mr *mr = qps[i]->qp_context;
        post(qps[i], (struct operation){.opcode = IBV_WR_SEND, .id = i << 1, .local = memory[i][0],
                                        .bytes = wc.byte_len, .lkey = mr->lkey});
        receive(qps[i], i << 1 | 1, memory[i][0], 1024, mr->lkey);
    }
    for (unsigned i = 0; i < count; i++) {
        meet(sockets[i]);
        reap(pids[i]);
    }
}

/* ---- many pairs of processes ---- */

static void partner(int socket)
{
    struct device d;
    struct address theirs;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    static uint64_t memory[2];
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
    struct address ours = qp_address(&d, qp, NULL);
    qp_init(&d, qp, 0);
    for (unsigned i = 0; i < 8; i++)
        receive(qp, 1, memory, 8, mr->lkey);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    for (uint64_t i = 1; i <= rounds; i++) { /* both send at once, then wait for the other */
        memory[1] = i;
        post(qp, (struct operation){.opcode = IBV_WR_SEND, .id = 2, .local = memory + 1, .bytes = 8,
                                    .lkey = mr->lkey});
        for (int k = 0; k < 2; k++) {
            struct ibv_wc wc = completion(cq, 60000);
            same(wc.status, 0);
            if (wc.wr_id == 1) {
                same(memory[0], i);
                receive(qp, 1, memory, 8, mr->lkey);
            }
        }
        meet(socket); /* so that nobody overwrites what is being looked at */
    }
}

TEST(pairs_of_processes)
{
    unsigned count = (unsigned)argument(0, 128);
    rounds = (unsigned)argument(1, 100);
    pid_t *pids = calloc(count, sizeof *pids);
    check(pids, "no memory");
    for (unsigned i = 0; i < count; i++) {
        fflush(NULL);
        pids[i] = fork();
        check(pids[i] >= 0, "fork: %m");
        if (pids[i] == 0) {
            pid_t other;
            int socket = spawn(partner, &other);
            partner(socket);
            reap(other);
            _exit(0);
        }
    }
    for (unsigned i = 0; i < count; i++)
        reap(pids[i]);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
