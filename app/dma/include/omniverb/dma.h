/* DMA between nodes: buffers that are known to all who are connected, and transfers between them.
 *
 * A second interface beside verbs, for programs that move memory and want nothing else. It is a
 * client of libibverbs.so.1 and librdmacm.so.1 and uses nothing of theirs that is not public.
 * Link with -lomniverb_dma. Manual: omniverb_dma(7).
 *
 * Errors. What returns int returns 0, or -1 and sets errno; what returns a pointer returns NULL and
 * sets errno; omv_dma_query() returns an error number.
 * Threads. Every function may be called by any thread at any time, but nothing may be given back
 * (omv_dma_free, omv_dma_disconnect, omv_dma_cleanup) while another thread still uses it.
 * fork(). Nothing here is inherited: a child makes what it needs, and leaves alone what was there.
 * Layout. 64-bit machines; struct omv_dma_transfer is 80 bytes for good. All others are opaque.
 */
#ifndef OMNIVERB_DMA_H
#define OMNIVERB_DMA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct omv_dma;        /* what a program has from omv_dma_init() */
struct omv_dma_node;   /* somebody it is connected with */
struct omv_dma_buffer; /* memory of its own, or of a node */

/* ---- beginning and end ---- */

/* Flags of omv_dma_init(). Without OMV_DMA_SPIN or OMV_DMA_SLEEP the library's thread, which calls
 * back, looks for 50 microseconds and then sleeps; on a single processor it sleeps at once. */
#define OMV_DMA_LISTEN 1u /* others may connect */
#define OMV_DMA_SPIN 2u   /* never sleep while something is to be called back */
#define OMV_DMA_SLEEP 4u  /* sleep at once */

/* address: of the device to use, and of nobody else's; a number or a name; NULL: the first device,
 * and, with OMV_DMA_LISTEN, all addresses. port: to listen at; 0: any free one.
 * Whoever can reach the address and the port can connect, and reach the buffers. */
struct omv_dma *omv_dma_init(const char *address, uint16_t port, uint32_t flags);
/* Ends everything: nodes, transfers (ECONNRESET; what is to be called back is, before this
 * returns), buffers and their memory. EDEADLK: in a callback. */
int omv_dma_cleanup(struct omv_dma *dma);
/* The port that it listens at; 0: it does not. */
uint16_t omv_dma_port(struct omv_dma *dma);

/* ---- nodes: 64 at a time ---- */

/* Waits. When this returns all buffers are known that the node had. Times are in milliseconds,
 * negative: as long as it takes. ECONNREFUSED: nobody listens, or something else does; ETIMEDOUT;
 * EHOSTUNREACH; EMFILE: too many nodes; EDEADLK: in a callback. */
struct omv_dma_node *omv_dma_connect(struct omv_dma *dma, const char *address, uint16_t port,
				     int milliseconds);
/* The next one that has connected to us. Up to 32 wait for that, more are refused. ETIMEDOUT;
 * EINVAL: does not listen; ENODEV: nobody can connect any more, since the daemon of the host has
 * ended; EDEADLK: in a callback. */
struct omv_dma_node *omv_dma_accept(struct omv_dma *dma, int milliseconds);
/* 1: connected; 0: gone. A process that dies is noticed, without a transfer. */
int omv_dma_connected(struct omv_dma *dma, struct omv_dma_node *node);
/* Ends the connection, whatever is under way (ECONNRESET), and gives the node back; buffers of it
 * that were looked up are of no use any more. To be called for nodes that are gone as well. */
int omv_dma_disconnect(struct omv_dma *dma, struct omv_dma_node *node);

/* ---- buffers: 4096 ---- */

/* What nodes may do with a buffer. */
#define OMV_DMA_READABLE 1u
#define OMV_DMA_WRITABLE 2u

/* New memory, zeroed, at the beginning of a page, announced to all nodes, also to those that come
 * later. id: what nodes look it up by. EEXIST: there is one of that id; EMFILE: too many. */
struct omv_dma_buffer *omv_dma_alloc(struct omv_dma *dma, uint64_t id, size_t bytes,
				     uint32_t rights);
/* A buffer of a node; waits until there is one of that id. ETIMEDOUT: there is none, also with 0
 * milliseconds; ENOTCONN: the node is gone. Each is to be freed. */
struct omv_dma_buffer *omv_dma_lookup(struct omv_dma *dma, struct omv_dma_node *node, uint64_t id,
				      int milliseconds);
/* Of a buffer of our own: tells all nodes, and waits until none uses it any more; one that still
 * does after two seconds, or does not answer, is disconnected. EBUSY: a transfer of ours is under
 * way. EDEADLK: in a callback. Of a node's buffer: gives back what omv_dma_lookup() returned.
 * EINVAL: neither. */
int omv_dma_free(struct omv_dma *dma, struct omv_dma_buffer *buffer);
/* Where it is; NULL: at a node. */
void *omv_dma_address(struct omv_dma_buffer *buffer);
size_t omv_dma_length(struct omv_dma_buffer *buffer);
uint64_t omv_dma_id(struct omv_dma_buffer *buffer);

/* ---- transfers: 256 under way with each node, of up to 1 GiB each ---- */

/* One of the two buffers is ours, the other a node's. The struct is the program's: it stays where
 * it is, and is not changed, until the transfer is done. */
struct omv_dma_transfer {
	struct omv_dma_buffer *to;
	struct omv_dma_buffer *from;
	uint64_t to_offset;
	uint64_t from_offset;
	uint64_t length;
	/* NULL: the program asks with omv_dma_query(). Otherwise called by the library's thread when
	 * it is done, with the status set; from then on the struct is the program's again. It may
	 * start transfers and query them, but not wait: nothing else is called back meanwhile. The
	 * thread's stack is 2 MiB. */
	void (*done)(struct omv_dma_transfer *transfer);
	void *context; /* not looked at */
	/* The library's from here on. */
	int32_t status; /* see omv_dma_query() */
	uint32_t node;
	uint64_t reserved[2];
};

/* Starts as many as it can, in their order, and returns how many these were: fewer than `count`
 * where the next one cannot be started now. -1, if this is the first: EAGAIN: too many under way;
 * EINVAL: nothing to transfer, more than 1 GiB, beyond the end of a buffer, or not between a buffer
 * of ours and one of a node's, both of this `dma`; EACCES: the node's buffer is not for that;
 * ESTALE: it was freed; ENOTCONN: the node is gone; or what ibv_post_send(3) says. Transfers with
 * one node are done in the order of their start. Within a host the caller may do the copying
 * itself, before this returns. */
int omv_dma_start(struct omv_dma *dma, struct omv_dma_transfer *transfers, unsigned int count);
/* EINPROGRESS; 0: done, and all bytes are where they belong; or why it failed, and then the node is
 * gone: ECONNRESET: it died, or was disconnected; EACCES: it did not let us, against what it
 * announced; ETIMEDOUT: it was silent; EIO. */
int omv_dma_query(struct omv_dma *dma, struct omv_dma_transfer *transfer);

#ifdef __cplusplus
}
#endif
#endif
