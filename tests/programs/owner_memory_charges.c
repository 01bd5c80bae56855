/* What an owner of memory that peers map is charged with. Its memory cgroup has little more room
 * than the region; six honest peers in another namespace read all of it, and stay, with nothing to
 * do; or hostile ones, who keep second mappings of what they were granted for READ only. Arguments:
 * rounds, MiB of the region, what peers may do with it and what they do (enum peers), of how many
 * KiB each 2 MiB are read, and how many MiB have to move at least (half of the region). The owner's
 * cgroup is the folder OWNER_CGROUP, if there is one. */
#include "common.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MIB (1024u * 1024)
#define PEERS 6
#define STEP (2u * MIB)
/* Longest time until what is given back is nobody's. */
#define GONE_MS 60000

enum peers { ALL_RIGHTS, READ_ONLY, READ_ONLY_KEPT };

static void join_cgroup(void)
{
    const char *folder = getenv("OWNER_CGROUP");
    if (!folder || !*folder)
        return;
    char name[4096], number[32];
    snprintf(name, sizeof name, "%s/cgroup.procs", folder);
    int file = open(name, O_WRONLY);
    check(file >= 0, "%s: %m", name);
    int length = snprintf(number, sizeof number, "%d", getpid());
    check(write(file, number, length) == length, "%s: %m", name);
    close(file);
}

/* A number of the owner's cgroup, as either version calls it; 0 without one. */
static uint64_t number_of(const char *first, const char *second)
{
    const char *folder = getenv("OWNER_CGROUP"), *names[] = {first, second};
    for (int i = 0; folder && *folder && i < 2; i++) {
        char name[4096], text[64] = "";
        snprintf(name, sizeof name, "%s/%s", folder, names[i]);
        FILE *file = fopen(name, "r");
        if (!file)
            continue;
        check(fgets(text, sizeof text, file), "%s: %m", name);
        fclose(file);
        return strtoull(text, NULL, 10);
    }
    return 0;
}

static uint64_t charged(void)
{
    return number_of("memory.usage_in_bytes", "memory.current");
}

/* Bytes of this process's address space on files that peers can map. */
static uint64_t on_files(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long start, end;
    uint64_t bytes = 0;
    check(file, "/proc/self/maps: %m");
    while (fgets(line, sizeof line, file))
        if (strstr(line, "omniverb-mr") && sscanf(line, "%lx-%lx", &start, &end) == 2)
            bytes += end - start;
    fclose(file);
    return bytes;
}

/* Whether peers keep a second mapping of each file that they ever had. */
static int keeps;

static void keep_mappings(void)
{
    enum { most = 1024 };
    static unsigned long kept[most], start[most], end[most], inode[most];
    static int files;
    int count = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    check(maps, "/proc/self/maps: %m");
    while (count < most && fgets(line, sizeof line, maps))
        if (strstr(line, "omniverb-mr") &&
            sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start[count], &end[count], &inode[count]) == 3)
            count++;
    fclose(maps);
    for (int i = 0; i < count; i++) {
        int known = 0;
        for (int j = 0; j < files; j++)
            known |= kept[j] == inode[i];
        if (known || files == most ||
            mremap((void *)start[i], 0, end[i] - start[i], MREMAP_MAYMOVE) == MAP_FAILED)
            continue;
        kept[files++] = inode[i];
    }
}

struct errand {
    uint64_t from, bytes;
    uint32_t rkey, times, piece;
};

static void peer(int socket)
{
    struct device d;
    struct address theirs;
    device_open(&d);
    struct ibv_cq *cq = cq_make(&d, 100);
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.send_cq = cq});
    char *memory = malloc(STEP);
    struct ibv_mr *mr = mr_make(&d, memory, STEP, IBV_ACCESS_LOCAL_WRITE);
    struct address ours = qp_address(&d, qp, NULL);
    swap(socket, &ours, &theirs, sizeof ours);
    qp_connect(&d, qp, theirs);
    meet(socket);
    for (;;) {
        struct errand e;
        get(socket, &e, sizeof e);
        if (!e.bytes)
            return;
        for (uint32_t turn = 0; turn < e.times; turn++)
            for (uint64_t at = 0; at < e.bytes; at += STEP) {
                post(qp, (struct operation){.opcode = IBV_WR_RDMA_READ, .id = 1, .local = memory,
                                            .bytes = e.piece, .lkey = mr->lkey,
                                            .remote = e.from + at, .rkey = e.rkey});
                /* Emulated processors that others use, too, need some patience. */
                struct ibv_wc wc = completion(cq, 120000);
                check(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
                check(memory[0] == 7 && memory[e.piece - 1] == 7, "wrong bytes");
                memory[0] = memory[e.piece - 1] = 0;
            }
        if (keeps)
            keep_mappings();
        put(socket, &e, 1);
    }
}

struct scene {
    struct device d;
    int sockets[PEERS];
    pid_t children[PEERS];
    /* Bytes that a peer reads of each STEP. */
    uint32_t piece;
};

static void open_scene(struct scene *s)
{
    s->piece = argument(3, STEP / 1024) * 1024;
    check(s->piece && s->piece <= STEP, "%u bytes of each step", s->piece);
    for (int i = 0; i < PEERS; i++)
        s->sockets[i] = spawn(peer, &s->children[i]);
    join_cgroup();
    device_open(&s->d);
    struct ibv_cq *cq = cq_make(&s->d, 100);
    for (int i = 0; i < PEERS; i++) {
        struct ibv_qp *qp = qp_make(&s->d, (struct queue_options){.send_cq = cq});
        struct address ours = qp_address(&s->d, qp, NULL), theirs;
        swap(s->sockets[i], &ours, &theirs, sizeof ours);
        qp_connect(&s->d, qp, theirs);
        meet(s->sockets[i]);
    }
}

/* All peers read all of a region. */
static void read_all(struct scene *s, char *memory, uint64_t bytes, struct ibv_mr *mr, int times)
{
    struct errand e = {(uintptr_t)memory, bytes, mr->rkey, times, s->piece};
    char done;
    for (int i = 0; i < PEERS; i++)
        put(s->sockets[i], &e, sizeof e);
    for (int i = 0; i < PEERS; i++)
        get(s->sockets[i], &done, 1);
}

static void run_child(const char *program)
{
    pid_t child = fork();
    if (!child) {
        if (program)
            execl(program, program, NULL);
        _exit(0);
    }
    int status = -1;
    check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "child: %x", status);
}

/* A server in a container lives through all that its peers and itself do in the right order. */
TEST(lives_within_its_limit)
{
    int rounds = argument(0, 2);
    uint64_t bytes = (uint64_t)argument(1, 96) * MIB, moved = 0;
    enum peers peers = argument(2, ALL_RIGHTS);
    /* What may be read only is mapped as far as there is room for it twice. */
    int turns = peers == ALL_RIGHTS ? 20 : 2;
    int access = peers == ALL_RIGHTS ? ALL_ACCESS : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    static struct scene s;
    keeps = peers == READ_ONLY_KEPT;
    open_scene(&s);
    turns = s.piece < STEP ? (turns + 1) / 2 : turns;
    uint64_t idle = charged();
    for (int round = 0; round < rounds; round++) {
        char *memory =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(memory != MAP_FAILED, "no memory");
        memset(memory, 7, bytes);
        struct ibv_mr *mr = mr_make(&s.d, memory, bytes, access);
        for (int turn = 0; turn < turns && on_files() < bytes / 2; turn++)
            read_all(&s, memory, bytes, mr, 1);
        moved = on_files() > moved ? on_files() : moved;
        run_child(NULL);
        read_all(&s, memory, bytes, mr, 2);
        run_child("/bin/true");
        read_all(&s, memory, bytes, mr, 2);
        same(ibv_dereg_mr(mr), 0);
        check(on_files() == 0, "%lu bytes are on files still", (long)on_files());
        check(memory[0] == 7 && memory[bytes - 1] == 7, "wrong bytes");
        munmap(memory, bytes);
        for (int ms = 0; charged() > idle + bytes / 4 && ms < GONE_MS; ms += 50)
            sleep_ms(50);
        uint64_t left = charged();
        check(left <= idle + bytes / 4, "%lu MiB are left", (long)((left - idle) / MIB));
    }
    printf("%d rounds: %lu of %lu MiB were on files, at most %lu MiB charged\n", rounds,
           (long)(moved / MIB), (long)(bytes / MIB),
           (long)(number_of("memory.max_usage_in_bytes", "memory.peak") / MIB));
    uint64_t least = argument(4, bytes / 2 / MIB) * (uint64_t)MIB;
    check(moved >= (peers == ALL_RIGHTS ? least : MIB), "pages do not move: nothing was tried");
    struct errand end = {0};
    for (int i = 0; i < PEERS; i++) {
        put(s.sockets[i], &end, sizeof end);
        reap(s.children[i]);
    }
}

/* What is over of grants for READ only, and peers keep, is no more than their vNIC's share. */
TEST(what_peers_keep_has_a_bound)
{
    int rounds = argument(0, 12);
    uint64_t bytes = (uint64_t)argument(1, 16) * MIB, moved = 0, most = 0;
    static struct scene s;
    keeps = 1;
    open_scene(&s);
    uint64_t idle = charged(), share = 16 * MIB;
    for (int round = 0; round < rounds; round++) {
        char *memory =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(memory != MAP_FAILED, "no memory");
        memset(memory, 7, bytes);
        struct ibv_mr *mr =
            mr_make(&s.d, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
        for (int turn = 0; turn < 4; turn++)
            read_all(&s, memory, bytes, mr, 2);
        moved += on_files();
        same(ibv_dereg_mr(mr), 0);
        check(memory[0] == 7 && memory[bytes - 1] == 7, "wrong bytes");
        munmap(memory, bytes);
        /* One region may be over at once that was begun while there was room. */
        uint64_t bound = idle + share + bytes;
        for (int ms = 0; charged() > bound && ms < GONE_MS; ms += 50)
            sleep_ms(50);
        uint64_t now = charged();
        check(now <= bound, "round %d: %lu MiB are kept", round, (long)((now - idle) / MIB));
        most = now > most ? now : most;
    }
    printf("%d rounds: %lu MiB were on files, at most %ld MiB are kept\n", rounds,
           (long)(moved / MIB), ((long)most - (long)idle) / (long)MIB);
    check(moved >= bytes / 2, "pages do not move here: nothing was tried");
    struct errand end = {0};
    for (int i = 0; i < PEERS; i++) {
        put(s.sockets[i], &end, sizeof end);
        reap(s.children[i]);
    }
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
