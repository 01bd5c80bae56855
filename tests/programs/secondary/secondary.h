/* A second library in a process with libibverbs.so.1, as librdmacm.so.1 and a sockets library are
 * to be: it has no connection to the daemon and no thread, and reaches both by the private node. */
#ifndef SECOND_H
#define SECOND_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

struct second;

/* Numbers of messages, as in rnic/session/src/codec.rs. */
enum { SECOND_HELLO = 1, SECOND_QUERY_GIDS = 3, SECOND_CREATE_QP = 5, SECOND_DESTROY_QP = 7 };

/* All return an errno or 0. `context` may be NULL. */
int second_open(struct ibv_context *context, struct second **opened);
/* The same by a library that was made for another version of the messages. */
int second_open_of_another_release(struct second **opened);
int second_close(struct second *opened);
/* The daemon's GID table, by a message. */
int second_gids(struct second *opened, union ibv_gid *gids, unsigned room, unsigned *count);
/* Any message: a header, of this version or the `later`-th after it, and a body of zeros. */
int second_ask(struct second *opened, unsigned kind, size_t body, unsigned later);
int second_watch(struct second *opened, int descriptor, int room,
                 void (*ready)(void *cookie, uint64_t watch), void *cookie, uint64_t *watch);
int second_unwatch(struct second *opened, uint64_t watch);

#endif
