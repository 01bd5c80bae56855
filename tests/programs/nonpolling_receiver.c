/* A receiver that posts receives and then does not poll: it sleeps in an unrelated read(). The
 * sender's messages must all be delivered meanwhile, as a NIC would. Arguments: messages, bytes. */
#include "common.h"

static unsigned messages;
static uint32_t bytes;

static void sleeper(int socket)
{
    struct device d;
    char done;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, (int)messages);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq, .receive = messages});
    char *memory = malloc((size_t)messages * bytes);
    uint64_t word = 4711; /* the target of WRITEs, READs and atomics of a process asleep */
    check(memory, "no memory");
    struct ibv_mr *mr = mr_make(&d, memory, (size_t)messages * bytes, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *word_mr = mr_make(&d, &word, 8, ALL_ACCESS);
    qp_init(&d, qp, 0);
    for (unsigned i = 0; i < messages; i++)
        receive(qp, i, memory + (size_t)i * bytes, bytes, mr->lkey);
    struct address ours = qp_address(&d, qp, word_mr), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    get(socket, &done, 1); /* asleep until the sender has finished */
    for (unsigned i = 0; i < messages; i++) { /* it is all there already */
        struct ibv_wc wc;
        same(ibv_poll_cq(cq, 1, &wc), 1);
        same(wc.status, 0);
        same(wc.wr_id, i);
        same(wc.byte_len, bytes);
        check(unfilled(memory + (size_t)i * bytes, bytes, i) < 0, "message %u is damaged", i);
    }
    same(word, 4711 + 1000);
    put(socket, &done, 1);
}

TEST(receiver_asleep)
{
    struct device d;
    pid_t pid;
    char done = 'd';
    messages = (unsigned)argument(0, 1000);
    bytes = (uint32_t)argument(1, 65536);
    int socket = spawn(sleeper, &pid);
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq, .send = 16});
    char *memory = malloc((size_t)16 * bytes);
    check(memory, "no memory");
    struct ibv_mr *mr = mr_make(&d, memory, (size_t)16 * bytes, IBV_ACCESS_LOCAL_WRITE);
    struct address ours = qp_address(&d, qp, NULL), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    uint64_t start = now_ns();
    for (unsigned i = 0; i < messages; i++) {
        if (i >= 16)
            expect(cq, i - 16, 0);
        fill(memory + (size_t)(i % 16) * bytes, bytes, i);
        post(qp, (struct operation){.opcode = IBV_WR_SEND, .id = i, .bytes = bytes,
                                    .local = memory + (size_t)(i % 16) * bytes,
                                    .lkey = mr->lkey});
    }
    for (unsigned i = messages > 16 ? messages - 16 : 0; i < messages; i++)
        expect(cq, i, 0);
    printf("%u messages of %u bytes to a process asleep: %.3f s\n", messages, bytes,
           (double)(now_ns() - start) / 1e9);
    struct operation add = {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .local = memory, .bytes = 8,
                            .lkey = mr->lkey, .remote = theirs.memory, .rkey = theirs.rkey,
                            .compare_or_add = 1};
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t before;
        post(qp, add);
        expect(cq, 0, 0);
        memcpy(&before, memory, 8);
        same(before, 4711 + i);
    }
    put(socket, &done, 1);
    get(socket, &done, 1);
    reap(pid);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
