/* Writes a line into a buffer of a node, and reads it back: put ADDRESS PORT TEXT.
 *
 *     cc put.c -o put -I dist/include -L dist/lib -lomniverb_dma
 *     omniverb run -- ./serve & omniverb run -- ./put 127.0.0.1 PORT hello */
#include <errno.h>
#include <omniverb/dma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OURS = 1, SHARED = 7, BYTES = 4096 };

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Starts a transfer, and asks until it is done. */
static void transfer(struct omv_dma *dma, struct omv_dma_buffer *to, struct omv_dma_buffer *from,
		     size_t bytes)
{
	struct omv_dma_transfer one = {.to = to, .from = from, .length = bytes};
	if (omv_dma_start(dma, &one, 1) != 1)
		fail("omv_dma_start");
	int status;
	while ((status = omv_dma_query(dma, &one)) == EINPROGRESS)
		;
	errno = status;
	if (status)
		fail("transfer");
}

int main(int count, char **words)
{
	if (count != 4) {
		fprintf(stderr, "put ADDRESS PORT TEXT\n");
		return 2;
	}
	struct omv_dma *dma = omv_dma_init(NULL, 0, 0);
	if (!dma)
		fail("omv_dma_init");
	struct omv_dma_node *node = omv_dma_connect(dma, words[1], atoi(words[2]), 5000);
	if (!node)
		fail("omv_dma_connect");
	struct omv_dma_buffer *theirs = omv_dma_lookup(dma, node, SHARED, 0);
	if (!theirs)
		fail("omv_dma_lookup");
	struct omv_dma_buffer *ours = omv_dma_alloc(dma, OURS, BYTES, OMV_DMA_READABLE);
	if (!ours)
		fail("omv_dma_alloc");

	char *text = omv_dma_address(ours);
	snprintf(text, BYTES, "%s", words[3]);
	transfer(dma, theirs, ours, BYTES);
	memset(text, 0, BYTES);
	transfer(dma, ours, theirs, BYTES);
	puts(text);
	return omv_dma_cleanup(dma);
}
