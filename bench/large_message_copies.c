/*
 * Bytes of large messages from one process to another, with one copy or two:
 *
 *     large_message_copies memcpy|twice|past|read|splice COUNT BYTES
 *
 * prints messages a second. `twice`: through memory that both have, in pieces, each copied in and
 * copied out, both at the same time; as carried sockets do. `past`: the same, but what is copied
 * in goes past the cache of who does that; as they do where that is faster. `read`: the receiver
 * copies out of the sender's memory, by process_vm_readv; it may read all of that, so it is no way
 * between processes that do not trust each other. `splice`: the sender lends these pages and no
 * others to a pipe, and the receiver reads that: one copy by the kernel. With both, who sends waits
 * until it was received. `memcpy`: one copy within one process.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { RING = 1 << 16, PIECE = RING / 4, LOOKS = 1000 };

static struct shared {
	_Alignas(128) _Atomic uint64_t head;
	_Alignas(128) _Atomic uint64_t tail;
	_Alignas(128) char ring[RING];
} *shared;

static char *from, *to;
static size_t size;
static int ends[2];
static pid_t sender;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Waits until a word is at least that; gives the processor away if that takes long. */
static void await(_Atomic uint64_t *word, uint64_t least)
{
	for (unsigned looks = 0; atomic_load_explicit(word, memory_order_acquire) < least; looks++) {
		__builtin_ia32_pause();
		if (looks % LOOKS == LOOKS - 1)
			sched_yield();
	}
}

static void set(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

static size_t piece(uint64_t at, uint64_t end)
{
	return end - at < PIECE ? end - at : PIECE;
}

#ifdef __SSE2__
#include <emmintrin.h>

/* Both begin at a line of the cache. */
static void copy_past(char *target, const char *source, size_t length)
{
	for (size_t at = 0; at < length; at += 16)
		_mm_stream_si128((__m128i *)(target + at),
		                 _mm_load_si128((const __m128i *)(source + at)));
	_mm_sfence();
}
#else
static void copy_past(char *target, const char *source, size_t length)
{
	memcpy(target, source, length);
}
#endif

static void send_twice(uint64_t count, bool is_past)
{
	for (uint64_t at = 0, end = count * size; at < end; at += piece(at, end)) {
		size_t length = piece(at, end);

		await(&shared->tail, at + length < RING ? 0 : at + length - RING);
		if (is_past)
			copy_past(shared->ring + at % RING, from + at % size, length);
		else
			memcpy(shared->ring + at % RING, from + at % size, length);
		set(&shared->head, at + length);
	}
}

static void receive_twice(uint64_t count)
{
	for (uint64_t at = 0, end = count * size; at < end; at += piece(at, end)) {
		size_t length = piece(at, end);

		await(&shared->head, at + length);
		memcpy(to + at % size, shared->ring + at % RING, length);
		set(&shared->tail, at + length);
	}
}

static void send_to_read(uint64_t count)
{
	for (uint64_t turn = 1; turn <= count; turn++) {
		set(&shared->head, turn);
		await(&shared->tail, turn);
	}
}

/* The next bytes of a message behind those that it `had`, by a call of the kernel's. */
typedef ssize_t next_bytes(size_t had);

static ssize_t read_memory(size_t had)
{
	struct iovec ours = { to + had, size - had }, theirs = { from + had, size - had };

	return process_vm_readv(sender, &ours, 1, &theirs, 1, 0);
}

static ssize_t read_pipe(size_t had)
{
	return read(ends[0], to + had, size - had);
}

static void receive_once(uint64_t count, next_bytes *next)
{
	for (uint64_t turn = 1; turn <= count; turn++) {
		await(&shared->head, turn);
		for (size_t had = 0; had < size;) {
			ssize_t got = next(had);

			if (got <= 0)
				fail("receive");
			had += got;
		}
		set(&shared->tail, turn);
	}
}

static void send_spliced(uint64_t count)
{
	for (uint64_t turn = 1; turn <= count; turn++) {
		set(&shared->head, turn);
		for (size_t lent = 0; lent < size;) {
			struct iovec part = { from + lent, size - lent };
			ssize_t more = vmsplice(ends[1], &part, 1, 0);

			if (more <= 0)
				fail("vmsplice");
			lent += more;
		}
		await(&shared->tail, turn);
	}
}

/* The receiver has failed. */
static void ended(int number)
{
	(void)number;
	_exit(1);
}

static void *memory(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("mmap");
	return at;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	const char *way = argv[1];
	uint64_t count = strtoull(argv[2], NULL, 10);

	size = strtoull(argv[3], NULL, 10);
	if (size < PIECE || size % PIECE != 0)
		return 2;
	shared = memory(sizeof *shared);
	/* Each has its own, as programs do. */
	from = aligned_alloc(4096, size);
	to = aligned_alloc(4096, size);
	if (!from || !to || pipe(ends) < 0)
		return 1;
	if (fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) < 0)
		fail("F_SETPIPE_SZ");
	for (size_t at = 0; at < size; at++)
		from[at] = at ^ at >> 8 ^ at >> 16;
	memset(to, 2, size);
	if (strcmp(way, "memcpy") == 0) {
		double began = now();

		for (uint64_t turn = 0; turn < count; turn++) {
			memcpy(to, from, size);
			__asm__ volatile("" : : "r"(to) : "memory");
		}
		printf("%.3f\n", count / (now() - began));
		return 0;
	}
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	signal(SIGCHLD, ended);
	sender = getpid();

	bool is_past = strcmp(way, "past") == 0, is_twice = is_past || strcmp(way, "twice") == 0;
	pid_t receiver = fork();

	if (receiver < 0)
		fail("fork");
	if (receiver == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (is_twice)
			receive_twice(count);
		else if (strcmp(way, "read") == 0)
			receive_once(count, read_memory);
		else
			receive_once(count, read_pipe);
		/* What came is what was sent. */
		if (memcmp(to, from, size) != 0)
			_exit(1);
		set(&shared->tail, UINT64_MAX);
		pause();
	}
	double began = now();

	if (is_twice)
		send_twice(count, is_past);
	else if (strcmp(way, "read") == 0)
		send_to_read(count);
	else
		send_spliced(count);
	await(&shared->tail, UINT64_MAX);
	printf("%.3f\n", count / (now() - began));
	signal(SIGCHLD, SIG_DFL);
	kill(receiver, SIGKILL);
	return 0;
}
