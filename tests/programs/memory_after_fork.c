/* fork(): parent and child have separate memory, also where it is registered and a peer writes to
 * it; the parent's verbs objects go on working, and the child can open the device anew. */
#include "common.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define BYTES (64 * 4096u)

/* The peer: writes, reads and adds where it is told, when it is told. */
static void peer(int socket)
{
    struct device d;
    struct address theirs;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    char *memory = malloc(BYTES);
    struct ibv_mr *mr = mr_make(&d, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
    struct address ours = qp_address(&d, qp, NULL);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    for (;;) {
        uint64_t word;
        get(socket, &word, sizeof word);
        if (!word)
            return;
        fill(memory, BYTES, word);
        for (int i = 0; i < 20; i++) {
            post(qp, (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = 1, .local = memory,
                                        .bytes = BYTES, .lkey = mr->lkey, .remote = theirs.memory,
                                        .rkey = theirs.rkey});
            expect(cq, 1, 0);
        }
        memset(memory, 0, BYTES);
        post(qp, (struct operation){.opcode = IBV_WR_RDMA_READ, .id = 2, .local = memory,
                                    .bytes = BYTES, .lkey = mr->lkey, .remote = theirs.memory,
                                    .rkey = theirs.rkey});
        expect(cq, 2, 0);
        check(unfilled(memory, BYTES, word) < 0, "read back something else");
        put(socket, &word, sizeof word);
    }
}

static void order(int socket, uint64_t word)
{
    put(socket, &word, sizeof word);
    if (word)
        get(socket, &word, sizeof word);
}

static int wait_for(pid_t pid)
{
    int status;
    check(waitpid(pid, &status, 0) == pid, "waitpid: %m");
    return status;
}

static void whole(bool on_heap)
{
    struct device d;
    struct address theirs;
    pid_t peer_pid;
    int socket = spawn(peer, &peer_pid);
    ibv_fork_init();
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    /* A skewed start: the first and last page hold other things of ours too. */
    char *memory = on_heap ? (char *)malloc(BYTES + 8192) + 40
                           : (char *)mmap(NULL, BYTES + 8192, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 40;
    struct ibv_mr *mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
    struct address ours = qp_address(&d, qp, mr);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);

    order(socket, 1);
    check(unfilled(memory, BYTES, 1) < 0, "the first write did not arrive");
    sleep_ms(20);
    order(socket, 1); /* granted by now, if ever */
    for (uint64_t turn = 2; turn < 12; turn++) {
        int ready[2], go[2];
        char c = 0;
        check(!pipe(ready) && !pipe(go), "pipe: %m");
        fflush(NULL);
        pid_t child = fork();
        check(child >= 0, "fork: %m");
        if (child == 0) {
            /* What the parent had; then what we write; never what the peer sends our parent. */
            check(unfilled(memory, BYTES, turn - 1) < 0, "the child has not its parent's memory");
            check(write(ready[1], "r", 1) == 1 && read(go[0], &c, 1) == 1, "pipe: %m");
            check(unfilled(memory, BYTES, turn - 1) < 0, "the child sees the peer's writes");
            fill(memory, BYTES, 777);
            memset(memory + BYTES, 7, 4096);
            check(write(ready[1], "r", 1) == 1 && read(go[0], &c, 1) == 1, "pipe: %m");
            check(unfilled(memory, BYTES, 777) < 0, "the child's memory changed");
            _exit(0);
        }
        check(read(ready[0], &c, 1) == 1, "the child is gone");
        order(socket, turn);
        check(unfilled(memory, BYTES, turn) < 0, "the parent does not see the peer's writes");
        check(write(go[1], "g", 1) == 1 && read(ready[0], &c, 1) == 1, "the child is gone");
        check(unfilled(memory, BYTES, turn) < 0, "the parent sees its child's writes");
        order(socket, turn);
        check(write(go[1], "g", 1) == 1, "pipe: %m");
        same(wait_for(child), 0);
        close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
    }
    order(socket, 0);
    reap(peer_pid);
    same(ibv_destroy_qp(qp), 0);
    same(ibv_dereg_mr(mr), 0);
    check(unfilled(memory, BYTES, 11) < 0, "deregistration changed the memory");
}

TEST(separate_memory_on_the_heap)
{
    whole(true);
}

TEST(separate_memory_in_a_mapping)
{
    whole(false);
}

static void one_message(struct ibv_qp **pair, struct ibv_cq *cq, struct ibv_mr *mr)
{
    char *memory = mr->addr;
    receive(pair[1], 1, memory, 32, mr->lkey);
    post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = 2, .local = memory + 32,
                                     .bytes = 32, .lkey = mr->lkey});
    same(completion(cq, 2000).status, 0);
    same(completion(cq, 2000).status, 0);
}

static void on_its_own(char *memory)
{
    struct device d;
    struct ibv_qp *pair[2];
    device_open(&d);
    int mark = open("/dev/null", O_WRONLY | O_CLOEXEC);
    struct ibv_cq *cq = cq_make(&d, 10);
    struct ibv_mr *mr = mr_make(&d, memory, 64, ALL_ACCESS);
    qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
    one_message(pair, cq, mr);
    check(fcntl(mark, F_GETFD) >= 0, "somebody has closed a file of ours: %m");
}

TEST(child_opens_its_own_device)
{
    struct device d;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 10);
    struct ibv_qp *pair[2];
    qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
    static char memory[64];
    struct ibv_mr *mr = mr_make(&d, memory, 64, ALL_ACCESS);
    for (int turn = 0; turn < 3; turn++) {
        fflush(NULL);
        pid_t child = fork();
        check(child >= 0, "fork: %m");
        if (child == 0) {
            on_its_own(memory);
            _exit(0);
        }
        same(wait_for(child), 0);
        one_message(pair, cq, mr); /* ours still work */
    }
}

/* What a parent has seen of the device without opening it is nothing to its children, those
 * included that close all descriptors. */
TEST(child_of_one_that_only_looked)
{
    static char memory[64];
    int found;
    struct ibv_device **list = ibv_get_device_list(&found);
    check(list && found == 1, "%d devices", found);
    ibv_free_device_list(list);
    for (int turn = 0; turn < 4; turn++) {
        fflush(NULL);
        pid_t child = fork();
        check(child >= 0, "fork: %m");
        if (child == 0) {
            if (turn % 2)
                for (int i = 3; i < 1024; i++)
                    close(i);
            on_its_own(memory);
            _exit(0);
        }
        same(wait_for(child), 0);
    }
    on_its_own(memory);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
