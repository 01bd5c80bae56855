/* A region that a peer may only write to, or reach by atomics: no peer maps it, so its owner's
 * library copies, in a mapping of its own when there was much to copy. The owner does with its
 * pages what programs do: protects and unmaps them, forks, deregisters. To be run where nobody is
 * trusted with more than the region's flags. */
#include "common.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

#define PAGE 4096u
#define PAGES 64u
#define BYTES (PAGES * PAGE)
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

struct request {
    uint64_t word; /* what all of it is filled with; 0: nothing more */
    uint64_t from, bytes;
};

static void peer(int socket)
{
    struct device d;
    struct address theirs;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    char *memory = aligned_alloc(PAGE, BYTES);
    struct ibv_mr *mr = mr_make(&d, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
    struct address ours = qp_address(&d, qp, NULL);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    for (;;) {
        struct request request;
        get(socket, &request, sizeof request);
        if (!request.word)
            return;
        fill(memory, BYTES, request.word);
        struct operation o = {.opcode = IBV_WR_RDMA_WRITE, .id = 1, .local = memory,
                              .bytes = request.bytes, .lkey = mr->lkey,
                              .remote = theirs.memory + request.from, .rkey = theirs.rkey};
        post(qp, o);
        expect(cq, 1, 0);
        /* Several small ones, one behind the other. */
        o.bytes = 8;
        for (int i = 0; i < 20; i++)
            post(qp, o);
        for (int i = 0; i < 20; i++)
            expect(cq, 1, 0);
        post(qp, (struct operation){.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .id = 2,
                                    .local = memory, .bytes = 8, .lkey = mr->lkey,
                                    .remote = theirs.memory + request.from, .rkey = theirs.rkey,
                                    .compare_or_add = 0});
        expect(cq, 2, 0);
        check(unfilled(memory, 8, request.word) < 0, "an atomic found something else");
        put(socket, &request.word, sizeof request.word);
    }
}

static void order(int socket, uint64_t word, uint64_t from, uint64_t bytes)
{
    struct request request = {word, from, bytes};
    put(socket, &request, sizeof request);
    if (word)
        get(socket, &word, sizeof word);
}

/* Mappings of files with regions' pages: where the program has them, and elsewhere. */
static int mapped(const char *memory, bool elsewhere)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, at = (unsigned long)memory;
    char line[512];
    int count = 0;
    check(maps, "/proc/self/maps: %m");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "memfd:omniverb-mr") && sscanf(line, "%lx", &start) == 1)
            count += elsewhere == (start < at || start >= at + BYTES);
    fclose(maps);
    return count;
}

static bool is_moved(const char *memory)
{
    return mapped(memory, false) || mapped(memory, true);
}

/* The pages are where the library has them, too, after a while. */
static void until_mapped(int socket, char *memory, uint64_t word)
{
    int i = 0;
    do {
        check(i++ < 2000, "no mapping of our own");
        order(socket, word, 0, BYTES);
        check(unfilled(memory, BYTES, word) < 0, "a WRITE did not arrive");
    } while (!mapped(memory, true));
}

static void forks(int socket, char *memory, uint64_t word)
{
    int go[2], status;
    char c = 0;
    check(!pipe(go), "pipe: %m");
    fflush(NULL);
    pid_t child = fork();
    check(child >= 0, "fork: %m");
    if (child == 0) {
        check(read(go[0], &c, 1) == 1, "pipe: %m");
        check(unfilled(memory, BYTES, word) < 0, "the child sees what the peer writes later");
        check(!is_moved(memory), "the child has pages on a file of its parent's");
        fill(memory, BYTES, 777);
        _exit(0);
    }
    order(socket, word + 1, 0, BYTES);
    check(write(go[1], "g", 1) == 1, "pipe: %m");
    check(waitpid(child, &status, 0) == child && status == 0, "the child failed");
    check(unfilled(memory, BYTES, word + 1) < 0, "the parent sees what its child wrote");
    close(go[0]), close(go[1]);
}

static struct ibv_mr *begin_with_cq(struct device *d, int socket, char *memory,
                                    struct ibv_cq **polled)
{
    struct address theirs;
    device_open(d);
    struct ibv_cq *cq = *polled = cq_make(d, 100);
    struct ibv_qp *qp = qp_make(d, (struct queue_options){.send_cq = cq});
    struct ibv_mr *mr = mr_make(d, memory, BYTES, ACCESS);
    struct address ours = qp_address(d, qp, mr);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(d, qp, theirs);
    meet(socket);
    return mr;
}

static struct ibv_mr *begin(struct device *d, int socket, char *memory)
{
    struct ibv_cq *cq;
    return begin_with_cq(d, socket, memory, &cq);
}

static char *map(void)
{
    char *memory =
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap: %m");
    memset(memory, 0, BYTES);
    return memory;
}

TEST(writes_arrive_whatever_the_owner_does)
{
    pid_t child;
    int socket = spawn(peer, &child);
    struct device d;
    char *memory = map(), *page = memory + 8 * PAGE;
    struct ibv_mr *mr = begin(&d, socket, memory);
    uint64_t word = 5;
    until_mapped(socket, memory, word);
    for (int round = 0; round < 3; round++) {
        forks(socket, memory, word++);
        check(unfilled(memory, BYTES, word) < 0, "something else behind the fork");
        until_mapped(socket, memory, ++word);
    }
    /* As of pages that a device has pinned: they are reached. */
    check(!mprotect(page, PAGE, PROT_NONE), "mprotect: %m");
    order(socket, ++word, 0, BYTES);
    check(!mprotect(page, PAGE, PROT_READ | PROT_WRITE), "mprotect: %m");
    check(unfilled(memory, BYTES, word) < 0, "a WRITE to a protected page");
    check(!munmap(page, PAGE), "munmap: %m");
    order(socket, ++word, 0, BYTES);
    check(unfilled(memory, 8 * PAGE, word) < 0, "a WRITE beside an unmapped page");
    /* What lives there by now is not the region's. */
    check(mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == page, "mmap: %m");
    order(socket, ++word, 0, BYTES);
    check(*page == 0, "a WRITE to memory that was never registered");
    order(socket, 0, 0, 0);
    reap(child);
    same(ibv_dereg_mr(mr), 0);
    check(!is_moved(memory), "pages on a file");
    check(unfilled(memory, 8 * PAGE, word) < 0, "deregistration changed the memory");
    check(*page == 0, "deregistration changed what was never registered");
    char *expected = malloc(BYTES);
    fill(expected, BYTES, word);
    same(memcmp(page + PAGE, expected + 9 * PAGE, BYTES - 9 * PAGE), 0);
}

struct forker {
    _Atomic int stop, forks;
};

static void *fork_all_the_time(void *context)
{
    struct forker *forker = context;
    int status;
    while (!forker->stop) {
        pid_t child = fork();
        check(child >= 0, "fork: %m");
        if (child == 0)
            _exit(0);
        check(waitpid(child, &status, 0) == child && status == 0, "the child failed");
        forker->forks++;
        sleep_ms(1);
    }
    return NULL;
}

/* Pages move there and back at any moment of a WRITE: none is lost, whichever way it took. */
TEST(writes_arrive_while_another_thread_forks)
{
    pid_t child;
    int socket = spawn(peer, &child), owned = 0;
    struct device d;
    struct forker forker = {0};
    pthread_t thread;
    char *memory = map();
    struct ibv_mr *mr = begin(&d, socket, memory);
    check(!pthread_create(&thread, NULL, fork_all_the_time, &forker), "no thread");
    for (uint64_t word = 5; word < 2000 || (forker.forks < 50 && word < 20000); word++) {
        order(socket, word, 0, BYTES);
        check(unfilled(memory, BYTES, word) < 0, "a WRITE was lost");
        fill(memory, BYTES, ~word);
        check(unfilled(memory, BYTES, ~word) < 0, "a store was lost");
        owned += word % 16 == 0 && mapped(memory, true);
    }
    forker.stop = 1;
    check(!pthread_join(thread, NULL), "pthread_join");
    printf("%d forks, %d times with a mapping of our own\n", forker.forks, owned);
    order(socket, 0, 0, 0);
    reap(child);
    same(ibv_dereg_mr(mr), 0);
    check(!is_moved(memory), "pages on a file");
}

static volatile sig_atomic_t forks_in_handler;

static void arm_handler(void)
{
    /* Once: the interrupted copy has to get on, however long the fork takes. */
    struct itimerval soon = {.it_value = {0, 20000}};
    check(!setitimer(ITIMER_REAL, &soon, NULL), "setitimer: %m");
}

/* As crash reporters and supervisors do. */
static void fork_in_handler(int signal)
{
    (void)signal;
    int status, before = errno;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (child > 0 && waitpid(child, &status, 0) == child && status == 0)
        forks_in_handler++;
    arm_handler();
    errno = before;
}

/* The thread that polls copies by itself, and forks wherever a signal finds it. */
TEST(writes_arrive_while_a_signal_handler_forks)
{
    pid_t child;
    int socket = spawn(peer, &child);
    struct device d;
    struct ibv_cq *cq;
    struct ibv_wc wc;
    char *memory = map();
    struct ibv_mr *mr = begin_with_cq(&d, socket, memory, &cq);
    struct sigaction action = {.sa_handler = fork_in_handler, .sa_flags = SA_RESTART};
    struct itimerval never = {0};
    struct pollfd answer = {.fd = socket, .events = POLLIN};
    int words = 0, owned = 0;
    check(!sigaction(SIGALRM, &action, NULL), "sigaction: %m");
    arm_handler();
    for (uint64_t word = 5; forks_in_handler < 150; word++) {
        struct request request = {word, 0, BYTES};
        put(socket, &request, sizeof request);
        while (poll(&answer, 1, 0) != 1)
            for (int i = 0; i < 100; i++)
                same(ibv_poll_cq(cq, 1, &wc), 0);
        get(socket, &word, sizeof word);
        check(unfilled(memory, BYTES, word) < 0, "a WRITE was lost");
        words++, owned += word % 16 == 0 && mapped(memory, true);
    }
    check(!setitimer(ITIMER_REAL, &never, NULL), "setitimer: %m");
    printf("%d forks in %d WRITEs, %d of %d times with a mapping of our own\n",
           (int)forks_in_handler, words, owned, words / 16);
    order(socket, 0, 0, 0);
    reap(child);
    same(ibv_dereg_mr(mr), 0);
    check(!is_moved(memory), "pages on a file");
}

/* What the environment says holds for these moves, too. */
TEST(nothing_moves_where_pages_are_kept)
{
    pid_t child;
    setenv("OMNIVERB_ADOPTION", "off", 1);
    int socket = spawn(peer, &child);
    struct device d;
    char *memory = map();
    struct ibv_mr *mr = begin(&d, socket, memory);
    for (int i = 0; i < 20; i++)
        order(socket, 6, 0, BYTES);
    sleep_ms(100);
    check(!is_moved(memory), "pages on a file");
    check(unfilled(memory, BYTES, 6) < 0, "a WRITE did not arrive");
    order(socket, 0, 0, 0);
    reap(child);
    same(ibv_dereg_mr(mr), 0);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
