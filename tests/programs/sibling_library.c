/* A sibling library in the process (sibling/): it reaches the daemon and the progress thread
 * through libibverbs.so.1, which owns the only connection and has the only thread. */
#include "sibling_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

/* ---- verbs ---- */

struct traffic {
    struct device device;
    struct ibv_cq *cq;
    struct ibv_qp *pair[2];
    struct ibv_mr *mr;
    char memory[128];
};

static void traffic_begin(struct traffic *t)
{
    device_open(&t->device);
    t->cq = cq_make(&t->device, 10);
    qp_pair(&t->device, (struct queue_options){.send_cq = t->cq}, t->pair);
    t->mr = mr_make(&t->device, t->memory, sizeof t->memory, ALL_ACCESS);
}

static void traffic_turn(struct traffic *t)
{
    receive(t->pair[1], 1, t->memory, 64, t->mr->lkey);
    post(t->pair[0], (struct operation){.opcode = IBV_WR_SEND, .id = 2, .local = t->memory + 64,
                                        .bytes = 64, .lkey = t->mr->lkey});
    same(completion(t->cq, 2000).status, 0);
    same(completion(t->cq, 2000).status, 0);
}

static void traffic_end(struct traffic *t)
{
    same(ibv_destroy_qp(t->pair[0]), 0);
    same(ibv_destroy_qp(t->pair[1]), 0);
    same(ibv_destroy_cq(t->cq), 0);
    same(ibv_dereg_mr(t->mr), 0);
    device_close(&t->device);
}

/* The sibling library's table is that of the verbs. */
static void same_gids(struct sibling *second, struct ibv_context *context)
{
    union ibv_gid gids[32], gid;
    unsigned count = 0;
    same(sibling_gids(second, gids, 32, &count), 0);
    check(count > 0, "no GIDs");
    for (unsigned i = 0; i < count; i++) {
        same(ibv_query_gid(context, 1, (int)i, &gid), 0);
        check(!memcmp(&gid, &gids[i], sizeof gid), "GID %u differs", i);
    }
}

/* ---- the tests ---- */

/* Sockets of each context that is open: its command file and the other end. */
enum { CONTEXT = 2 };

TEST(asks_what_the_owner_is_told)
{
    struct device d;
    struct sibling *second, *other;
    device_open(&d);
    same(sibling_open(d.context, &second), 0);
    same_gids(second, d.context);
    same(sibling_open(NULL, &other), 0);
    same_gids(other, d.context);
    /* What is the owner's to say; what is no message; what another release says. */
    same(sibling_ask(second, SIBLING_HELLO, 24, 0), EPERM);
    same(sibling_ask(second, SIBLING_CREATE_QP, 40, 0), EPERM);
    same(sibling_ask(second, SIBLING_DESTROY_QP, 8, 0), EPERM);
    same(sibling_ask(second, SIBLING_QUERY_GIDS, 7, 0), EINVAL);
    same(sibling_ask(second, SIBLING_QUERY_GIDS, 4096, 0), EINVAL);
    same(sibling_ask(second, 999, 8, 0), EINVAL);
    same(sibling_ask(second, SIBLING_QUERY_GIDS, 8, 1), EPROTO);
    same_gids(second, d.context);
    same(sibling_close(other), 0);
    device_close(&d);
    union ibv_gid gids[32];
    unsigned count;
    same(sibling_gids(second, gids, 32, &count), 0); /* holds on without a device */
    same(sibling_close(second), 0);
}

TEST(one_connection_and_one_progress_thread)
{
    struct sibling *second[2];
    struct traffic t;
    struct watched w[2] = {0};
    int before = sockets();
    same(sibling_open(NULL, &second[0]), 0); /* makes the connection */
    same(sockets(), before + 2);
    traffic_begin(&t);
    traffic_turn(&t);
    int running = threads(NULL);
    same(sibling_open(t.device.context, &second[1]), 0);
    for (int i = 0; i < 2; i++) {
        watched_begin(&w[i], second[i]);
        poke(&w[i]);
        await(&w[i].calls, 1);
        check(!strcmp(w[i].thread, "omniverb"), "called by thread %s", w[i].thread);
        same_gids(second[i], t.device.context);
    }
    traffic_turn(&t);
    same(sockets(), before + 2 + CONTEXT);
    same(threads("omniverb"), 1);
    same(threads("omniverb-events"), 1);
    same(threads(NULL), running);
    same(sibling_close(second[0]), 0);
    poke(&w[0]); /* for nobody */
    poke(&w[1]);
    await(&w[1].calls, 2);
    same(atomic_load(&w[0].calls), 1);
    same(sibling_close(second[1]), 0);
    watched_end(&w[0]), watched_end(&w[1]);
    traffic_turn(&t);
    traffic_end(&t);
    same(sockets(), before + 2);
}

/* Nor is one in the progress thread's hands for a moment longer. */
TEST(a_context_takes_its_sockets_with_it)
{
    struct sibling *second;
    same(sibling_open(NULL, &second), 0);
    int before = sockets();
    for (int i = 0; i < 2000; i++) {
        struct device d;
        device_open(&d);
        same(sockets(), before + CONTEXT);
        device_close(&d);
        same(sockets(), before);
    }
    same(sibling_close(second), 0);
}

TEST(watches)
{
    struct sibling *second;
    struct watched w = {0}, self = {.ends_itself = true}, full = {.leaves = true};
    uint64_t number;
    same(sibling_open(NULL, &second), 0);
    watched_begin(&w, second);
    watched_begin(&self, second);
    for (int i = 1; i <= 100; i++) {
        poke(&w);
        await(&w.calls, i);
    }
    same(w.asked, EDEADLK); /* peers would wait for the daemon */
    for (int i = 0; i < 10; i++)
        poke(&w); /* one byte is read in a call */
    await(&w.calls, 110);
    poke(&self), poke(&self);
    await(&self.calls, 1);
    same(sibling_unwatch(second, w.watch), 0);
    same(sibling_unwatch(second, w.watch), ENOENT);
    poke(&w);
    /* A time; and by it we know that the others would have been called by now. */
    struct itimerspec soon = {.it_value.tv_nsec = 20000000};
    full.ends[0] = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    full.second = second;
    full.ends_itself = true;
    check(full.ends[0] >= 0 && !timerfd_settime(full.ends[0], 0, &soon, NULL), "timerfd: %m");
    same(sibling_watch(second, full.ends[0], 0, ready, &full, &full.watch), 0);
    close(full.ends[0]); /* the watch has a duplicate */
    await(&full.calls, 1);
    same(atomic_load(&w.calls), 110);
    same(atomic_load(&self.calls), 1);
    same(sibling_unwatch(second, self.watch), ENOENT);
    /* Room to write: not in a full pipe. */
    char bytes[4096] = {0};
    while (write(w.ends[1], bytes, sizeof bytes) > 0 || write(w.ends[1], bytes, 1) > 0) {
    }
    same(sibling_watch(second, w.ends[1], 1, ready, &full, &number), 0);
    sleep_ms(20);
    same(atomic_load(&full.calls), 1);
    while (read(w.ends[0], bytes, sizeof bytes) > 0) {
    }
    await(&full.calls, 2);
    /* What cannot be waited for, and what is nothing. */
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    check(file >= 0, "open: %m");
    same(sibling_watch(second, file, 0, ready, &w, &number), EPERM);
    close(file);
    same(sibling_watch(second, 1 << 20, 0, ready, &w, &number), EBADF);
    same(sibling_watch(second, -1, 0, ready, &w, &number), EBADF);
    same(sibling_watch(second, w.ends[0], 0, NULL, &w, &number), EINVAL);
    watched_end(&w), watched_end(&self);
    same(sibling_close(second), 0);
}

TEST(nobody_is_called_after_the_end_of_a_watch)
{
    struct sibling *second;
    struct random r = {1};
    int caught = 0;
    same(sibling_open(NULL, &second), 0);
    for (int turn = 0; turn < 200; turn++) {
        struct watched w = {.leaves = true, .linger_ms = turn % 4 == 0};
        watched_begin(&w, second);
        poke(&w);
        if (turn % 2)
            await(&w.calls, 1);
        struct timespec pause = {0, (long)random_below(&r, 300000)};
        nanosleep(&pause, NULL);
        same(sibling_unwatch(second, w.watch), 0);
        int calls = atomic_load(&w.calls);
        same(atomic_load(&w.left), calls);
        caught += calls > 0;
        watched_end(&w);
        memset(&w, 0xff, sizeof w); /* whoever is called now dies */
    }
    check(caught >= 100, "called in %d turns of 200", caught);
    same(sibling_close(second), 0);
}

static void *many_calls(void *context)
{
    struct sibling *second;
    same(sibling_open(context, &second), 0);
    for (int turn = 0; turn < 50; turn++) {
        struct watched w = {0};
        same_gids(second, context);
        watched_begin(&w, second);
        poke(&w);
        await(&w.calls, 1);
        if (turn % 5) {
            same(sibling_unwatch(second, w.watch), 0);
        } else {
            same(sibling_close(second), 0);
            same(sibling_open(context, &second), 0);
        }
        watched_end(&w);
    }
    same(sibling_close(second), 0);
    return NULL;
}

TEST(several_threads)
{
    struct traffic t;
    pthread_t callers[4];
    int before = sockets();
    traffic_begin(&t);
    for (int i = 0; i < 4; i++)
        check(!pthread_create(&callers[i], NULL, many_calls, t.device.context), "thread");
    for (int i = 0; i < 200; i++)
        traffic_turn(&t);
    for (int i = 0; i < 4; i++)
        pthread_join(callers[i], NULL);
    same(sockets(), before + 2 + CONTEXT);
    same(threads("omniverb"), 1);
    traffic_end(&t);
}

TEST(a_child_has_its_own)
{
    struct sibling *second, *own;
    struct traffic t;
    struct watched w = {0};
    int before = sockets();
    traffic_begin(&t);
    same(sibling_open(t.device.context, &second), 0);
    watched_begin(&w, second);
    poke(&w);
    await(&w.calls, 1);
    for (int turn = 0; turn < 3; turn++) {
        fflush(NULL);
        pid_t child = fork();
        check(child >= 0, "fork: %m");
        if (child == 0) {
            struct watched mine = {0};
            struct traffic my_traffic;
            uint64_t number;
            int inherited = sockets();
            same(sibling_ask(second, SIBLING_QUERY_GIDS, 8, 0), EIO);
            same(sibling_watch(second, w.ends[0], 0, ready, &mine, &number), EIO);
            same(sibling_unwatch(second, w.watch), EIO);
            same(sibling_open(t.device.context, &own), EIO);
            same(sibling_open(NULL, &own), 0);
            traffic_begin(&my_traffic);
            traffic_turn(&my_traffic);
            same_gids(own, my_traffic.device.context);
            watched_begin(&mine, own);
            poke(&mine);
            await(&mine.calls, 1);
            same(threads("omniverb"), 1);
            same(sibling_close(second), 0);
            same(sockets(), inherited + 2 + CONTEXT);
            same(sibling_close(own), 0);
            traffic_turn(&my_traffic);
            _exit(0);
        }
        int status;
        check(waitpid(child, &status, 0) == child, "waitpid: %m");
        same(status, 0);
        traffic_turn(&t);
        same_gids(second, t.device.context);
        poke(&w);
        await(&w.calls, 2 + turn);
    }
    same(sockets(), before + 2 + CONTEXT);
    same(sibling_close(second), 0);
    watched_end(&w);
    traffic_end(&t);
}

TEST(a_library_of_another_release_is_told)
{
    struct sibling *second;
    char path[4096] = "";
    same(sibling_open_of_another_release(&second), EPROTO);
    check(readlink("/proc/self/exe", path, sizeof path - 40) > 0, "readlink: %m");
    strcpy(strrchr(path, '/'), "/liblater.so");
    check(!dlopen(path, RTLD_NOW), "%s loads", path);
    const char *why = dlerror();
    check(strstr(why, "OMNIVERB_PRIVATE_2"), "%s", why);
}

TEST(no_name_without_the_node)
{
    check(!dlsym(RTLD_DEFAULT, "omniverb_private_open"), "found as a default version");
    check(dlvsym(RTLD_DEFAULT, "omniverb_private_open", "OMNIVERB_PRIVATE_1"), "not found");
}

/* Waits for the case that runs this program (cases/sibling_library.py). */
static void pause_as(const char *what)
{
    char c;
    printf("%s\n", what);
    check(read(0, &c, 1) == 1, "nobody told us to go on");
}

TEST(outlives_the_daemon)
{
    struct sibling *second;
    struct traffic t;
    struct watched w = {0};
    union ibv_gid gids[32];
    unsigned count;
    int before = sockets();
    traffic_begin(&t);
    traffic_turn(&t);
    same(sibling_open(t.device.context, &second), 0);
    watched_begin(&w, second);
    same_gids(second, t.device.context);
    pause_as("connected");
    /* The daemon is dead. */
    int error = sibling_gids(second, gids, 32, &count);
    struct ibv_qp_init_attr init = {.send_cq = t.cq, .recv_cq = t.cq, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 1}};
    errno = 0;
    check(!ibv_create_qp(t.device.pd, &init), "a queue pair without a daemon");
    printf("the owner: %s; the second: %s\n", strerror(errno), strerror(error));
    same(error, errno);
    poke(&w);
    await(&w.calls, 1);
    traffic_turn(&t);
    pause_as("alone");
    /* There is another. */
    same_gids(second, t.device.context);
    poke(&w);
    await(&w.calls, 2);
    traffic_turn(&t);
    same(sockets(), before + 2 + CONTEXT);
    same(threads("omniverb"), 1);
    pause_as("again");
    same(sibling_close(second), 0);
    watched_end(&w);
    traffic_end(&t);
}

TEST(waits_as_long_as_the_owner)
{
    struct sibling *second;
    struct traffic t;
    union ibv_gid gids[32];
    unsigned count;
    check(!setenv("OMNIVERB_CALL_LIMIT_MS", "300", 1), "setenv: %m");
    traffic_begin(&t);
    same(sibling_open(t.device.context, &second), 0);
    same_gids(second, t.device.context);
    pause_as("connected");
    /* The daemon is stopped. So many calls would take longer than this test may, if they waited as
     * long as is usual. */
    for (int i = 0; i < 8; i++)
        same(sibling_gids(second, gids, 32, &count), ETIMEDOUT);
    traffic_turn(&t);
    pause_as("alone");
    /* It goes on, when it has its turn; the answer that comes too late is nobody's. */
    for (int i = 0; sibling_gids(second, gids, 32, &count) && i < 1000; i++)
        usleep(10000);
    same_gids(second, t.device.context);
    traffic_turn(&t);
    pause_as("again");
    same(sibling_close(second), 0);
    traffic_end(&t);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
