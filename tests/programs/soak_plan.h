/* The plan of the soak test: an endless list of operations that follows from a seed alone, so that
 * the side that posts them and the side they are aimed at agree on every byte without talking.
 * Each side also keeps a model: a private copy of the target memory, to which plan_apply() does in
 * plain C what the operation should do to the real one. */
#ifndef SOAK_PLAN_H
#define SOAK_PLAN_H

#include "common.h"

#include <endian.h>

enum kind { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, SWAP, ADD, ADD_SHARED };

struct step {
    enum kind kind;
    uint32_t bytes;
    uint32_t offset; /* in the target memory */
    uint32_t immediate;
    uint64_t word;          /* names the payload, see fill() */
    uint64_t compare, swap; /* or the addend in `compare` */
    uint64_t before;        /* what an atomic returns, by the model */
    bool fence;
};

#define HAZARDS 32

struct plan {
    struct random random;
    uint32_t largest, size; /* of a message, of the target memory */
    uint32_t skew;          /* address of the target memory modulo 8 */
    unsigned char *model;
    /* Ranges that a READ or atomic since the last fence touches: without a fence a later WRITE
     * may overtake it. */
    struct { uint32_t from, to; bool atomic; } hazard[HAZARDS];
    int hazards;
};

static inline bool consumes_receive(enum kind kind)
{
    return kind == SEND || kind == SEND_IMM || kind == WRITE_IMM;
}

static inline uint32_t plan_size(struct plan *p)
{
    static const struct { uint32_t share, limit; } classes[] = {
        {550, 65}, {290, 513}, {130, 4097}, {28, 65537}, {2, UINT32_MAX}};
    uint32_t dice = (uint32_t)random_below(&p->random, 1000);
    for (int i = 0;; dice -= classes[i++].share)
        if (dice < classes[i].share) {
            uint32_t limit = classes[i].limit <= p->largest ? classes[i].limit : p->largest + 1;
            return (uint32_t)random_below(&p->random, limit);
        }
}

static inline bool plan_conflicts(struct plan *p, uint32_t from, uint32_t to, bool atomic)
{
    for (int i = 0; i < p->hazards; i++)
        if (from < p->hazard[i].to && p->hazard[i].from < to && !(atomic && p->hazard[i].atomic))
            return true;
    return p->hazards == HAZARDS;
}

/* The next operation, already applied to the model. */
static inline struct step plan_next(struct plan *p)
{
    static const unsigned char mix[16] = {
        SEND, SEND, SEND,  SEND_IMM, WRITE, WRITE, WRITE, WRITE,
        READ, READ, READ, READ,      WRITE_IMM, SWAP,  ADD,   ADD_SHARED};
    struct step s = {.kind = mix[random_below(&p->random, 16)]};
    bool atomic = s.kind == SWAP || s.kind == ADD;
    s.word = random_next(&p->random);
    s.immediate = (uint32_t)random_next(&p->random);
    s.fence = random_below(&p->random, 50) == 0;
    if (s.kind >= SWAP) {
        s.bytes = 8;
        s.offset = (uint32_t)random_below(&p->random, p->size / 8 - 2) * 8 + (8 - p->skew) % 8;
        s.swap = random_next(&p->random);
        s.compare = random_next(&p->random);
    } else {
        s.bytes = plan_size(p);
        s.offset = (uint32_t)random_below(&p->random, p->size - s.bytes + 1);
    }
    if (s.kind == WRITE || s.kind == WRITE_IMM || atomic)
        s.fence |= plan_conflicts(p, s.offset, s.offset + s.bytes, atomic);
    if (s.fence)
        p->hazards = 0;
    if (s.kind == READ || atomic) {
        if (p->hazards == HAZARDS) {
            s.fence = true;
            p->hazards = 0;
        }
        p->hazard[p->hazards].from = s.offset;
        p->hazard[p->hazards].to = s.offset + s.bytes;
        p->hazard[p->hazards++].atomic = atomic;
    }

    unsigned char *at = p->model + s.offset;
    if (s.kind == WRITE || s.kind == WRITE_IMM)
        fill(at, s.bytes, s.word);
    if (atomic) {
        memcpy(&s.before, at, 8);
        if (s.kind == SWAP && s.word & 1)
            s.compare = s.before; /* half of them hit */
        uint64_t after = s.kind == ADD              ? s.before + s.compare
                         : s.before == s.compare ? s.swap
                                                 : s.before;
        memcpy(at, &after, 8);
    }
    return s;
}

#endif
