/* Random operations of every kind over several QPs and threads, checked byte for byte against a
 * model. Arguments: operations (0: until the standard input ends), seed, threads, QPs a thread,
 * largest message.
 *
 * Each QP pair carries traffic both ways (soak_flow.h). After every round both sides meet and
 * compare the whole target memory with the model (soak_plan.h); every few rounds the connections
 * and registrations are made anew. The same seed gives the same operations; only their interleaving
 * differs. */
#include "soak_flow.h"

#include <poll.h>
#include <sched.h>

#define ROUND_STEPS 2000
#define SHORT_ROUND_STEPS 200 /* where the end may come at any time */
#define ROUNDS_PER_CONNECTION 16
#define MARGIN 512 /* checked memory on either side of the target MR */

static uint64_t operations, seed;
static unsigned threads, pairs_per_thread;

static uint64_t shared_counter[2]; /* of a process; in one process one a side */

static uint32_t target_size(void)
{
    return largest + 65536;
}

static struct arena arena_make(struct device *d, uint32_t size, int access)
{
    struct arena a = {.size = size, .memory = malloc(size)};
    check(a.memory, "no memory");
    a.mr = mr_make(d, a.memory, size, access);
    return a;
}

static struct plan plan_make(struct side *s, unsigned pair, unsigned direction)
{
    struct plan p = {.largest = largest, .size = target_size()};
    p.random.state = seed * 1000003 + s->index * 4096 + pair * 2 + direction;
    p.skew = (uint32_t)random_below(&p.random, 8);
    p.model = malloc(p.size);
    check(p.model, "no memory");
    fill(p.model, p.size, p.random.state);
    return p;
}

static void end_make(struct side *s, struct end *e, unsigned pair)
{
    uint32_t room = 6 * (largest + 256) + 65536;
    e->out.plan = plan_make(s, pair, s->number);
    /* What peers may reach can be sent from where it is: the others are always copied. */
    e->out.arena = arena_make(s->device, room, pair % 2 ? IBV_ACCESS_LOCAL_WRITE : ALL_ACCESS);
    e->out.expected = malloc(room);
    e->in.plan = plan_make(s, pair, !s->number);
    e->in.arena = arena_make(s->device, room, IBV_ACCESS_LOCAL_WRITE);
    uint32_t size = target_size();
    e->in.heap = malloc(size + 2 * MARGIN + 64);
    check(e->out.expected && e->in.heap, "no memory");
    memset(e->in.heap, UNTOUCHED, size + 2 * MARGIN + 64);
    uintptr_t start = (uintptr_t)e->in.heap + MARGIN;
    e->in.memory = (unsigned char *)((start & ~(uintptr_t)7) + 8 + e->in.plan.skew);
    memcpy(e->in.memory, e->in.plan.model, size);
}

static void connect_all(struct side *s)
{
    for (unsigned i = 0; i < pairs_per_thread; i++) {
        struct end *e = &s->ends[i];
        e->qp = qp_make(s->device, (struct queue_options){
            .send = SEND_DEPTH, .receive = RECEIVE_DEPTH, .sge = SEGMENTS,
            .inline_bytes = INLINE_BYTES, .send_cq = s->cq});
        e->in.mr = mr_make(s->device, e->in.memory, target_size(), ALL_ACCESS);
        struct address ours = qp_address(s->device, e->qp, e->in.mr);
        swap(s->socket, &ours, &e->peer, sizeof ours);
        qp_connect(s->device, e->qp, e->peer);
    }
    struct address ours = {.rkey = s->shared_mr->rkey, .memory = (uintptr_t)s->shared_mr->addr};
    swap(s->socket, &ours, &s->shared_peer, sizeof ours);
}

static void disconnect_all(struct side *s)
{
    for (unsigned i = 0; i < pairs_per_thread; i++) {
        same(ibv_destroy_qp(s->ends[i].qp), 0);
        same(ibv_dereg_mr(s->ends[i].in.mr), 0);
    }
}

/* ---- rounds ---- */

static bool poll_some(struct side *s)
{
    struct ibv_wc wc[16];
    int count = ibv_poll_cq(s->cq, 16, wc);
    check(count >= 0, "ibv_poll_cq: %d", count);
    for (int i = 0; i < count; i++) {
        unsigned index = (unsigned)(wc[i].wr_id >> 48);
        check(index < pairs_per_thread, "wr_id %#" PRIx64, wc[i].wr_id);
        check(!wc[i].status, "%s: %s", wc[i].wr_id >> 47 & 1 ? "receive" : "send",
              ibv_wc_status_str(wc[i].status));
        struct end *e = &s->ends[index];
        check(wc[i].qp_num == e->qp->qp_num, "completion for QP %u", wc[i].qp_num);
        if (wc[i].wr_id >> 47 & 1)
            arrive(s, e, &wc[i]);
        else
            retire(s, e, &wc[i]);
    }
    return count > 0;
}

static bool end_busy(struct end *e)
{
    return e->out.left || e->has_next || e->out.posted != e->out.retired || e->in.left ||
           e->has_wanted || e->in.posted != e->in.arrived;
}

static void run_round(struct side *s, uint32_t steps)
{
    uint64_t moved = now_ns();
    for (unsigned i = 0; i < pairs_per_thread; i++)
        s->ends[i].out.left = s->ends[i].in.left = steps;
    for (bool busy = true; busy;) {
        bool progress = false;
        busy = false;
        for (unsigned i = 0; i < pairs_per_thread; i++) {
            for (int k = 0; k < BATCH && post_receive(s, i); k++)
                progress = true;
            progress |= post_some(s, i);
            progress |= poll_some(s);
            busy |= end_busy(&s->ends[i]);
        }
        if (progress)
            moved = now_ns();
        else
            sched_yield();
        if (now_ns() - moved > 20000000000ull) {
            for (unsigned i = 0; i < pairs_per_thread; i++) {
                struct end *e = &s->ends[i];
                fprintf(stderr, "side %u pair %u: to post %u posted %" PRIu64 " retired %" PRIu64
                        "; to expect %u posted %" PRIu64 " arrived %" PRIu64 "\n", s->number, i,
                        e->out.left, e->out.posted, e->out.retired, e->in.left, e->in.posted,
                        e->in.arrived);
            }
            die("nothing moved for 20 s");
        }
    }
}

static void compare_memory(struct end *e)
{
    unsigned char *m = e->in.memory;
    uint32_t size = target_size();
    if (memcmp(m, e->in.plan.model, size))
        for (uint32_t i = 0;; i++)
            if (m[i] != e->in.plan.model[i])
                die("byte %u of the target memory is %#x, by the model %#x", i, m[i],
                    e->in.plan.model[i]);
    for (unsigned i = 0; i < MARGIN - 8; i++)
        check(m[-1 - (int)i] == UNTOUCHED && m[size + i] == UNTOUCHED,
              "memory beside the MR was written");
}

static bool input_has_ended(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    char c;
    return poll(&p, 1, 0) > 0 && read(STDIN_FILENO, &c, 1) == 0;
}

/* Operations of a flow after this round: the first side decides about the end. */
static uint64_t left_after(struct side *s, uint64_t left, uint32_t steps)
{
    if (operations)
        return left - steps;
    char ours = !s->number && !input_has_ended(), theirs = 0;
    swap(s->socket, &ours, &theirs, 1);
    return ours || theirs ? left : 0;
}

static void *run_side(void *argument)
{
    struct side *s = argument;
    uint64_t left = operations ? operations / (2ull * threads * pairs_per_thread)
                               : SHORT_ROUND_STEPS;
    s->random.state = seed ^ (s->index * 2 + s->number + 77);
    s->ends = calloc(pairs_per_thread, sizeof *s->ends);
    s->scratch = malloc(largest + 64);
    check(s->ends && s->scratch, "no memory");
    s->cq = cq_make(s->device, (int)pairs_per_thread * (SEND_DEPTH + RECEIVE_DEPTH));
    s->shared_mr = mr_make(s->device, &shared_counter[s->number], 8, ALL_ACCESS);
    for (unsigned i = 0; i < pairs_per_thread; i++)
        end_make(s, &s->ends[i], i);
    for (unsigned round = 0; left; round++) {
        if (round == 0 || (operations && round % ROUNDS_PER_CONNECTION == 0))
            connect_all(s);
        meet(s->socket);
        uint32_t steps = left < ROUND_STEPS ? (uint32_t)left : ROUND_STEPS;
        run_round(s, steps);
        left = left_after(s, left, steps);
        meet(s->socket);
        for (unsigned i = 0; i < pairs_per_thread; i++)
            compare_memory(&s->ends[i]);
        meet(s->socket);
        if (!left || (operations && (round + 1) % ROUNDS_PER_CONNECTION == 0))
            disconnect_all(s);
    }
    meet(s->socket);
    return NULL;
}

static void run_process(struct side *sides, unsigned count)
{
    struct device d;
    device_open(&d);
    for (unsigned i = 0; i < count; i++) {
        sides[i].device = &d;
        check(!pthread_create(&sides[i].thread, NULL, run_side, &sides[i]), "pthread_create");
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(sides[i].thread, NULL);
}

/* What side `number` has added to the other's shared counter must be there. */
static void compare_shared(struct side *sides, unsigned count, int socket)
{
    uint64_t ours = 0, theirs = 0;
    for (unsigned i = 0; i < count; i++)
        ours += sides[i].shared_sum;
    swap(socket, &ours, &theirs, sizeof ours);
    check(shared_counter[sides[0].number] == theirs, "additions to the shared counter were lost");
}

static struct side *sides;
static uint64_t started;

static void child(int socket)
{
    run_process(sides + threads, threads);
    compare_shared(sides + threads, threads, socket);
}

static void start(void)
{
    operations = argument(0, 100000);
    seed = argument(1, now_ns() & 0xffffff);
    threads = (unsigned)argument(2, 2);
    pairs_per_thread = (unsigned)argument(3, 4);
    largest = (uint32_t)argument(4, 262144);
    printf("%" PRIu64 " operations, seed %" PRIu64 ", %u threads, %u QPs each, up to %u bytes\n",
           operations, seed, threads, pairs_per_thread, largest);
    started = now_ns();
    sides = calloc(2 * threads, sizeof *sides);
    check(sides, "no memory");
    for (unsigned i = 0; i < threads; i++) {
        int ends[2];
        socket_pair(ends);
        for (unsigned k = 0; k < 2; k++)
            sides[k * threads + i] = (struct side){.number = k, .index = i, .socket = ends[k]};
    }
}

static void finish(unsigned count)
{
    double seconds = (double)(now_ns() - started) / 1e9, bytes = 0, ours = 0;
    for (unsigned i = 0; i < count; i++) {
        bytes += (double)sides[i].bytes;
        for (unsigned k = 0; k < pairs_per_thread; k++)
            ours += (double)sides[i].ends[k].out.retired;
    }
    printf("%.1f s, %.0f operations a second, %.2f GB checked on this side\n", seconds,
           ours * 2 * threads / count / seconds, bytes / 1e9);
}

TEST(two_processes)
{
    pid_t pid;
    start();
    int socket = spawn(child, &pid);
    run_process(sides, threads);
    compare_shared(sides, threads, socket);
    reap(pid);
    finish(threads);
}

TEST(one_process)
{
    start();
    run_process(sides, 2 * threads);
    uint64_t sum[2] = {0, 0};
    for (unsigned i = 0; i < 2 * threads; i++)
        sum[!sides[i].number] += sides[i].shared_sum;
    check(sum[0] == shared_counter[0] && sum[1] == shared_counter[1],
          "additions to the shared counter were lost");
    finish(2 * threads);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
