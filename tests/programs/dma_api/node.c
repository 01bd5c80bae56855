/* A node that does as its clients say, one client after the other: node [ADDRESS]. Prints its port.
 * Ends with its input. */
#include "../common.h"
#include "node_protocol.h"

#include <poll.h>
#include <signal.h>

enum { IDS = 1 << 16 };
static struct omv_dma_buffer *own[IDS];

static struct omv_dma_buffer *allocate(struct omv_dma *dma, uint64_t id, uint64_t bytes,
                                       uint32_t rights)
{
    return own[id % IDS] = omv_dma_alloc(dma, id, bytes, rights);
}

static uint64_t obey(struct omv_dma *dma, struct omv_dma_node *node, const struct order *order)
{
    struct omv_dma_buffer *buffer = own[order->id % IDS];
    switch ((enum what)order->what) {
    case ALLOCATE:
        return allocate(dma, order->id, order->bytes, order->rights) ? 0 : errno;
    case FREE:
        return omv_dma_free(dma, buffer) ? errno : 0;
    case SUM:
        return sum_of(omv_dma_address(buffer), order->bytes);
    case LOOK_UP:
        buffer = omv_dma_lookup(dma, node, order->id, 0);
        return buffer && omv_dma_length(buffer) == order->bytes && !omv_dma_free(dma, buffer)
                   ? 0
                   : ENOENT;
    case DIE:
        kill(getpid(), SIGKILL);
    }
    return EINVAL;
}

static bool at_end(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    return poll(&input, 1, 0) > 0;
}

int main(int count, char **words)
{
    struct omv_dma *dma = omv_dma_init(count > 1 ? words[1] : NULL, 0, OMV_DMA_LISTEN);
    check(dma, "omv_dma_init: %m");
    const uint32_t both = OMV_DMA_READABLE | OMV_DMA_WRITABLE;
    allocate(dma, BIG, BIG_BYTES, both);
    allocate(dma, READ_ONLY, 4096, OMV_DMA_READABLE);
    allocate(dma, WRITE_ONLY, 4096, OMV_DMA_WRITABLE);
    volatile struct order *order = omv_dma_address(allocate(dma, ORDERS, 4096, both));
    volatile struct answer *answer = omv_dma_address(allocate(dma, ANSWERS, 4096, both));
    printf("port %u\n", omv_dma_port(dma));
    fflush(stdout);
    uint64_t number = 0;
    while (!at_end()) {
        struct omv_dma_node *node = omv_dma_accept(dma, 20);
        if (!node) {
            same(errno, ETIMEDOUT);
            continue;
        }
        while (omv_dma_connected(dma, node) && !at_end()) {
            if (order->number == number) {
                usleep(100);
                continue;
            }
            number = order->number;
            __sync_synchronize();
            struct order now = {order->what, order->id, order->bytes, order->rights, number};
            answer->result = obey(dma, node, &now);
            __sync_synchronize();
            answer->number = number;
        }
        check(!omv_dma_disconnect(dma, node), "omv_dma_disconnect: %m");
    }
    return omv_dma_cleanup(dma);
}
