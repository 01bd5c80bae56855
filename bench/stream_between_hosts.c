/*
 * Bytes between two programs on two hosts, by whatever carries their sockets:
 *
 *     far serve ADDRESS PORT
 *     far rtt|rate ADDRESS PORT COUNT [BYTES [light]]
 *
 * One that serves does what each connection asks for, one after the other, until it is killed. The
 * other prints nanoseconds for a message of 8 bytes (or so many) and its answer, or messages a
 * second one way, each sent by a call. `light`: the connection that is measured has to be light;
 * connections before it show the way.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 8, LARGE = 4096, READS = 1 << 20, TURNS = 50, PAUSE_US = 20000 };

/* What a connection is for. */
struct wish {
	uint64_t is_rate, count, size;
};

static char buffer[READS];

static void out(int number, const void *from, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t part = send(number, (const char *)from + done, size - done, MSG_NOSIGNAL);

		if (part <= 0)
			exit(1);
		done += (size_t)part;
	}
}

static int in(int number, void *to, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t part = recv(number, (char *)to + done, size - done, 0);

		if (part <= 0)
			return -1;
		done += (size_t)part;
	}
	return 0;
}

static void swallow(int number, uint64_t left, uint64_t size)
{
	while (left) {
		/* Small messages are taken one by one; of large ones, what there is. */
		size_t most = size < LARGE ? size : sizeof buffer;
		ssize_t part = recv(number, buffer, left < most ? left : most, 0);

		if (part <= 0)
			return;
		left -= (uint64_t)part;
	}
}

static void serve(int number)
{
	struct wish wish;

	if (in(number, &wish, sizeof wish) || wish.size > sizeof buffer)
		return;
	if (wish.is_rate) {
		swallow(number, wish.count * wish.size, wish.size);
		out(number, buffer, 1);
	} else {
		while (wish.count-- && in(number, buffer, wish.size) == 0)
			out(number, buffer, wish.size);
	}
	in(number, buffer, 1);
}

static int reach(const struct sockaddr_in *to, const struct wish *wish)
{
	int number = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	if (connect(number, (const void *)to, sizeof *to))
		exit(1);
	setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	out(number, wish, sizeof *wish);
	return number;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int is_light(int number)
{
	int (*describe)(int, char *, size_t) = dlsym(RTLD_DEFAULT, "omniverb_sockets_describe");
	char text[200] = "";

	if (describe)
		describe(number, text, sizeof text);
	return strstr(text, "light") != NULL;
}

int main(int words, char **word)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct wish wish = { .size = BYTES }, first = { .count = 1, .size = BYTES };
	int number, one = 1;

	if (words < 4)
		return 2;
	inet_pton(AF_INET, word[2], &address.sin_addr);
	address.sin_port = htons((uint16_t)atoi(word[3]));
	if (strcmp(word[1], "serve") == 0) {
		int listener = socket(AF_INET, SOCK_STREAM, 0);

		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(listener, (void *)&address, sizeof address) || listen(listener, 16))
			return 1;
		while ((number = accept(listener, NULL, NULL)) >= 0) {
			setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
			serve(number);
			close(number);
		}
		return 1;
	}
	if (words < 5)
		return 2;
	wish.is_rate = strcmp(word[1], "rate") == 0;
	wish.count = strtoull(word[4], NULL, 10);
	if (words > 5)
		wish.size = strtoull(word[5], NULL, 10);
	for (int turn = 0; words > 6 && turn < TURNS; turn++) {
		number = reach(&address, &first);
		out(number, buffer, BYTES);
		if (in(number, buffer, BYTES))
			return 1;
		int is_it = is_light(number);

		close(number);
		if (is_it)
			break;
		usleep(PAUSE_US);
	}
	number = reach(&address, &wish);
	if (words > 6 && !is_light(number)) {
		fprintf(stderr, "it is not light\n");
		return 1;
	}
	double began = now();

	for (uint64_t i = 0; i < wish.count; i++) {
		out(number, buffer, wish.size);
		if (!wish.is_rate && in(number, buffer, wish.size))
			return 1;
	}
	if (wish.is_rate && in(number, buffer, 1))
		return 1;
	double each = (now() - began) / (double)wish.count;

	printf("%.1f\n", wish.is_rate ? 1e9 / each : each);
	return 0;
}
