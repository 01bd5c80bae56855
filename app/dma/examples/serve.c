/* Has a buffer that whoever connects may read and write; copies all of it to the first node if that
 * has a buffer for it, in one burst, and is called for each part that is done: serve [PORT]. See
 * put.c. Ends with its input. */
#include <omniverb/dma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARED = 7, MIRROR = 8, PARTS = 16, PART = 1 << 20 };

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Called by the library's thread, once for each part. */
static void done(struct omv_dma_transfer *part)
{
	if (part->status)
		fprintf(stderr, "part at %llu: %s\n", (unsigned long long)part->to_offset,
			strerror(part->status));
	else if (part->to_offset == (PARTS - 1) * (uint64_t)PART)
		puts("mirrored"); /* in their order: all the others are done */
	fflush(stdout);
}

int main(int count, char **words)
{
	struct omv_dma *dma = omv_dma_init(NULL, count > 1 ? atoi(words[1]) : 0, OMV_DMA_LISTEN);
	if (!dma)
		fail("omv_dma_init");
	struct omv_dma_buffer *ours = omv_dma_alloc(dma, SHARED, (size_t)PARTS * PART,
						    OMV_DMA_READABLE | OMV_DMA_WRITABLE);
	if (!ours)
		fail("omv_dma_alloc");
	printf("port %u\n", omv_dma_port(dma));
	fflush(stdout);

	static struct omv_dma_transfer parts[PARTS];
	struct omv_dma_node *node = omv_dma_accept(dma, -1);
	if (!node)
		fail("omv_dma_accept");
	struct omv_dma_buffer *mirror = omv_dma_lookup(dma, node, MIRROR, 100);
	if (mirror) {
		for (int i = 0; i < PARTS; i++)
			parts[i] = (struct omv_dma_transfer){
				.to = mirror, .to_offset = i * (uint64_t)PART,
				.from = ours, .from_offset = i * (uint64_t)PART,
				.length = PART, .done = done};
		if (omv_dma_start(dma, parts, PARTS) != PARTS)
			fail("omv_dma_start");
	}
	while (getchar() != EOF)
		;
	return omv_dma_cleanup(dma);
}
