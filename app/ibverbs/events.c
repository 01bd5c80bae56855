/*
 * ibv_get_cq_event and ibv_get_async_event: whoever waits in them waits here, in poll(2) of the C
 * library, and can be cancelled (pthreads(7)), as a thread that reads from a device file can. A
 * cancelled thread is unwound; no frame of Rust may be among those that it leaves, for what they
 * would have dropped is not. While it waits it has taken nothing, so no event is lost with it.
 */
#include <poll.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Take an event: 0, or -1 with errno. 1: there is none; *file becomes readable when there is. */
int omniverb_take_cq_event(void *channel, void **cq, void **cq_context, int *file);
int omniverb_take_async_event(void *context, void *event, int *file);

static int news(int file)
{
	struct pollfd one = {.fd = file, .events = POLLIN};
	return poll(&one, 1, -1) < 0 ? -1 : 0;
}

HIDDEN int ov_ibv_get_cq_event(void *channel, void **cq, void **cq_context)
{
	for (;;) {
		int file = -1, taken = omniverb_take_cq_event(channel, cq, cq_context, &file);
		if (taken <= 0)
			return taken;
		if (news(file))
			return -1;
	}
}

HIDDEN int ov_ibv_get_async_event(void *context, void *event)
{
	for (;;) {
		int file = -1, taken = omniverb_take_async_event(context, event, &file);
		if (taken <= 0)
			return taken;
		if (news(file))
			return -1;
	}
}
