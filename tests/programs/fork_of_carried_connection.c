/* A process with a connection to another host forks: the connection goes on in the parent, and the
 * child keeps no socket, whose port would outlive the parent. Argument: UDP sockets that the parent
 * has for connections. */
#include "common.h"

#include <sys/socket.h>
#include <sys/wait.h>

#define BYTES 64u
#define ROUNDS 2000u

struct side {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char memory[2 * BYTES];
};

static void side_open(struct side *s, int socket)
{
    device_open(&s->d);
    s->cq = cq_make(&s->d, 16);
    s->mr = mr_make(&s->d, s->memory, sizeof s->memory, ALL_ACCESS);
    s->qp = qp_make(&s->d, (struct queue_options){.send_cq = s->cq, .send = 4, .receive = 4});
    struct address ours = qp_address(&s->d, s->qp, s->mr), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&s->d, s->qp, theirs);
    receive(s->qp, 1, s->memory + BYTES, BYTES, s->mr->lkey);
    meet(socket);
}

static void side_close(struct side *s)
{
    same(ibv_destroy_qp(s->qp), 0);
    same(ibv_dereg_mr(s->mr), 0);
    same(ibv_destroy_cq(s->cq), 0);
    device_close(&s->d);
}

static void say(struct side *s, uint64_t word)
{
    fill(s->memory, BYTES, word);
    post(s->qp, (struct operation){.opcode = IBV_WR_SEND, .id = 2, .local = s->memory,
                                   .lkey = s->mr->lkey, .bytes = BYTES});
}

/* Both completions of a round, in whatever order. */
static void hear(struct side *s, uint64_t word, int count)
{
    for (int i = 0; i < count; i++) {
        struct ibv_wc wc = completion(s->cq, 20000);
        same(wc.status, IBV_WC_SUCCESS);
        if (wc.opcode == IBV_WC_RECV) {
            same(unfilled(s->memory + BYTES, BYTES, word), -1);
            receive(s->qp, 1, s->memory + BYTES, BYTES, s->mr->lkey);
        }
    }
}

static void echo(int socket)
{
    static struct side s;
    side_open(&s, socket);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        hear(&s, i, i ? 2 : 1);
        say(&s, i);
    }
    hear(&s, 0, 1);
    meet(socket);
    side_close(&s);
}

/* UDP sockets among our descriptors. */
static int udp_sockets(void)
{
    int found = 0;
    for (int fd = 0; fd < 1024; fd++) {
        int type, domain;
        socklen_t bytes = sizeof type;
        found += getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_DGRAM &&
                 getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 &&
                 (domain == AF_INET || domain == AF_INET6);
    }
    return found;
}

static void child(void)
{
    same(udp_sockets(), 0);
    sleep_ms(200);
    _exit(0);
}

TEST(two_processes)
{
    static struct side s;
    pid_t peer, pid = -1;
    int socket = spawn(echo, &peer), status = 0;
    side_open(&s, socket);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        say(&s, i);
        if (i == ROUNDS / 2) {
            same(udp_sockets(), (int)argument(0, 0));
            pid = fork();
            check(pid >= 0, "fork: %m");
            if (pid == 0)
                child();
        }
        hear(&s, i, 2);
    }
    same(waitpid(pid, &status, 0), pid);
    same(status, 0);
    meet(socket);
    side_close(&s);
    reap(peer);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
