/* Tests of omniverb/dma.h against a node: client TEST ADDRESS PORT OUR-ADDRESS. */
#include "client.h"

#include <pthread.h>

/* Parts of all lengths and places, many under way; what is there is read by both sides. */
TEST(copies)
{
    enum { PARTS = 200 };
    static struct omv_dma_transfer parts[PARTS];
    reach(0);
    struct omv_dma_buffer *big = look_up(BIG), *ours = allocate(OURS, BIG_BYTES);
    same(omv_dma_length(big), BIG_BYTES);
    same(omv_dma_id(big), BIG);
    check(!omv_dma_address(big), "a node's buffer has no address");
    unsigned char *bytes = omv_dma_address(ours);
    unsigned char *wanted = malloc(BIG_BYTES);
    struct random random = {1};
    fill(wanted, BIG_BYTES, 1);
    memcpy(bytes, wanted, BIG_BYTES);
    copy(big, 0, ours, 0, BIG_BYTES);
    for (int round = 0; round < 3; round++) {
        fill(bytes, BIG_BYTES, 2 + round);
        for (int i = 0; i < PARTS; i++) {
            uint64_t length = 1 + random_below(&random, i % 10 ? 5000 : 300000);
            uint64_t to = random_below(&random, BIG_BYTES - length);
            uint64_t from = random_below(&random, BIG_BYTES - length);
            parts[i] = (struct omv_dma_transfer){.to = big, .to_offset = to, .from = ours,
                                                 .from_offset = from, .length = length};
            /* In their order: a later one overwrites. */
            memcpy(wanted + to, bytes + from, length);
        }
        for (int done = 0, some; done < PARTS; done += some) {
            some = omv_dma_start(dma, parts + done, PARTS - done);
            check(some > 0, "omv_dma_start: %m");
        }
        for (int i = PARTS; i--;)
            await(&parts[i]);
        same(order(SUM, BIG, BIG_BYTES, 0), sum_of(wanted, BIG_BYTES));
    }
    memset(bytes, 0, BIG_BYTES);
    copy(ours, 0, big, 0, BIG_BYTES);
    check(!memcmp(bytes, wanted, BIG_BYTES), "what was read is not what is there");
    leave();
}

/* What was read is written elsewhere by the transfer behind, without a look in between. */
TEST(reads_before_writes)
{
    reach(0);
    struct omv_dma_buffer *big = look_up(BIG), *ours = allocate(OURS, 1 << 20);
    unsigned char *bytes = omv_dma_address(ours);
    fill(bytes, 1 << 20, 5);
    copy(big, 0, ours, 0, 1 << 20);
    for (int round = 0; round < 8; round++) {
        memset(bytes, 0, 1 << 20);
        struct omv_dma_transfer pair[] = {
            {.to = ours, .from = big, .length = 1 << 20},
            {.to = big, .to_offset = 3 << 20, .from = ours, .length = 1 << 20},
        };
        same(omv_dma_start(dma, pair, 2), 2);
        await(&pair[1]);
        await(&pair[0]);
        memset(bytes, 0, 1 << 20);
        copy(ours, 0, big, 3 << 20, 1 << 20);
        same(unfilled(bytes, 1 << 20, 5), -1);
    }
    leave();
}

struct count {
    int done, left;
    bool elsewhere;
    pthread_t starter;
};

static void counted(struct omv_dma_transfer *transfer)
{
    struct count *count = transfer->context;
    check(!transfer->status, "called back: %s", strerror(transfer->status));
    count->elsewhere |= !pthread_equal(pthread_self(), count->starter);
    __atomic_add_fetch(&count->done, 1, __ATOMIC_RELEASE);
}

/* Starts itself again, as often as there is something left. */
static void again(struct omv_dma_transfer *transfer)
{
    struct count *count = transfer->context;
    same(omv_dma_cleanup(dma), -1);
    same(errno, EDEADLK);
    if (count->left--)
        check(omv_dma_start(dma, transfer, 1) == 1, "in a callback: %m");
    else
        counted(transfer);
}

static void until(int *number, int wanted)
{
    while (__atomic_load_n(number, __ATOMIC_ACQUIRE) != wanted)
        usleep(50);
}

static void called_back(uint32_t flags)
{
    enum { PARTS = 100 };
    static struct omv_dma_transfer parts[PARTS];
    reach(flags);
    struct omv_dma_buffer *big = look_up(BIG), *ours = allocate(OURS, PARTS * 4096);
    unsigned char *bytes = omv_dma_address(ours);
    for (int round = 0; round < 4; round++) {
        struct count count = {.starter = pthread_self()};
        fill(bytes, PARTS * 4096, round);
        for (int i = 0; i < PARTS; i++)
            parts[i] = (struct omv_dma_transfer){
                .to = big, .to_offset = i * 4096, .from = ours, .from_offset = i * 4096,
                .length = 4096, .done = i % 3 ? counted : NULL, .context = &count};
        same(omv_dma_start(dma, parts, PARTS), PARTS);
        int polled = 0;
        for (int i = 0; i < PARTS; i += 3, polled++)
            await(&parts[i]);
        until(&count.done, PARTS - polled);
        check(count.elsewhere, "nobody was called by the library's thread");
        memset(bytes, 0, PARTS * 4096);
        copy(ours, 0, big, 0, PARTS * 4096);
        same(unfilled(bytes, PARTS * 4096, round), -1);
    }
    struct count chain = {.left = 300, .starter = pthread_self()};
    struct omv_dma_transfer link = {.to = ours, .from = big, .length = 100, .done = again,
                                    .context = &chain};
    same(omv_dma_start(dma, &link, 1), 1);
    until(&chain.done, 1);
    leave();
}

TEST(callbacks_mixed)
{
    called_back(0);
}

TEST(callbacks_spinning)
{
    called_back(OMV_DMA_SPIN);
}

TEST(callbacks_asleep)
{
    called_back(OMV_DMA_SLEEP);
}

/* More than can be under way: what was started ends, what was not can be later. */
TEST(bursts)
{
    enum { PARTS = 2000 };
    static struct omv_dma_transfer parts[PARTS];
    reach(0);
    struct omv_dma_buffer *big = look_up(BIG), *ours = allocate(OURS, PARTS * 1000);
    fill(omv_dma_address(ours), PARTS * 1000, 9);
    for (int i = 0; i < PARTS; i++)
        parts[i] = (struct omv_dma_transfer){.to = big, .to_offset = i * 1000, .from = ours,
                                             .from_offset = i * 1000, .length = 1000};
    int started = 0, looked = 0;
    while (started < PARTS) {
        int some = omv_dma_start(dma, parts + started, PARTS - started);
        if (some < 0)
            same(errno, EAGAIN);
        else
            started += some;
        while (looked < started && omv_dma_query(dma, &parts[looked]) == 0)
            looked++;
    }
    while (looked < PARTS)
        await(&parts[looked++]);
    memset(omv_dma_address(ours), 0, PARTS * 1000);
    copy(ours, 0, big, 0, PARTS * 1000);
    same(unfilled(omv_dma_address(ours), PARTS * 1000, 9), -1);
    leave();
}

/* What cannot be is refused before anything is sent, and harms nobody. */
TEST(refusals)
{
    reach(0);
    struct omv_dma_buffer *big = look_up(BIG), *ours = allocate(OURS, 4096);
    struct omv_dma_buffer *readable = look_up(READ_ONLY), *writable = look_up(WRITE_ONLY);
    check(!omv_dma_lookup(dma, node, 12345, 0), "found what is not there");
    same(errno, ETIMEDOUT);
    check(!omv_dma_lookup(dma, node, 12345, 50), "found what is not there");
    same(errno, ETIMEDOUT);
    check(!omv_dma_alloc(dma, OURS, 1, both), "two of a name");
    same(errno, EEXIST);
    check(!omv_dma_alloc(dma, 5, 0, both), "of no bytes");
    same(errno, EINVAL);
    check(!omv_dma_alloc(dma, 5, 1, 0), "for nobody");
    same(errno, EINVAL);
    check(!omv_dma_alloc(dma, 5, 1, 8), "for what?");
    same(errno, EINVAL);
    refused(big, 0, ours, 0, 0, EINVAL);
    refused(big, 0, ours, 1, 4096, EINVAL);
    refused(big, BIG_BYTES - 1, ours, 0, 2, EINVAL);
    refused(big, UINT64_MAX, ours, 0, 2, EINVAL);
    refused(big, 0, ours, 0, UINT64_MAX, EINVAL);
    refused(big, 0, readable, 0, 1, EINVAL);
    refused(ours, 0, ours, 0, 1, EINVAL);
    refused(NULL, 0, ours, 0, 1, EINVAL);
    refused(readable, 0, ours, 0, 1, EACCES);
    refused(ours, 0, writable, 0, 1, EACCES);
    copy(ours, 0, readable, 0, 4096);
    copy(writable, 0, ours, 0, 4096);
    struct omv_dma_transfer mixed[] = {{.to = big, .from = ours, .length = 1},
                                       {.to = readable, .from = ours, .length = 1}};
    same(omv_dma_start(dma, mixed, 2), 1);
    await(&mixed[0]);
    check(!omv_dma_accept(dma, 0), "does not listen");
    same(errno, EINVAL);
    check(!omv_dma_connect(dma, arguments[0], 1, 10000), "nobody listens there");
    same(errno, ECONNREFUSED);
    check(!omv_dma_init("192.0.2.1", 0, 0), "an address of somebody else");
    check(!omv_dma_init(NULL, 7, 0), "a port, and nobody listens");
    same(errno, EINVAL);
    check(!omv_dma_init(NULL, 0, OMV_DMA_SPIN | OMV_DMA_SLEEP), "both");
    same(errno, EINVAL);
    same(omv_dma_free(dma, (struct omv_dma_buffer *)&mixed), -1);
    same(errno, EINVAL);
    same(omv_dma_connected(dma, node), 1);
    leave();
}

/* The other node learns of it in a moment: the event thread takes what is announced. */
static void becomes(uint64_t id, uint64_t bytes, uint64_t wanted)
{
    uint64_t deadline = now_ns() + 20000000000ull;
    while (order(LOOK_UP, id, bytes, 0) != wanted && now_ns() < deadline)
        sleep_ms(1);
    same(order(LOOK_UP, id, bytes, 0), wanted);
}

/* Buffers that come and go are known, and not known any more. */
TEST(announcements)
{
    reach(0);
    struct omv_dma_buffer *ours = allocate(OURS, 4096);
    for (uint64_t round = 0; round < 5; round++) {
        same(order(ALLOCATE, 50, 4096 + round, both), 0);
        struct omv_dma_buffer *theirs = look_up(50);
        same(omv_dma_length(theirs), 4096 + round);
        copy(theirs, 0, ours, 0, 4096);
        same(order(FREE, 50, 0, 0), 0);
        check(!omv_dma_lookup(dma, node, 50, 0), "found what was freed");
        refused(theirs, 0, ours, 0, 1, ESTALE);
        same(omv_dma_free(dma, theirs), 0);
        becomes(OURS, 4096, 0);
        same(omv_dma_free(dma, ours), 0);
        becomes(OURS, 4096, ENOENT);
        ours = allocate(OURS, 4096);
    }
    leave();
}

TEST(many_buffers)
{
    enum { MANY = 500 };
    static struct omv_dma_buffer *made[MANY];
    reach(0);
    for (int i = 0; i < MANY; i++)
        made[i] = allocate(1000 + i, 1 + i);
    becomes(1000, 1, 0);
    becomes(1000 + MANY - 1, MANY, 0);
    for (int i = 0; i < MANY; i += 5)
        check(!omv_dma_free(dma, made[i]), "omv_dma_free: %m");
    becomes(1000, 1, ENOENT);
    becomes(1001, 2, 0);
    leave();
}

/* Two in one process, which listen both; who connected makes no difference. */
TEST(both_ways)
{
    reach(0);
    struct omv_dma *other = omv_dma_init(NULL, 0, OMV_DMA_LISTEN);
    check(other, "omv_dma_init: %m");
    check(!omv_dma_accept(other, 0), "nobody has connected");
    same(errno, ETIMEDOUT);
    struct omv_dma_node *near = omv_dma_connect(dma, arguments[2], omv_dma_port(other), 20000);
    check(near, "omv_dma_connect: %m");
    struct omv_dma_node *far = accepted(other);
    struct omv_dma_buffer *ours = allocate(OURS, 4096);
    struct omv_dma_buffer *theirs = omv_dma_alloc(other, OURS, 4096, both);
    struct omv_dma_buffer *seen = omv_dma_lookup(other, far, OURS, 20000);
    check(theirs && seen, "%m");
    fill(omv_dma_address(ours), 4096, 77);
    /* What is of another is not to be transferred by it, and harms nobody. */
    struct omv_dma_transfer mixed[] = {{.to = ours, .from = seen, .length = 1},
                                       {.to = look_up(BIG), .from = theirs, .length = 1},
                                       {.to = look_up(BIG), .from = ours, .length = 1}};
    for (int i = 0; i < 3; i++) {
        same(omv_dma_start(other, &mixed[i], 1), -1);
        same(errno, EINVAL);
    }
    struct omv_dma_transfer one = {.to = theirs, .from = seen, .length = 4096};
    same(omv_dma_start(other, &one, 1), 1);
    while (omv_dma_query(other, &one) == EINPROGRESS)
        ;
    same(one.status, 0);
    same(unfilled(omv_dma_address(theirs), 4096, 77), -1);
    same(omv_dma_cleanup(other), 0);
    while (omv_dma_connected(dma, near))
        usleep(100);
    same(omv_dma_connected(dma, node), 1);
    leave();
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
