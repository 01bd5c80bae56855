/*
 * Very many connections in sets of epoll, of which few do something at a time: in turn, some of
 * them again and again, many at once, one after a pause.
 *
 *     many_epoll_members serve PORT CONNECTIONS THREADS
 *     many_epoll_members connect PORT CONNECTIONS ROUNDS SEED
 *
 * The server's threads wait in one set, and send back what comes; half of the connections are told
 * of by edges. Who connects waits for each answer, in a set with all connections or by receiving,
 * for ten seconds at most: who is not told of something is found by that.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1 << 14, EVENTS = 48, LONGEST = 700, PATIENCE = 10000 };

static int many, set, numbers[MOST], left[MOST], open_still;
/* How far each has sent, and received. */
static uint64_t sent[MOST], received[MOST];
static pthread_mutex_t locks[MOST];
static unsigned seed;

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
	_exit(1); } } while (0)

static unsigned some(unsigned below)
{
	return (unsigned)rand_r(&seed) % below;
}

static unsigned char byte_at(uint64_t at, int index)
{
	return (unsigned char)((at + 7 * (uint64_t)index) * 0x9e3779b97f4a7c15u >> 56);
}

static void joins(int index, uint32_t more)
{
	struct epoll_event event = { .events = EPOLLIN | more, .data.u32 = (uint32_t)index };

	CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, numbers[index], &event));
}

/* Sends all of it, whatever that takes. */
static void sends(int number, const unsigned char *bytes, size_t length)
{
	while (length) {
		ssize_t done = send(number, bytes, length, MSG_NOSIGNAL);

		CHECK(done > 0 || errno == EAGAIN);
		if (done > 0) {
			bytes += done;
			length -= (size_t)done;
		}
	}
}

/* Sends back what there is, until there is no more. */
static void answers(int index)
{
	unsigned char bytes[2 * LONGEST];

	pthread_mutex_lock(&locks[index]);
	while (numbers[index] >= 0) {
		ssize_t got = recv(numbers[index], bytes, sizeof bytes, MSG_DONTWAIT);

		if (got > 0) {
			sends(numbers[index], bytes, (size_t)got);
		} else if (got == 0) {
			CHECK(!close(numbers[index]));
			numbers[index] = -1;
			__atomic_fetch_sub(&open_still, 1, __ATOMIC_SEQ_CST);
		} else {
			CHECK(errno == EAGAIN);
			break;
		}
	}
	pthread_mutex_unlock(&locks[index]);
}

static void *serves(void *unused)
{
	struct epoll_event events[EVENTS];

	while (__atomic_load_n(&open_still, __ATOMIC_SEQ_CST)) {
		int told = epoll_wait(set, events, EVENTS, 200);

		CHECK(told >= 0);
		for (int at = 0; at < told; at++)
			answers((int)events[at].data.u32);
	}
	return unused;
}

static void serve(struct sockaddr_in *address, int threads)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
	pthread_t others[16];

	CHECK(!setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes));
	CHECK(!bind(listener, (struct sockaddr *)address, sizeof *address));
	CHECK(!listen(listener, 4096));
	for (int index = 0; index < many; index++) {
		numbers[index] = accept(listener, NULL, NULL);
		CHECK(numbers[index] >= 0);
		pthread_mutex_init(&locks[index], NULL);
		joins(index, index % 2 ? EPOLLET | EPOLLRDHUP : 0);
		/* That it is there. */
		sends(numbers[index], (const unsigned char *)"!", 1);
	}
	open_still = many;
	for (int at = 0; at < threads; at++)
		CHECK(!pthread_create(&others[at], NULL, serves, NULL));
	for (int at = 0; at < threads; at++)
		CHECK(!pthread_join(others[at], NULL));
}

/* Takes what has come, in pieces. */
static void takes(int index, int flags)
{
	unsigned char bytes[LONGEST];
	ssize_t got = recv(numbers[index], bytes, 1 + some(sizeof bytes), flags);

	CHECK(got > 0);
	for (ssize_t at = 0; at < got; at++)
		CHECK(bytes[at] == byte_at(received[index]++, index));
	CHECK(received[index] <= sent[index]);
}

static void asks(int index)
{
	unsigned char bytes[LONGEST];
	size_t length = 1 + some(some(4) ? 40 : LONGEST);

	for (size_t at = 0; at < length; at++)
		bytes[at] = byte_at(sent[index]++, index);
	sends(numbers[index], bytes, length);
}

/* Until these have all that they have sent. */
static void waits(int count, int by_set)
{
	struct epoll_event events[EVENTS];
	int done = 0;

	while (by_set && done < count) {
		int told = epoll_wait(set, events, EVENTS, PATIENCE);

		CHECK(told > 0);
		for (int at = 0; at < told; at++) {
			int index = (int)events[at].data.u32;

			takes(index, MSG_DONTWAIT);
			done += received[index] == sent[index];
		}
	}
	for (int at = 0; at < count; at++)
		while (received[left[at]] < sent[left[at]])
			takes(left[at], 0);
}

static void asks_one(int index, int by_set)
{
	left[0] = index;
	asks(index);
	waits(1, by_set);
}

static void round_of(int kind)
{
	int by_set = (int)some(2), first = (int)some((unsigned)many);
	struct timespec pause = { .tv_nsec = 1000 * (long)some(20000) };
	int step, few[4];

	switch (kind) {
	case 0:
		step = 1 + (int)some(3);
		for (int at = 0; at < many / 2; at++)
			asks_one((first + at * step) % many, by_set);
		break;
	case 1:
		for (int at = 0; at < 4; at++)
			few[at] = (int)some((unsigned)many);
		for (int at = 0; at < 200; at++)
			asks_one(few[some(4)], by_set);
		break;
	case 2:
		step = 1 + (int)some((unsigned)many / 2);
		for (int at = 0; at < step; at++) {
			left[at] = (first + at) % many;
			asks(left[at]);
		}
		waits(step, by_set);
		break;
	default:
		for (int at = 0; at < 10; at++) {
			nanosleep(&pause, NULL);
			asks_one((int)some((unsigned)many), by_set);
		}
	}
}

static void connects(const struct sockaddr_in *address, int rounds)
{
	struct timeval patience = { .tv_sec = PATIENCE / 1000 };
	int yes = 1;
	char byte;

	for (int index = 0; index < many; index++) {
		numbers[index] = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(!connect(numbers[index], (const struct sockaddr *)address, sizeof *address));
		CHECK(!setsockopt(numbers[index], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes));
		CHECK(!setsockopt(numbers[index], SOL_SOCKET, SO_RCVTIMEO, &patience,
				  sizeof patience));
		joins(index, 0);
		CHECK(recv(numbers[index], &byte, 1, 0) == 1);
	}
	for (int at = 0; at < rounds; at++)
		round_of((int)some(4));
}

int main(int count, char **words)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rlimit limit;

	CHECK(count > 4 && !getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = limit.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	address.sin_port = htons((uint16_t)atoi(words[2]));
	many = atoi(words[3]);
	CHECK(many > 1 && many <= MOST);
	set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(set >= 0);
	if (!strcmp(words[1], "serve")) {
		serve(&address, atoi(words[4]));
		return 0;
	}
	seed = (unsigned)atoi(words[5]);
	connects(&address, atoi(words[4]));
	return 0;
}
