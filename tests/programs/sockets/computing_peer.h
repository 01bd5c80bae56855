/*
 * A connection whose other end only computes, for programs that ask what is there already.
 *
 * The other end is a process that is there from the start, and is told what to do by a page that
 * both have: it makes no call behind the one that it was told to make. With the library it is said
 * as well whether the connection has a link. A hang is ended by a signal.
 */
#ifndef COMPUTING_H
#define COMPUTING_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
	_exit(1); } } while (0)

enum { LIMIT = 20, PAGE = 4096 };
/* What every other end does. A program has orders of its own from OWN on. */
enum { CONNECT, SWAP, END, OWN };

static struct {
	volatile int port, family, what, length, orders, done;
} *shared;
static int listener, doing;
static pid_t other_end;
static int (*describe)(int, char *, size_t);

/* Does another order by the connection, or by a new one. */
static void obey(int what, int *number);

/* Has it begin, and goes on. */
static void order(int what)
{
	shared->what = what;
	__atomic_store_n(&shared->orders, shared->orders + 1, __ATOMIC_RELEASE);
}

/* Of the other end: it goes on before it is done with the order. */
static void is_done(void)
{
	__atomic_store_n(&shared->done, doing, __ATOMIC_RELEASE);
}

/* Until it has done that, without a call that the library sees. */
static void until_done(void)
{
	while (__atomic_load_n(&shared->done, __ATOMIC_ACQUIRE) != shared->orders)
		sched_yield();
}

/* An address of this host. */
static socklen_t loopback(struct sockaddr_storage *address, int family, int port)
{
	memset(address, 0, sizeof *address);
	address->ss_family = (sa_family_t)family;
	if (family == AF_INET6) {
		struct sockaddr_in6 *six = (void *)address;

		six->sin6_addr = in6addr_loopback;
		six->sin6_port = htons((uint16_t)port);
		return sizeof *six;
	}
	((struct sockaddr_in *)address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
	return sizeof(struct sockaddr_in);
}

static void without_delay(int number)
{
	int one = 1;

	CHECK(setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
}

static void peer(void)
{
	struct sockaddr_storage address;
	int number = -1;
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		while (__atomic_load_n(&shared->orders, __ATOMIC_ACQUIRE) == doing)
			sched_yield();
		doing = shared->orders;
		switch (shared->what) {
		case CONNECT:
			close(number);
			number = socket(shared->family, SOCK_STREAM, 0);
			CHECK(connect(number, (void *)&address,
				      loopback(&address, shared->family, shared->port)) == 0);
			without_delay(number);
			break;
		case SWAP:
			CHECK(recv(number, &byte, 1, 0) == 1 && send(number, "q", 1, 0) == 1);
			break;
		case END:
			_exit(0);
		default:
			obey(shared->what, &number);
		}
		is_done();
	}
}

/* What the library says of a descriptor has one of these words in it, or there is no library. */
static int is_said(int number, const char *const *words)
{
	char text[4000];

	if (!describe)
		return 1;
	CHECK(describe(number, text, sizeof text) >= 0);
	for (; *words; words++)
		if (strstr(text, *words))
			return 1;
	return 0;
}

static inline int has_link(int number)
{
	return is_said(number, (const char *const[]){ " carried", " linked", " left", NULL });
}

static inline int is_carried(int number)
{
	return is_said(number, (const char *const[]){ " carried", NULL });
}

/* A connection. */
static int connection(void)
{
	int number;

	order(CONNECT);
	number = accept(listener, NULL, NULL);
	CHECK(number >= 0);
	until_done();
	without_delay(number);
	return number;
}

/* One byte each way. */
static void swap(int number)
{
	char byte;

	order(SWAP);
	CHECK(send(number, "p", 1, 0) == 1 && recv(number, &byte, 1, 0) == 1 && byte == 'q');
	until_done();
}

/* A connection that has a link. */
static inline int carried(void)
{
	int number = connection();

	do
		swap(number);
	while (!has_link(number));
	return number;
}

/* Nothing is there; so what comes next comes by the ring, if that may be. */
static inline void is_empty(int number)
{
	char byte;

	CHECK(recv(number, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

/* Begins, with connections of this family; the other end runs from then on. */
static void begin(int family)
{
	struct sockaddr_storage address;
	socklen_t length;

	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	shared->family = family;
	alarm(LIMIT);
	other_end = fork();
	CHECK(other_end >= 0);
	if (other_end == 0) {
		alarm(LIMIT);
		peer();
	}
	describe = (int (*)(int, char *, size_t))dlsym(RTLD_DEFAULT, "omniverb_sockets_describe");
	listener = socket(family, SOCK_STREAM, 0);
	length = loopback(&address, family, 0);
	CHECK(bind(listener, (void *)&address, length) == 0 && listen(listener, 4) == 0);
	CHECK(getsockname(listener, (void *)&address, &length) == 0);
	/* The port is at the same place of both. */
	shared->port = ntohs(((struct sockaddr_in *)&address)->sin_port);
}

/* The other end has ended well. */
static void finish(void)
{
	int status;

	order(END);
	CHECK(waitpid(other_end, &status, 0) == other_end && status == 0);
	puts("ok");
}

#endif
