/* A thread that waits for an event can be cancelled (pthreads(7)), as with hardware, where it is in
 * read(2); nobody else notices, and no event is lost. A signal interrupts it as it would there. */
#include "common.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static struct device d;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *pair[2];
static struct ibv_mr *mr;
static char memory[64];

static atomic_int waiter; /* its thread id */
static atomic_bool cleaned;

static void clean_up(void *flag)
{
    atomic_store((atomic_bool *)flag, true);
}

static void *wait_for_completion(void *unused)
{
    struct ibv_cq *found;
    void *context;
    pthread_cleanup_push(clean_up, &cleaned);
    atomic_store(&waiter, (int)syscall(SYS_gettid));
    ibv_get_cq_event(channel, &found, &context);
    pthread_cleanup_pop(0);
    return unused;
}

static void *wait_for_trouble(void *unused)
{
    struct ibv_async_event event;
    pthread_cleanup_push(clean_up, &cleaned);
    atomic_store(&waiter, (int)syscall(SYS_gettid));
    ibv_get_async_event(d.context, &event);
    pthread_cleanup_pop(0);
    return unused;
}

static bool asleep(int thread)
{
    char name[64], line[512] = "";
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
    FILE *file = fopen(name, "r");
    check(file && fgets(line, sizeof line, file), "%s: %m", name);
    fclose(file);
    char *end = strrchr(line, ')');
    return end && end[2] == 'S';
}

static void cancel_one(void *(*run)(void *))
{
    pthread_t thread;
    void *result;
    atomic_store(&waiter, 0);
    atomic_store(&cleaned, false);
    same(pthread_create(&thread, NULL, run, NULL), 0);
    while (!atomic_load(&waiter) || !asleep(atomic_load(&waiter)))
        sleep_ms(1);
    same(pthread_cancel(thread), 0);
    same(pthread_join(thread, &result), 0);
    check(result == PTHREAD_CANCELED, "the thread was not cancelled");
    check(atomic_load(&cleaned), "its clean-up handler was not called");
}

static void open_all(void)
{
    device_open(&d);
    channel = ibv_create_comp_channel(d.context);
    check(channel, "ibv_create_comp_channel: %m");
    cq = ibv_create_cq(d.context, 100, NULL, channel, 0);
    check(cq, "ibv_create_cq: %m");
    mr = mr_make(&d, memory, sizeof memory, ALL_ACCESS);
    qp_pair(&d, (struct queue_options){.send_cq = cq}, pair);
}

TEST(waiting_for_a_completion)
{
    open_all();
    for (unsigned i = 0; i < 20; i++) {
        struct ibv_cq *found;
        void *context;
        same(ibv_req_notify_cq(cq, 0), 0);
        cancel_one(wait_for_completion);
        receive(pair[1], 1, memory, 32, mr->lkey);
        post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .local = memory + 32, .bytes = 8,
                                         .lkey = mr->lkey});
        same(ibv_get_cq_event(channel, &found, &context), 0);
        check(found == cq, "another CQ");
        ibv_ack_cq_events(cq, 1);
        same(completion(cq, 1000).status, 0); /* of the receive and of the send */
        same(completion(cq, 1000).status, 0);
        same(ibv_destroy_comp_channel(channel), EBUSY);
    }
    same(ibv_destroy_qp(pair[0]), 0);
    same(ibv_destroy_qp(pair[1]), 0);
    same(ibv_destroy_cq(cq), 0);
    same(ibv_destroy_comp_channel(channel), 0);
}

TEST(waiting_for_an_asynchronous_event)
{
    open_all();
    for (unsigned i = 0; i < 20; i++) {
        struct ibv_srq_init_attr init = {.attr = {8, 1, 0}};
        struct ibv_srq_attr limit = {.srq_limit = 2};
        struct ibv_async_event event;
        struct ibv_srq *srq = ibv_create_srq(d.pd, &init);
        check(srq, "ibv_create_srq: %m");
        cancel_one(wait_for_trouble);
        /* There is less in it than the limit. */
        same(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
        same(ibv_get_async_event(d.context, &event), 0);
        same(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
        check(event.element.srq == srq, "another SRQ");
        ibv_ack_async_event(&event);
        same(ibv_destroy_srq(srq), 0);
    }
}

static atomic_int handled, finished;

static void handle(int number)
{
    (void)number;
    atomic_fetch_add(&handled, 1);
}

/* Zero, or the errno. */
static void *wait_through_signals(void *unused)
{
    struct ibv_cq *found;
    void *context;
    (void)unused;
    atomic_store(&waiter, (int)syscall(SYS_gettid));
    int result = ibv_get_cq_event(channel, &found, &context) ? errno : 0;
    atomic_store(&finished, 1);
    return (void *)(intptr_t)result;
}

/* What it says after signals whose handler was installed with these flags, and, where it is to go
 * on, an event. */
static int interrupted(int flags)
{
    struct sigaction action = {.sa_handler = handle, .sa_flags = flags};
    pthread_t thread;
    void *result;
    same(sigaction(SIGUSR1, &action, NULL), 0);
    atomic_store(&waiter, 0);
    atomic_store(&handled, 0);
    atomic_store(&finished, 0);
    same(ibv_req_notify_cq(cq, 0), 0);
    same(pthread_create(&thread, NULL, wait_through_signals, NULL), 0);
    while (!atomic_load(&waiter) || !asleep(atomic_load(&waiter)))
        sleep_ms(1);
    if (flags & SA_RESTART) {
        same(pthread_kill(thread, SIGUSR1), 0);
        while (!atomic_load(&handled) || !(atomic_load(&finished) || asleep(atomic_load(&waiter))))
            sleep_ms(1);
        receive(pair[1], 1, memory, 32, mr->lkey);
        post(pair[0], (struct operation){.opcode = IBV_WR_SEND, .local = memory + 32, .bytes = 8,
                                         .lkey = mr->lkey});
        same(pthread_join(thread, &result), 0);
        ibv_ack_cq_events(cq, 1);
        same(completion(cq, 1000).status, 0);
        same(completion(cq, 1000).status, 0);
        return (int)(intptr_t)result;
    }
    /* The first may have come before it slept. */
    while (!atomic_load(&finished)) {
        pthread_kill(thread, SIGUSR1);
        sleep_ms(1);
    }
    same(pthread_join(thread, &result), 0);
    return (int)(intptr_t)result;
}

TEST(signals)
{
    open_all();
    for (unsigned i = 0; i < 10; i++) {
        same(interrupted(SA_RESTART), 0);
        same(interrupted(0), EINTR);
    }
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
