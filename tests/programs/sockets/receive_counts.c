/*
 * What has come is received, counted and told as the kernel does it, whatever call asks, while the
 * other end only computes or has gone. `receive_counts WHAT [6]` prints "ok", natively, too.
 */
#include "computing_peer.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>

enum { TURNS = 12, MOST = 100000 };
/* What the other end does: sends so many bytes; answers 100 bytes of which it has read 50, and
 * closes; the same with a reset. */
enum { PUT = OWN, ANSWER, ANSWER_RESET };

static char bytes[MOST];

static char byte_at(size_t index)
{
	return (char)(index * 7 + index / 251);
}

static void put(int number, size_t count)
{
	for (size_t at = 0; at < count; at++)
		bytes[at] = byte_at(at);
	CHECK(send(number, bytes, count, 0) == (ssize_t)count);
}

static void pause_unseen(long milliseconds)
{
	struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000 };

	clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000ll + time.tv_nsec / 1000000;
}

static void obey(int what, int *number)
{
	struct linger none = { 1, 0 };

	switch (what) {
	case PUT:
		put(*number, (size_t)shared->length);
		break;
	case ANSWER:
	case ANSWER_RESET:
		is_done();
		CHECK(recv(*number, bytes, 50, MSG_WAITALL) == 50);
		CHECK(send(*number, "413 error!", 10, 0) == 10);
		if (what == ANSWER_RESET)
			CHECK(setsockopt(*number, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0);
		close(*number);
		*number = -1;
		shared->length = 0;
		break;
	}
}

/* So many bytes have come, by the ring if that may be. */
static void come(int number, int count)
{
	is_empty(number);
	shared->length = count;
	order(PUT);
	until_done();
}

static void is_right(const char *got, size_t from, size_t count)
{
	for (size_t at = 0; at < count; at++)
		CHECK(got[at] == byte_at(from + at));
}

/* `MSG_TRUNC` takes bytes and gives none. */
static void counted(void)
{
	int number = carried();
	char got[100];

	for (int turn = 0; turn < TURNS; turn++) {
		memset(got, 'z', sizeof got);
		come(number, 60);
		CHECK(recv(number, got, 20, MSG_TRUNC | MSG_PEEK) == 20);
		CHECK(recv(number, turn & 1 ? got : NULL, 20, MSG_TRUNC) == 20 && got[0] == 'z');
		CHECK(recv(number, got, 10, 0) == 10);
		is_right(got, 20, 10);
		CHECK(recvfrom(number, NULL, 100, MSG_TRUNC | MSG_DONTWAIT, NULL, NULL) == 30);
		CHECK(recv(number, NULL, 5, MSG_TRUNC | MSG_DONTWAIT) == -1 && errno == EAGAIN);
	}
	/* More than a ring has, of which some come by the kernel. */
	is_empty(number);
	shared->length = MOST;
	order(PUT);
	CHECK(recv(number, NULL, MOST - 10, MSG_TRUNC | MSG_WAITALL) == MOST - 10);
	CHECK(recv(number, got, 10, MSG_WAITALL) == 10);
	is_right(got, MOST - 10, 10);
	until_done();
}

/* How many bytes are left is said, of those that had come before that was asked for, too. */
static void left(void)
{
	int one = 1, number = carried(), said = 0;
	char got[100], control[CMSG_SPACE(sizeof(int))];
	struct iovec part = { got, 20 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct cmsghdr *header;

	come(number, 60);
	CHECK(setsockopt(number, IPPROTO_TCP, TCP_INQ, &one, sizeof one) == 0);
	for (int turn = 0; turn < 3; turn++) {
		message.msg_control = control;
		message.msg_controllen = sizeof control;
		CHECK(recvmsg(number, &message, 0) == 20);
		is_right(got, (size_t)turn * 20, 20);
		header = CMSG_FIRSTHDR(&message);
		CHECK(header && header->cmsg_level == IPPROTO_TCP && header->cmsg_type == TCP_CM_INQ);
		CHECK(message.msg_controllen == sizeof control && !(message.msg_flags & MSG_CTRUNC));
		memcpy(&said, CMSG_DATA(header), sizeof said);
		CHECK(said == 40 - turn * 20);
	}
	shared->length = 30;
	order(PUT);
	until_done();
	CHECK(recv(number, got, 10, 0) == 10);
	message.msg_controllen = 4;
	CHECK(recvmsg(number, &message, 0) == 20 && message.msg_flags & MSG_CTRUNC);
}

/* An option of which nothing is known leaves what has come where it is. */
static void option(void)
{
	int number = carried(), value = 4000;
	char got[100];

	come(number, 60);
	CHECK(setsockopt(number, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &value, sizeof value) == 0);
	CHECK(recv(number, got, sizeof got, 0) == 60);
	is_right(got, 0, 60);
	come(number, 10);
	CHECK(recv(number, got, sizeof got, 0) == 10);
}

static int sleeps_in, taken;

static void *sleeper(void *unused)
{
	struct epoll_event told[4];

	(void)unused;
	taken = epoll_wait(sleeps_in, told, 4, 5000);
	CHECK(taken == 1 && told[0].events == EPOLLIN && told[0].data.u64 == 7);
	return NULL;
}

/* A socket with bytes that have come joins a set in which a thread sleeps, or changes there. */
static void joins(void)
{
	for (int turn = 0; turn < 2 * TURNS; turn++) {
		int number = carried(), other = turn & 1 ? carried() : connection();
		uint32_t edge = turn & 2 ? EPOLLET : 0;
		struct epoll_event event = { .events = EPOLLIN | edge, .data.u64 = 7 };
		struct epoll_event nothing = { .events = edge, .data.u64 = 7 };
		pthread_t thread;
		int waits;

		/* The last connection is the one that the other end has. */
		sleeps_in = epoll_create1(0);
		if (turn & 4)
			CHECK(epoll_ctl(sleeps_in, EPOLL_CTL_ADD, number, &nothing) == 0);
		if (turn & 8)
			CHECK(epoll_ctl(sleeps_in, EPOLL_CTL_ADD, other, &nothing) == 0);
		come(other, 5);
		CHECK(pthread_create(&thread, NULL, sleeper, NULL) == 0);
		pause_unseen(20);
		CHECK(epoll_ctl(sleeps_in, turn & 8 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, other, &event) == 0);
		CHECK(pthread_join(thread, NULL) == 0 && taken == 1);
		CHECK(recv(other, bytes, sizeof bytes, 0) == 5);
		/* It is not told of twice, and a wait is as long as it should be. */
		waits = (int)now();
		CHECK(epoll_wait(sleeps_in, &event, 1, 30) == 0 && (int)now() - waits >= 29);
		shared->length = 3;
		order(PUT);
		CHECK(epoll_wait(sleeps_in, &event, 1, -1) == 1 && event.data.u64 == 7);
		until_done();
		CHECK(recv(other, bytes, sizeof bytes, 0) == 3);
		close(sleeps_in);
		close(number);
		close(other);
	}
}

static volatile int handled;

static void handler(int signal)
{
	(void)signal;
	handled++;
}

/* A signal waits that only the call lets through: what is there is told first, and only otherwise
 * is the call interrupted. */
static void masked(void)
{
	int number = carried(), set = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	struct timespec none = { 0, 0 }, some = { 3, 0 };
	struct sigaction action = { .sa_handler = handler };
	sigset_t blocked, through;
	fd_set read;

	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	sigemptyset(&through);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	CHECK(sigprocmask(SIG_BLOCK, &blocked, &through) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, number, &event) == 0);
	for (int turn = 0; turn < 8; turn++) {
		struct timespec *limit = turn & 1 ? &some : &none;
		int is_there = turn & 2, milliseconds = turn & 1 ? 3000 : 0, wanted = is_there ? 1 : -1;
		struct pollfd one = { .fd = number, .events = POLLIN };

		for (int way = 0; way < 3; way++) {
			is_empty(number);
			if (is_there)
				come(number, 3);
			handled = 0;
			raise(SIGUSR1);
			errno = 0;
			FD_ZERO(&read);
			FD_SET(number, &read);
			if (way == 0)
				CHECK(ppoll(&one, 1, limit, &through) == wanted);
			else if (way == 1)
				CHECK(pselect(number + 1, &read, NULL, NULL, limit, &through) == wanted);
			else
				CHECK(epoll_pwait(set, &event, 1, milliseconds, &through) ==
				      (is_there || milliseconds ? wanted : 0));
			if (!is_there && (way < 2 || milliseconds))
				CHECK(errno == EINTR && handled == 1);
			else
				CHECK(handled == 0);
			if (is_there)
				CHECK(recv(number, bytes, sizeof bytes, 0) == 3);
			/* It is handled, or waits no more. */
			CHECK(sigprocmask(SIG_UNBLOCK, &blocked, NULL) == 0 && handled == 1);
			CHECK(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
		}
	}
}

/* The other end answers, and closes with bytes unread: the answer comes first, then the reset. */
static void closed_by(int what)
{
	for (int turn = 0; turn < 4 * TURNS; turn++) {
		int number = carried(), set = epoll_create1(0);
		struct epoll_event event = { .events = EPOLLIN | (turn & 4 ? EPOLLET : 0) };
		struct pollfd one = { .fd = number, .events = POLLIN };
		size_t had = 0;
		ssize_t got;
		char answer[20];
		int is_told;

		if (turn & 1)
			CHECK(fcntl(number, F_SETFL, O_NONBLOCK) == 0);
		if (turn & 2 && !(turn & 1))
			is_empty(number);
		CHECK(epoll_ctl(set, EPOLL_CTL_ADD, number, &event) == 0);
		shared->length = 1;
		order(what);
		CHECK(send(number, bytes, 100, 0) == 100);
		while (shared->length)
			sched_yield();
		if (turn & 8)
			CHECK(poll(&one, 1, 5000) == 1 && one.revents & POLLIN);
		if (turn & 16)
			CHECK(epoll_wait(set, &event, 1, 5000) == 1 && event.events & EPOLLIN);
		/* Who sends is told, too, and then nobody else. */
		is_told = turn & 32 && send(number, "more", 4, MSG_NOSIGNAL) == -1;
		errno = 0;
		for (;;) {
			got = turn & 1 ? read(number, answer + had, sizeof answer - had)
				       : recv(number, answer + had, sizeof answer - had, 0);
			if (got < 0 && errno == EAGAIN)
				continue;
			if (got <= 0)
				break;
			had += (size_t)got;
		}
		CHECK(had == 10 && !memcmp(answer, "413 error!", 10));
		if (is_told)
			CHECK(got == 0);
		else
			CHECK(got == -1 && errno == ECONNRESET);
		CHECK(recv(number, answer, 1, 0) == 0);
		until_done();
		close(set);
		close(number);
	}
}

static void closed(void)
{
	closed_by(ANSWER);
}

static void reset(void)
{
	closed_by(ANSWER_RESET);
}

int main(int count, char **words_of)
{
	static const struct { const char *name; void (*run)(void); } all[] = {
		{ "counted", counted }, { "left", left }, { "option", option }, { "joins", joins },
		{ "masked", masked }, { "closed", closed }, { "reset", reset },
	};

	CHECK(count >= 2);
	begin(count > 2 ? AF_INET6 : AF_INET);
	for (size_t at = 0; at < sizeof all / sizeof all[0]; at++)
		if (strcmp(words_of[1], all[at].name) == 0) {
			all[at].run();
			finish();
			return 0;
		}
	return 2;
}
