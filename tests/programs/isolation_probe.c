/* Isolation. `victim` shows its numbers and waits for messages that must not come. `attacker`, in a
 * network that must not reach it, tries to get through by guessing. */
#include "common.h"

#include <arpa/inet.h>

TEST(victim)
{
    struct device d;
    static char memory[3][4096];
    char c;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
    struct ibv_qp *datagrams =
        qp_make(&d, (struct queue_options){.type = IBV_QPT_UD, .send_cq = cq});
    struct ibv_qp *waiting = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct ibv_qp *pair[2];
    qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
    qp_connect(&d, datagrams, qp_address(&d, datagrams, NULL));
    qp_init(&d, waiting, ALL_ACCESS & ~IBV_ACCESS_LOCAL_WRITE);
    receive(datagrams, 1, memory[0], 4096, mr->lkey);
    receive(waiting, 2, memory[0], 4096, mr->lkey);
    receive(pair[0], 3, memory[0], 4096, mr->lkey);
    fill(memory, sizeof memory, 99);
    printf("%u %u %u %u %" PRIu64 "\n", datagrams->qp_num, waiting->qp_num, pair[0]->qp_num,
           mr->rkey, (uint64_t)(uintptr_t)memory);
    while (read(0, &c, 1) > 0) {
    }
    expect_none(cq, 50);
    same(unfilled(memory, sizeof memory, 99), -1);
    memset(memory, 1, 8);
    post(pair[1], (struct operation){.opcode = IBV_WR_SEND, .id = 4, .local = memory[1], .bytes = 8,
                                     .lkey = mr->lkey}); /* its own connection still works */
    same(completion(cq, 1000).status, 0);
    same(completion(cq, 1000).status, 0);
}

/* Arguments: address of the victim, rkey, address of its memory, then QP numbers. */
TEST(attacker)
{
    struct device d;
    static char memory[4096];
    struct in_addr ip;
    union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};
    check(arguments_count >= 4 && inet_aton(arguments[0], &ip), "arguments");
    memcpy(gid.raw + 12, &ip, 4);
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 4000);
    struct ibv_mr *mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
    unsigned refused = 0, lost = 0, failed = 0;
    for (int i = 3; i < arguments_count; i++)
        for (int shift = -4; shift <= 4; shift++) {
            struct address target = {.gid = gid, .qpn = (uint32_t)argument(i, 0) + (uint32_t)shift};
            struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
            struct ibv_qp_attr rtr = rtr_attributes(&d, target), rts = rts_attributes();
            rts.timeout = 8; /* 1 ms */
            rts.retry_cnt = 1;
            qp_init(&d, qp, 0);
            if (ibv_modify_qp(qp, &rtr, rtr_mask(IBV_QPT_RC)) ||
                ibv_modify_qp(qp, &rts, rts_mask(IBV_QPT_RC))) {
                refused++;
            } else {
                for (int k = 0; k < 2; k++)
                    post(qp, (struct operation){
                        .opcode = k ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, .id = 1, .local = memory,
                        .bytes = 64, .lkey = mr->lkey, .remote = argument(2, 0),
                        .rkey = (uint32_t)argument(1, 0)});
                uint64_t deadline = now_ns() + 100000000;
                struct ibv_wc wc = {.status = IBV_WC_GENERAL_ERR};
                int got = 0;
                while (!got && now_ns() < deadline)
                    got = ibv_poll_cq(cq, 1, &wc);
                check(!got || wc.status, "a message to QP %u went through", target.qpn);
                *(got ? &failed : &lost) += 1;
            }
            same(ibv_destroy_qp(qp), 0);
            struct ibv_wc rest;
            while (ibv_poll_cq(cq, 1, &rest) > 0) {
            }
            struct ibv_qp *ud = qp_make(&d, (struct queue_options){.type = IBV_QPT_UD,
                                                                   .send_cq = cq});
            qp_connect(&d, ud, target);
            struct ibv_ah *ah = ibv_create_ah(d.pd, &rtr.ah_attr);
            if (ah) {
                struct operation o = {.opcode = IBV_WR_SEND, .id = 2, .local = memory, .bytes = 64,
                                      .lkey = mr->lkey, .ah = ah, .qpn = target.qpn,
                                      .flags = IBV_SEND_SIGNALED};
                refused += try_post(ud, o) != 0; /* or lost, which only the victim can tell */
                sleep_ms(2);
            }
            same(ibv_destroy_qp(ud), 0);
            if (ah)
                same(ibv_destroy_ah(ah), 0);
        }
    printf("%u refused, %u lost, %u failed\n", refused, lost, failed);
}

/* Prints the device's GIDs. */
TEST(view)
{
    struct device d;
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    check(list, "ibv_get_device_list: %m");
    same(count, 1);
    ibv_free_device_list(list);
    device_open(&d);
    for (int i = 0; i < d.port.gid_tbl_len; i++) {
        char text[INET6_ADDRSTRLEN];
        union ibv_gid gid, none;
        memset(&none, 0, sizeof none);
        if (!ibv_query_gid(d.context, 1, i, &gid) && memcmp(&gid, &none, 16))
            printf("%d %s\n", i, inet_ntop(AF_INET6, &gid, text, sizeof text));
    }
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
