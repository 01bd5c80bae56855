/* One end of a pair of which one asks for operations without end, while rules change. What it
 * reads and prints, line by line, is for the case that started it:
 *   prints  GID QPN RKEY ADDRESS          (in hexadecimal)
 *   reads   the same of its partner
 *   prints  ready
 *   reads   look
 *   prints  SEEN STATUS                   numbers: what has arrived last; how the queue pair fails
 * and goes when its standard input ends. The end at which payload arrives sees other numbers as
 * long as payload arrives.
 * Arguments: 1 for the requester, 0 for its target; service (rc, uc, ud); operation (write, read,
 * atomic, send). */
#include "common.h"

#include <poll.h>

#define DEPTH 64u
#define SLOT 256u

static struct device d;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
/* A counter that a partner changes or reads, one that it read, and messages. */
static volatile uint64_t *memory;
static struct ibv_ah *ah;
static struct address theirs;
static const char *operation;
static uint64_t arrived, posted;
static unsigned under_way;
static int status;
static bool asks;

static void show_address(struct address a)
{
    for (int i = 0; i < 16; i++)
        printf("%02x", a.gid.raw[i]);
    printf(" %x %x %" PRIx64 "\n", a.qpn, a.rkey, a.memory);
    fflush(stdout);
}

static struct address read_address(void)
{
    struct address a = {.qpn = 0};
    char gid[40];
    check(scanf("%32s %x %x %" SCNx64, gid, &a.qpn, &a.rkey, &a.memory) == 4, "no address");
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        check(sscanf(gid + 2 * i, "%2x", &byte) == 1, "no GID");
        a.gid.raw[i] = (uint8_t)byte;
    }
    return a;
}

static bool is(const char *name)
{
    return !strcmp(operation, name);
}

static void *slot(unsigned number)
{
    return (char *)memory + (size_t)(2 + number) * SLOT;
}

static void ask(void)
{
    struct operation o = {.id = posted, .lkey = mr->lkey, .bytes = 8, .remote = theirs.memory,
                          .rkey = theirs.rkey, .ah = ah, .qpn = theirs.qpn};
    o.local = slot((unsigned)(posted % DEPTH));
    if (is("read") || is("atomic"))
        o.local = (char *)memory + SLOT; /* one after the other */
    else
        *(uint64_t *)o.local = posted + 1;
    o.opcode = is("write")    ? IBV_WR_RDMA_WRITE
               : is("read")   ? IBV_WR_RDMA_READ
               : is("atomic") ? IBV_WR_ATOMIC_FETCH_AND_ADD
                              : IBV_WR_SEND;
    o.compare_or_add = 1;
    post(qp, o);
    posted++;
    under_way++;
}

static void take(void)
{
    struct ibv_wc wc[16];
    int n = ibv_poll_cq(cq, 16, wc);
    check(n >= 0, "ibv_poll_cq: %d", n);
    for (int i = 0; i < n; i++) {
        if (wc[i].status) {
            if (!status)
                status = (int)wc[i].status;
            continue;
        }
        if (wc[i].opcode == IBV_WC_RECV) {
            arrived++;
            receive(qp, wc[i].wr_id, slot((unsigned)wc[i].wr_id), SLOT, mr->lkey);
        } else {
            under_way--;
        }
    }
}

/* What has changed when payload has arrived. */
static uint64_t seen(void)
{
    if (is("send"))
        return arrived;
    return is("read") ? memory[SLOT / 8] : memory[0];
}

TEST(one_end)
{
    asks = argument(0, 0);
    const char *service = arguments_count > 1 ? arguments[1] : "rc";
    operation = arguments_count > 2 ? arguments[2] : "write";
    enum ibv_qp_type type = !strcmp(service, "ud")   ? IBV_QPT_UD
                            : !strcmp(service, "uc") ? IBV_QPT_UC
                                                     : IBV_QPT_RC;
    size_t bytes = (size_t)(2 + DEPTH) * SLOT;
    device_open(&d);
    check(!posix_memalign((void **)&memory, 4096, bytes), "no memory");
    memset((void *)memory, 0, bytes);
    cq = cq_make(&d, 4 * DEPTH);
    mr = mr_make(&d, (void *)memory, bytes, ALL_ACCESS);
    qp = qp_make(&d, (struct queue_options){.type = type, .send = DEPTH, .receive = DEPTH,
                                           .send_cq = cq, .receive_cq = cq});
    show_address(qp_address(&d, qp, mr));
    theirs = read_address();
    qp_connect(&d, qp, theirs);
    if (type == IBV_QPT_UD) {
        struct ibv_ah_attr to = {.is_global = 1, .port_num = 1};
        to.grh.dgid = theirs.gid;
        to.grh.sgid_index = (uint8_t)d.gid_index;
        to.grh.hop_limit = 64;
        check((ah = ibv_create_ah(d.pd, &to)), "ibv_create_ah: %m");
    }
    if (is("send") && !asks)
        for (unsigned i = 0; i < DEPTH; i++)
            receive(qp, i, slot(i), SLOT, mr->lkey);
    puts("ready");
    fflush(stdout);
    /* READs and atomics have one place for what they bring. */
    unsigned depth = is("read") || is("atomic") ? 1 : DEPTH / 2;
    for (;;) {
        struct pollfd commands = {.fd = 0, .events = POLLIN};
        bool idle = !asks || status || under_way >= depth;
        if (poll(&commands, 1, idle ? 1 : 0) == 1) {
            char line[16];
            ssize_t length = read(0, line, sizeof line);
            if (length <= 0)
                return;
            printf("%" PRIu64 " %d\n", seen(), status);
            fflush(stdout);
        }
        if (!asks && is("read"))
            memory[0]++;
        take();
        while (asks && !status && under_way < depth)
            ask();
    }
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
