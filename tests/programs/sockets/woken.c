/*
 * Who is to be woken, or told, is, while the other end only computes: it makes no call behind the
 * one that has put the bytes, so that nothing makes up for an event that was lost, or for bytes
 * that were left. `woken WHAT` prints "ok"; a hang is ended by a signal.
 *
 * The other end is a process that is there from the start, and is told what to do by a page that
 * both have. With the library it is said as well whether the connection has a link.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
	_exit(1); } } while (0)

enum { LIMIT = 20, TURNS = 20, STACK = 8192, PAGE = 4096 };
/* What the other end does. */
enum { CONNECT, PUT, GET, SWAP, ASK_RECV, ASK_POLL, ASK_SET, ASK_QUEUED, END };

static struct {
	volatile int port, what, orders, done;
} *shared;
static int listener;
static int (*describe)(int, char *, size_t);

/* Has it begin, and goes on. */
static void order(int what)
{
	shared->what = what;
	__atomic_store_n(&shared->orders, shared->orders + 1, __ATOMIC_RELEASE);
}

/* Until it has done that, without a call that the library sees. */
static void until_done(void)
{
	while (__atomic_load_n(&shared->done, __ATOMIC_ACQUIRE) != shared->orders)
		sched_yield();
}

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
	__atomic_store_n(&shared->done, shared->orders, __ATOMIC_RELEASE);
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

static void peer(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int number = -1, one = 1, done = 0;
	char byte, bytes[3];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		while (__atomic_load_n(&shared->orders, __ATOMIC_ACQUIRE) == done)
			sched_yield();
		done = shared->orders;
		switch (shared->what) {
		case CONNECT:
			close(number);
			number = socket(AF_INET, SOCK_STREAM, 0);
			address.sin_port = htons((uint16_t)shared->port);
			CHECK(connect(number, (void *)&address, sizeof address) == 0);
			CHECK(setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
			break;
		case PUT:
			CHECK(send(number, "abc", 3, 0) == 3);
			break;
		case GET:
			CHECK(recv(number, bytes, 3, MSG_WAITALL) == 3 && !memcmp(bytes, "xyb", 3));
			break;
		case SWAP:
			CHECK(recv(number, &byte, 1, 0) == 1 && send(number, "q", 1, 0) == 1);
			break;
		case END:
			_exit(0);
		default:
			ask(number, shared->what);
			continue;
		}
		__atomic_store_n(&shared->done, done, __ATOMIC_RELEASE);
	}
}

static int has_link(int number)
{
	char text[4000];

	if (!describe)
		return 1;
	CHECK(describe(number, text, sizeof text) >= 0);
	return strstr(text, " carried") || strstr(text, " linked") || strstr(text, " left");
}

static int is_carried(int number)
{
	char text[4000];

	if (!describe)
		return 1;
	CHECK(describe(number, text, sizeof text) >= 0);
	return strstr(text, " carried") != NULL;
}

/* A connection, with one byte each way. */
static int connection(void)
{
	int number, one = 1;

	order(CONNECT);
	number = accept(listener, NULL, NULL);
	CHECK(number >= 0);
	until_done();
	CHECK(setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
	return number;
}

static void swap(int number)
{
	char byte;

	order(SWAP);
	CHECK(send(number, "p", 1, 0) == 1 && recv(number, &byte, 1, 0) == 1 && byte == 'q');
	until_done();
}

/* The same, with a link. */
static int carried(void)
{
	int number = connection();

	do
		swap(number);
	while (!has_link(number));
	return number;
}

/* Nothing is there; so what comes next comes by the ring, if that may be. */
static void is_empty(int number)
{
	char byte;

	CHECK(recv(number, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
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
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	pid_t pid;

	CHECK(count == 2);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	alarm(LIMIT);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		alarm(LIMIT);
		peer();
	}
	describe = (int (*)(int, char *, size_t))dlsym(RTLD_DEFAULT, "omniverb_sockets_describe");
	listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(bind(listener, (void *)&address, sizeof address) == 0 && listen(listener, 4) == 0);
	CHECK(getsockname(listener, (void *)&address, &length) == 0);
	shared->port = ntohs(address.sin_port);
	for (size_t at = 0; at < sizeof all / sizeof all[0]; at++)
		if (strcmp(words_of[1], all[at].name) == 0) {
			all[at].run();
			order(END);
			CHECK(waitpid(pid, &count, 0) == pid && count == 0);
			puts("ok");
			return 0;
		}
	return 2;
}
