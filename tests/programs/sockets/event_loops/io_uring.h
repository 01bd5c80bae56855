// An io_uring of event_loops.c, by system calls through libc's `syscall` as liburing and libuv make
// them.
#pragma once
#include <linux/io_uring.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ring {
    int fd;
    struct io_uring_params p;
    char *queues;
    struct io_uring_sqe *entries;
    unsigned tail, submitted;
};

static unsigned *ring_word(struct ring *ring, unsigned offset)
{
    return (unsigned *)(ring->queues + offset);
}

// Whether there is one: container runtimes and administrators refuse them.
static int ring_open(struct ring *ring, unsigned size)
{
    memset(ring, 0, sizeof *ring);
    ring->fd = syscall(SYS_io_uring_setup, size, &ring->p);
    if (ring->fd < 0)
        return 0;
    size_t sq = ring->p.sq_off.array + ring->p.sq_entries * sizeof(unsigned);
    size_t cq = ring->p.cq_off.cqes + ring->p.cq_entries * sizeof(struct io_uring_cqe);
    int how = MAP_SHARED | MAP_POPULATE, is = PROT_READ | PROT_WRITE;
    ring->queues = ring->p.features & IORING_FEAT_SINGLE_MMAP
        ? mmap(NULL, sq > cq ? sq : cq, is, how, ring->fd, IORING_OFF_SQ_RING) : MAP_FAILED;
    ring->entries = mmap(NULL, ring->p.sq_entries * sizeof *ring->entries, is, how, ring->fd,
                         IORING_OFF_SQES);
    if (ring->queues == MAP_FAILED || ring->entries == MAP_FAILED) {
        syscall(SYS_close, ring->fd);
        return 0;
    }
    return 1;
}

// Submits what was prepared, and waits for so many completions.
static int ring_enter(struct ring *ring, unsigned wait)
{
    unsigned count = ring->tail - ring->submitted;
    __atomic_store_n(ring_word(ring, ring->p.sq_off.tail), ring->tail, __ATOMIC_RELEASE);
    int done = syscall(SYS_io_uring_enter, ring->fd, count, wait,
                       wait ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
    if (done > 0)
        ring->submitted += done;
    return done;
}

// An entry to be filled; the queue is submitted first if it is full.
static struct io_uring_sqe *ring_entry(struct ring *ring, int opcode, int fd, uint64_t data)
{
    while (ring->tail - ring->submitted == ring->p.sq_entries)
        ring_enter(ring, 0);
    unsigned at = ring->tail++ & (ring->p.sq_entries - 1);
    ring_word(ring, ring->p.sq_off.array)[at] = at;
    struct io_uring_sqe *entry = &ring->entries[at];
    memset(entry, 0, sizeof *entry);
    entry->opcode = opcode;
    entry->fd = fd;
    entry->user_data = data;
    return entry;
}

// Takes a completion, if one is there.
static int ring_take(struct ring *ring, struct io_uring_cqe *taken)
{
    unsigned *head = ring_word(ring, ring->p.cq_off.head);
    if (*head == __atomic_load_n(ring_word(ring, ring->p.cq_off.tail), __ATOMIC_ACQUIRE))
        return 0;
    struct io_uring_cqe *all = (void *)(ring->queues + ring->p.cq_off.cqes);
    *taken = all[*head & (ring->p.cq_entries - 1)];
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return 1;
}
