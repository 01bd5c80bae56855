/* A process that has ended takes nothing any more. What is posted after its end was seen must not
 * complete with success, however it ended and however that was seen: not what would go into a
 * receive that it had posted, nor what we could do to its memory by ourselves. Argument: rounds. */
#include "common.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define DEPTH 32
#define BYTES 65536u

enum end {
    KILLED,     /* by SIGKILL, and waited for */
    SEEN,       /* the same, but seen by a pidfd, and waited for later */
    ENDS,       /* by _exit */
    BECOMES,    /* another program, which a socket tells that was closed for that */
};
static enum end end;

static void victim(int socket)
{
    struct device d;
    char *memory = malloc(BYTES), c;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 2 * DEPTH);
    struct ibv_mr *mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq, .receive = 2 * DEPTH});
    struct address ours = qp_address(&d, qp, mr), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    for (int i = 0; i < 2 * DEPTH; i++)
        receive(qp, (uint64_t)i, memory, 4096, mr->lkey);
    meet(socket);
    fcntl(socket, F_SETFD, FD_CLOEXEC);
    get(socket, &c, 1);
    if (end == ENDS)
        _exit(0);
    if (end == BECOMES)
        execlp("sleep", "sleep", "60", NULL);
    pause();
}

struct survivor {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    struct address peer;
    char memory[BYTES];
};

static struct operation operation(struct survivor *s, enum ibv_wr_opcode opcode, uint64_t id)
{
    return (struct operation){.opcode = opcode, .id = id, .local = s->memory, .lkey = s->mr->lkey,
                              .bytes = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 64,
                              .remote = s->peer.memory + 8192, .rkey = s->peer.rkey};
}

/* Has the peer end, and sees that it has. */
static void see_it_end(pid_t pid, int socket)
{
    char c = 0;
    if (end == SEEN) {
        struct pollfd seen = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
        check(seen.fd >= 0, "pidfd_open: %m");
        kill(pid, SIGKILL);
        same(poll(&seen, 1, -1), 1);
        close(seen.fd);
        return;
    }
    if (end == KILLED)
        kill(pid, SIGKILL);
    else
        put(socket, &c, 1);
    if (end == BECOMES)
        check(recv(socket, &c, 1, 0) <= 0, "its socket is still open");
    else
        same(waitpid(pid, NULL, 0), pid);
}

static void once(enum ibv_wr_opcode opcode)
{
    static struct survivor s;
    pid_t pid;
    int socket = spawn(victim, &pid);
    device_open(&s.d);
    s.cq = cq_make(&s.d, 2 * DEPTH);
    s.mr = mr_make(&s.d, s.memory, BYTES, ALL_ACCESS);
    s.qp = qp_make(&s.d, (struct queue_options){.send_cq = s.cq, .send = DEPTH});
    struct address ours = qp_address(&s.d, s.qp, s.mr);
    swap(socket, &ours, &s.peer, sizeof ours);
    qp_connect(&s.d, s.qp, s.peer);
    meet(socket);
    /* As long as it lives it takes them; one-sided ones long enough for its pages to be mapped. */
    for (uint64_t i = 0; i < DEPTH; i++) {
        post(s.qp, operation(&s, opcode, i));
        expect(s.cq, i, IBV_WC_SUCCESS);
        if (opcode != IBV_WR_SEND)
            sleep_ms(1);
    }
    see_it_end(pid, socket);
    /* Also when its end is known here. */
    for (int late = 0; late < 2; late++) {
        for (uint64_t i = 0; i < DEPTH / 2; i++)
            post(s.qp, operation(&s, opcode, i));
        for (uint64_t i = 0; i < DEPTH / 2; i++) {
            struct ibv_wc wc = completion(s.cq, 10000);
            check(wc.wr_id == i && (wc.status == IBV_WC_WR_FLUSH_ERR ||
                                    (i == 0 && wc.status == IBV_WC_RETRY_EXC_ERR)),
                  "operation %d, request %" PRIu64 " after the peer's end (%d) completes with %s",
                  opcode, wc.wr_id, end, ibv_wc_status_str(wc.status));
        }
        same(qp_state(s.qp), IBV_QPS_ERR);
    }
    close(socket);
    if (end == SEEN || end == BECOMES) {
        kill(pid, SIGKILL);
        same(waitpid(pid, NULL, 0), pid);
    }
    same(ibv_destroy_qp(s.qp), 0);
    same(ibv_dereg_mr(s.mr), 0);
    same(ibv_destroy_cq(s.cq), 0);
    device_close(&s.d);
}

TEST(sends)
{
    for (uint64_t i = 0; i < argument(0, 6); i++)
        for (end = KILLED; end <= BECOMES; end++)
            once(IBV_WR_SEND);
}

TEST(one_sided)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                                 IBV_WR_ATOMIC_FETCH_AND_ADD,
                                                 IBV_WR_RDMA_WRITE_WITH_IMM};
    for (uint64_t i = 0; i < argument(0, 6); i++) {
        end = i % (BECOMES + 1);
        for (int k = 0; k < 4; k++)
            once(opcodes[k]);
    }
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
