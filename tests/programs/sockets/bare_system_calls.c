/*
 * A stream of numbered messages to and fro, of which an end waits, sends, or receives by system
 * calls of its own instructions, as Rust's rustix, liburing and Bun do: they come in order, at
 * once.
 *
 * `instructions server HOW [6]` says its port, and `instructions client HOW PORT [6]` "ok". HOW:
 * "plain"; "epoll", "edge", "poll", "select": how it waits; "send", "receive", "writes": some
 * messages go so; "ring": io_uring does that. Built without OWN the C library does all of it, and
 * no such instruction is there.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
	_exit(1); } } while (0)

enum { TURNS = 3000, LIMIT = 25, LONG = 2000, PAUSE = 500, MAP = 4096 };

#ifdef OWN
static const char *how;
static unsigned count;

static int is(const char *what)
{
	return strcmp(how, what) == 0;
}

static long own(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall" : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	if (result < 0 && result > -4096) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

/* A ring with one place, and what the kernel tells by it. */
static long by_ring(int operation, int number, void *bytes, size_t length)
{
	static struct io_uring_params of;
	static char *submitted, *completed;
	static struct io_uring_sqe *entry;
	static int ring = -1;

	if (ring < 0) {
		ring = (int)own(SYS_io_uring_setup, 1, (long)&of, 0, 0, 0, 0);
		CHECK(ring >= 0);
		submitted = mmap(NULL, MAP, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
		completed = mmap(NULL, MAP, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
		entry = mmap(NULL, MAP, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
		CHECK(submitted != MAP_FAILED && completed != MAP_FAILED && entry != MAP_FAILED);
	}
	memset(entry, 0, sizeof *entry);
	entry->opcode = (uint8_t)operation;
	entry->fd = number;
	entry->addr = (uint64_t)(uintptr_t)bytes;
	entry->len = (uint32_t)length;
	((uint32_t *)(submitted + of.sq_off.array))[0] = 0;
	__atomic_fetch_add((uint32_t *)(submitted + of.sq_off.tail), 1, __ATOMIC_RELEASE);
	CHECK(own(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
	uint32_t *head = (uint32_t *)(completed + of.cq_off.head);
	uint32_t mask = *(uint32_t *)(completed + of.cq_off.ring_mask);
	long result = ((struct io_uring_cqe *)(completed + of.cq_off.cqes))[*head & mask].res;
	__atomic_fetch_add(head, 1, __ATOMIC_RELEASE);
	errno = result < 0 ? (int)-result : 0;
	return result < 0 ? -1 : result;
}

static void own_wait(int number)
{
	static int set = -1;
	struct epoll_event event = { .events = EPOLLIN | (is("edge") ? EPOLLET : 0) };
	struct pollfd one = { .fd = number, .events = POLLIN };
	struct timeval limit = { LONG / 1000, 0 };
	fd_set read;

	if (is("poll")) {
		CHECK(own(SYS_poll, (long)&one, 1, LONG, 0, 0, 0) == 1);
	} else if (is("select")) {
		FD_ZERO(&read);
		FD_SET(number, &read);
		CHECK(own(SYS_select, number + 1, (long)&read, 0, 0, (long)&limit, 0) == 1);
	} else {
		if (set < 0) {
			/* Half of them are of the C library's. */
			set = is("edge") ? epoll_create1(0) : (int)own(SYS_epoll_create1, 0, 0, 0, 0, 0, 0);
			CHECK(epoll_ctl(set, EPOLL_CTL_ADD, number, &event) == 0);
		}
		CHECK(own(SYS_epoll_pwait, set, (long)&event, 1, LONG, 0, 8) == 1);
	}
}
#endif

static void wait_for(int number)
{
	struct pollfd one = { .fd = number, .events = POLLIN };

#ifdef OWN
	if (is("epoll") || is("edge") || is("poll") || is("select")) {
		own_wait(number);
		return;
	}
#endif
	CHECK(poll(&one, 1, LONG) == 1);
}

static ssize_t take_some(int number, char *bytes, size_t length)
{
#ifdef OWN
	if (is("receive") && count++ % 3 == 1)
		return own(SYS_recvfrom, number, (long)bytes, (long)length, 0, 0, 0);
	if (is("ring") && count++ % 5 == 1) {
		wait_for(number);
		return by_ring(IORING_OP_RECV, number, bytes, length);
	}
#endif
	return recv(number, bytes, length, 0);
}

static void take(int number, uint64_t *message)
{
	for (size_t had = 0; had < sizeof *message;) {
		ssize_t got = take_some(number, (char *)message + had, sizeof *message - had);

		if (got > 0)
			had += (size_t)got;
		else if (got < 0 && errno == EAGAIN)
			wait_for(number);
		else
			exit(0);
	}
}

static void give(int number, uint64_t message)
{
	struct iovec part = { &message, sizeof message };

#ifdef OWN
	if (is("send") && count++ % 3 == 1) {
		CHECK(own(SYS_sendto, number, (long)&message, sizeof message, MSG_NOSIGNAL, 0, 0) == 8);
		return;
	}
	if (is("writes") && count++ % 3) {
		CHECK(count & 1 ? own(SYS_writev, number, (long)&part, 1, 0, 0, 0) == 8
				: own(SYS_write, number, (long)&message, sizeof message, 0, 0, 0) == 8);
		return;
	}
	if (is("ring") && count++ % 3 == 1) {
		CHECK(by_ring(IORING_OP_SEND, number, &message, sizeof message) == 8);
		return;
	}
#endif
	CHECK(writev(number, &part, 1) == 8);
}

static int end(int is_server, int port, int family)
{
	struct sockaddr_storage address = { .ss_family = (sa_family_t)family };
	struct sockaddr_in *four = (void *)&address;
	struct sockaddr_in6 *six = (void *)&address;
	socklen_t length = family == AF_INET6 ? sizeof *six : sizeof *four;
	int number = socket(family, SOCK_STREAM, 0), one = 1, new;

	if (family == AF_INET6)
		six->sin6_addr = in6addr_loopback;
	else
		four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	/* The port is at the same place of both. */
	four->sin_port = htons((uint16_t)port);
	if (!is_server) {
		CHECK(connect(number, (void *)&address, length) == 0);
	} else {
		CHECK(bind(number, (void *)&address, length) == 0 && listen(number, 5) == 0);
		CHECK(getsockname(number, (void *)&address, &length) == 0);
		printf("%d\n", ntohs(four->sin_port));
		fflush(stdout);
		new = accept(number, NULL, NULL);
		CHECK(new >= 0 && close(number) == 0);
		number = new;
	}
	CHECK(setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
	CHECK(fcntl(number, F_SETFL, O_NONBLOCK) == 0);
	return number;
}

int main(int words, char **word)
{
	int is_server = words > 2 && !strcmp(word[1], "server"), at = is_server ? 3 : 4, number;
	uint64_t message;

	CHECK(words >= at);
#ifdef OWN
	how = word[2];
#endif
	alarm(LIMIT);
	number = end(is_server, is_server ? 0 : atoi(word[3]), words > at ? AF_INET6 : AF_INET);
	for (uint64_t turn = 0; is_server || turn < TURNS; turn++) {
		int burst = (int)(turn % 4) + 1;

		for (int part = 0; !is_server && part < burst; part++)
			give(number, turn * 10 + (uint64_t)part);
		for (int part = 0; part < burst; part++) {
			take(number, &message);
			CHECK(message == turn * 10 + (uint64_t)part);
			if (is_server)
				give(number, message);
		}
		/* Time for a link to come. */
		if (!is_server && turn % PAUSE == PAUSE - 1)
			usleep(20000);
	}
	puts("ok");
	return 0;
}
