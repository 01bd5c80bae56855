/*
 * ibv_get_cq_event and ibv_get_async_event: whoever waits in them waits here, and can be cancelled
 * (pthreads(7)), as a thread that reads from a device file can. A cancelled thread is unwound; no
 * frame of Rust may be among those that it leaves, for what they would have dropped is not. While
 * it waits it has taken nothing, so no event is lost with it.
 *
 * The wait is in futex(2), which does as read(2) does when a signal's handler has run: it goes on
 * if that was installed with SA_RESTART, and ends with EINTR otherwise. poll(2) always ends.
 *
 * Meanwhile the thread can be cancelled at any moment (as in the C library's own calls before glibc
 * 2.41), within a handler, too. A handler that leaves by siglongjmp leaves it so, and is to set the
 * cancelability type anew if the thread may be cancelled later. It also stays counted as a waiter,
 * which costs others a system call for each event.
 *
 * ThreadSanitizer runs handlers only where it sees that a thread sleeps, and does not see it here:
 * with SA_RESTART they run when an event has come. Nothing else waits for that.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* What to sleep on; app/client/src/pollable_event_queue.rs. The kernel looks at the low half of
   `news`. */
struct doorbell {
	uint64_t news;
	uint32_t waiters;
};

/* Take an event: 0, or -1 with errno. 1: there is none; *bell rings when there is. */
int omniverb_take_cq_event(void *channel, void **cq, void **cq_context, struct doorbell **bell);
int omniverb_take_async_event(void *context, void *event, struct doorbell **bell);

/* Until `news` is no longer what was seen. -1: a signal came. The system call holds nothing, so a
 * thread may be cancelled at any moment in it. */
static int sleep_on(struct doorbell *bell, uint64_t seen)
{
	int before, result;

	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
	result = syscall(SYS_futex, &bell->news, FUTEX_WAIT, (uint32_t)seen, NULL, NULL, 0);
	int why = errno;
	pthread_setcanceltype(before, &before);
	errno = why;
	return result < 0 && why == EINTR ? -1 : 0;
}

/* Counted first, then what is news, then a look: see `push` in sd_watchdog.rs. */
#define WAIT_FOR(take)                                                                     \
	struct doorbell *bell = NULL;                                                      \
	int taken = take;                                                                  \
	if (taken <= 0)                                                                    \
		return taken;                                                              \
	__atomic_add_fetch(&bell->waiters, 1, __ATOMIC_SEQ_CST);                           \
	for (;;) {                                                                         \
		uint64_t seen = __atomic_load_n(&bell->news, __ATOMIC_SEQ_CST);            \
		taken = take;                                                              \
		if (taken > 0 && !sleep_on(bell, seen))                                    \
			continue;                                                          \
		__atomic_sub_fetch(&bell->waiters, 1, __ATOMIC_SEQ_CST);                   \
		return taken > 0 ? -1 : taken;                                             \
	}

HIDDEN int ov_ibv_get_cq_event(void *channel, void **cq, void **cq_context)
{
	WAIT_FOR(omniverb_take_cq_event(channel, cq, cq_context, &bell))
}

HIDDEN int ov_ibv_get_async_event(void *context, void *event)
{
	WAIT_FOR(omniverb_take_async_event(context, event, &bell))
}
