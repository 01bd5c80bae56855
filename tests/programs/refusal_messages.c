/* What OMNIVERB_LOG=warn says on stderr: of addresses without GRH, of too much of everything, and
 * of peers that do not answer. `tests/cases/refusal_log.py` looks at the lines. */
#include "common.h"
#include "stderr_capture.h"

#include <arpa/inet.h>

static struct device d;

/* Waits until this was said. */
static void await(const char *words)
{
    char text[8192];
    for (int i = 0; i < 3000; i++) {
        ssize_t length = pread(said, text, sizeof text - 1, 0);
        text[length > 0 ? length : 0] = 0;
        if (strstr(text, words))
            return;
        sleep_ms(10);
    }
    die("nobody said '%s' but: %s", words, text);
}

TEST(addresses_without_grh)
{
    device_open(&d);
    struct ibv_ah_attr a = {.dlid = 7, .port_num = 1};
    for (int i = 0; i < 3; i++) {
        errno = 0;
        check(!ibv_create_ah(d.pd, &a), "an address handle without GRH");
        same(errno, EINVAL);
    }
}

TEST(faulty_requests)
{
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 10);
    struct ibv_qp *pair[2];
    struct queue_options o = {.send_cq = cq, .sge = 1, .inline_bytes = 8};
    static char memory[4096];
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
    qp_pair(&d, o, pair);
    struct operation send = {.opcode = IBV_WR_SEND, .local = memory, .bytes = 8, .lkey = mr->lkey};
    struct operation inlined = send, unknown = send;
    inlined.flags = IBV_SEND_INLINE;
    inlined.bytes = 4096;
    unknown.opcode = 99;
    for (int again = 0; again < 2; again++) {
        same(try_post(pair[0], inlined), EINVAL);
        same(try_post(pair[0], unknown), EINVAL);
        struct ibv_qp *fresh = qp_make(&d, o);
        same(try_post(fresh, send), EINVAL);
        same(ibv_destroy_qp(fresh), 0);
    }
}

TEST(protection_domains)
{
    device_open(&d);
    uint64_t count = 0;
    while (count < 1000000 && ibv_alloc_pd(d.context))
        count++;
    same(errno, ENOMEM);
    check(!ibv_alloc_pd(d.context) && errno == ENOMEM, "no, and then yes");
}

/* ADDRESS: of who does not answer, or of nobody. What the daemon knows of him is awaited. */
TEST(a_peer_that_does_not_answer)
{
    listen_to_stderr();
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 10);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct address peer = {.qpn = 0x4711};
    check(arguments_count > 0, "whose address?");
    peer.gid.raw[10] = peer.gid.raw[11] = 0xff;
    check(inet_pton(AF_INET, arguments[0], peer.gid.raw + 12) == 1, "%s", arguments[0]);
    struct ibv_qp_attr rtr = rtr_attributes(&d, peer), rts = rts_attributes();
    rts.timeout = 12;
    rts.retry_cnt = 1;
    qp_init(&d, qp, ALL_ACCESS);
    same(ibv_modify_qp(qp, &rtr, rtr_mask(IBV_QPT_RC)), 0);
    same(ibv_modify_qp(qp, &rts, rts_mask(IBV_QPT_RC)), 0);
    post(qp, (struct operation){.opcode = IBV_WR_SEND, .id = 1});
    struct ibv_wc wc = completion(cq, 60000);
    same(wc.status, IBV_WC_RETRY_EXC_ERR);
    await("its way to queue pair 18193");
}

TEST(datagrams_to_nobody)
{
    listen_to_stderr();
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 10);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq, .type = IBV_QPT_UD});
    struct ibv_ah_attr a = {.is_global = 1, .port_num = 1,
                            .grh = {.dgid = d.gid, .sgid_index = (uint8_t)d.gid_index}};
    struct ibv_ah *ah = ibv_create_ah(d.pd, &a);
    check(ah, "ibv_create_ah: %m");
    qp_connect(&d, qp, (struct address){0});
    for (uint64_t id = 1; id <= 2; id++) {
        post(qp, (struct operation){.opcode = IBV_WR_SEND, .id = id, .ah = ah, .qpn = 0x4711});
        expect(cq, id, IBV_WC_SUCCESS);
        await("to queue pair 18193 at ");
    }
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
