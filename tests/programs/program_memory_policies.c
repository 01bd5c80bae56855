/* What a program arranges for memory that it registers: it holds while a peer names the memory,
 * and when it was deregistered; and nothing of it makes a thread wait for ever. */
#include "common.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define PAGE 4096u
#define SPAN (16 * PAGE)
#define LIMIT_SECONDS 50 /* a thread that waits for ever ends by SIGALRM */
#define USES 30          /* of a region, so that its pages are granted if they may be */

struct work {
    uint64_t address;
    uint32_t bytes, rkey;
    uint32_t count;
};

/* READs everything, `count` times, with pauses in which pages may move. */
static void peer(int socket)
{
    struct device d;
    struct address theirs;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    static char to[SPAN];
    struct ibv_mr *mr = mr_make(&d, to, sizeof to, IBV_ACCESS_LOCAL_WRITE);
    struct address ours = qp_address(&d, qp, NULL);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    for (;;) {
        struct work w;
        get(socket, &w, sizeof w);
        if (!w.count)
            return;
        for (uint32_t i = 0; i < w.count; i++, sleep_ms(5)) {
            post(qp, (struct operation){.opcode = IBV_WR_RDMA_READ, .id = 2, .local = to,
                                        .bytes = w.bytes, .lkey = mr->lkey, .remote = w.address,
                                        .rkey = w.rkey});
            expect(cq, 2, 0);
        }
        put(socket, to, PAGE);
    }
}

static struct device d;
static int peer_socket;
static pid_t peer_pid;

static void begin(void)
{
    struct address theirs;
    alarm(LIMIT_SECONDS);
    peer_socket = spawn(peer, &peer_pid);
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    struct address ours = qp_address(&d, qp, NULL);
    swap(peer_socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
}

/* The peer reads `bytes` again and again: they begin with this byte. */
static void is_read(struct ibv_mr *mr, const char *memory, uint32_t bytes, char byte)
{
    char first[PAGE];
    struct work w = {(uintptr_t)memory, bytes, mr->rkey, USES};
    put(peer_socket, &w, sizeof w);
    get(peer_socket, first, sizeof first);
    same(first[0], byte);
    same(first[PAGE - 1], byte);
}

static void end(void)
{
    struct work w = {.count = 0};
    put(peer_socket, &w, sizeof w);
    reap(peer_pid);
}

static char *pages(size_t bytes, char byte)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "%m");
    memset(memory, byte, bytes);
    return memory;
}

static void *fill_in(void *argument)
{
    int watch = *(int *)argument;
    struct uffd_msg message;
    static char page[PAGE];
    memset(page, 0x55, sizeof page);
    while (read(watch, &message, sizeof message) == (ssize_t)sizeof message) {
        struct uffdio_copy copy = {.dst = message.arg.pagefault.address & ~(uint64_t)(PAGE - 1),
                                   .src = (uintptr_t)page, .len = PAGE};
        check(!ioctl(watch, UFFDIO_COPY, &copy), "UFFDIO_COPY: %m");
    }
    return NULL;
}

/* Who fills pages by a userfaultfd of his own goes on being asked for them. */
TEST(own_userfaultfd)
{
    int watch = (int)syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */);
    if (watch < 0) {
        printf("not tried: no userfaultfd here (%m)\n");
        return;
    }
    begin();
    struct uffdio_api api = {.api = UFFD_API};
    same(ioctl(watch, UFFDIO_API, &api), 0);
    char *memory = mmap(NULL, SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "%m");
    memset(memory, 7, SPAN);
    struct uffdio_register range = {.range = {(uintptr_t)memory, SPAN},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    same(ioctl(watch, UFFDIO_REGISTER, &range), 0);
    pthread_t thread;
    same(pthread_create(&thread, NULL, fill_in, &watch), 0);
    struct ibv_mr *mr = mr_make(&d, memory, SPAN, ALL_ACCESS);
    is_read(mr, memory, SPAN, 7);
    same(madvise(memory + PAGE, PAGE, MADV_DONTNEED), 0);
    same(memory[PAGE], 0x55);
    same(ibv_dereg_mr(mr), 0);
    same(madvise(memory + 2 * PAGE, PAGE, MADV_DONTNEED), 0);
    same(memory[2 * PAGE], 0x55);
    end();
}

/* Forked children find zeros where they are to. */
TEST(wiped_in_children)
{
    begin();
    char *memory = pages(SPAN, 7);
    same(madvise(memory, SPAN, MADV_WIPEONFORK), 0);
    struct ibv_mr *mr = mr_make(&d, memory, SPAN, ALL_ACCESS);
    is_read(mr, memory, SPAN, 7);
    pid_t child = fork();
    if (!child)
        _exit(memory[0] || memory[SPAN - 1]);
    reap(child);
    same(memory[0], 7);
    same(ibv_dereg_mr(mr), 0);
    end();
}

/* A guard page is one, before and after; what is beside it is read. */
TEST(guard_pages)
{
    int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    char *memory = pages(SPAN, 7), *guard = memory + SPAN - PAGE;
    begin();
    struct ibv_mr *mr = mr_make(&d, memory, SPAN, ALL_ACCESS);
    /* Not before: a region with a guard page cannot be registered. */
    if (madvise(guard, PAGE, 102 /* MADV_GUARD_INSTALL */)) {
        printf("not tried: no guard pages here (%m)\n");
        same(ibv_dereg_mr(mr), 0);
        end();
        return;
    }
    is_read(mr, memory, SPAN - PAGE, 7);
    check(read(zeros, guard, 8) < 0, "the guard page is gone");
    same(ibv_dereg_mr(mr), 0);
    check(read(zeros, guard, 8) < 0, "the guard page is gone since the deregistration");
    end();
}

/* Locked pages stay locked. */
TEST(locked_pages)
{
    char *memory = pages(SPAN, 7), line[256];
    if (mlock(memory, SPAN)) {
        printf("not tried: nothing may be locked here (%m)\n");
        return;
    }
    begin();
    struct ibv_mr *mr = mr_make(&d, memory, SPAN, ALL_ACCESS);
    is_read(mr, memory, SPAN, 7);
    same(ibv_dereg_mr(mr), 0);
    FILE *file = fopen("/proc/self/status", "r");
    long locked = -1;
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "VmLck: %ld", &locked);
    check(locked * 1024 >= (long)SPAN, "%ld KiB are locked", locked);
    end();
}

/* What was grown can be used, or the program hears that it was not grown. */
TEST(grown)
{
    begin();
    char *memory = pages(SPAN, 7);
    struct ibv_mr *mr = mr_make(&d, memory, SPAN, ALL_ACCESS);
    is_read(mr, memory, SPAN, 7);
    char *grown = mremap(memory, SPAN, 2 * SPAN, MREMAP_MAYMOVE);
    if (grown == MAP_FAILED) {
        same(ibv_dereg_mr(mr), 0);
        grown = mremap(memory, SPAN, 2 * SPAN, MREMAP_MAYMOVE);
        check(grown != MAP_FAILED, "private pages do not grow: %m");
    }
    memset(grown + SPAN, 1, SPAN);
    same(grown[0], 7);
    same(grown[SPAN - 1], 7);
    end();
}

/* All of a region is moved elsewhere. What was stored before, and what is stored there, stays. */
TEST(moved)
{
    begin();
    char *memory = pages(SPAN, 7), *other;
    struct ibv_mr *mr = mr_make(&d, memory, SPAN, ALL_ACCESS);
    is_read(mr, memory, SPAN, 7);
    char *there = mremap(memory, SPAN, SPAN, MREMAP_MAYMOVE | MREMAP_FIXED, pages(SPAN, 3));
    check(there != MAP_FAILED, "mremap: %m");
    other = mmap(memory, SPAN, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    check(other == memory, "the old place is not free: %m");
    memset(other, 5, SPAN);
    memset(there + PAGE, 9, PAGE);
    same(ibv_dereg_mr(mr), 0);
    for (size_t i = 0; i < SPAN; i++) {
        same(there[i], i / PAGE == 1 ? 9 : 7);
        same(other[i], 5);
    }
    end();
}

/* What a library has, its data and the zeroed pages behind, is gone before its regions are. */
TEST(unmapped_with_its_library)
{
    begin();
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    char *memory = pages(2 * SPAN, 7);
    check(mmap(memory, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == memory,
          "%m");
    memset(memory, 7, PAGE);
    struct ibv_mr *mr[] = {
        mr_make(&d, memory, SPAN, ALL_ACCESS), /* a file's pages, and others */
        mr_make(&d, memory + SPAN, SPAN, ALL_ACCESS),
    };
    is_read(mr[0], memory, SPAN, 7);
    is_read(mr[1], memory + SPAN, SPAN, 7);
    same(munmap(memory, 2 * SPAN), 0);
    char *other = mmap(memory, 2 * SPAN, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    check(other == memory, "the old place is not free: %m");
    memset(other, 5, 2 * SPAN);
    same(ibv_dereg_mr(mr[0]), 0);
    same(ibv_dereg_mr(mr[1]), 0);
    for (size_t i = 0; i < 2 * SPAN; i++)
        same(other[i], 5);
    end();
}

static char data[SPAN] = {7};

static void *read_stack(void *argument)
{
    char on_stack[SPAN];
    memset(on_stack, 7, sizeof on_stack);
    struct ibv_mr *mr = mr_make(&d, on_stack, SPAN, ALL_ACCESS);
    is_read(mr, on_stack, SPAN, 7);
    on_stack[PAGE] = 8;
    same(ibv_dereg_mr(mr), 0);
    same(on_stack[PAGE], 8);
    same(on_stack[SPAN - 1], 7);
    return argument;
}

/* Stacks, of the first thread and of another, and initialised data. */
TEST(stacks_and_data)
{
    pthread_t thread;
    begin();
    read_stack(NULL);
    same(pthread_create(&thread, NULL, read_stack, NULL), 0);
    same(pthread_join(thread, NULL), 0);
    memset(data, 7, sizeof data);
    struct ibv_mr *mr = mr_make(&d, data, SPAN, ALL_ACCESS);
    is_read(mr, data, SPAN, 7);
    data[PAGE] = 8;
    same(ibv_dereg_mr(mr), 0);
    same(data[PAGE], 8);
    same(data[SPAN - 1], 7);
    end();
}

/* A pipe is read by io_uring into a buffer that the kernel has pinned since the pages moved. What
 * comes after a fork reaches the program. */
TEST(ring_across_fork)
{
    begin();
    char *memory = pages(SPAN, 7);
    struct ibv_mr *mr = mr_make(&d, memory, SPAN, ALL_ACCESS);
    is_read(mr, memory, SPAN, 7);
    struct io_uring_params p = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &p), ends[2];
    if (ring < 0) {
        printf("not tried: no io_uring here (%m)\n");
        same(ibv_dereg_mr(mr), 0);
        end();
        return;
    }
    struct iovec buffer = {memory, SPAN};
    same(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1), 0);
    char *queues = mmap(NULL, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(NULL, p.sq_entries * sizeof *entries,
                                        PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
                                        IORING_OFF_SQES);
    check(queues != MAP_FAILED && entries != MAP_FAILED, "%m");
    same(pipe(ends), 0);
    pid_t child = fork();
    if (!child)
        _exit(memory[0] != 7 || memory[SPAN - 1] != 7);
    reap(child);
    entries[0] = (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .fd = ends[0],
                                       .addr = (uintptr_t)memory + PAGE, .len = PAGE};
    ((uint32_t *)(queues + p.sq_off.array))[0] = 0;
    atomic_store((atomic_uint *)(queues + p.sq_off.tail), 1);
    char bytes[PAGE];
    memset(bytes, 9, sizeof bytes);
    same(write(ends[1], bytes, sizeof bytes), (ssize_t)sizeof bytes);
    same(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), 1);
    same(memory[PAGE], 9);
    same(memory[2 * PAGE - 1], 9);
    same(memory[2 * PAGE], 7);
    same(close(ring), 0);
    same(ibv_dereg_mr(mr), 0);
    same(memory[PAGE], 9);
    end();
}

/* ---- a process that is its own peer ---- */

struct side {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory;
};

static struct side from, to;
static atomic_bool stopping;

static void side_make(struct side *s)
{
    s->cq = cq_make(&d, 256);
    s->qp = qp_make(&d, (struct queue_options){.send_cq = s->cq});
    s->memory = pages(SPAN, 1);
    s->mr = mr_make(&d, s->memory, SPAN, ALL_ACCESS);
}

static void side_end(struct side *s)
{
    same(ibv_destroy_qp(s->qp), 0);
    same(ibv_destroy_cq(s->cq), 0);
    if (s->mr)
        same(ibv_dereg_mr(s->mr), 0);
    same(munmap(s->memory, SPAN), 0);
}

static void *keep_writing(void *argument)
{
    uint64_t remote = (uintptr_t)to.memory;
    uint32_t rkey = *(uint32_t *)argument;
    struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
    while (!stopping && wc.status == IBV_WC_SUCCESS) {
        post(from.qp, (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = 1,
                                         .local = from.memory, .bytes = SPAN / 2,
                                         .lkey = from.mr->lkey, .remote = remote, .rkey = rkey});
        while (!ibv_poll_cq(from.cq, 1, &wc))
            if (stopping)
                return NULL;
    }
    return NULL;
}

/* Deregistering under WRITEs comes to an end, and what is stored afterwards stays. */
TEST(deregistered_under_writes)
{
    alarm(LIMIT_SECONDS);
    device_open(&d);
    for (uint64_t round = 0; round < argument(0, 150); round++) {
        pthread_t thread;
        side_make(&from);
        side_make(&to);
        struct address a = qp_address(&d, from.qp, NULL), b = qp_address(&d, to.qp, NULL);
        qp_connect(&d, from.qp, b);
        qp_connect(&d, to.qp, a);
        uint32_t rkey = to.mr->rkey;
        stopping = false;
        same(pthread_create(&thread, NULL, keep_writing, &rkey), 0);
        usleep(3000 + round % 60 * 97);
        same(ibv_dereg_mr(to.mr), 0);
        to.mr = NULL;
        memset(to.memory, 0x22, SPAN);
        sleep_ms(2);
        for (size_t i = 0; i < SPAN; i++)
            check(to.memory[i] == 0x22, "round %" PRIu64 ": a store after ibv_dereg_mr", round);
        stopping = true;
        same(pthread_join(thread, NULL), 0);
        side_end(&from);
        side_end(&to);
    }
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
