/* See secondary.h. */
#include "secondary.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "omniverb_private.h"

struct second {
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

static int open_as(uint32_t version, struct ibv_context *context, struct second **opened)
{
    struct second *fresh = calloc(1, sizeof *fresh);
    int error = fresh ? omniverb_private_open(version, context, &fresh->owner) : ENOMEM;
    if (error)
        free(fresh);
    else
        *opened = fresh;
    return error;
}

int second_open(struct ibv_context *context, struct second **opened)
{
    return open_as(omniverb_private_version(), context, opened);
}

int second_open_of_another_release(struct second **opened)
{
    return open_as(omniverb_private_version() + 1, NULL, opened);
}

int second_close(struct second *opened)
{
    int error = omniverb_private_close(opened->owner);
    free(opened);
    return error;
}

int second_gids(struct second *opened, union ibv_gid *gids, unsigned room, unsigned *count)
{
    struct {
        struct header header;
        uint64_t reserved;
    } question = {{omniverb_private_version(), SECOND_QUERY_GIDS, 0, TAG}, 0};
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

int second_ask(struct second *opened, unsigned kind, size_t body, unsigned later)
{
    struct {
        struct header header;
        char body[4096];
    } question = {{omniverb_private_version() + later, kind, 0, TAG}, {0}};
    struct omniverb_private_answer answer;
    return omniverb_private_call(opened->owner, &question, sizeof question.header + body, &answer);
}

int second_watch(struct second *opened, int descriptor, int room,
                 void (*ready)(void *cookie, uint64_t watch), void *cookie, uint64_t *watch)
{
    uint32_t what = room ? OMNIVERB_PRIVATE_ROOM : OMNIVERB_PRIVATE_INPUT;
    return omniverb_private_watch(opened->owner, descriptor, what, ready, cookie, watch);
}

int second_unwatch(struct second *opened, uint64_t watch)
{
    return omniverb_private_unwatch(opened->owner, watch);
}
