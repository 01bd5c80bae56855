/* The process that remote_keys.c attacks: it owns memory, registers and deregisters it as it is
 * told, and polls nothing. */
#ifndef REMOTE_KEYS_VICTIM_H
#define REMOTE_KEYS_VICTIM_H

#include "common.h"

#include <sys/mman.h>

#define PAGES 64
#define BYTES (PAGES * 4096u)
#define SKEW 24 /* the MR starts and ends within a page */

enum command { CONNECT, REGISTER, FOREIGN, DEREGISTER, RECEIVE, VERIFY, QUIT };
struct request {
    enum command command;
    int access;
    struct address peer;
    uint64_t word;
};

/* The process that is attacked: does what it is told, polls nothing, answers with an address. */
static void target(int socket)
{
    struct device d;
    struct ibv_qp *qp = NULL;
    struct ibv_mr *mr = NULL;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_pd *other = ibv_alloc_pd(d.context);
    unsigned char *memory =
        mmap(NULL, BYTES + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(other && memory != MAP_FAILED, "%m");
    for (;;) {
        struct request r;
        struct address answer;
        memset(&answer, 0, sizeof answer);
        get(socket, &r, sizeof r);
        switch (r.command) {
        case CONNECT:
            if (qp)
                same(ibv_destroy_qp(qp), 0);
            qp = qp_make(&d, (struct queue_options){.send_cq = cq});
            qp_connect(&d, qp, r.peer);
            answer = qp_address(&d, qp, NULL);
            break;
        case REGISTER:
        case FOREIGN:
            mr = ibv_reg_mr(r.command == FOREIGN ? other : d.pd, memory + SKEW, BYTES - 2 * SKEW,
                            r.access);
            check(mr, "ibv_reg_mr: %m");
            answer.rkey = mr->rkey;
            answer.memory = (uintptr_t)mr->addr;
            answer.length = mr->length;
            break;
        case DEREGISTER:
            same(ibv_dereg_mr(mr), 0);
            fill(memory, BYTES + 8192, r.word);
            break;
        case RECEIVE:
            receive(qp, 1, memory + SKEW, 64, mr->lkey);
            break;
        case VERIFY: /* the pattern of DEREGISTER, or of the last honest write */
            answer.memory = (uint64_t)unfilled(memory, BYTES + 8192, r.word);
            break;
        case QUIT:
            put(socket, &answer, sizeof answer);
            return;
        }
        put(socket, &answer, sizeof answer);
    }
}

struct victim {
    int socket;
    pid_t pid;
};

static struct address ask(struct victim *v, struct request r)
{
    struct address answer;
    put(v->socket, &r, sizeof r);
    get(v->socket, &answer, sizeof answer);
    return answer;
}

#endif
