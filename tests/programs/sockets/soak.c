/*
 * Connections between two processes, each used by a thread that sends and one that receives at
 * either end, while the ways of their bytes change: every byte must be the right one.
 *
 *     soak serve PORT CONNECTIONS KILOBYTES SEED [calm]
 *     soak connect PORT CONNECTIONS KILOBYTES SEED [calm]
 *
 * Every other connection does not block. Unless it is `calm` (then all stay as they are), some are
 * duplicated, put into epoll sets and taken out, given options, and there are a fork, a process
 * that is started, and signals.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 64, LONGEST = 40000 };

static uint64_t bytes_of_each;
static int is_server, is_calm;
static unsigned seed;

struct one {
	int number, index;
	pthread_t sender, receiver;
};

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
	_exit(1); } } while (0)

static unsigned char byte_at(uint64_t at, int index, int from_server)
{
	uint64_t x = at * 0x9e3779b97f4a7c15u + (uint64_t)index * 31 + (uint64_t)from_server * 7;

	return (unsigned char)(x >> 56 ^ at);
}

static void wait_for(int number, short events)
{
	struct pollfd one = { .fd = number, .events = events };
	fd_set set;

	if (number % 3 || number >= FD_SETSIZE) {
		CHECK(poll(&one, 1, -1) >= 0 || errno == EINTR);
		return;
	}
	FD_ZERO(&set);
	FD_SET(number, &set);
	CHECK(select(number + 1, events == POLLIN ? &set : NULL, events == POLLOUT ? &set : NULL,
		     NULL, NULL) >= 0 || errno == EINTR);
}

/* Something that is to change nothing for whoever is at the other end. */
static void disturb(struct one *one, unsigned *random)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int other, set, low = 1, queued;

	if (is_calm)
		return;
	switch (rand_r(random) % 4000) {
	case 0:
		other = dup(one->number);
		CHECK(other >= 0 && close(other) == 0);
		break;
	case 1:
		set = epoll_create1(0);
		CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, one->number, &event) == 0);
		CHECK(close(set) == 0);
		break;
	case 2:
		CHECK(setsockopt(one->number, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low) == 0);
		break;
	case 3:
		CHECK(ioctl(one->number, FIONREAD, &queued) == 0 && queued >= 0);
		break;
	default:
		break;
	}
}

static void *send_all(void *argument)
{
	struct one *one = argument;
	unsigned random = seed + (unsigned)one->index * 2 + (unsigned)is_server;
	static __thread unsigned char buffer[LONGEST];
	uint64_t at = 0;

	while (at < bytes_of_each) {
		size_t length = (size_t)rand_r(&random) % (rand_r(&random) % 8 ? 200 : LONGEST) + 1;
		ssize_t sent;

		if (length > bytes_of_each - at)
			length = bytes_of_each - at;
		for (size_t i = 0; i < length; i++)
			buffer[i] = byte_at(at + i, one->index, is_server);
		if (rand_r(&random) % 3) {
			sent = send(one->number, buffer, length, MSG_NOSIGNAL);
		} else {
			struct iovec parts[2] = { { buffer, length / 3 },
						  { buffer + length / 3, length - length / 3 } };
			sent = writev(one->number, parts, 2);
		}
		if (sent < 0 && errno == EAGAIN) {
			wait_for(one->number, POLLOUT);
			continue;
		}
		if (sent < 0 && errno == EINTR)
			continue;
		CHECK(sent > 0);
		at += (uint64_t)sent;
		disturb(one, &random);
	}
	CHECK(shutdown(one->number, SHUT_WR) == 0);
	return NULL;
}

static void *receive_all(void *argument)
{
	struct one *one = argument;
	unsigned random = seed + 1000 + (unsigned)one->index * 2 + (unsigned)is_server;
	static __thread unsigned char buffer[LONGEST];
	uint64_t at = 0;

	for (;;) {
		size_t length = (size_t)rand_r(&random) % (rand_r(&random) % 8 ? 200 : LONGEST) + 1;
		int how = rand_r(&random) % 8, peeks = how == 0;
		ssize_t got;

		if (how == 1)
			got = read(one->number, buffer, length);
		else
			got = recv(one->number, buffer, length, peeks ? MSG_PEEK : 0);
		if (got < 0 && errno == EAGAIN) {
			wait_for(one->number, POLLIN);
			continue;
		}
		if (got < 0 && errno == EINTR)
			continue;
		CHECK(got >= 0);
		for (ssize_t i = 0; i < got; i++)
			CHECK(buffer[i] == byte_at(at + (uint64_t)i, one->index, !is_server));
		if (peeks)
			continue;
		if (got == 0)
			break;
		at += (uint64_t)got;
		disturb(one, &random);
	}
	CHECK(at == bytes_of_each);
	return NULL;
}

static void nothing(int signal)
{
	(void)signal;
}

/* The server is found at two addresses, which may be reached in different ways. */
static int open_one(struct sockaddr_in *address, int listener, int index)
{
	int number, one = 1;

	if (listener >= 0) {
		number = accept(listener, NULL, NULL);
	} else {
		number = socket(AF_INET, SOCK_STREAM, 0);
		address->sin_addr.s_addr = htonl(INADDR_LOOPBACK + index / 2 % 2);
		CHECK(number >= 0 && connect(number, (void *)address, sizeof *address) == 0);
	}
	CHECK(number >= 0);
	CHECK(setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
	return number;
}

int main(int count, char **words)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct sigaction action = { .sa_handler = nothing, .sa_flags = SA_RESTART };
	static struct one all[MOST];
	int connections, listener = -1, one = 1;

	CHECK(count >= 6);
	is_server = strcmp(words[1], "serve") == 0;
	address.sin_port = htons((uint16_t)atoi(words[2]));
	connections = atoi(words[3]);
	bytes_of_each = (uint64_t)atol(words[4]) * 1024;
	seed = (unsigned)atoi(words[5]);
	is_calm = count > 6;
	CHECK(connections <= MOST);
	sigaction(SIGALRM, &action, NULL);
	if (is_server) {
		listener = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
		CHECK(bind(listener, (void *)&address, sizeof address) == 0);
		CHECK(listen(listener, MOST) == 0);
	}
	for (int i = 0; i < connections; i++) {
		int index = i;

		all[i].number = open_one(&address, listener, i);
		/* Both ends agree on a number. */
		if (is_server)
			CHECK(recv(all[i].number, &index, sizeof index, MSG_WAITALL) == sizeof index);
		else
			CHECK(send(all[i].number, &index, sizeof index, 0) == sizeof index);
		all[i].index = index;
		if (index % 2)
			CHECK(fcntl(all[i].number, F_SETFL, O_NONBLOCK) == 0);
	}
	for (int i = 0; i < connections; i++) {
		CHECK(pthread_create(&all[i].sender, NULL, send_all, &all[i]) == 0);
		CHECK(pthread_create(&all[i].receiver, NULL, receive_all, &all[i]) == 0);
	}
	if (!is_calm) {
		struct itimerval often = { { 0, 3000 }, { 0, 3000 } };

		setitimer(ITIMER_REAL, &often, NULL);
		usleep(200000);
		CHECK(system("true") == 0);
		usleep(100000);
		pid_t child = fork();
		if (!child)
			_exit(0);
		while (waitpid(child, NULL, 0) < 0)
			CHECK(errno == EINTR);
	}
	for (int i = 0; i < connections; i++) {
		CHECK(pthread_join(all[i].sender, NULL) == 0);
		CHECK(pthread_join(all[i].receiver, NULL) == 0);
		CHECK(close(all[i].number) == 0);
	}
	return 0;
}
