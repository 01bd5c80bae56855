/* Names (vGIDs) that nobody has made: random ones, and genuine ones with a bit changed. They lead
 * nowhere, and nothing that can be seen tells them from an address that nobody has. TEST_GENUINE
 * has a genuine name, of a device that is there, and TEST_QPN the number of a queue pair there. */
#include "common.h"

#include <arpa/inet.h>

static union ibv_gid forged(struct random *random, const union ibv_gid *genuine)
{
    union ibv_gid gid = *genuine;
    if (random_below(random, 2))
        gid.raw[random_below(random, 16)] ^= 1u << random_below(random, 8);
    else
        for (unsigned i = 0; i < 16; i++)
            gid.raw[i] = random_below(random, 256);
    /* Groups are no names of devices. */
    if (gid.raw[0] == 0xff)
        gid.raw[0] = 0x20;
    return gid;
}

static union ibv_gid genuine_name(const struct device *d)
{
    const char *text = getenv("TEST_GENUINE");
    union ibv_gid gid = d->gid;
    check(!text || inet_pton(AF_INET6, text, gid.raw) == 1, "no GID: %s", text);
    return gid;
}

/* Datagrams to names that nobody has are lost, each like any other. */
TEST(datagrams)
{
    struct device d;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 64);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.type = IBV_QPT_UD, .send_cq = cq});
    qp_connect(&d, qp, (struct address){0});
    char memory[64] = "forged";
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, 0);
    struct random random = {argument(1, 1)};
    union ibv_gid genuine = genuine_name(&d);
    uint64_t count = argument(0, 3000);
    for (uint64_t n = 0; n < count; n++) {
        struct ibv_ah_attr attributes = {
            .is_global = 1,
            .port_num = 1,
            .grh = {.dgid = forged(&random, &genuine), .sgid_index = d.gid_index, .hop_limit = 64},
        };
        struct ibv_ah *ah = ibv_create_ah(d.pd, &attributes);
        check(ah, "ibv_create_ah: %m");
        post(qp, (struct operation){.opcode = IBV_WR_SEND, .id = n, .local = memory, .bytes = 8,
                                    .lkey = mr->lkey, .ah = ah,
                                    .qpn = 2 + random_below(&random, 1022)});
        expect(cq, n, IBV_WC_SUCCESS);
        same(ibv_destroy_ah(ah), 0);
    }
    expect_none(cq, 10);
    same(ibv_destroy_qp(qp), 0);
    same(ibv_dereg_mr(mr), 0);
    same(ibv_destroy_cq(cq), 0);
    device_close(&d);
}

/* Connections to names that nobody has are retried, and fail when that is over. */
TEST(connections)
{
    enum { COUNT = 48 };
    struct device d;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 2 * COUNT);
    struct ibv_qp *qps[COUNT];
    char memory[64] = "forged";
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct random random = {argument(0, 2)};
    union ibv_gid genuine = genuine_name(&d);
    uint32_t qpn = getenv("TEST_QPN") ? strtoul(getenv("TEST_QPN"), NULL, 0) : 7;
    for (unsigned n = 0; n < COUNT; n++) {
        qps[n] = qp_make(&d, (struct queue_options){.send_cq = cq});
        struct address peer = {.gid = forged(&random, &genuine), .qpn = qpn, .psn = n};
        qp_connect(&d, qps[n], peer);
        post(qps[n], (struct operation){.opcode = IBV_WR_SEND, .id = n, .local = memory, .bytes = 8,
                                        .lkey = mr->lkey});
    }
    for (unsigned n = 0; n < COUNT; n++) {
        struct ibv_wc wc = completion(cq, 60000);
        same(wc.status, IBV_WC_RETRY_EXC_ERR);
    }
    for (unsigned n = 0; n < COUNT; n++)
        same(ibv_destroy_qp(qps[n]), 0);
    same(ibv_dereg_mr(mr), 0);
    same(ibv_destroy_cq(cq), 0);
    device_close(&d);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
