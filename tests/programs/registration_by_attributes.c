/* Memory of the newest releases: buffers of the library, and registration by attributes. Debian's
 * header does not have them, so their prototypes are here and their names are looked up. */
#include "common.h"
#include <dlfcn.h>

struct ibv_buf;
struct attributes {
    size_t length;
    int access;
    uint64_t mask, iova;
    void *address;
    int fd;
    uint64_t fd_offset;
    void *dmah;
    struct ibv_buf *buf;
};
enum { IOVA = 1, ADDRESS = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };

static struct device d;
static void *(*alloc_buf)(struct ibv_pd *, size_t, struct ibv_buf **);
static void (*free_buf)(struct ibv_buf *);
static struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, struct ibv_buf *, void *, size_t, int);
static int (*export_buf_dmabuf_fd)(struct ibv_buf *);
static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct attributes *);

static void find(void *function, const char *name, const char *node)
{
    void *found = dlvsym(RTLD_DEFAULT, name, node);
    check(found, "%s@%s", name, node);
    memcpy(function, &found, sizeof found);
}

static void open_all(void)
{
    if (d.context)
        return;
    device_open(&d);
    find(&alloc_buf, "ibv_alloc_buf", "IBVERBS_1.17");
    find(&free_buf, "ibv_free_buf", "IBVERBS_1.17");
    find(&reg_buf_mr, "ibv_reg_buf_mr", "IBVERBS_1.17");
    find(&export_buf_dmabuf_fd, "ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
    find(&reg_mr_ex, "ibv_reg_mr_ex", "IBVERBS_1.15");
}

#define REFUSED(call, number)                                   \
    do {                                                        \
        errno = 0;                                              \
        check(!(call), #call " is not refused");                \
        same(errno, number);                                    \
    } while (0)

TEST(buffers)
{
    open_all();
    struct ibv_buf *buf = NULL;
    size_t length = 3 * 4096 + 100;
    unsigned char *memory = alloc_buf(d.pd, length, &buf);
    check(memory && buf, "ibv_alloc_buf: %s", strerror(errno));
    same((uintptr_t)memory % 4096, 0);
    memset(memory, 7, length);
    struct ibv_mr *mr = reg_buf_mr(d.pd, buf, memory + 100, length - 100, ALL_ACCESS);
    check(mr, "ibv_reg_buf_mr: %s", strerror(errno));
    check(mr->addr == memory + 100 && mr->length == length - 100, "another range");
    same(ibv_dereg_mr(mr), 0);
    REFUSED(reg_buf_mr(d.pd, buf, memory + 100, length - 99, ALL_ACCESS), EINVAL);
    REFUSED(reg_buf_mr(d.pd, buf, memory - 1, 2, ALL_ACCESS), EINVAL);
    REFUSED(reg_buf_mr(d.pd, buf, memory + 1, SIZE_MAX, ALL_ACCESS), EINVAL);
    struct ibv_pd *other = ibv_alloc_pd(d.context);
    REFUSED(reg_buf_mr(other, buf, memory, 8, ALL_ACCESS), EINVAL);
    same(ibv_dealloc_pd(other), 0);
    errno = 0;
    same(export_buf_dmabuf_fd(buf), -1);
    same(errno, ENODATA);
    free_buf(buf);
    REFUSED(alloc_buf(d.pd, SIZE_MAX - 4096, &buf), ENOMEM);
}

/* A domain in which buffers may be in memory that a confidential guest shares with its host: such a
 * buffer is plain memory here, and belongs to its domain. */
TEST(buffers_that_may_be_shared)
{
    open_all();
    struct ibv_parent_domain_init_attr a = {.pd = d.pd, .comp_mask = 1 << 2};
    struct ibv_pd *domain = ibv_alloc_parent_domain(d.context, &a);
    check(domain, "ibv_alloc_parent_domain: %m");
    struct ibv_buf *buf = NULL;
    unsigned char *memory = alloc_buf(domain, 4096, &buf);
    check(memory && buf, "ibv_alloc_buf: %m");
    REFUSED(reg_buf_mr(d.pd, buf, memory, 4096, ALL_ACCESS), EINVAL);
    struct ibv_mr *mr = reg_buf_mr(domain, buf, memory, 4096, ALL_ACCESS);
    check(mr, "ibv_reg_buf_mr: %m");
    same(ibv_dereg_mr(mr), 0);
    free_buf(buf);
    same(ibv_dealloc_pd(domain), 0);
    a.comp_mask = 1 << 3;
    REFUSED(ibv_alloc_parent_domain(d.context, &a), EINVAL);
}

TEST(attributes)
{
    open_all();
    static unsigned char memory[4096];
    /* As short as an old caller has it. */
    union {
        struct attributes all;
        unsigned char bytes[sizeof(struct attributes)];
    } a = {.all = {.length = 64, .access = ALL_ACCESS, .mask = ADDRESS, .address = memory}};
    memset(a.bytes + offsetof(struct attributes, fd), 0xee,
           sizeof a - offsetof(struct attributes, fd));
    struct ibv_mr *mr = reg_mr_ex(d.pd, &a.all);
    check(mr && mr->addr == memory && mr->length == 64, "ibv_reg_mr_ex: %s", strerror(errno));
    same(ibv_dereg_mr(mr), 0);
    static const struct { uint64_t mask; int number; } refused[] = {
        {0, EINVAL}, {IOVA, EINVAL}, {ADDRESS | FD_OFFSET, EINVAL}, {FD, EINVAL},
        {FD | FD_OFFSET, EINVAL}, {FD | FD_OFFSET | IOVA | ADDRESS, EINVAL},
        {FD | FD_OFFSET | IOVA, EOPNOTSUPP}, {ADDRESS | DMAH, EOPNOTSUPP},
        {ADDRESS | 1ull << 40, EOPNOTSUPP},
    };
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        a.all.mask = refused[i].mask;
        REFUSED(reg_mr_ex(d.pd, &a.all), refused[i].number);
    }
    struct ibv_buf *buf;
    a.all.address = alloc_buf(d.pd, 64, &buf);
    a.all.buf = buf;
    a.all.mask = BUF;
    REFUSED(reg_mr_ex(d.pd, &a.all), EINVAL);
    a.all.mask = BUF | ADDRESS | FD;
    REFUSED(reg_mr_ex(d.pd, &a.all), EINVAL);
    a.all.mask = BUF | ADDRESS | IOVA;
    a.all.iova = 0x1000;
    mr = reg_mr_ex(d.pd, &a.all);
    check(mr && mr->length == 64, "ibv_reg_mr_ex: %s", strerror(errno));
    same(ibv_dereg_mr(mr), 0);
    a.all.length = 65;
    REFUSED(reg_mr_ex(d.pd, &a.all), EINVAL);
    free_buf(buf);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
