/* A device with some memory, pairs of queue pairs in one process, and WRITEs to try keys with. */
#include "common.h"

#include <sys/mman.h>

static struct device d;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char *memory;
enum { BYTES = 64 << 10, HALF = BYTES / 2 };

static inline void open_all(void)
{
    if (d.context)
        return;
    device_open(&d);
    cq = cq_make(&d, 1000);
    memory = aligned_alloc(4096, BYTES);
    memset(memory, 0, BYTES);
    mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
}

static inline void connected(struct ibv_qp *pair[2])
{
    qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
}

static inline void close_pair(struct ibv_qp *pair[2])
{
    same(ibv_destroy_qp(pair[0]), 0);
    same(ibv_destroy_qp(pair[1]), 0);
}

/* A WRITE from the first half of the memory, or a READ into it, on new queue pairs. */
static inline void go_to(uint64_t address, uint32_t rkey, uint32_t bytes,
                         enum ibv_wr_opcode opcode, enum ibv_wc_status status)
{
    struct ibv_qp *pair[2];
    connected(pair);
    post(pair[0], (struct operation){.opcode = opcode, .id = 3, .local = memory,
                                     .bytes = bytes, .lkey = mr->lkey, .remote = address,
                                     .rkey = rkey});
    expect(cq, 3, status);
    close_pair(pair);
}

static inline void write_to(uint64_t address, uint32_t rkey, uint32_t bytes,
                            enum ibv_wc_status status)
{
    go_to(address, rkey, bytes, IBV_WR_RDMA_WRITE, status);
}

static inline void *pages(size_t bytes, int protection)
{
    void *at = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(at != MAP_FAILED, "mmap: %m");
    return at;
}
