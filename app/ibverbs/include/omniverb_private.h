/* How Omniverb's other libraries (librdmacm.so.1, which has sockets, too) reach the one that
 * owns this process's connection to the daemon and its progress thread: libibverbs.so.1. Not
 * installed, not for programs; why it is so is in
 * docs/decisions/0027-libibverbs-owns-the-daemon-connection.md.
 *
 * Two versions keep libraries of two releases apart. That of these functions and structs is the
 * node OMNIVERB_PRIVATE_1: the loader refuses a library that asks for a node that is not there.
 * That of the messages (rnic/session) is a number which omniverb_private_open compares.
 *
 * All functions are for any thread and return 0 or an errno, but for the version. In a child of
 * fork() what the parent opened answers EIO; the child opens its own. */
#ifndef OMNIVERB_PRIVATE_H
#define OMNIVERB_PRIVATE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Nothing in the node is a default version, so that no program is bound to it by accident: these
 * lines are needed to link. */
#define OMNIVERB_PRIVATE_BIND(name) __asm__(".symver " #name ", " #name "@OMNIVERB_PRIVATE_1")
OMNIVERB_PRIVATE_BIND(omniverb_private_version);
OMNIVERB_PRIVATE_BIND(omniverb_private_open);
OMNIVERB_PRIVATE_BIND(omniverb_private_close);
OMNIVERB_PRIVATE_BIND(omniverb_private_call);
OMNIVERB_PRIVATE_BIND(omniverb_private_leave);
OMNIVERB_PRIVATE_BIND(omniverb_private_listen);
OMNIVERB_PRIVATE_BIND(omniverb_private_watch);
OMNIVERB_PRIVATE_BIND(omniverb_private_unwatch);

struct ibv_context;
struct ibv_qp;
/* A library's hold on the process's connection. */
struct omniverb_private;

#define OMNIVERB_PRIVATE_MESSAGE_BYTES 4096
#define OMNIVERB_PRIVATE_DESCRIPTORS 4

struct omniverb_private_answer {
    size_t bytes;         /* of the message */
    uint32_t descriptors; /* that came along; close-on-exec, and the caller's from now on */
    int descriptor[OMNIVERB_PRIVATE_DESCRIPTORS];
    uint64_t message[OMNIVERB_PRIVATE_MESSAGE_BYTES / sizeof(uint64_t)];
};

/* What a descriptor is watched for. Its end and errors count as both. */
#define OMNIVERB_PRIVATE_INPUT 1
#define OMNIVERB_PRIVATE_ROOM 2

/* The version of the messages that the owner speaks with the daemon. */
uint32_t omniverb_private_version(void);

/* Takes hold of the connection that `context`, an open device, uses; of the process's, which is
 * made if there is none, if that is NULL: they are the same. `version` is that of the caller's
 * messages. EPROTO: the owner speaks another; ENODEV: there is no daemon; EIO: the context was
 * opened before a fork. It holds on when the device is closed. */
int omniverb_private_open(uint32_t version, struct ibv_context *context,
                          struct omniverb_private **opened);

/* Ends its watches, as omniverb_private_unwatch does, and what listens; and lets go. What was
 * opened before a fork is let go of in the child, too. A library that can be unloaded closes
 * before it is. */
int omniverb_private_close(struct omniverb_private *opened);

/* Asks the daemon: one message of the session's protocol, header included, and its answer, with
 * the tag of the question. Blocks as a verb that asks the daemon does, and no longer; asks a
 * daemon that was started anew if the last one is gone. EPERM: a message that is the owner's to
 * send; EINVAL: no message; EPROTO: of another version; EDEADLK: in a call of a watch. Else what
 * the daemon answered, or a verb would have failed with. */
int omniverb_private_call(struct omniverb_private *opened, const void *question, size_t bytes,
                          struct omniverb_private_answer *answer);

/* Has the progress thread call `hear(cookie, message, bytes)` with each message about connections
 * that the daemon sends by itself (CmHappened), header included, and with a null message when the
 * daemon that sent the others is gone. It is called in the order of their coming, in no other
 * thread, until `opened` is closed. It puts the message away and returns: it calls nothing of this
 * node and no verb. */
int omniverb_private_listen(struct omniverb_private *opened,
                            void (*hear)(void *cookie, const void *message, size_t bytes),
                            void *cookie);

/* Has the progress thread call `ready(cookie, watch)` when there is something in the descriptor
 * (OMNIVERB_PRIVATE_INPUT) or room in it (OMNIVERB_PRIVATE_ROOM), again and again while that is
 * so. For a time, watch a timerfd. The watch has a duplicate of the descriptor: close it when
 * you like, but what it stands for stays open until the watch ends.
 *
 * `ready` is called with none of the owner's locks held, one call at a time for the whole
 * process. Peers wait while it runs: it must not block. It may watch, unwatch, close, post and
 * poll; it calls no verb that asks the daemon, and does not fork. All signals are blocked. EPERM:
 * a file of a kind that cannot be waited for, such as one on a disk. */
int omniverb_private_watch(struct omniverb_private *opened, int descriptor, uint32_t what,
                           void (*ready)(void *cookie, uint64_t watch), void *cookie,
                           uint64_t *watch);

/* Ends a watch. When this has returned `ready` does not run and will not be called; so a lock
 * that `ready` takes must not be held here. Within `ready` itself it does not wait for it to
 * end. ENOENT: not a watch of `opened`. */
int omniverb_private_unwatch(struct omniverb_private *opened, uint64_t watch);

/* Waits until requests that were posted to a queue pair have left, for half a second at most; not
 * at all if it cannot send, or its peer takes none. Called before its connection ends. */
int omniverb_private_leave(struct ibv_qp *qp);

#ifdef __cplusplus
}
#endif

#endif
