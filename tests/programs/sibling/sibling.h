/* A sibling library in a process with libibverbs.so.1, as librdmacm.so.1 and a sockets library are
 * to be: it has no connection to the daemon and no thread, and reaches both by the private node. */
#ifndef SIBLING_H
#define SIBLING_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

struct sibling;

/* Numbers of messages, as in rnic/session/src/codec.rs. */
enum { SIBLING_HELLO = 1, SIBLING_QUERY_GIDS = 3, SIBLING_CREATE_QP = 5, SIBLING_DESTROY_QP = 7 };

/* All return an errno or 0. `context` may be NULL. */
int sibling_open(struct ibv_context *context, struct sibling **opened);
/* The same by a library that was made for another version of the messages. */
int sibling_open_of_another_release(struct sibling **opened);
int sibling_close(struct sibling *opened);
/* The daemon's GID table, by a message. */
int sibling_gids(struct sibling *opened, union ibv_gid *gids, unsigned room, unsigned *count);
/* Any message: a header, of this version or the `later`-th after it, and a body of zeros. */
int sibling_ask(struct sibling *opened, unsigned kind, size_t body, unsigned later);
int sibling_watch(struct sibling *opened, int descriptor, int room,
                 void (*ready)(void *cookie, uint64_t watch), void *cookie, uint64_t *watch);
int sibling_unwatch(struct sibling *opened, uint64_t watch);

#endif
