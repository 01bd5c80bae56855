/* XRC over processes: one connection leads to a process, and the shared receive queues that its
 * requests name are those of others that have the domain of the same file, too. */
#include "xrc_processes.h"

static const uint32_t sizes[] = {1, 64, 1024, 1025, 70000, BYTES};
#define EACH_SIZE(s) for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)

/* A message of each kind and size, to each of the queues. */
TEST(messages)
{
    static const enum ibv_wr_opcode codes[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
                                               IBV_WR_RDMA_WRITE_WITH_IMM};
    all();
    EACH_SIZE(s)
    for (unsigned turn = 0; turn < 3 * OWNERS; turn++) {
        unsigned owner = turn % OWNERS;
        enum ibv_wr_opcode code = codes[turn / OWNERS];
        bool write = code == IBV_WR_RDMA_WRITE_WITH_IMM;
        fill(memory, sizes[s], turn);
        receive_at(owner, turn + 10);
        xrc_post(operation(code, owner, sizes[s]), numbers[owner]);
        struct ibv_wc wc = received_at(owner, turn + 10);
        same(wc.opcode, write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
        same(wc.byte_len, sizes[s]);
        same(wc.qp_num, connected.qpn);
        same(wc.src_qp, qp->qp_num);
        same(wc.wc_flags & IBV_WC_WITH_IMM, code == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM);
        if (code != IBV_WR_SEND)
            same(ntohl(wc.imm_data), 0x1234);
        expect(cq, 7, IBV_WC_SUCCESS);
        struct request verify = {.what = VERIFY, .owner = owner, .length = sizes[s], .word = turn};
        same(ask(verify).wrong, -1);
        for (unsigned i = 0; i < OWNERS; i++)
            ask((struct request){.what = NOTHING, .owner = i});
    }
    end();
}

TEST(one_sided)
{
    all();
    EACH_SIZE(s)
    for (unsigned turn = 0; turn < 4 * OWNERS; turn++) {
        unsigned owner = turn % OWNERS;
        fill(memory, sizes[s], turn);
        xrc_post(operation(IBV_WR_RDMA_WRITE, owner, sizes[s]), numbers[owner]);
        expect(cq, 7, IBV_WC_SUCCESS);
        struct request verify = {.what = VERIFY, .owner = owner, .length = sizes[s], .word = turn};
        same(ask(verify).wrong, -1);
        memset(memory, 0, sizes[s]);
        xrc_post(operation(IBV_WR_RDMA_READ, owner, sizes[s]), numbers[owner]);
        expect(cq, 7, IBV_WC_SUCCESS);
        same(unfilled(memory, sizes[s], turn), -1);
    }
    uint64_t cell = 40;
    for (unsigned owner = 0; owner < OWNERS; owner++) {
        memcpy(memory, &cell, sizeof cell);
        xrc_post(operation(IBV_WR_RDMA_WRITE, owner, sizeof cell), numbers[owner]);
        expect(cq, 7, IBV_WC_SUCCESS);
    }
    for (uint64_t turn = 0; turn < 10 * OWNERS; turn++) {
        unsigned owner = turn % OWNERS;
        xrc_post(operation(IBV_WR_ATOMIC_FETCH_AND_ADD, owner, sizeof cell), numbers[owner]);
        expect(cq, 7, IBV_WC_SUCCESS);
        memcpy(&cell, memory, sizeof cell);
        same(cell, 40 + turn / OWNERS * 5);
    }
    struct operation swap = operation(IBV_WR_ATOMIC_CMP_AND_SWP, 1, sizeof cell);
    swap.compare_or_add = 40 + 10 * 5;
    swap.swap = 3;
    xrc_post(swap, numbers[1]);
    expect(cq, 7, IBV_WC_SUCCESS);
    xrc_post(operation(IBV_WR_RDMA_READ, 1, sizeof cell), numbers[1]);
    expect(cq, 7, IBV_WC_SUCCESS);
    memcpy(&cell, memory, sizeof cell);
    same(cell, 3);
    end();
}

/* Order is that of posting, whoever's queues the messages are for; and a queue that is empty holds
 * up what is behind. */
TEST(many_at_once)
{
    enum { EACH = RECEIVES, MANY = EACH * OWNERS };
    all();
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < MANY; i++)
            xrc_post(operation(IBV_WR_SEND, 0, 1999 * i % 9001), numbers[i % OWNERS]);
        for (unsigned i = 0; i < MANY; i++)
            receive_at(i % OWNERS, i);
        for (unsigned i = 0; i < MANY; i++)
            expect(cq, 7, IBV_WC_SUCCESS);
        for (unsigned i = 0; i < MANY; i++)
            same(received_at(i % OWNERS, i).byte_len, 1999 * i % 9001);
    }
    end();
}

static void is_refused(struct operation o, uint32_t number, enum ibv_wc_status status)
{
    xrc_post(o, number);
    expect(cq, 7, status);
    same(qp_state(qp), IBV_QPS_ERR);
    same(ask((struct request){.what = STATE}).state, IBV_QPS_ERR);
    reconnect();
}

TEST(refusals)
{
    all();
    /* Another part of the domain, without that queue; and one that is nobody's. */
    is_refused(operation(IBV_WR_SEND, 1, 8), numbers[1] + 1, IBV_WC_REM_INV_REQ_ERR);
    is_refused(operation(IBV_WR_SEND, 1, 8), 0xfff001, IBV_WC_REM_INV_REQ_ERR);
    /* Keys are those of the process that has the queue. */
    is_refused(operation(IBV_WR_RDMA_WRITE, 0, 8), numbers[1], IBV_WC_REM_ACCESS_ERR);
    is_refused(operation(IBV_WR_RDMA_READ, 0, 70000), numbers[2], IBV_WC_REM_ACCESS_ERR);
    struct operation beyond = operation(IBV_WR_RDMA_READ, 1, 8);
    beyond.remote += BYTES - 4;
    is_refused(beyond, numbers[1], IBV_WC_REM_ACCESS_ERR);
    works(1);
    ask((struct request){.what = REMOVE, .owner = 1});
    is_refused(operation(IBV_WR_SEND, 1, 8), numbers[1], IBV_WC_REM_INV_REQ_ERR);
    works(2);
    works(0);
    end();
}

/* A message that is longer than the receive ends both the receive and the connection. */
TEST(too_long)
{
    all();
    ask((struct request){.what = RECEIVE, .owner = 2, .id = 4, .length = 8});
    is_refused(operation(IBV_WR_SEND, 2, 70000), numbers[2], IBV_WC_REM_INV_REQ_ERR);
    end();
}

/* Whoever is in the namespace may say anything to those who have the domain, before and after they
 * have found each other. */
TEST(noise)
{
    all();
    ask((struct request){.what = NOISE});
    works(1);
    ask((struct request){.what = NOISE});
    works(2);
    works(1);
    ask((struct request){.what = NOISE, .owner = 2});
    works(0);
    works(1);
    works(2);
    end();
}

/* What the processes state of the file while they find each other they take back. */
TEST(nothing_stays_stated)
{
    all();
    for (unsigned round = 0; round < 5; round++) {
        works(1);
        works(2);
        reconnect();
    }
    uint64_t until = now_ns() + 20 * 1000000000ull;
    while (ask((struct request){.what = STATED}).state) {
        check(now_ns() < until, "locks are left");
        sleep_ms(20);
    }
    works(1);
    end();
}

/* Connections come and go, and what went on from them. */
TEST(again_and_again)
{
    all();
    for (unsigned round = 0; round < 150; round++) {
        works(1);
        works(2);
        reconnect();
    }
    end();
}

/* For so many seconds, whatever becomes of the daemon meanwhile; a new connection finds its way
 * afterwards, too. */
TEST(goes_on)
{
    all();
    uint64_t until = now_ns() + argument(0, 0) * 1000000000;
    do
        for (unsigned owner = 0; owner < OWNERS; owner++)
            works(owner);
    while (now_ns() < until);
    reconnect();
    works(1);
    works(2);
    end();
}

/* The process that has the connection is killed while a request is with another one. */
TEST(front_killed)
{
    all();
    works(1);
    xrc_post(operation(IBV_WR_SEND, 1, 8), numbers[1]);
    expect_none(cq, 50);
    struct request r = {.what = KILL};
    put(there, &r, sizeof r);
    expect(cq, 7, IBV_WC_RETRY_EXC_ERR);
    int status;
    check(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "waitpid: %m");
}

/* The process that has the queue closes its domain. */
TEST(closed)
{
    all();
    works(1);
    works(2);
    ask((struct request){.what = CLOSE, .owner = 2});
    is_refused(operation(IBV_WR_SEND, 2, 8), numbers[2], IBV_WC_REM_INV_REQ_ERR);
    works(1);
    ask((struct request){.what = KILL, .owner = 2});
    end();
}

/* The process that has the queue is killed: before a message, and while one waits for a receive. */
TEST(killed)
{
    all();
    works(1);
    works(2);
    ask((struct request){.what = KILL, .owner = 2});
    is_refused(operation(IBV_WR_SEND, 2, 8), numbers[2], IBV_WC_REM_INV_REQ_ERR);
    works(1);
    xrc_post(operation(IBV_WR_SEND, 1, 8), numbers[1]);
    xrc_post(operation(IBV_WR_SEND, 0, 8), numbers[0]);
    expect_none(cq, 50);
    ask((struct request){.what = KILL, .owner = 1});
    expect(cq, 7, IBV_WC_REM_INV_REQ_ERR);
    expect(cq, 7, IBV_WC_WR_FLUSH_ERR);
    reconnect();
    works(0);
    end();
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
