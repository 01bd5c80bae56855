/* What the test programs share: named tests, processes with a socket between them, random numbers,
 * and short ways to make, connect and use verbs objects. Everything dies with a message. */
#ifndef COMMON_H
#define COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* ---- named tests: `program NAME [ARGUMENT...]` runs one, `program` runs all ---- */

struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
};
extern struct test *tests;
extern int arguments_count;
extern char **arguments;
#define TEST(test_name)                                                                            \
    static void test_name(void);                                                                   \
    __attribute__((constructor)) static void register_##test_name(void)                            \
    {                                                                                              \
        static struct test entry = {#test_name, test_name, NULL};                                  \
        entry.next = tests;                                                                        \
        tests = &entry;                                                                            \
    }                                                                                              \
    static void test_name(void)
int run_tests(int count, char **words);
/* The number given as argument `index` of the test, or `otherwise`. */
uint64_t argument(int index, uint64_t otherwise);

/* ---- dying and checking ---- */

#define die(...) die_at(__FILE__, __LINE__, __VA_ARGS__)
#define check(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            die(__VA_ARGS__);                                                                      \
    } while (0)
/* The integers must be equal. */
#define same(got, want)                                                                            \
    do {                                                                                           \
        long long got_ = (long long)(got), want_ = (long long)(want);                              \
        if (got_ != want_)                                                                         \
            die("%s is %lld, not %s (%lld)", #got, got_, #want, want_);                            \
    } while (0)
__attribute__((noreturn, format(printf, 3, 4))) void die_at(const char *file, int line,
                                                            const char *format, ...);

/* ---- time and random numbers ---- */

uint64_t now_ns(void);
void sleep_ms(unsigned ms);
struct random {
    uint64_t state;
};
uint64_t random_next(struct random *r);
uint64_t random_below(struct random *r, uint64_t limit);
/* Fills memory with the bytes that belong to `word`. */
void fill(void *memory, size_t bytes, uint64_t word);
/* Index of the first byte that is not what fill() wrote, or -1. */
ssize_t unfilled(const void *memory, size_t bytes, uint64_t word);

/* ---- processes ---- */

/* Runs `run(socket)` in a child process with a socket to us; returns our end. With the variable
 * TEST_PEERS (NAMESPACE=DAEMON,...) the first child enters the first network namespace and is a
 * client of the daemon named with it, the second the second's; the last one's serves the rest.
 * Two kernels can have a side each: the same program with the same arguments is started twice, here
 * with TEST_ELSEWHERE=ADDRESS=PORT, there with TEST_ELSEWHERE=PORT. There spawn() runs `run`, and
 * the program ends with it; here the child is one that has nothing to do. */
int spawn(void (*run)(int socket), pid_t *child);
/* Two ends of a stream, ours and the child's, to be made before it is spawned. If it runs elsewhere
 * only one end is there, the other is -1. */
void socket_pair(int ends[2]);
/* The child must have exited with 0. */
void reap(pid_t child);
void put(int socket, const void *data, size_t bytes);
void get(int socket, void *data, size_t bytes);
void swap(int socket, const void *ours, void *theirs, size_t bytes);
/* Waits until the other side is here too. */
void meet(int socket);
/* How many descriptors of ours are of this kind, as /proc/self/fd calls it to begin with. */
int descriptors(const char *kind);

/* ---- verbs ---- */

struct device {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_device_attr attributes;
    struct ibv_port_attr port;
    union ibv_gid gid;
    int gid_index;
};
/* Opens the only device and finds its RoCE v2 GID for IPv4; with the variable TEST_IPV6, for a
 * unique local IPv6 address, with TEST_VIRTUAL the first. */
void device_open(struct device *d);
void device_close(struct device *d);

/* How a peer finds a QP and, perhaps, its memory. */
struct address {
    union ibv_gid gid;
    uint32_t qpn, rkey;
    uint64_t memory, length;
    /* The first, both ways. Another one each time keeps late packets of the last one away. */
    uint32_t psn;
};

struct queue_options {
    enum ibv_qp_type type; /* 0: RC */
    uint32_t send, receive, sge, inline_bytes; /* 0: 64, 64, 4, 0 */
    struct ibv_srq *srq;
    struct ibv_cq *send_cq, *receive_cq;
    int all_signalled;
};
struct ibv_cq *cq_make(struct device *d, int depth);
struct ibv_qp *qp_make(struct device *d, struct queue_options o);
#define ALL_ACCESS                                                                                 \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                   \
     IBV_ACCESS_REMOTE_ATOMIC)
struct address qp_address(struct device *d, struct ibv_qp *qp, struct ibv_mr *mr);
void qp_init(struct device *d, struct ibv_qp *qp, int access);
struct ibv_qp_attr rtr_attributes(struct device *d, struct address peer);
int rtr_mask(enum ibv_qp_type type);
int rts_mask(enum ibv_qp_type type);
/* Timeout 14, or what TEST_TIMEOUT says; retry count 7. */
struct ibv_qp_attr rts_attributes(void);
/* INIT, RTR and RTS. UD needs no peer. */
void qp_connect(struct device *d, struct ibv_qp *qp, struct address peer);
/* Two connected QPs in this process. */
void qp_pair(struct device *d, struct queue_options o, struct ibv_qp *pair[2]);
enum ibv_qp_state qp_state(struct ibv_qp *qp);
void qp_move(struct ibv_qp *qp, enum ibv_qp_state state); /* to RESET or ERR */
struct ibv_mr *mr_make(struct device *d, void *memory, size_t bytes, int access);

#define QKEY 0x11223344u

struct operation {
    enum ibv_wr_opcode opcode;
    uint64_t id;
    void *local;
    uint32_t bytes, lkey;
    uint64_t remote;
    uint32_t rkey;
    uint32_t immediate;
    uint64_t compare_or_add, swap;
    unsigned flags; /* IBV_SEND_* */
    struct ibv_ah *ah;
    uint32_t qpn;
};
int try_post(struct ibv_qp *qp, struct operation o);
void post(struct ibv_qp *qp, struct operation o); /* always signalled */
int try_receive(struct ibv_qp *qp, uint64_t id, void *memory, uint32_t bytes, uint32_t lkey);
void receive(struct ibv_qp *qp, uint64_t id, void *memory, uint32_t bytes, uint32_t lkey);
/* The next completion; dies when none comes for `limit_ms`. */
struct ibv_wc completion(struct ibv_cq *cq, unsigned limit_ms);
/* The next completion must be this. */
struct ibv_wc expect(struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status);
/* No completion may come for `ms`. */
void expect_none(struct ibv_cq *cq, unsigned ms);

#endif
