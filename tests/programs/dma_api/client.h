/* What programs have in common that test omniverb/dma.h against a node: PROGRAM TEST ADDRESS PORT
 * OUR-ADDRESS. They tell the node what to do by DMA, and read its answers. */
#ifndef CLIENT_H
#define CLIENT_H

#include "../common.h"
#include "node_protocol.h"

static struct omv_dma *dma;
static struct omv_dma_node *node;
static struct omv_dma_buffer *orders, *answers, *desk;
static const uint32_t both = OMV_DMA_READABLE | OMV_DMA_WRITABLE;

enum { DESK = 900000, OURS = 900001 };

static inline struct omv_dma_buffer *look_up(uint64_t id)
{
    struct omv_dma_buffer *found = omv_dma_lookup(dma, node, id, 10000);
    check(found, "omv_dma_lookup %" PRIu64 ": %m", id);
    return found;
}

static inline struct omv_dma_buffer *allocate(uint64_t id, size_t bytes)
{
    struct omv_dma_buffer *made = omv_dma_alloc(dma, id, bytes, both);
    check(made, "omv_dma_alloc %" PRIu64 ": %m", id);
    return made;
}

static inline void await(struct omv_dma_transfer *transfer)
{
    int status;
    while ((status = omv_dma_query(dma, transfer)) == EINPROGRESS)
        ;
    check(!status, "transfer: %s", strerror(status));
}

static inline void copy(struct omv_dma_buffer *to, uint64_t to_offset, struct omv_dma_buffer *from,
                 uint64_t from_offset, uint64_t length)
{
    struct omv_dma_transfer one = {.to = to, .to_offset = to_offset, .from = from,
                                   .from_offset = from_offset, .length = length};
    check(omv_dma_start(dma, &one, 1) == 1, "omv_dma_start: %m");
    await(&one);
}

/* Tells the node to do something; the number of the order. */
static inline uint64_t tell(enum what what, uint64_t id, uint64_t bytes, uint32_t rights)
{
    static uint64_t number; /* another client began elsewhere */
    if (!number)
        number = now_ns();
    struct order *order = omv_dma_address(desk);
    *order = (struct order){what, id, bytes, rights, ++number};
    struct omv_dma_transfer parts[] = {
        {.to = orders, .from = desk, .length = offsetof(struct order, number)},
        {.to = orders, .from = desk, .to_offset = offsetof(struct order, number),
         .from_offset = offsetof(struct order, number), .length = 8},
    };
    same(omv_dma_start(dma, parts, 2), 2);
    for (int i = 0; i < 2; i++)
        while (omv_dma_query(dma, &parts[i]) == EINPROGRESS)
            ;
    /* Who died of it need not have said that it came. */
    check(what == DIE || !(parts[0].status | parts[1].status), "the order did not come");
    return number;
}

static inline bool answered(uint64_t number, uint64_t *result)
{
    struct answer *answer = omv_dma_address(desk);
    copy(desk, 0, answers, 0, sizeof *answer);
    *result = answer->result;
    return answer->number == number;
}

static inline uint64_t order(enum what what, uint64_t id, uint64_t bytes, uint32_t rights)
{
    uint64_t number = tell(what, id, bytes, rights), result;
    while (!answered(number, &result))
        usleep(100);
    return result;
}

static inline void reach(uint32_t flags)
{
    dma = omv_dma_init(NULL, 0, flags);
    check(dma, "omv_dma_init: %m");
    same(omv_dma_port(dma), 0);
    /* Announced at once, in the order of their making, not of their identifiers. */
    desk = allocate(DESK, 4096);
    allocate(DESK - 1, 1);
    node = omv_dma_connect(dma, arguments[0], atoi(arguments[1]), 20000);
    check(node, "omv_dma_connect: %m");
    /* All that it had is known by now. */
    orders = omv_dma_lookup(dma, node, ORDERS, 0);
    answers = omv_dma_lookup(dma, node, ANSWERS, 0);
    check(orders && answers, "omv_dma_lookup: %m");
    same(order(LOOK_UP, DESK - 1, 1, 0), 0);
}

static inline void leave(void)
{
    check(!omv_dma_cleanup(dma), "omv_dma_cleanup: %m");
}

/* Cannot be started. */
static inline void refused(struct omv_dma_buffer *to, uint64_t to_offset,
                           struct omv_dma_buffer *from, uint64_t from_offset, uint64_t length,
                           int why)
{
    struct omv_dma_transfer one = {.to = to, .to_offset = to_offset, .from = from,
                                   .from_offset = from_offset, .length = length};
    same(omv_dma_start(dma, &one, 1), -1);
    same(errno, why);
}

static inline struct omv_dma_node *accepted(struct omv_dma *listener)
{
    struct omv_dma_node *found = omv_dma_accept(listener, 20000);
    check(found, "omv_dma_accept: %m");
    return found;
}

#endif
