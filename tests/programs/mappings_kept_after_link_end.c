/* What a peer keeps of pages that it was granted, after its link has ended: a mapping of a file
 * that nobody uses any more. The former peer is hostile and has made itself a second mapping, which
 * its library knows nothing of. Another peer goes on using the region meanwhile: it notices
 * nothing, and nothing that it does is lost. The peers are in another place with TEST_PEERS. */
#include "common.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define BYTES (64 * 4096u)
#define COUNTER 8192u  /* of the peer that stays */
#define SECRET 16384u  /* what the owner goes on with */
#define INK 24576u     /* what the former peer goes on with */
#define HANGS_NS 40000000000ull

enum order { MAP, READ_SECRET, WRITE_INK, DESTROY, RESET, HANG_UP, STOP, QUIT };

struct peer {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory;
    struct address theirs;
};

static void peer_open(struct peer *p, int socket)
{
    device_open(&p->d);
    p->cq = cq_make(&p->d, 100);
    p->memory = malloc(4096);
    p->mr = mr_make(&p->d, p->memory, 4096, IBV_ACCESS_LOCAL_WRITE);
    p->qp = qp_make(&p->d, (struct queue_options){.send_cq = p->cq});
    struct address ours = qp_address(&p->d, p->qp, NULL);
    swap(socket, &ours, &p->theirs, sizeof ours);
    qp_connect(&p->d, p->qp, p->theirs);
    meet(socket);
}

static uint64_t add_one(struct peer *p)
{
    post(p->qp, (struct operation){.id = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                   .local = p->memory, .bytes = 8, .lkey = p->mr->lkey,
                                   .remote = p->theirs.memory + COUNTER,
                                   .rkey = p->theirs.rkey, .compare_or_add = 1});
    expect(p->cq, 1, IBV_WC_SUCCESS);
    uint64_t before;
    memcpy(&before, p->memory, 8);
    return before;
}

/* The first mapping of others' pages, if there is one: of a file for them, or of a piece of a
 * virtual machine's window that is as long as the region; nothing else in it is. */
static char *mapped(size_t *bytes)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], *found = NULL;
    check(maps, "/proc/self/maps: %m");
    while (!found && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        same(sscanf(line, "%lx-%lx", &start, &end), 2);
        bool piece = strstr(line, "/dev/dax") && end - start == BYTES;
        if (!piece && !strstr(line, "memfd:omniverb-mr"))
            continue;
        found = (char *)start;
        *bytes = end - start;
    }
    fclose(maps);
    return found;
}

/* Uses the region until its pages are mapped here, and a little longer. Returns how many operations
 * that took. */
static uint64_t use_until_mapped(struct peer *p, char **at, size_t *bytes)
{
    uint64_t done = 0, since = 0, begun = now_ns();
    for (*at = NULL; since < 50; done++) {
        check(now_ns() - begun < HANGS_NS, "never mapped, by %llu operations",
              (unsigned long long)done);
        add_one(p);
        *at = mapped(bytes);
        since = *at ? since + 1 : 0;
        if (done > 20)
            poll(NULL, 0, 1);
    }
    return done;
}

static void former(int socket)
{
    struct peer p;
    peer_open(&p, socket);
    char *at, *kept = NULL;
    size_t bytes;
    for (;;) {
        enum order order;
        uint64_t word = 0;
        get(socket, &order, sizeof order);
        switch (order) {
        case MAP:
            word = use_until_mapped(&p, &at, &bytes);
            /* Of no bytes: another mapping of the same pages. */
            kept = mremap(at, 0, bytes, MREMAP_MAYMOVE);
            check(kept != MAP_FAILED, "mremap: %m");
            break;
        case READ_SECRET: memcpy(&word, kept + SECRET, 8); break;
        case WRITE_INK:
            get(socket, &word, 8);
            memcpy(kept + INK, &word, 8);
            break;
        case DESTROY: same(ibv_destroy_qp(p.qp), 0); break;
        case RESET: qp_move(p.qp, IBV_QPS_RESET); break;
        case HANG_UP: /* with the daemon */
            for (int fd = 3; fd < 1024; fd++) {
                struct stat s;
                if (fd != socket && fstat(fd, &s) == 0 && S_ISSOCK(s.st_mode))
                    shutdown(fd, SHUT_RDWR);
            }
            break;
        default: return;
        }
        put(socket, &word, 8);
    }
}

/* Adds all the time. */
static void stayer(int socket)
{
    struct peer p;
    peer_open(&p, socket);
    char *at;
    size_t bytes;
    uint64_t done = 0;
    struct pollfd told = {.fd = socket, .events = POLLIN};
    poll(&told, 1, -1); /* after the other one, who is granted the pages first */
    for (;;) {
        enum order order;
        if (poll(&told, 1, 0) == 0) {
            add_one(&p);
            done++;
            continue;
        }
        get(socket, &order, sizeof order);
        if (order == QUIT)
            return;
        if (order == MAP)
            done += use_until_mapped(&p, &at, &bytes);
        put(socket, &done, 8);
        if (order == STOP)
            poll(&told, 1, -1);
    }
}

static uint64_t tell(int socket, enum order order)
{
    uint64_t answer;
    put(socket, &order, sizeof order);
    get(socket, &answer, 8);
    return answer;
}

/* Whether the peer sees what the owner writes now, or the owner what the peer writes. */
static bool joined(int socket, char *memory)
{
    static uint64_t word = 0x1234567800000000;
    enum order order = WRITE_INK;
    uint64_t done;
    word++;
    memcpy(memory + SECRET, &word, 8);
    bool sees = tell(socket, READ_SECRET) == word;
    put(socket, &order, sizeof order);
    put(socket, &word, 8);
    get(socket, &done, 8);
    return sees || memcmp(memory + INK, &word, 8) == 0;
}

static void part(void (*end)(struct ibv_qp *qp, int socket), bool at_once)
{
    pid_t children[2];
    int sockets[2] = {spawn(former, &children[0]), spawn(stayer, &children[1])};
    struct device d;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp[2];
    char *memory = aligned_alloc(4096, BYTES);
    check(memory, "no memory");
    memset(memory, 0, BYTES);
    struct ibv_mr *mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
    for (int i = 0; i < 2; i++) {
        qp[i] = qp_make(&d, (struct queue_options){.send_cq = cq});
        struct address ours = qp_address(&d, qp[i], mr), theirs;
        swap(sockets[i], &ours, &theirs, sizeof ours);
        qp_connect(&d, qp[i], theirs);
        meet(sockets[i]);
    }
    uint64_t added = tell(sockets[0], MAP);
    tell(sockets[1], MAP);
    check(joined(sockets[0], memory), "the peer's mapping is not of the region");
    /* In a virtual machine a process that has its window can map what others get there later: the
     * other one gets nothing meanwhile. */
    bool in_window = access("/dev/dax0.0", F_OK) == 0;
    if (in_window)
        tell(sockets[1], STOP);
    uint64_t begun = now_ns();
    end(qp[0], sockets[0]);
    uint64_t took = now_ns() - begun;
    bool still = joined(sockets[0], memory);
    check(!still || !at_once, "what was granted outlives the call that ends the link");
    while (still) {
        check(now_ns() - begun < HANGS_NS, "what was granted outlives the link");
        sleep_ms(1);
        still = joined(sockets[0], memory);
    }
    printf("the call took %.2f ms; the pages were back after %.2f ms\n", (double)took / 1e6,
           (double)(now_ns() - begun) / 1e6);
    /* The other one is served again from pages. */
    sleep_ms(50);
    tell(sockets[1], MAP);
    added += tell(sockets[1], STOP);
    uint64_t counted;
    memcpy(&counted, memory + COUNTER, 8);
    check(counted == added, "%llu were added, %llu are there", (unsigned long long)added,
          (unsigned long long)counted);
    check(in_window || !joined(sockets[0], memory), "the former peer has the new pages");
    for (int i = 0; i < 2; i++) {
        enum order quit = QUIT;
        put(sockets[i], &quit, sizeof quit);
        reap(children[i]);
    }
}

static void owner_destroys(struct ibv_qp *qp, int socket)
{
    (void)socket;
    same(ibv_destroy_qp(qp), 0);
}

TEST(the_owner_destroys_its_queue_pair)
{
    part(owner_destroys, true);
}

static void owner_resets(struct ibv_qp *qp, int socket)
{
    (void)socket;
    qp_move(qp, IBV_QPS_RESET);
}

TEST(the_owner_resets_it)
{
    part(owner_resets, true);
}

static void owner_fails(struct ibv_qp *qp, int socket)
{
    (void)socket;
    qp_move(qp, IBV_QPS_ERR);
}

TEST(the_owner_moves_it_to_err)
{
    part(owner_fails, false);
}

static void peer_destroys(struct ibv_qp *qp, int socket)
{
    (void)qp;
    tell(socket, DESTROY);
}

TEST(the_peer_destroys_its_queue_pair)
{
    part(peer_destroys, false);
}

static void peer_resets(struct ibv_qp *qp, int socket)
{
    (void)qp;
    tell(socket, RESET);
}

TEST(the_peer_resets_it)
{
    part(peer_resets, false);
}

static void peer_hangs_up(struct ibv_qp *qp, int socket)
{
    (void)qp;
    tell(socket, HANG_UP);
}

TEST(the_peer_ends_its_session)
{
    part(peer_hangs_up, false);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
