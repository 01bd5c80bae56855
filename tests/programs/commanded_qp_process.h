/* A second process, perhaps on another host, that does what it is told with a QP and some memory of
 * its own: the far end of the tests in two_process_transport.c and unreliable_messages.c. */
#ifndef FAR_H
#define FAR_H

#include "common.h"

#define FAR_BYTES (1u << 18)

/* How a QP is to be connected. */
struct manner {
    enum ibv_qp_type type;
    enum ibv_mtu mtu;
    uint32_t psn;                        /* of both directions */
    uint8_t reads, rnr_retry, rnr_timer; /* outstanding; retries; code */
    uint8_t timeout, retries;
};
#define RELIABLE                                                                                   \
    ((struct manner){IBV_QPT_RC, IBV_MTU_1024, 0, 16, 7, 12, 14, 7})

enum errand {
    CONNECT,  /* a fresh QP, to `peer` (UD: to nobody); answers with its address */
    RECEIVES, /* posts `count` receives of `bytes` each, one behind the other in memory */
    BAD_KEY,  /* posts one receive of `bytes` whose lkey is wrong */
    FILL,     /* fills memory with the bytes of `word` */
    VERIFY,   /* answers where the first `bytes` at `offset` differ from those of `word`, or -1 */
    COMPLETE, /* waits `count` ms for a completion and answers with it, or with `found` 0 */
    REGISTER, /* another MR over `bytes` of the memory; answers with its address */
    DESTROY,  /* the QP */
    QUIT,
};
struct order {
    enum errand errand;
    struct address peer;
    struct manner manner;
    uint32_t count, bytes, offset;
    uint64_t word;
};
struct answer {
    struct address address;
    struct ibv_wc wc;
    int found;
    int64_t at;
};

struct far {
    int socket;
    pid_t pid;
};

/* Starts the far process. */
struct far far_start(void);
void far_end(struct far *f);
struct answer tell(struct far *f, struct order o);
/* Connects a new QP here, with `cq` for everything, and one there; returns ours. */
struct ibv_qp *far_connect(struct far *f, struct device *d, struct ibv_cq *cq, struct manner m,
                           struct address *theirs);
/* INIT, RTR and RTS as `m` says. */
void manner_connect(struct device *d, struct ibv_qp *qp, struct address peer, struct manner m);

#endif
