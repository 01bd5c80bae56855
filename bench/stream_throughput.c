/*
 * Bytes between two processes, by different ways, one message each call:
 *
 *     streams tcp|unix|ring rtt|rate|beside COUNT [BYTES]
 *
 * prints nanoseconds for a message of 8 bytes (or so many) and its answer, messages a second in one
 * direction, or how many times what the ring takes a message and its answer take: both in turns,
 * within moments, as virtual processors change from one moment to the next.
 * `tcp` is what is carried if a library that does so is preloaded; then it says on
 * stderr what became of it. `ring` is what memory itself gives: each message published and taken
 * by itself.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 8, SLOTS = 4096, TURNS = 41 };

/* Of a message; the ring's have eight. */
static size_t size = BYTES;
static char *buffer;

/* One direction of the bare ring. */
struct ring {
	_Alignas(64) _Atomic uint64_t head;
	_Alignas(64) _Atomic uint64_t tail;
	_Alignas(64) uint64_t slots[SLOTS];
};

static struct ring *rings;

static void put(struct ring *ring, uint64_t value)
{
	uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

	while (head - atomic_load_explicit(&ring->tail, memory_order_acquire) == SLOTS)
		__builtin_ia32_pause();
	ring->slots[head % SLOTS] = value;
	atomic_store_explicit(&ring->head, head + 1, memory_order_release);
}

static uint64_t take(struct ring *ring)
{
	uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
	uint64_t value;

	while (atomic_load_explicit(&ring->head, memory_order_acquire) == tail)
		__builtin_ia32_pause();
	value = ring->slots[tail % SLOTS];
	atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
	return value;
}

static void out(int number, int side)
{
	if (number < 0)
		put(&rings[side], 1);
	else if (send(number, buffer, size, MSG_NOSIGNAL) != (ssize_t)size)
		exit(1);
}

static void in(int number, int side)
{
	if (number < 0)
		take(&rings[1 - side]);
	else if (recv(number, buffer, size, MSG_WAITALL) != (ssize_t)size)
		exit(1);
}

static void exchange(int number, int side, int is_rate, long count)
{
	for (long i = 0; i < count; i++) {
		if (side == 0)
			out(number, side);
		else
			in(number, side);
		if (is_rate)
			continue;
		if (side == 0)
			in(number, side);
		else
			out(number, side);
	}
	/* All have come. */
	if (side == 0)
		in(number, side);
	else
		out(number, side);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int order(const void *a, const void *b)
{
	double difference = *(const double *)a - *(const double *)b;

	return (difference > 0) - (difference < 0);
}

/* Messages and their answers, so many times what the ring takes: the median of all turns. */
static double beside(int number, int side, long count)
{
	double times[TURNS];

	for (int turn = 0; turn < TURNS; turn++) {
		double began = now();

		exchange(-1, side, 0, count);
		double then = now();

		exchange(number, side, 0, count);
		times[turn] = (now() - then) / (then - began);
	}
	qsort(times, TURNS, sizeof *times, order);
	return times[TURNS / 2];
}

int main(int words, char **word)
{
	int (*describe)(int, char *, size_t) = dlsym(RTLD_DEFAULT, "omniverb_sockets_describe");
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int pair[2] = { -1, -1 }, listener = -1, is_tcp, is_rate, side, number = -1, one = 1;
	long count;

	if (words != 4 && words != 5)
		return 2;
	if (words == 5)
		size = strtoul(word[4], NULL, 10);
	buffer = malloc(size);
	if (!buffer)
		return 1;
	memset(buffer, 1, size);
	is_tcp = strcmp(word[1], "tcp") == 0;
	is_rate = strcmp(word[2], "rate") == 0;
	count = atol(word[3]);
	rings = mmap(NULL, 2 * sizeof *rings, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		     -1, 0);
	if (rings == MAP_FAILED)
		return 1;
	if (is_tcp) {
		listener = socket(AF_INET, SOCK_STREAM, 0);
		if (bind(listener, (void *)&address, length) || listen(listener, 1)
		    || getsockname(listener, (void *)&address, &length))
			return 1;
	} else if (strcmp(word[1], "unix") == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) {
		return 1;
	}
	pid_t child = fork();
	side = child ? 1 : 0;
	if (is_tcp && side == 0) {
		/* In light mode who waits in accept is found, and nobody before. */
		usleep(getenv("OMNIVERB_SOCKETS") ? 200000 : 0);
		number = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(number, (void *)&address, length))
			return 1;
	} else if (is_tcp) {
		number = accept(listener, NULL, NULL);
	} else {
		number = pair[side];
	}
	if (is_tcp)
		setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	/* Until both are there, and caches are warm. */
	exchange(number, side, 0, size > 4096 ? 100 : 2000);
	double began = now(), times = 0;

	if (strcmp(word[2], "beside") == 0)
		times = beside(number, side, count / TURNS);
	else
		exchange(number, side, is_rate, count);
	double each = (now() - began) / (double)count;
	if (child) {
		char text[200] = "";

		waitpid(child, NULL, 0);
		if (describe && is_tcp)
			describe(number, text, sizeof text);
		fprintf(stderr, "%s\n", text);
		if (times > 0)
			printf("%.2f\n", times);
		else
			printf("%.1f\n", is_rate ? 1e9 / each : each);
	}
	return 0;
}
