/* What the two sides of the DMA tests have in common: a node that does as it is told, by DMA. */
#ifndef NODE_PROTOCOL_H
#define NODE_PROTOCOL_H

#include <omniverb/dma.h>
#include <stdint.h>

enum {
    ORDERS = 100,  /* the node's buffer that orders are written to */
    ANSWERS = 101, /* the one that answers are read from */
    BIG = 1,       /* of BIG_BYTES, for anything */
    READ_ONLY = 2, /* of a page */
    WRITE_ONLY = 3,
    BIG_BYTES = 4 << 20,
};

enum what { ALLOCATE = 1, FREE, SUM, LOOK_UP, DIE };

/* `number` is written by a transfer of its own, behind the rest. */
struct order {
    uint64_t what, id, bytes, rights;
    uint64_t number;
};

struct answer {
    uint64_t result; /* 0, an errno, or the sum */
    uint64_t number; /* of the order */
};

static inline uint64_t sum_of(const unsigned char *at, uint64_t bytes)
{
    uint64_t sum = 14695981039346656037u;
    while (bytes--)
        sum = (sum ^ *at++) * 1099511628211u;
    return sum;
}

#endif
