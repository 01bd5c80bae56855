/* A process that imports what another one of the same container has, by a duplicate of a cmd_fd. */
#include "common.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { BYTES = 64 << 10, BEGIN = 100, LENGTH = 40000, CANARY = 0x5a };

/* What an owner says of what it has. */
struct offer {
    uint32_t pd, mr, rkey, dm;
    uint64_t address;
};

/* A device, opened or imported, and memory of the process's own. */
struct side {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    char *memory;
};

static inline struct side opened(void)
{
    struct side s;
    device_open(&s.d);
    s.cq = cq_make(&s.d, 1000);
    s.memory = aligned_alloc(4096, BYTES);
    memset(s.memory, CANARY, BYTES);
    s.mr = mr_make(&s.d, s.memory, BYTES, ALL_ACCESS);
    return s;
}

/* A process of the same container, and our end of a socket to it. */
static inline int beside(void (*run)(int socket), pid_t *child)
{
    int ends[2];
    same(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    *child = fork();
    check(*child >= 0, "fork: %m");
    if (!*child) {
        close(ends[0]);
        run(ends[1]);
        exit(0);
    }
    close(ends[1]);
    return ends[0];
}

union message {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static inline void put_file(int socket, int file)
{
    char byte = 0;
    union message control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                        .cmsg_len = CMSG_LEN(sizeof(int))}};
    memcpy(CMSG_DATA(&control.header), &file, sizeof file);
    struct iovec one = {&byte, 1};
    struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control,
                       .msg_controllen = sizeof control};
    same(sendmsg(socket, &m, 0), 1);
}

static inline int get_file(int socket)
{
    char byte;
    union message control;
    struct iovec one = {&byte, 1};
    struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control,
                       .msg_controllen = sizeof control};
    same(recvmsg(socket, &m, MSG_CMSG_CLOEXEC), 1);
    check(CMSG_FIRSTHDR(&m), "no descriptor");
    int file;
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof file);
    return file;
}

/* Lines of a file of /proc/self with this word. */
static inline int lines_with(const char *path, const char *word)
{
    FILE *file = fopen(path, "r");
    check(file, "%s: %m", path);
    char line[512];
    int count = 0;
    while (fgets(line, sizeof line, file))
        count += strstr(line, word) != NULL;
    fclose(file);
    return count;
}

/* Waits until no pages of ours are on files. */
static inline void all_are_back(void)
{
    for (uint64_t late = now_ns() + 20000000000u; lines_with("/proc/self/maps", "omniverb-mr");) {
        check(now_ns() < late, "pages are not given back");
        sleep_ms(1);
    }
}

/* An owner's region that begins and ends within pages. */
static inline struct ibv_mr *middle(struct side *s)
{
    return mr_make(&s->d, s->memory + BEGIN, LENGTH, ALL_ACCESS);
}

static inline void give(int socket, struct side *s, struct ibv_mr *mr)
{
    struct offer offer = {.pd = s->d.pd->handle, .mr = mr->handle, .rkey = mr->rkey,
                          .address = (uintptr_t)mr->addr};
    put_file(socket, s->d.context->cmd_fd);
    put(socket, &offer, sizeof offer);
}

/* What was imported, and a device for which the queue pairs of the imported PD are made. */
struct taken {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct offer offer;
    char *at; /* what the owner calls it */
};

static inline struct taken take(int socket, struct side *own)
{
    struct taken t = {.d = own->d};
    int file = get_file(socket);
    get(socket, &t.offer, sizeof t.offer);
    t.d.context = ibv_import_device(file);
    check(t.d.context, "ibv_import_device: %m");
    t.d.pd = ibv_import_pd(t.d.context, t.offer.pd);
    check(t.d.pd && t.d.pd->handle == t.offer.pd, "ibv_import_pd: %m");
    t.mr = ibv_import_mr(t.d.pd, t.offer.mr);
    check(t.mr, "ibv_import_mr: %m");
    check(!t.mr->addr && t.mr->handle == t.offer.mr && t.mr->rkey == t.offer.rkey, "its fields");
    t.cq = cq_make(&t.d, 1000);
    t.at = (char *)(uintptr_t)t.offer.address;
    return t;
}

/* A queue pair of the imported PD and one of our own, connected. */
static inline void pair_of(struct taken *t, struct side *own, struct ibv_qp *pair[2])
{
    pair[0] = qp_make(&t->d, (struct queue_options){.send_cq = t->cq});
    pair[1] = qp_make(&own->d, (struct queue_options){.send_cq = own->cq});
    for (int i = 0; i < 2; i++)
        qp_connect(&own->d, pair[i], qp_address(&own->d, pair[!i], NULL));
}

static inline void leave(struct taken *t)
{
    ibv_unimport_mr(t->mr);
    ibv_unimport_pd(t->d.pd);
    same(ibv_destroy_cq(t->cq), 0);
    same(ibv_close_device(t->d.context), 0);
}

static inline struct operation sending(struct taken *t, enum ibv_wr_opcode opcode, struct side *own)
{
    return (struct operation){.opcode = opcode, .id = 3, .local = t->at, .bytes = 4096,
                              .lkey = t->mr->lkey, .remote = (uintptr_t)own->memory,
                              .rkey = own->mr->rkey};
}

static inline struct operation reaching(struct taken *t, struct side *own)
{
    return (struct operation){.opcode = IBV_WR_RDMA_WRITE, .id = 3, .local = own->memory,
                              .bytes = 4096, .lkey = own->mr->lkey,
                              .remote = t->offer.address, .rkey = t->mr->rkey};
}

/* One operation of a pair's end, on a new pair. */
static inline void once(struct taken *t, struct side *own, int end, struct operation o,
                 enum ibv_wc_status status)
{
    struct ibv_qp *pair[2];
    pair_of(t, own, pair);
    post(pair[end], o);
    expect(end ? own->cq : t->cq, 3, status);
    same(ibv_destroy_qp(pair[0]), 0);
    same(ibv_destroy_qp(pair[1]), 0);
}

static inline void sees_the_end(int socket)
{
    struct side own = opened();
    struct taken t = take(socket, &own);
    once(&t, &own, 0, sending(&t, IBV_WR_RDMA_WRITE, &own), IBV_WC_SUCCESS);
    same(unfilled(own.memory, 4096, 1), -1);
    once(&t, &own, 1, reaching(&t, &own), IBV_WC_SUCCESS);
    meet(socket);
    meet(socket); /* it is deregistered */
    once(&t, &own, 0, sending(&t, IBV_WR_RDMA_WRITE, &own), IBV_WC_LOC_PROT_ERR);
    once(&t, &own, 1, reaching(&t, &own), IBV_WC_REM_ACCESS_ERR);
    errno = 0;
    check(!ibv_import_mr(t.d.pd, t.offer.mr), "imported after its end");
    same(errno, ENOENT);
    leave(&t);
}
