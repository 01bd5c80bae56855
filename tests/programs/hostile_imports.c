/* ibv_import_device, _mr and _dm by programs and of owners that are hostile: files that are no
 * contexts, owners and importers that say anything, or stop. */
#include "importer_process.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

static int socket_of(int domain, int type)
{
    return socket(domain, type | SOCK_CLOEXEC, 0);
}

static void no_device(int file, int error)
{
    errno = 0;
    check(!ibv_import_device(file), "a device behind something else");
    same(errno, error);
    check(fcntl(file, F_GETFD) >= 0, "a descriptor that was not taken is closed");
}

TEST(made_up_files)
{
    struct side s = opened();
    char card[64];
    ssize_t bytes = recv(s.d.context->cmd_fd, card, sizeof card, MSG_PEEK | MSG_DONTWAIT);
    check(bytes > 16, "what a command file shows: %m");
    int ends[2];
    for (int turn = 0; turn < 4; turn++) {
        same(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        if (turn == 2)
            card[8] ^= 1; /* another vNIC's */
        if (turn)
            same(send(ends[1], card, (size_t)bytes - (turn == 3), 0), bytes - (turn == 3));
        if (turn == 1) {
            /* Nobody answers: it is closed after a while. */
            struct ibv_context *context = ibv_import_device(ends[0]);
            check(context, "ibv_import_device: %m");
            close(ends[1]);
            errno = 0;
            check(!ibv_import_pd(context, 1), "a PD of nobody's");
            same(errno, EIO);
            same(ibv_close_device(context), 0);
            continue;
        }
        no_device(ends[0], turn == 2 ? EOPNOTSUPP : EINVAL);
        close(ends[0]);
        close(ends[1]);
    }
    int file = memfd_create("context", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    no_device(file, EINVAL);
    close(file);
}

/* Says anything at all to whoever imports. */
static void liar(int socket)
{
    struct side s = opened();
    char card[64];
    ssize_t bytes = recv(s.d.context->cmd_fd, card, sizeof card, MSG_PEEK | MSG_DONTWAIT);
    int ends[2];
    same(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    same(send(ends[1], card, (size_t)bytes, 0), bytes);
    struct random r = {argument(0, 1)};
    int files[4] = {memfd_create("bad", MFD_CLOEXEC), open("/dev/null", O_RDWR | O_CLOEXEC),
                    memfd_create("good", MFD_CLOEXEC | MFD_ALLOW_SEALING), ends[0]};
    same(ftruncate(files[2], BYTES), 0);
    same(fcntl(files[2], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    for (;;) {
        put_file(socket, ends[0]);
        int line = get_file(ends[1]);
        uint32_t ask[8];
        while (recv(line, ask, sizeof ask, 0) == sizeof ask) {
            uint64_t told[12] = {0}; /* of which a message has ten */
            uint32_t *words = (uint32_t *)told;
            words[0] = random_below(&r, 8) ? 1 : (uint32_t)random_below(&r, 4);
            words[1] = random_below(&r, 8) ? 0 : (uint32_t)random_below(&r, 40);
            memcpy(&told[1], &ask[4], 8);
            words[4] = ask[1], words[5] = ask[2];
            for (int i = 3; i < 10; i++)
                switch (random_below(&r, 4)) {
                case 0: told[i] = random_next(&r); break;
                case 1: told[i] = random_below(&r, 4) * 4096; break;
                case 2: told[i] = random_below(&r, 20000); break;
                }
            if (random_below(&r, 4)) { /* as if it were true */
                words[0] = 1, words[1] = 0, words[7] = 15;
                told[5] = 0x10000, told[6] = 9000, told[7] = 100;
                told[8] = random_below(&r, 4) * 4096, told[9] = 4096;
            }
            union message control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                                .cmsg_len = CMSG_LEN(sizeof(int))}};
            int file = files[random_below(&r, 8) ? 2 : random_below(&r, 4)];
            memcpy(CMSG_DATA(&control.header), &file, sizeof file);
            struct iovec one = {told, random_below(&r, 20) ? 80 : random_below(&r, 96)};
            struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control,
                               .msg_controllen = random_below(&r, 8) ? sizeof control : 0};
            if (!m.msg_controllen)
                m.msg_control = NULL;
            if (sendmsg(line, &m, MSG_NOSIGNAL) < 0 || !random_below(&r, 10))
                break;
        }
        close(line);
        char byte;
        get(socket, &byte, 1);
    }
}

TEST(owner_that_lies)
{
    pid_t child;
    int socket = beside(liar, &child);
    struct side own = opened();
    int had = 0;
    for (int turn = 0; turn < 300; turn++) {
        struct ibv_context *context = ibv_import_device(get_file(socket));
        check(context, "ibv_import_device: %m");
        struct ibv_pd *pd = ibv_import_pd(context, 1);
        struct ibv_mr *mr = pd ? ibv_import_mr(pd, 0x100) : NULL;
        struct ibv_dm *dm = pd ? ibv_import_dm(context, 1) : NULL;
        if (mr) {
            struct taken t = {.d = own.d, .cq = own.cq, .mr = mr};
            t.d.context = context, t.d.pd = pd;
            struct ibv_qp *pair[2];
            pair_of(&t, &own, pair);
            post(pair[1], reaching(&t, &own)); /* refused or not */
            completion(own.cq, 20000);
            same(ibv_destroy_qp(pair[0]), 0);
            same(ibv_destroy_qp(pair[1]), 0);
            had++;
            ibv_unimport_mr(mr);
        }
        if (dm)
            ibv_unimport_dm(dm);
        if (pd)
            ibv_unimport_pd(pd);
        same(ibv_close_device(context), 0);
        put(socket, "", 1);
    }
    printf("%d regions\n", had);
    check(had > 10, "none of the lies was believed");
    same(kill(child, SIGKILL), 0);
    same(waitpid(child, NULL, 0), child);
    same(ibv_dereg_mr(own.mr), 0);
}

/* Asks anything at all of whoever has opened a device. */
static void nuisance(int socket)
{
    struct offer offer;
    int file = get_file(socket);
    get(socket, &offer, sizeof offer);
    struct random r = {argument(0, 2)};
    for (int turn = 0; turn < 300; turn++) {
        int ends[2];
        same(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        uint32_t open[8] = {random_below(&r, 10) ? 1 : (uint32_t)random_next(&r)};
        union message control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                            .cmsg_len = CMSG_LEN(sizeof(int))}};
        memcpy(CMSG_DATA(&control.header), &ends[1], sizeof(int));
        struct iovec one = {open, random_below(&r, 10) ? sizeof open : random_below(&r, 99) % 32};
        struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control,
                           .msg_controllen = sizeof control};
        (void)!sendmsg(file, &m, MSG_NOSIGNAL);
        close(ends[1]);
        for (uint64_t i = random_below(&r, 30); i; i--) {
            /* Nothing is destroyed: that an importer may. */
            static const uint32_t kinds[] = {2, 2, 3, 3, 5, 6};
            uint32_t ask[8] = {kinds[random_below(&r, 6)], 1 + (uint32_t)random_below(&r, 4),
                               random_below(&r, 2) ? offer.mr : (uint32_t)random_below(&r, 999)};
            ask[6] = random_below(&r, 3) ? (uint32_t)random_below(&r, 12) * 4096
                                         : (uint32_t)random_next(&r);
            if (!random_below(&r, 40))
                ask[0] = (uint32_t)random_next(&r) | 8;
            if (send(ends[0], ask, random_below(&r, 40) ? sizeof ask : 17,
                     MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
                break;
        }
        close(ends[0]);
    }
    meet(socket);
    pause();
}

TEST(importer_that_asks_for_anything)
{
    pid_t child[2];
    int bad = beside(nuisance, &child[0]), good = beside(sees_the_end, &child[1]), status;
    struct side s = opened();
    struct ibv_mr *mr = middle(&s);
    fill(mr->addr, 4096, 1);
    give(bad, &s, mr);
    meet(bad);
    give(good, &s, mr);
    meet(good);
    same(kill(child[0], SIGKILL), 0);
    same(waitpid(child[0], &status, 0), child[0]);
    same(ibv_dereg_mr(mr), 0);
    meet(good);
    reap(child[1]);
}

/* Opens with this descriptor; it is closed here. */
static void open_with(int file, int socket)
{
    uint32_t open[8] = {1};
    union message control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                        .cmsg_len = CMSG_LEN(sizeof(int))}};
    memcpy(CMSG_DATA(&control.header), &socket, sizeof(int));
    struct iovec one = {open, sizeof open};
    struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control,
                       .msg_controllen = sizeof control};
    same(sendmsg(file, &m, MSG_NOSIGNAL), sizeof open);
    close(socket);
}

/* Comes in with what is no socket, or one that nobody is at the other end of. */
static void comes_in_with_anything(int socket)
{
    struct offer offer;
    int file = get_file(socket), ends[2];
    get(socket, &offer, sizeof offer);
    for (int i = 0; i < 100; i++) {
        open_with(file, eventfd(1, EFD_CLOEXEC));
        open_with(file, open("/dev/null", O_RDWR | O_CLOEXEC));
        open_with(file, epoll_create1(EPOLL_CLOEXEC));
        open_with(file, socket_of(AF_INET, SOCK_DGRAM));
        open_with(file, socket_of(AF_UNIX, SOCK_DGRAM));
        open_with(file, socket_of(AF_UNIX, SOCK_SEQPACKET));
        same(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        open_with(file, ends[0]);
        open_with(file, ends[1]);
    }
    meet(socket);
}

TEST(importers_that_are_nobody)
{
    pid_t child[2];
    int bad = beside(comes_in_with_anything, &child[0]), good = beside(sees_the_end, &child[1]);
    struct side s = opened();
    struct ibv_mr *mr = middle(&s);
    fill(mr->addr, 4096, 1);
    give(bad, &s, mr);
    meet(bad);
    reap(child[0]);
    give(good, &s, mr);
    meet(good);
    same(ibv_dereg_mr(mr), 0);
    meet(good);
    reap(child[1]);
    same(ibv_destroy_cq(s.cq), 0);
    same(ibv_dereg_mr(s.mr), 0);
    same(ibv_dealloc_pd(s.d.pd), 0);
    same(ibv_close_device(s.d.context), 0);
}

static void stops(int socket)
{
    struct side own = opened();
    struct taken t = take(socket, &own);
    once(&t, &own, 0, sending(&t, IBV_WR_RDMA_WRITE, &own), IBV_WC_SUCCESS);
    meet(socket);
    raise(SIGSTOP);
    /* It goes on for a moment with a file that nobody uses any more. */
    struct ibv_qp *pair[2];
    for (enum ibv_wc_status status = IBV_WC_SUCCESS; status != IBV_WC_LOC_PROT_ERR;) {
        pair_of(&t, &own, pair);
        post(pair[0], sending(&t, IBV_WR_RDMA_WRITE, &own));
        status = completion(t.cq, 20000).status;
        check(status == IBV_WC_SUCCESS || status == IBV_WC_LOC_PROT_ERR, "status %d", status);
        same(unfilled(own.memory, 4096, 1), -1);
        same(ibv_destroy_qp(pair[0]), 0);
        same(ibv_destroy_qp(pair[1]), 0);
    }
    leave(&t);
    meet(socket);
}

/* Nobody waits long for an importer, and it sees nothing of what comes after the end. */
TEST(importer_that_is_stopped)
{
    pid_t child;
    int socket = beside(stops, &child), status;
    struct side s = opened();
    struct ibv_mr *mr = middle(&s);
    fill(mr->addr, 4096, 1);
    give(socket, &s, mr);
    meet(socket);
    same(waitpid(child, &status, WUNTRACED), child);
    check(WIFSTOPPED(status), "it ended");
    same(ibv_dereg_mr(mr), 0);
    same(lines_with("/proc/self/maps", "omniverb-mr"), 0);
    memset(s.memory, CANARY, BYTES);
    same(kill(child, SIGCONT), 0);
    meet(socket);
    for (int i = 0; i < BYTES; i++)
        same(s.memory[i], CANARY);
    reap(child);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
