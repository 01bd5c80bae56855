/* Two processes, connected, with receives posted and completion queues armed, that then do nothing
 * until their standard input closes. Whoever started them looks at how much CPU that takes. */
#include "common.h"

static void idle(int socket, bool first)
{
    struct device d;
    static char memory[2][65536];
    device_open(&d);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(d.context);
    struct ibv_cq *cq = ibv_create_cq(d.context, 1000, NULL, channel, 0);
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
    struct ibv_qp *qps[20];
    check(channel && cq, "%m");
    for (int i = 0; i < 20; i++) {
        struct address ours, theirs;
        qps[i] = qp_make(&d, (struct queue_options){.send_cq = cq});
        ours = qp_address(&d, qps[i], mr);
        swap(socket, &ours, &theirs, sizeof ours);
        qp_connect(&d, qps[i], theirs);
        receive(qps[i], 1, memory[0], 64, mr->lkey);
        receive(qps[i], 1, memory[0], 64, mr->lkey);
        meet(socket);
        if (first)
            for (int k = 0; k < 40; k++) {
                post(qps[i], (struct operation){.opcode = k ? IBV_WR_RDMA_WRITE : IBV_WR_SEND,
                                                .id = 2, .local = memory[1],
                                                .bytes = k ? 65536 : 64, .lkey = mr->lkey,
                                                .remote = theirs.memory, .rkey = theirs.rkey});
                expect(cq, 2, 0);
            }
        else
            expect(cq, 1, 0);
        meet(socket);
    }
    same(ibv_req_notify_cq(cq, 0), 0);
}

static void second(int socket)
{
    char c;
    idle(socket, false);
    get(socket, &c, 1);
}

TEST(two_idle_processes)
{
    pid_t pid;
    char c = 'e';
    int socket = spawn(second, &pid);
    idle(socket, true);
    printf("idle %d %d\n", getpid(), pid);
    while (read(0, &c, 1) > 0) {
    }
    put(socket, &c, 1);
    reap(pid);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
