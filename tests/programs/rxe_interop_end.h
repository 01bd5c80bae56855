/* What the parts of the interoperability test share: options, a TCP connection to the other side,
 * and one end of a connection between two devices whose makers have never met. */
#ifndef INTEROP_END_H
#define INTEROP_END_H

#include "common.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>

#define FIRST_PSN 0xfffff0 /* wraps after 16 packets */
#define ROOM (256u << 10)
#define EMPTY 0x33

static struct device d;
static int other;        /* socket to the other side */
static bool connects;    /* the side that connected; it begins */
static uint32_t mtu = 1024;
static bool over_ipv6, one_way, no_answers;
static unsigned char *outgoing, *incoming; /* ROOM each; incoming is what the peer may reach */
static struct ibv_mr *mr;                  /* both */

struct end {
    struct ibv_cq *send_cq, *receive_cq;
    struct ibv_qp *qp;
    struct address peer; /* its `memory` is its incoming */
};

static void dial(const char *name, const char *port)
{
    struct addrinfo *found, hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM,
                                     .ai_flags = name ? 0 : AI_PASSIVE};
    int error = getaddrinfo(name, port, &hints, &found), one = 1;
    check(!error, "getaddrinfo: %s", gai_strerror(error));
    int s = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(s >= 0, "socket: %m");
    if (name) {
        check(!connect(s, found->ai_addr, found->ai_addrlen), "connect: %m");
        other = s;
    } else {
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        check(!bind(s, found->ai_addr, found->ai_addrlen) && !listen(s, 1), "listen: %m");
        other = accept(s, NULL, NULL);
        check(other >= 0, "accept: %m");
        close(s);
    }
    setsockopt(other, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    freeaddrinfo(found);
}

/* Arguments of a test: [-6] [-1] [-n] [-m MTU] -p PORT [ADDRESS]. Without an address it waits for
 * the other side. -1: only who connects asks. -n: it asks for nothing that has to be answered. */
static void begin(void)
{
    const char *port = NULL;
    for (int c; (c = getopt(arguments_count + 1, arguments - 1, "61nm:p:")) != -1;)
        if (c == '6')
            over_ipv6 = !setenv("TEST_IPV6", "1", 1);
        else if (c == '1')
            one_way = true;
        else if (c == 'n')
            no_answers = true;
        else if (c == 'm')
            mtu = (uint32_t)atoi(optarg);
        else if (c == 'p')
            port = optarg;
        else
            die("what is -%c?", optopt);
    check(port, "-p PORT is missing");
    connects = optind <= arguments_count;
    dial(connects ? arguments[optind - 1] : NULL, port);
    device_open(&d);
    void *memory;
    check(!posix_memalign(&memory, 4096, 2 * ROOM), "no memory");
    memset(memory, EMPTY, 2 * ROOM);
    outgoing = memory;
    incoming = outgoing + ROOM;
    mr = mr_make(&d, memory, 2 * ROOM, ALL_ACCESS);
}

static enum ibv_mtu mtu_code(void)
{
    for (enum ibv_mtu code = IBV_MTU_256; code <= IBV_MTU_4096; code++)
        if (mtu == 128u << code)
            return code;
    die("%u is no MTU", mtu);
}

/* A fresh QP, connected to the one that the other side makes at the same time. */
static struct end join(enum ibv_qp_type type, uint8_t rnr_retry)
{
    struct end e = {.send_cq = cq_make(&d, 100), .receive_cq = cq_make(&d, 100)};
    e.qp = qp_make(&d, (struct queue_options){.type = type, .send_cq = e.send_cq,
                                              .receive_cq = e.receive_cq});
    struct address mine = qp_address(&d, e.qp, mr);
    mine.memory += ROOM;
    swap(other, &mine, &e.peer, sizeof mine);
    struct ibv_qp_attr rtr = rtr_attributes(&d, e.peer), rts = rts_attributes();
    rtr.path_mtu = mtu_code();
    rtr.rq_psn = rts.sq_psn = FIRST_PSN;
    rts.rnr_retry = rnr_retry;
    qp_init(&d, e.qp, ALL_ACCESS & ~IBV_ACCESS_LOCAL_WRITE);
    same(ibv_modify_qp(e.qp, &rtr, rtr_mask(type)), 0);
    same(ibv_modify_qp(e.qp, &rts, rts_mask(type)), 0);
    meet(other);
    return e;
}

static void part(struct end *e)
{
    meet(other);
    same(ibv_destroy_qp(e->qp), 0);
    same(ibv_destroy_cq(e->send_cq), 0);
    same(ibv_destroy_cq(e->receive_cq), 0);
}

/* Runs `ask` here and `serve` there, then the other way round. */
static void both_ways(void (*ask)(void), void (*serve)(void))
{
    begin();
    for (int turn = 0; turn < (one_way ? 1 : 2); turn++)
        (connects == (turn == 0) ? ask : serve)();
    meet(other);
    same(ibv_dereg_mr(mr), 0);
    device_close(&d);
}

#endif
