/* Buffers of the soak test: memory that is handed out and given back in order, cut into scattered
 * segments, with marked bytes between them that no message may touch. */
#ifndef SOAK_MEMORY_H
#define SOAK_MEMORY_H

#include "common.h"

#define SEGMENTS 4
#define UNTOUCHED 0xa5

struct arena {
    unsigned char *memory;
    struct ibv_mr *mr;
    uint32_t size, head, tail; /* bytes in use lie between tail and head */
};
struct chunk {
    uint32_t start, end, count;
    struct { uint32_t offset, bytes; } segment[SEGMENTS];
};

/* Cuts `bytes` into segments with gaps. False when there is no room yet. */
static bool chunk_take(struct arena *a, struct random *r, uint32_t bytes, struct chunk *c)
{
    uint32_t room = bytes + 24 * (SEGMENTS + 1), start = a->head;
    if (a->head >= a->tail && a->size - a->head < room)
        start = 0;
    if (start < a->head ? room >= a->tail : a->head < a->tail && room >= a->tail - a->head)
        return false;
    uint32_t at = start + 8 + (uint32_t)random_below(r, 16), left = bytes;
    c->count = bytes ? 1 + (uint32_t)random_below(r, SEGMENTS) : 0;
    if (c->count > bytes)
        c->count = bytes;
    for (uint32_t i = 0; i < c->count; i++) {
        uint32_t others = c->count - 1 - i;
        uint32_t part = others ? 1 + (uint32_t)random_below(r, left - others) : left;
        c->segment[i].offset = at;
        c->segment[i].bytes = part;
        at += part + (uint32_t)random_below(r, 16);
        left -= part;
    }
    c->start = start;
    c->end = at + 8;
    a->head = c->end;
    return true;
}

/* Marks every byte of the chunk that a message of `bytes` must not touch. */
static void chunk_each_gap(struct arena *a, const struct chunk *c, uint32_t bytes, bool verify)
{
    uint32_t at = c->start;
    for (uint32_t i = 0; i <= c->count; i++) {
        uint32_t to = i < c->count ? c->segment[i].offset : c->end;
        for (; at < to; at++)
            if (!verify)
                a->memory[at] = UNTOUCHED;
            else
                check(a->memory[at] == UNTOUCHED, "a byte outside a buffer was written");
        if (i < c->count) {
            uint32_t part = bytes < c->segment[i].bytes ? bytes : c->segment[i].bytes;
            at += part;
            bytes -= part;
        }
    }
}

static void chunk_scatter(struct arena *a, const struct chunk *c, const unsigned char *from)
{
    for (uint32_t i = 0; i < c->count; from += c->segment[i++].bytes)
        memcpy(a->memory + c->segment[i].offset, from, c->segment[i].bytes);
}

static bool chunk_equals(struct arena *a, const struct chunk *c, const unsigned char *from,
                         uint32_t bytes)
{
    for (uint32_t i = 0; i < c->count && bytes; i++) {
        uint32_t part = bytes < c->segment[i].bytes ? bytes : c->segment[i].bytes;
        if (memcmp(a->memory + c->segment[i].offset, from, part))
            return false;
        from += part;
        bytes -= part;
    }
    return true;
}

static int chunk_sges(struct arena *a, const struct chunk *c, struct ibv_sge *sge)
{
    for (uint32_t i = 0; i < c->count; i++)
        sge[i] = (struct ibv_sge){(uintptr_t)a->memory + c->segment[i].offset, c->segment[i].bytes,
                                  a->mr->lkey};
    return (int)c->count;
}

#endif
