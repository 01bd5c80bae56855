/* A malicious peer. It is an ordinary client until it is connected; then it looks up every piece of
 * memory and every descriptor that it shares with anybody and writes rubbish there, fast, from
 * several threads, while it also goes on posting. The honest process must keep its other connection
 * going, lose nothing that is private to it, and get an error on the poisoned one, at the latest
 * when the malicious process ends. Arguments: attackers, seed. */
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define QPS 4
#define DEPTH 16
#define BYTES 16384u

struct party {
    struct device d;
    struct ibv_cq *cq;
    struct ibv_qp *qp[QPS];
    struct ibv_mr *inbox, *readable, *writable;
    char *memory;
};

struct card { /* what both sides tell each other */
    struct address qp[QPS];
    struct address readable, writable;
};

static struct card party_open(struct party *p, int qps)
{
    struct card c;
    memset(&c, 0, sizeof c);
    if (!p->d.context) {
        device_open(&p->d);
        p->cq = cq_make(&p->d, 4 * QPS * DEPTH);
        p->memory = mmap(NULL, 6 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                         0);
        check(p->memory != MAP_FAILED, "mmap: %m");
        p->inbox = mr_make(&p->d, p->memory + BYTES, BYTES, IBV_ACCESS_LOCAL_WRITE);
        p->readable = mr_make(&p->d, p->memory + 3 * BYTES, BYTES, IBV_ACCESS_REMOTE_READ);
        p->writable = mr_make(&p->d, p->memory + 5 * BYTES, BYTES, ALL_ACCESS);
    }
    for (int i = 0; i < qps; i++) {
        p->qp[i] = qp_make(&p->d, (struct queue_options){.send_cq = p->cq, .send = DEPTH,
                                                         .receive = DEPTH});
        c.qp[i] = qp_address(&p->d, p->qp[i], NULL);
    }
    c.readable = qp_address(&p->d, p->qp[0], p->readable);
    c.writable = qp_address(&p->d, p->qp[0], p->writable);
    return c;
}

/* ---- the malicious side ---- */

struct area {
    char *start;
    size_t bytes;
};
static struct area areas[256];
static int area_count;
static uint64_t seed;

/* Everything writable that this process shares with somebody. */
static void find_areas(void)
{
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    check(file, "maps: %m");
    while (fgets(line, sizeof line, file) && area_count < 256) {
        unsigned long from, to;
        char modes[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, modes) == 3 && !strncmp(modes, "rw-s", 4))
            areas[area_count++] = (struct area){(char *)from, to - from};
    }
    fclose(file);
}

static void attack_descriptors(struct random *r)
{
    for (int fd = 3; fd < 200; fd++) {
        char path[64];
        struct stat s;
        uint64_t flood = UINT64_MAX - 1;
        if (fstat(fd, &s))
            continue;
        if (S_ISREG(s.st_mode)) {
            (void)!ftruncate(fd, (off_t)random_below(r, 3) * 4096);
            (void)!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20);
            (void)!fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL);
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            int again = open(path, O_RDWR);
            if (again >= 0 && area_count < 256) {
                void *at = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
                if (at != MAP_FAILED)
                    areas[area_count++] = (struct area){at, 65536};
            }
        } else if (!S_ISSOCK(s.st_mode)) {
            fcntl(fd, F_SETFL, O_NONBLOCK);
            for (int i = 0; i < 3; i++)
                (void)!write(fd, &flood, sizeof flood);
        }
    }
}

static void *scribble(void *argument)
{
    struct random r = {.state = seed * 31 + (uintptr_t)argument};
    static const uint64_t favourites[] = {0, 1, 2, UINT64_MAX, 1ull << 63, 1ull << 32, 0x1000,
                                          0xffff, 0x7fffffff, 0x80000000};
    for (uint64_t i = 0; area_count; i++) {
        struct area *a = &areas[random_below(&r, (uint64_t)area_count)];
        size_t limit = random_below(&r, 2) && a->bytes > 0x3000 ? 0x3000 : a->bytes;
        volatile uint64_t *at = (volatile uint64_t *)(a->start + random_below(&r, limit / 8) * 8);
        switch (random_below(&r, 5)) {
        case 0: *at = random_next(&r); break;
        case 1: *at = favourites[random_below(&r, 10)]; break;
        case 2: *at += random_below(&r, 65) - 32; break;
        case 3: *at ^= 1ull << random_below(&r, 64); break;
        case 4: *(volatile uint8_t *)at = (uint8_t)random_next(&r); break;
        }
        if (i % 64 == 0)
            usleep((unsigned)random_below(&r, 60));
    }
    return NULL;
}

/* In a program of its own: a copy of the honest process would share what no stranger shares. */
TEST(attacker)
{
    int socket = (int)argument(0, 0);
    seed = argument(1, 0);
    static struct party p;
    struct card ours, theirs;
    struct random r = {.state = seed};
    pthread_t threads[2];
    signal(SIGSEGV, SIG_DFL);
    ours = party_open(&p, QPS);
    swap(socket, &ours, &theirs, sizeof ours);
    for (int i = 0; i < QPS; i++)
        qp_connect(&p.d, p.qp[i], theirs.qp[i]);
    meet(socket);
    uint64_t ends = now_ns() + 30000000 + random_below(&r, 150000000), begins = now_ns() + 5000000;
    bool begun = false;
    while (now_ns() < ends) { /* honest-looking traffic all the while; errors do not matter */
        for (int i = 0; i < QPS; i++) {
            static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE,
                                                         IBV_WR_RDMA_READ, IBV_WR_SEND_WITH_IMM};
            struct operation o = {.opcode = opcodes[random_below(&r, 4)], .local = p.memory + BYTES,
                                  .bytes = (uint32_t)random_below(&r, BYTES), .id = 1,
                                  .lkey = p.inbox->lkey, .flags = IBV_SEND_SIGNALED};
            struct address *target = o.opcode == IBV_WR_RDMA_READ ? &theirs.readable
                                                                  : &theirs.writable;
            o.remote = target->memory;
            o.rkey = target->rkey;
            try_post(p.qp[i], o);
            try_receive(p.qp[i], 2, p.memory + BYTES, BYTES, p.inbox->lkey);
        }
        struct ibv_wc wc[32];
        (void)ibv_poll_cq(p.cq, 32, wc);
        if (!begun && now_ns() > begins) {
            begun = true;
            find_areas();
            for (uintptr_t i = 0; i < 2; i++)
                pthread_create(&threads[i], NULL, scribble, (void *)i);
        }
        if (begun && random_below(&r, 50) == 0)
            attack_descriptors(&r);
    }
}

static void become_attacker(int socket)
{
    char number[16], text[32];
    fcntl(socket, F_SETFD, 0);
    snprintf(number, sizeof number, "%d", socket);
    snprintf(text, sizeof text, "%" PRIu64, seed);
    execl("/proc/self/exe", "hostile", "attacker", number, text, (char *)NULL);
    die("exec: %m");
}

/* ---- an honest partner: answers every message ---- */

static void echo(int socket)
{
    static struct party p;
    struct card ours = party_open(&p, 1), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&p.d, p.qp[0], theirs.qp[0]);
    for (int i = 0; i < 4; i++)
        receive(p.qp[0], 1, p.memory + BYTES, 64, p.inbox->lkey);
    meet(socket);
    for (;;) {
        struct ibv_wc wc = completion(p.cq, 30000);
        check(!wc.status, "honest partner: status %d of request %" PRIu64, wc.status, wc.wr_id);
        if (wc.wr_id != 1)
            continue;
        if (wc.byte_len == 1)
            return;
        receive(p.qp[0], 1, p.memory + BYTES, 64, p.inbox->lkey);
        post(p.qp[0], (struct operation){.opcode = IBV_WR_SEND, .id = 2, .bytes = wc.byte_len,
                                         .local = p.memory + BYTES, .lkey = p.inbox->lkey});
    }
}

/* ---- the honest process ---- */

static struct party honest; /* towards the partner */
static struct party poisoned; /* towards the attackers */

static void round_trip(uint64_t word)
{
    char *out = honest.memory + BYTES, *in = out + 64;
    fill(out, 64, word);
    memset(in, 0, 64);
    receive(honest.qp[0], 1, in, 64, honest.inbox->lkey);
    post(honest.qp[0], (struct operation){.opcode = IBV_WR_SEND, .id = 2, .local = out, .bytes = 64,
                                          .lkey = honest.inbox->lkey});
    uint64_t deadline = now_ns() + 20000000000ull;
    for (int left = 2; left;) {
        struct ibv_wc wc;
        int count = ibv_poll_cq(honest.cq, 1, &wc);
        check(count >= 0 && (!count || !wc.status), "honest connection: %d, status %d", count,
              wc.status);
        left -= count;
        check(now_ns() < deadline, "honest connection: %d of 2 completions missing, state %d", left,
              qp_state(honest.qp[0]));
        if (!count)
            sched_yield();
    }
    check(unfilled(in, 64, word) < 0, "the honest connection was damaged");
}

static void private_memory(bool set)
{
    static const size_t places[] = {0, 2, 3, 4};
    for (int i = 0; i < 4; i++) {
        char *at = poisoned.memory + places[i] * BYTES;
        if (set)
            fill(at, BYTES, 1000 + (uint64_t)i);
        else
            check(unfilled(at, BYTES, 1000 + (uint64_t)i) < 0, "private memory %d was changed", i);
    }
}

static void survive(uint64_t number)
{
    struct card ours, theirs;
    unsigned left = 0;
    pid_t pid;
    seed = seed * 7919 + number;
    int socket = spawn(become_attacker, &pid);
    ours = party_open(&poisoned, QPS);
    if (number == 0)
        private_memory(true);
    swap(socket, &ours, &theirs, sizeof ours);
    for (int i = 0; i < QPS; i++)
        qp_connect(&poisoned.d, poisoned.qp[i], theirs.qp[i]);
    meet(socket);
    bool gone = false;
    uint64_t deadline = 0, word = 0, started = now_ns();
    unsigned receives[QPS] = {0, 0, 0, 0}, sends[QPS] = {0, 0, 0, 0};
    do {
        struct ibv_wc wc[16];
        for (int i = 0; i < QPS; i++) {
            if (!gone && receives[i] < DEPTH &&
                !try_receive(poisoned.qp[i], (uint64_t)i << 1 | 1, poisoned.memory + BYTES, BYTES,
                             poisoned.inbox->lkey))
                receives[i]++;
            struct operation o = {.opcode = word & 1 ? IBV_WR_SEND : IBV_WR_RDMA_READ,
                                  .id = (uint64_t)i << 1, .local = poisoned.memory + BYTES,
                                  .bytes = 512, .lkey = poisoned.inbox->lkey,
                                  .remote = theirs.readable.memory, .rkey = theirs.readable.rkey,
                                  .flags = IBV_SEND_SIGNALED};
            if (!gone && sends[i] < DEPTH && !try_post(poisoned.qp[i], o))
                sends[i]++;
        }
        int count = ibv_poll_cq(poisoned.cq, 16, wc);
        check(count >= 0, "ibv_poll_cq: %d", count);
        for (int k = 0; k < count; k++) {
            unsigned *which = wc[k].wr_id & 1 ? receives : sends;
            check(wc[k].wr_id < 2 * QPS && which[wc[k].wr_id >> 1], "a completion of nothing");
            which[wc[k].wr_id >> 1]--;
        }
        round_trip(++word);
        if (!gone && now_ns() - started > 1000000000)
            kill(pid, SIGKILL); /* it has hurt itself */
        if (!gone && waitpid(pid, NULL, WNOHANG) == pid) {
            gone = true;
            deadline = now_ns() + 10000000000;
        }
        left = 0;
        for (int i = 0; i < QPS; i++)
            left += sends[i] + receives[i];
        check(!gone || !left || now_ns() < deadline,
              "%u requests without completion ten seconds after the attacker's end", left);
    } while (!gone || left);
    private_memory(false);
    for (int i = 0; i < QPS; i++)
        same(ibv_destroy_qp(poisoned.qp[i]), 0);
    close(socket);
}

TEST(peer)
{
    uint64_t times = argument(0, 30);
    pid_t partner;
    seed = argument(1, 1);
    int socket = spawn(echo, &partner);
    struct card ours = party_open(&honest, 1), theirs;
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&honest.d, honest.qp[0], theirs.qp[0]);
    meet(socket);
    for (uint64_t i = 0; i < times; i++)
        survive(i);
    post(honest.qp[0], (struct operation){.opcode = IBV_WR_SEND, .id = 3, .bytes = 1,
                                          .local = honest.memory + BYTES,
                                          .lkey = honest.inbox->lkey});
    reap(partner);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
