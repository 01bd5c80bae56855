/* What others notice while somebody attacks (tests/cases/tenant_attacks.py). Each test does one
 * small thing again and again: opens a device, makes queue pairs, sends a message and awaits the
 * answer. For each line on standard input it prints how often it did so since the last line, how
 * often in vain, and how many microseconds the slowest took, one that is still under way included.
 * */
#include "common.h"

#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

static _Atomic uint64_t count, failed, slowest, since;

static void begin(void)
{
    atomic_store(&since, now_ns());
}

static void end(bool well)
{
    uint64_t took = now_ns() - atomic_exchange(&since, 0), before = atomic_load(&slowest);
    while (took > before && !atomic_compare_exchange_weak(&slowest, &before, took))
        continue;
    atomic_fetch_add(well ? &count : &failed, 1);
}

static void *report(void *nothing)
{
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        uint64_t worst = atomic_exchange(&slowest, 0), begun = atomic_load(&since);
        uint64_t age = begun ? now_ns() - begun : 0;
        printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", atomic_exchange(&count, 0),
               atomic_exchange(&failed, 0), (worst > age ? worst : age) / 1000);
        fflush(stdout);
    }
    _exit(0);
    return nothing;
}

/* Everything is there: prints `number` and answers from now on. */
static void ready(uint32_t number)
{
    pthread_t thread;
    printf("ready %u\n", number);
    fflush(stdout);
    same(pthread_create(&thread, NULL, report, NULL), 0);
}

/* ---- calls of the control plane ---- */

static void queue_pair(struct device *d, struct ibv_cq *cq)
{
    struct ibv_qp *qp = qp_make(d, (struct queue_options){.send_cq = cq});
    qp_init(d, qp, 0);
    same(ibv_destroy_qp(qp), 0);
}

static void open_and_close(void)
{
    struct device d;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 10);
    queue_pair(&d, cq);
    same(ibv_destroy_cq(cq), 0);
    device_close(&d);
}

static void again_in_children(void (*run)(void), unsigned pause_ms)
{
    ready(0);
    for (;; sleep_ms(pause_ms)) {
        int status = 1;
        begin();
        pid_t parent = getpid(), child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() == parent)
                run();
            _exit(0);
        }
        check(child > 0 && waitpid(child, &status, 0) == child, "fork: %m");
        end(status == 0);
    }
}

TEST(fresh)
{
    again_in_children(open_and_close, 20);
}

static void in_a_namespace(void)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    check(!unshare(CLONE_NEWNET), "unshare: %m");
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    check(any >= 0 && !ioctl(any, SIOCSIFFLAGS, &lo), "lo: %m");
    open_and_close();
}

TEST(namespaces)
{
    again_in_children(in_a_namespace, 50);
}

TEST(existing)
{
    struct device d;
    static char memory[4096];
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 10);
    ready(0);
    for (;; sleep_ms(10)) {
        begin();
        queue_pair(&d, cq);
        same(ibv_dereg_mr(mr_make(&d, memory, sizeof memory, ALL_ACCESS)), 0);
        end(true);
    }
}

/* ---- messages; the other end is where TEST_PEERS says ---- */

static bool sleeping;

struct party {
    struct device d;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char memory[128];
};

static void party_open(struct party *p, int socket)
{
    struct address ours, theirs;
    device_open(&p->d);
    p->channel = ibv_create_comp_channel(p->d.context);
    check(p->channel, "ibv_create_comp_channel: %m");
    p->cq = ibv_create_cq(p->d.context, 200, p, sleeping ? p->channel : NULL, 0);
    check(p->cq, "ibv_create_cq: %m");
    p->mr = mr_make(&p->d, p->memory, sizeof p->memory, ALL_ACCESS);
    p->qp = qp_make(&p->d, (struct queue_options){.send_cq = p->cq});
    ours = qp_address(&p->d, p->qp, NULL);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&p->d, p->qp, theirs);
    for (unsigned i = 0; i < 16; i++)
        receive(p->qp, 1, p->memory, 64, p->mr->lkey);
    if (sleeping)
        same(ibv_req_notify_cq(p->cq, 0), 0);
    meet(socket);
}

static void await(struct party *p)
{
    struct ibv_cq *cq;
    struct ibv_wc wc;
    void *context;
    for (;;) {
        int found = ibv_poll_cq(p->cq, 1, &wc);
        check(found >= 0, "ibv_poll_cq");
        if (found) {
            check(!wc.status, "status %d of request %" PRIu64, wc.status, wc.wr_id);
            if (wc.wr_id == 1)
                break;
        } else if (sleeping) {
            same(ibv_get_cq_event(p->channel, &cq, &context), 0);
            ibv_ack_cq_events(cq, 1);
            same(ibv_req_notify_cq(p->cq, 0), 0);
        } else {
            usleep(100);
        }
    }
    receive(p->qp, 1, p->memory, 64, p->mr->lkey);
}

static void say(struct party *p)
{
    post(p->qp, (struct operation){.opcode = IBV_WR_SEND, .id = 2, .local = p->memory + 64,
                                   .bytes = 8, .lkey = p->mr->lkey});
}

static void answer(int socket)
{
    static struct party p;
    party_open(&p, socket);
    for (;;) {
        await(&p);
        say(&p);
    }
}

/* Its number is that of a queue pair for datagrams that nobody is invited to. */
static void ask(void)
{
    static struct party p;
    pid_t child;
    party_open(&p, spawn(answer, &child));
    struct ibv_qp *quiet = qp_make(&p.d, (struct queue_options){.type = IBV_QPT_UD,
                                                                .send_cq = p.cq});
    qp_connect(&p.d, quiet, qp_address(&p.d, quiet, NULL));
    ready(quiet->qp_num);
    for (;; sleep_ms(5)) {
        begin();
        say(&p);
        await(&p);
        end(true);
    }
}

TEST(polled)
{
    ask();
}

TEST(slept_for)
{
    sleeping = true;
    ask();
}

int main(int count_of_words, char **words)
{
    return run_tests(count_of_words, words);
}
