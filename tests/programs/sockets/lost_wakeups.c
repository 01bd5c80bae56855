/*
 * Who is to be woken, or told, is, while the other end only computes: it makes no call behind the
 * one that has put the bytes, so that nothing makes up for an event that was lost, or for bytes
 * that were left. `lost_wakeups WHAT` prints "ok"; a hang is ended by a signal.
 */
#include "computing_peer.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/syscall.h>

enum { TURNS = 20, STACK = 8192 };
/* What the other end does. */
enum { PUT = OWN, GET, ASK_RECV, ASK_POLL, ASK_SET, ASK_QUEUED };

/* Waits for an answer by calls that do not wait. */
static void ask(int number, int what)
{
	int set = epoll_create1(0), queued;
	struct epoll_event event = { .events = EPOLLIN };
	struct pollfd one = { .fd = number, .events = POLLIN };
	char byte;

	if (what == ASK_SET)
		CHECK(epoll_ctl(set, EPOLL_CTL_ADD, number, &event) == 0);
	CHECK(send(number, "a", 1, 0) == 1);
	is_done();
	for (;;) {
		if (what == ASK_RECV && recv(number, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1)
			break;
		if (what == ASK_POLL && poll(&one, 1, 0) == 1)
			break;
		if (what == ASK_SET && epoll_wait(set, &event, 1, 0) == 1)
			break;
		if (what == ASK_QUEUED && ioctl(number, FIONREAD, &queued) == 0 && queued == 1)
			break;
	}
	CHECK(recv(number, &byte, 1, MSG_DONTWAIT) == 1 && byte == 'b');
	close(set);
}

static void obey(int what, int *number)
{
	char bytes[3];

	switch (what) {
	case PUT:
		CHECK(send(*number, "abc", 3, 0) == 3);
		break;
	case GET:
		CHECK(recv(*number, bytes, 3, MSG_WAITALL) == 3 && !memcmp(bytes, "xyb", 3));
		break;
	default:
		ask(*number, what);
	}
}

static void takes(int number, size_t count)
{
	char bytes[8];

	CHECK(recv(number, bytes, sizeof bytes, MSG_DONTWAIT) == (ssize_t)count);
}

static int set_of(int number, uint32_t events)
{
	int set = epoll_create1(0);
	struct epoll_event event = { .events = events, .data.fd = number };

	CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, number, &event) == 0);
	return set;
}

static void tells(int set, int number, uint32_t events)
{
	/* With one place an edge may be told of twice, since the kernel and the ring take turns. */
	struct epoll_event told[4];

	CHECK(epoll_wait(set, told, 4, -1) == 1);
	CHECK(told[0].data.fd == number && told[0].events == events);
}

static void level(void)
{
	int number = carried(), set = set_of(number, EPOLLIN);
	struct epoll_event event;

	for (int turn = 0; turn < TURNS; turn++) {
		is_empty(number);
		CHECK(epoll_wait(set, &event, 1, 0) == 0);
		order(PUT);
		tells(set, number, EPOLLIN);
		until_done();
		CHECK(epoll_wait(set, &event, 1, 0) == 1);
		takes(number, 3);
	}
}

static void edge(void)
{
	uint32_t events = EPOLLIN | EPOLLOUT | EPOLLET;
	int number = carried(), set = set_of(number, events);
	struct epoll_event event = { .events = events, .data.fd = number };

	tells(set, number, EPOLLOUT);
	for (int turn = 0; turn < TURNS; turn++) {
		is_empty(number);
		order(PUT);
		tells(set, number, EPOLLIN | EPOLLOUT);
		until_done();
		order(PUT);
		tells(set, number, EPOLLIN | EPOLLOUT);
		until_done();
		CHECK(epoll_ctl(set, EPOLL_CTL_MOD, number, &event) == 0);
		tells(set, number, EPOLLIN | EPOLLOUT);
		takes(number, 6);
	}
}

/* A set that is seen otherwise, and gets its member only then. */
static void seen(void)
{
	for (int way = 0; way < 3; way++) {
		int number = carried(), set = epoll_create1(0), outer = -1;
		struct epoll_event event = { .events = EPOLLIN, .data.fd = number };
		struct pollfd one = { .fd = set, .events = POLLIN };

		if (way == 0)
			outer = set_of(set, EPOLLIN);
		else if (way == 1)
			CHECK(poll(&one, 1, 0) == 0);
		else
			CHECK(syscall(SYS_epoll_wait, set, &event, 1, 0) == 0);
		event = (struct epoll_event){ .events = EPOLLIN, .data.fd = number };
		CHECK(epoll_ctl(set, EPOLL_CTL_ADD, number, &event) == 0);
		is_empty(number);
		order(PUT);
		if (way == 0)
			tells(outer, set, EPOLLIN);
		else if (way == 1)
			CHECK(poll(&one, 1, -1) == 1);
		else
			CHECK(syscall(SYS_epoll_wait, set, &event, 1, -1) == 1);
		until_done();
		tells(set, number, EPOLLIN);
		takes(number, 3);
		close(set);
		close(outer);
		close(number);
	}
}

static int sleeps_in;

static void *sleeper(void *number)
{
	tells(sleeps_in, *(int *)number, EPOLLIN);
	tells(sleeps_in, *(int *)number, EPOLLIN);
	return NULL;
}

/* It is offered while somebody sleeps in its set, who has found no member there to look at. */
static void offered(void)
{
	for (int turn = 0; turn < 3; turn++) {
		int number = connection();
		char byte;
		pthread_t thread;

		/* The other end offers it; this one does by the first call that moves bytes. */
		order(PUT);
		until_done();
		sleeps_in = set_of(number, EPOLLIN | EPOLLET);
		CHECK(pthread_create(&thread, NULL, sleeper, &number) == 0);
		for (int wait = 0; wait < 100; wait++)
			syscall(SYS_nanosleep, &(struct timespec){ 0, 1000000 }, NULL);
		takes(number, 3);
		for (int wait = 0; wait < 100; wait++) {
			CHECK(recv(number, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
			syscall(SYS_nanosleep, &(struct timespec){ 0, 1000000 }, NULL);
		}
		order(PUT);
		CHECK(pthread_join(thread, NULL) == 0);
		until_done();
		takes(number, 3);
		close(sleeps_in);
		close(number);
	}
}

/* It is left with unread bytes to the kernel, whose other end looks for the answer and sleeps
 * never. */
static void left(void)
{
	for (int way = ASK_RECV; way <= ASK_QUEUED; way++) {
		int number = carried(), one = 1;
		char byte;

		is_empty(number);
		order(way);
		until_done();
		CHECK(setsockopt(number, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one) == 0);
		CHECK(recv(number, &byte, 1, 0) == 1 && byte == 'a');
		CHECK(send(number, "b", 1, 0) == 1);
		close(number);
	}
}

/* A way to sleep, which is about no socket. */
static void nap(void)
{
	int number = carried();

	CHECK(poll(NULL, 0, 1) == 0 && select(0, NULL, NULL, NULL, &(struct timeval){ 0, 1 }) == 0);
	is_empty(number);
	CHECK(is_carried(number));
	order(PUT);
	until_done();
	takes(number, 3);
}

/* Pages of which the second is not there: where it begins. */
static char *edge_of_memory(size_t bytes)
{
	char *at = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED && mprotect(at + bytes, PAGE, PROT_NONE) == 0);
	return at + bytes;
}

/* A set of `select` has as many words as it needs. */
static void words(void)
{
	int number = carried();
	fd_set *read = (fd_set *)(edge_of_memory(PAGE) - sizeof(long));

	CHECK(number < 64);
	for (int turn = 0; turn < TURNS; turn++) {
		*(unsigned long *)read = 1ul << number;
		is_empty(number);
		order(PUT);
		until_done();
		CHECK(select(number + 1, read, NULL, NULL, NULL) == 1);
		CHECK(*(unsigned long *)read == 1ul << number);
		takes(number, 3);
	}
}

static int used;
static volatile int is_handled;

static void handler(int signal)
{
	int one = 1;

	(void)signal;
	/* It is left with bytes in the ring: those come before what is sent then. */
	CHECK(setsockopt(used, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one) == 0);
	CHECK(write(used, "b", 1) == 1);
	is_handled = 1;
}

/* A handler has a small stack. */
static void stack(void)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	char *low = mmap(NULL, STACK + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack_t small = { .ss_sp = low + PAGE, .ss_size = STACK };

	/* Below it there is nothing. */
	CHECK(low != MAP_FAILED && mprotect(low + PAGE, STACK, PROT_READ | PROT_WRITE) == 0);
	CHECK(sigaltstack(&small, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	for (int turn = 0; turn < TURNS; turn++) {
		used = carried();
		/* The other end has just looked into the ring, and does nothing now. */
		CHECK(send(used, "xy", 2, 0) == 2);
		is_handled = 0;
		CHECK(raise(SIGUSR1) == 0 && is_handled);
		order(GET);
		until_done();
		close(used);
	}
}

/* A child that has this memory sets up what only it is concerned with. */
static void child(void)
{
	pid_t pid = vfork();
	int number;

	if (pid == 0) {
		unshare(CLONE_FILES);
		_exit(0);
	}
	CHECK(pid > 0 && waitpid(pid, NULL, 0) == pid);
	/* It goes on until it has a link. */
	number = carried();
	close(number);
}

int main(int count, char **words_of)
{
	static const struct { const char *name; void (*run)(void); } all[] = {
		{ "level", level }, { "edge", edge }, { "seen", seen }, { "offered", offered },
		{ "left", left }, { "nap", nap }, { "words", words }, { "stack", stack },
		{ "child", child },
	};

	CHECK(count == 2);
	begin(AF_INET);
	for (size_t at = 0; at < sizeof all / sizeof all[0]; at++)
		if (strcmp(words_of[1], all[at].name) == 0) {
			all[at].run();
			finish();
			return 0;
		}
	return 2;
}
