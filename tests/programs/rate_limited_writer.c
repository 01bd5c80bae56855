/* One end of a pair that writes to each other as fast as it may, asleep between completions. What
 * it reads and prints, line by line, is for whoever started it:
 *   prints  GID QPN RKEY ADDRESS          (in hexadecimal)
 *   reads   the same of its partner
 *   prints  ready
 *   reads   SECONDS                       and writes for as long, or until there is another line
 *   prints  START MS BYTES BYTES ...      nanoseconds, then what completed in each MS milliseconds
 *   prints  how many messages it sent
 *   reads   how many its partner sent, and looks at what arrived
 *   prints  well
 * and goes when its standard input ends.
 * Arguments: bytes of a message, messages under way. */
#include "common.h"

#include <poll.h>

#define SLICE_MS 1u
#define SLICES 60000u

static struct device d;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static char *memory; /* messages, then where the partner writes */
static uint32_t bytes, depth;

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

static uint64_t read_number(void)
{
    uint64_t number;
    check(scanf("%" SCNu64, &number) == 1, "no number");
    return number;
}

static void wait_for_event(void)
{
    struct ibv_cq *which;
    void *context;
    struct pollfd p = {.fd = channel->fd, .events = POLLIN};
    check(poll(&p, 1, 10000) == 1, "no completion for 10 s");
    same(ibv_get_cq_event(channel, &which, &context), 0);
    ibv_ack_cq_events(which, 1);
}

/* Takes what has completed; sleeps for it if there is nothing. */
static unsigned take(void)
{
    struct ibv_wc wc[16];
    for (int turn = 0;; turn++) {
        int n = ibv_poll_cq(cq, 16, wc);
        check(n >= 0, "ibv_poll_cq: %d", n);
        for (int i = 0; i < n; i++)
            check(!wc[i].status, "message %" PRIu64 ": %s", wc[i].wr_id,
                  ibv_wc_status_str(wc[i].status));
        if (n)
            return (unsigned)n;
        if (turn == 0)
            same(ibv_req_notify_cq(cq, 0), 0);
        else
            wait_for_event(), turn = -1;
    }
}

static bool has_input(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

TEST(one_end)
{
    static uint32_t slices[SLICES];
    bytes = (uint32_t)argument(0, 16384);
    depth = (uint32_t)argument(1, 8);
    device_open(&d);
    check((channel = ibv_create_comp_channel(d.context)), "ibv_create_comp_channel: %m");
    check((cq = ibv_create_cq(d.context, (int)depth + 8, NULL, channel, 0)), "ibv_create_cq: %m");
    memory = calloc(2 * depth, bytes);
    check(memory, "no memory");
    struct ibv_mr *mr = mr_make(&d, memory, (size_t)2 * depth * bytes, ALL_ACCESS);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct address ours = qp_address(&d, qp, mr);
    ours.memory += (uint64_t)depth * bytes;
    show_address(ours);
    struct address theirs = read_address();
    qp_connect(&d, qp, theirs);
    puts("ready");
    uint64_t seconds = read_number(), start = now_ns(), end = start + seconds * 1000000000u;
    uint64_t posted = 0, done = 0;
    for (bool is_told = false; now_ns() < end || done < posted;) {
        if (!is_told && has_input()) {
            is_told = true;
            end = now_ns();
        }
        while (posted - done < depth && now_ns() < end) {
            uint32_t slot = (uint32_t)(posted % depth) * bytes;
            fill(memory + slot, bytes, posted);
            post(qp, (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = posted++, .bytes = bytes,
                                        .local = memory + slot, .lkey = mr->lkey,
                                        .remote = theirs.memory + slot, .rkey = theirs.rkey});
        }
        if (done == posted)
            continue;
        unsigned count = take();
        uint64_t slice = (now_ns() - start) / (SLICE_MS * 1000000);
        done += count;
        if (slice < SLICES)
            slices[slice] += count * bytes;
    }
    printf("%" PRIu64 " %u", start, SLICE_MS);
    for (uint64_t i = 0; i < SLICES && i < (end - start) / (SLICE_MS * 1000000); i++)
        printf(" %u", slices[i]);
    printf("\n%" PRIu64 "\n", posted);
    fflush(stdout);
    if (end < start + seconds * 1000000000u)
        read_number(); /* what it was told to end by */
    uint64_t arrived = read_number(); /* the partner's last ones, each in its place */
    for (uint64_t i = arrived > depth ? arrived - depth : 0; i < arrived; i++)
        check(unfilled(memory + (depth + i % depth) * bytes, bytes, i) < 0, "message %" PRIu64
              " of the partner is damaged", i);
    same(qp_state(qp), IBV_QPS_RTS);
    puts("well");
    while (getchar() != EOF) {
    }
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
