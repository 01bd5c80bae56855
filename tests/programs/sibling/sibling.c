/* See sibling.h. */
#include "sibling.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "omniverb_private.h"

struct sibling {
    struct omniverb_private *owner;
};

struct header {
    uint16_t version, kind;
    uint32_t error;
    uint64_t tag;
};
struct gids {
    struct header header;
    uint32_t count, reserved;
    struct {
        union ibv_gid gid;
        uint32_t ifindex, mtu;
    } entries[32];
};
enum { GIDS = 4, TAG = 4711 };

static int open_as(uint32_t version, struct ibv_context *context, struct sibling **opened)
{
    struct sibling *fresh = calloc(1, sizeof *fresh);
    int error = fresh ? omniverb_private_open(version, context, &fresh->owner) : ENOMEM;
    if (error)
        free(fresh);
    else
        *opened = fresh;
    return error;
}

int sibling_open(struct ibv_context *context, struct sibling **opened)
{
    return open_as(omniverb_private_version(), context, opened);
}

int sibling_open_of_another_release(struct sibling **opened)
{
    return open_as(omniverb_private_version() + 1, NULL, opened);
}

int sibling_close(struct sibling *opened)
{
    int error = omniverb_private_close(opened->owner);
    free(opened);
    return error;
}

int sibling_gids(struct sibling *opened, union ibv_gid *gids, unsigned room, unsigned *count)
{
    struct {
        struct header header;
        uint64_t reserved;
    } question = {{omniverb_private_version(), SIBLING_QUERY_GIDS, 0, TAG}, 0};
    struct omniverb_private_answer answer;
    int error = omniverb_private_call(opened->owner, &question, sizeof question, &answer);
    if (error)
        return error;
    const struct gids *table = (const void *)answer.message;
    if (answer.bytes != sizeof *table || answer.descriptors != 0 || table->header.kind != GIDS ||
        table->header.tag != TAG || table->count > room)
        return EBADMSG;
    for (unsigned i = 0; i < table->count; i++)
        gids[i] = table->entries[i].gid;
    *count = table->count;
    return 0;
}

int sibling_ask(struct sibling *opened, unsigned kind, size_t body, unsigned later)
{
    struct {
        struct header header;
        char body[4096];
    } question = {{omniverb_private_version() + later, kind, 0, TAG}, {0}};
    struct omniverb_private_answer answer;
    return omniverb_private_call(opened->owner, &question, sizeof question.header + body, &answer);
}

int sibling_watch(struct sibling *opened, int descriptor, int room,
                 void (*ready)(void *cookie, uint64_t watch), void *cookie, uint64_t *watch)
{
    uint32_t what = room ? OMNIVERB_PRIVATE_ROOM : OMNIVERB_PRIVATE_INPUT;
    return omniverb_private_watch(opened->owner, descriptor, what, ready, cookie, watch);
}

int sibling_unwatch(struct sibling *opened, uint64_t watch)
{
    return omniverb_private_unwatch(opened->owner, watch);
}
