/*
 * Connections in sets of epoll, between two processes: one sends back what the other has sent, and
 * every byte must be the right one. Nobody reads or writes without having been told that he can, so
 * an event that does not come is a hang.
 *
 *     sets serve PORT CONNECTIONS KILOBYTES SEED [calm]
 *     sets connect PORT CONNECTIONS KILOBYTES SEED [calm]
 *
 * Each end has two threads, each with a set. Half of the connections are level-triggered and read a
 * piece at a time, half edge-triggered and read until there is no more. Unless it is `calm`, they
 * are taken out and put back, changed by another thread, duplicated, and put into a second set. The
 * server is found at two addresses, which may be reached in different ways.
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
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 64, THREADS = 2, KEPT = 1 << 16, LONGEST = 20000 };

static uint64_t bytes_of_each;
static int is_server, is_calm, count_of_all;
static unsigned seed;

struct one {
	int number, index, set, is_edge, is_full, has_ended, is_over;
	uint64_t sent, received;
	/* What a server has to send back: from `first` on, `kept` bytes. */
	unsigned char keeps[KEPT];
	size_t first, kept;
};

static struct one all[MOST];

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
	_exit(1); } } while (0)

static unsigned char byte_at(uint64_t at, int index)
{
	uint64_t x = at * 0x9e3779b97f4a7c15u + (uint64_t)index * 31;

	return (unsigned char)(x >> 56 ^ at);
}

static uint32_t wanted(const struct one *one)
{
	if (one->is_edge)
		return EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
	/* Who has nowhere to put more asks for none. */
	return (one->kept == KEPT ? 0 : EPOLLIN) | (one->is_full ? EPOLLOUT : 0);
}

static void control(struct one *one, int operation)
{
	struct epoll_event event = { .events = wanted(one), .data.ptr = one };

	CHECK(epoll_ctl(one->set, operation, one->number, &event) == 0);
}

/* Something that is to change nothing. */
static void disturb(struct one *one, unsigned *random)
{
	struct epoll_event event = { .events = EPOLLIN };
	int other, set;

	if (is_calm)
		return;
	switch (rand_r(random) % 3000) {
	case 0:
		other = dup(one->number);
		CHECK(other >= 0 && close(other) == 0);
		break;
	case 1:
		set = epoll_create1(0);
		CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, one->number, &event) == 0);
		CHECK(close(set) == 0);
		break;
	case 2: case 3: case 4: case 5:
		control(one, EPOLL_CTL_DEL);
		control(one, EPOLL_CTL_ADD);
		break;
	case 6: case 7: case 8: case 9:
		control(one, EPOLL_CTL_MOD);
		break;
	default:
		break;
	}
}

/* Sends what there is to be sent, until there is no room. */
static void send_some(struct one *one, unsigned *random)
{
	static __thread unsigned char buffer[LONGEST];

	for (;;) {
		const unsigned char *from = buffer;
		size_t length;
		ssize_t sent;

		if (is_server) {
			from = one->keeps + one->first;
			length = one->kept < KEPT - one->first ? one->kept : KEPT - one->first;
		} else {
			uint64_t left = bytes_of_each - one->sent;
			uint64_t under_way = one->sent - one->received;

			length = (size_t)rand_r(random) % (rand_r(random) % 8 ? 200 : LONGEST) + 1;
			if (under_way >= KEPT / 2)
				length = 0;
			else if (under_way && rand_r(random) % 4)
				length = 0;
			length = length < left ? length : left;
			for (size_t i = 0; i < length; i++)
				buffer[i] = byte_at(one->sent + i, one->index);
		}
		if (!length)
			break;
		sent = send(one->number, from, length, MSG_NOSIGNAL);
		if (sent < 0 && errno == EAGAIN) {
			if (!one->is_full && !one->is_edge) {
				one->is_full = 1;
				control(one, EPOLL_CTL_MOD);
			}
			return;
		}
		CHECK(sent > 0);
		one->sent += (uint64_t)sent;
		if (is_server) {
			int was_full = one->kept == KEPT;

			one->first = (one->first + (size_t)sent) % KEPT;
			one->kept -= (size_t)sent;
			if (was_full && !one->is_edge)
				control(one, EPOLL_CTL_MOD);
		}
	}
	if (one->is_full) {
		one->is_full = 0;
		control(one, EPOLL_CTL_MOD);
	}
	if (is_server && one->has_ended && !one->is_over) {
		one->is_over = 1;
		CHECK(close(one->number) == 0);
	}
}

/* Receives a piece. Whether there may be more. */
static int receive_some(struct one *one, unsigned *random)
{
	static __thread unsigned char buffer[KEPT];
	size_t length = (size_t)rand_r(random) % (rand_r(random) % 8 ? 300 : LONGEST) + 1;
	ssize_t got;

	if (is_server && length > KEPT - one->kept)
		length = KEPT - one->kept;
	if (!length || one->has_ended)
		return 0;
	got = recv(one->number, buffer, length, 0);
	if (got < 0 && errno == EAGAIN)
		return 0;
	CHECK(got >= 0);
	if (got == 0) {
		one->has_ended = 1;
		return 0;
	}
	for (ssize_t i = 0; i < got; i++) {
		CHECK(buffer[i] == byte_at(one->received + (uint64_t)i, one->index));
		if (is_server)
			one->keeps[(one->first + one->kept + (size_t)i) % KEPT] = buffer[i];
	}
	one->received += (uint64_t)got;
	if (is_server) {
		one->kept += (size_t)got;
		if (one->kept == KEPT && !one->is_edge)
			control(one, EPOLL_CTL_MOD);
	}
	return 1;
}

static void serve(struct one *one, uint32_t events, unsigned *random)
{
	int goes_on;

	do {
		goes_on = (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) != 0;
		goes_on = goes_on && receive_some(one, random) && one->is_edge;
		/* A server must not stop reading because it has not sent. */
		send_some(one, random);
		if (!one->is_over)
			disturb(one, random);
	} while (goes_on && !one->is_over);
	if (!is_server && one->received == bytes_of_each && !one->is_over && !one->has_ended)
		shutdown(one->number, SHUT_WR);
	if (!is_server && one->has_ended && !one->is_over) {
		CHECK(one->received == bytes_of_each);
		one->is_over = 1;
		CHECK(close(one->number) == 0);
	}
}

static void *run(void *argument)
{
	int mine = (int)(intptr_t)argument, set = epoll_create1(EPOLL_CLOEXEC), left = 0;
	unsigned random = seed + (unsigned)mine * 2 + (unsigned)is_server;
	struct epoll_event events[4];

	CHECK(set >= 0);
	for (int i = mine; i < count_of_all; i += THREADS) {
		all[i].set = set;
		control(&all[i], EPOLL_CTL_ADD);
		left++;
	}
	for (int i = mine; i < count_of_all; i += THREADS)
		if (!is_server)
			send_some(&all[i], &random);
	while (left) {
		int most = 1 + rand_r(&random) % 4, count;

		switch (rand_r(&random) % 6) {
		case 0:
			count = epoll_wait(set, events, most, 0);
			break;
		case 1:
			count = epoll_pwait(set, events, most, -1, NULL);
			break;
		default:
			count = epoll_wait(set, events, most, -1);
			break;
		}
		CHECK(count >= 0);
		for (int i = 0; i < count; i++) {
			struct one *one = events[i].data.ptr;

			for (int j = 0; j < i; j++)
				CHECK(events[j].data.ptr != one);
			CHECK(!one->is_over && one->set == set);
			serve(one, events[i].events, &random);
			left -= one->is_over;
		}
		if (rand_r(&random) % 200 == 0)
			usleep(300);
	}
	CHECK(close(set) == 0);
	return NULL;
}

int main(int count, char **words)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int listener = -1, one = 1;
	pthread_t threads[THREADS];

	CHECK(count >= 6);
	is_server = strcmp(words[1], "serve") == 0;
	address.sin_port = htons((uint16_t)atoi(words[2]));
	count_of_all = atoi(words[3]);
	bytes_of_each = (uint64_t)atol(words[4]) * 1024;
	seed = (unsigned)atoi(words[5]);
	is_calm = count > 6;
	CHECK(count_of_all <= MOST);
	if (is_server) {
		listener = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
		CHECK(bind(listener, (void *)&address, sizeof address) == 0);
		CHECK(listen(listener, MOST) == 0);
	}
	for (int i = 0; i < count_of_all; i++) {
		int index = i, number;

		if (is_server) {
			number = accept(listener, NULL, NULL);
		} else {
			number = socket(AF_INET, SOCK_STREAM, 0);
			address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + i % 2);
			CHECK(connect(number, (void *)&address, sizeof address) == 0);
		}
		CHECK(number >= 0);
		CHECK(setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
		if (is_server)
			CHECK(recv(number, &index, sizeof index, MSG_WAITALL) == sizeof index);
		else
			CHECK(send(number, &index, sizeof index, 0) == sizeof index);
		CHECK(fcntl(number, F_SETFL, O_NONBLOCK) == 0);
		all[i].number = number;
		all[i].index = index;
		all[i].is_edge = index / THREADS % 2;
	}
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	return 0;
}
