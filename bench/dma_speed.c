/* How fast omniverb/dma.h is, and what memcpy takes for the same: prints "NAME NUMBER UNIT" lines.
 *
 *     dma_speed serve            the node: one buffer; prints its port; ends with its input
 *     dma_speed ADDRESS PORT     measures: allocation, transfers one at a time, 1 GiB in blocks,
 *                                and how soon one is called back, by how the thread waits
 *
 * Every figure is a median of its own run; bench/dma_api.py repeats the runs. */
#define _GNU_SOURCE
#include <errno.h>
#include <omniverb/dma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SHARED = 1, OURS = 2, NEW = 3, BYTES = 64 << 20, TOTAL = 1 << 30, MOST = 1001 };
static const uint32_t both = OMV_DMA_READABLE | OMV_DMA_WRITABLE;
static const size_t large[] = {512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20};
static const size_t single[] = {8, 4096, 65536, 512 << 10, 1 << 20, 8 << 20};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static struct omv_dma *dma;
static struct omv_dma_node *node;
static struct omv_dma_buffer *theirs, *ours;
static double samples[MOST];

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static int order(const void *a, const void *b)
{
	double difference = *(const double *)a - *(const double *)b;
	return (difference > 0) - (difference < 0);
}

static double median(int count)
{
	qsort(samples, count, sizeof *samples, order);
	return samples[count / 2];
}

static void reach(char **words, uint32_t flags)
{
	dma = omv_dma_init(NULL, 0, flags);
	if (!dma)
		fail("omv_dma_init");
	node = omv_dma_connect(dma, words[1], atoi(words[2]), 20000);
	if (!node)
		fail("omv_dma_connect");
	theirs = omv_dma_lookup(dma, node, SHARED, 0);
	ours = omv_dma_alloc(dma, OURS, BYTES, both);
	if (!theirs || !ours)
		fail("a buffer");
	memset(omv_dma_address(ours), 1, BYTES);
}

/* New memory, of which a node is told; and its end, which waits for the node. */
static void allocation(void)
{
	enum { ROUNDS = 21 };
	for (size_t at = 0; at < COUNT(large); at++) {
		double freed[ROUNDS];
		for (int i = 0; i < ROUNDS; i++) {
			double begin = now();
			struct omv_dma_buffer *made = omv_dma_alloc(dma, NEW, large[at], both);
			samples[i] = now() - begin;
			if (!made)
				fail("omv_dma_alloc");
			memset(omv_dma_address(made), 1, large[at]);
			begin = now();
			if (omv_dma_free(dma, made))
				fail("omv_dma_free");
			freed[i] = now() - begin;
		}
		printf("alloc_%zuk %.0f ns\n", large[at] >> 10, median(ROUNDS));
		memcpy(samples, freed, sizeof freed);
		printf("free_%zuk %.0f ns\n", large[at] >> 10, median(ROUNDS));
		for (int i = 0; i < ROUNDS; i++) {
			double begin = now();
			void *made = mmap(NULL, large[at], PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			samples[i] = now() - begin;
			munmap(made, large[at]);
		}
		printf("mmap_%zuk %.0f ns\n", large[at] >> 10, median(ROUNDS));
	}
}

/* The place of the next block: all of a buffer in turn, as for what does not fit into caches. */
static uint64_t next(uint64_t *place, uint64_t block)
{
	uint64_t here = *place;
	*place = here + 2 * block <= BYTES ? here + block : 0;
	return here;
}

static void finish(struct omv_dma_transfer *transfer)
{
	int status;
	while ((status = omv_dma_query(dma, transfer)) == EINPROGRESS)
		;
	errno = status;
	if (status)
		fail("transfer");
}

static void singles(const char *name, int reads)
{
	for (size_t at = 0; at < COUNT(single); at++) {
		uint64_t place = 0;
		int rounds = single[at] > 100000 ? 101 : MOST;
		for (int i = 0; i < rounds; i++) {
			uint64_t here = next(&place, single[at]);
			struct omv_dma_transfer one = {
				.to = reads ? ours : theirs, .to_offset = here,
				.from = reads ? theirs : ours, .from_offset = here,
				.length = single[at]};
			double begin = now();
			if (omv_dma_start(dma, &one, 1) != 1)
				fail("omv_dma_start");
			finish(&one);
			samples[i] = now() - begin;
		}
		printf("%s_%zu %.0f ns\n", name, single[at], median(rounds));
	}
}

static void memcpy_singles(unsigned char *to)
{
	const unsigned char *from = omv_dma_address(ours);
	for (size_t at = 0; at < COUNT(single); at++) {
		uint64_t place = 0;
		int rounds = single[at] > 100000 ? 101 : MOST;
		for (int i = 0; i < rounds; i++) {
			uint64_t here = next(&place, single[at]);
			double begin = now();
			memcpy(to + here, from + here, single[at]);
			samples[i] = now() - begin;
		}
		printf("memcpy_%zu %.0f ns\n", single[at], median(rounds));
	}
}

/* 1 GiB in blocks, as many under way as can be. */
static void bursts(unsigned char *to)
{
	static struct omv_dma_transfer parts[TOTAL / (512 << 10)];
	for (size_t at = 0; at < COUNT(large); at++) {
		size_t block = large[at];
		int count = TOTAL / block;
		uint64_t place = 0;
		for (int i = 0; i < count; i++) {
			uint64_t here = next(&place, block);
			parts[i] = (struct omv_dma_transfer){.to = theirs, .to_offset = here,
							     .from = ours, .from_offset = here,
							     .length = block};
		}
		double begin = now();
		for (int started = 0, done = 0; done < count;) {
			int some = started < count
					   ? omv_dma_start(dma, parts + started, count - started)
					   : 0;
			if (some < 0 && errno != EAGAIN)
				fail("omv_dma_start");
			started += some > 0 ? some : 0;
			while (done < started && !omv_dma_query(dma, &parts[done]))
				done++;
			if (done < started && parts[done].status != EINPROGRESS) {
				errno = parts[done].status;
				fail("transfer");
			}
		}
		printf("burst_%zuk %.0f B/s\n", block >> 10, TOTAL / (now() - begin) * 1e9);
		begin = now();
		place = 0;
		for (int i = 0; i < count; i++) {
			uint64_t here = next(&place, block);
			memcpy(to + here, (char *)omv_dma_address(ours) + here, block);
		}
		printf("memcpy_burst_%zuk %.0f B/s\n", block >> 10, TOTAL / (now() - begin) * 1e9);
	}
}

static double called_at;
static int called;

static void note(struct omv_dma_transfer *transfer)
{
	if (transfer->status) {
		errno = transfer->status;
		fail("transfer");
	}
	called_at = now();
	__atomic_store_n(&called, 1, __ATOMIC_RELEASE);
}

/* From the start of a transfer of 8 bytes to the call; after a pause, if there is one. */
static void callbacks(const char *name, useconds_t pause)
{
	enum { ROUNDS = 301 };
	for (int i = 0; i < ROUNDS; i++) {
		struct omv_dma_transfer one = {.to = theirs, .from = ours, .length = 8, .done = note};
		called = 0;
		if (pause)
			usleep(pause);
		double begin = now();
		if (omv_dma_start(dma, &one, 1) != 1)
			fail("omv_dma_start");
		while (!__atomic_load_n(&called, __ATOMIC_ACQUIRE))
			;
		samples[i] = called_at - begin;
	}
	printf("callback_%s%s %.0f ns\n", name, pause ? "_idle" : "", median(ROUNDS));
}

static int serve(void)
{
	dma = omv_dma_init(NULL, 0, OMV_DMA_LISTEN);
	if (!dma)
		fail("omv_dma_init");
	theirs = omv_dma_alloc(dma, SHARED, BYTES, both);
	if (!theirs)
		fail("omv_dma_alloc");
	memset(omv_dma_address(theirs), 1, BYTES);
	printf("port %u\n", omv_dma_port(dma));
	fflush(stdout);
	while (getchar() != EOF)
		;
	return omv_dma_cleanup(dma);
}

int main(int count, char **words)
{
	if (count == 2)
		return serve();
	if (count != 3)
		return 2;
	static const struct {
		const char *name;
		uint32_t flags;
	} waits[] = {{"mixed", 0}, {"spin", OMV_DMA_SPIN}, {"sleep", OMV_DMA_SLEEP}};
	for (size_t at = 0; at < COUNT(waits); at++) {
		reach(words, waits[at].flags);
		callbacks(waits[at].name, 0);
		callbacks(waits[at].name, 500);
		if (at + 1 < COUNT(waits))
			omv_dma_cleanup(dma);
	}
	unsigned char *to = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				 -1, 0);
	memset(to, 1, BYTES);
	/* Pages that are mapped are touched for the first time here. They are mapped some time after
	 * the first transfer, so there are some. */
	for (int round = 0; round < 8; round++) {
		int reads = round & 1;
		usleep(20000);
		struct omv_dma_transfer all = {.to = reads ? ours : theirs,
					       .from = reads ? theirs : ours, .length = BYTES};
		if (omv_dma_start(dma, &all, 1) != 1)
			fail("omv_dma_start");
		finish(&all);
	}
	allocation();
	singles("write", 0);
	singles("read", 1);
	memcpy_singles(to);
	bursts(to);
	return omv_dma_cleanup(dma);
}
