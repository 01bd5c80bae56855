/* Asks for more and more of one kind of object. In the end it must get ENOMEM, not everything.
 * Leaves all objects in place and waits for its standard input to close. */
#include "common.h"

static struct device d;
static uint64_t limit;

static void open_all(void)
{
    device_open(&d);
    limit = argument(0, 2000000);
}

static void report(const char *what, uint64_t count)
{
    char c;
    int error = errno;
    printf("%" PRIu64 " %s, then %s\n", count, what, strerror(error));
    check(count < limit, "%" PRIu64 " %s and no end", count, what);
    check(error == ENOMEM, "%s: errno %d, not ENOMEM", what, error);
    check(count >= 8, "only %" PRIu64 " %s", count, what);
    fflush(stdout);
    while (read(0, &c, 1) > 0) {
    }
}

TEST(queue_pairs)
{
    open_all();
    struct ibv_cq *cq = cq_make(&d, 10);
    struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                 .cap = {1, 1, 1, 1, 0}};
    uint64_t count = 0;
    while (count < limit && ibv_create_qp(d.pd, &a))
        count++;
    report("QPs", count);
}

TEST(connected_queue_pairs)
{
    open_all();
    struct ibv_cq *cq = cq_make(&d, 10);
    struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                 .cap = {1, 1, 1, 1, 0}};
    uint64_t count = 0;
    for (; count < limit; count++) {
        struct ibv_qp *pair[2] = {ibv_create_qp(d.pd, &a), NULL};
        if (pair[0])
            pair[1] = ibv_create_qp(d.pd, &a);
        if (!pair[1])
            break;
        for (int i = 0; i < 2; i++) {
            struct ibv_qp_attr rtr = rtr_attributes(&d, qp_address(&d, pair[!i], NULL));
            qp_init(&d, pair[i], 0);
            errno = ibv_modify_qp(pair[i], &rtr, rtr_mask(IBV_QPT_RC));
            if (errno) {
                report("connected pairs", count);
                return;
            }
        }
    }
    report("connected pairs", count);
}

TEST(memory_regions)
{
    static char memory[4096];
    open_all();
    uint64_t count = 0;
    while (count < limit && ibv_reg_mr(d.pd, memory, sizeof memory, ALL_ACCESS))
        count++;
    /* As many as the device says that it has, and no more. */
    same(count, d.attributes.max_mr);
    report("MRs", count);
}

TEST(address_handles)
{
    open_all();
    uint64_t count = 0;
    struct ibv_ah_attr a = {.is_global = 1, .port_num = 1,
                            .grh = {.dgid = d.gid, .sgid_index = (uint8_t)d.gid_index}};
    while (count < limit && ibv_create_ah(d.pd, &a))
        count++;
    report("AHs", count);
}

TEST(completion_queues)
{
    open_all();
    uint64_t count = 0;
    while (count < limit && ibv_create_cq(d.context, 1, NULL, NULL, 0))
        count++;
    report("CQs", count);
}

TEST(protection_domains)
{
    open_all();
    uint64_t count = 0;
    while (count < limit && ibv_alloc_pd(d.context))
        count++;
    report("PDs", count);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
