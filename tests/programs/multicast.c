/* Multicast: queue pairs attach to groups, everybody in a group gets a copy, nobody else does, and
 * who was detached gets none. With TEST_PEERS the second process is elsewhere. */
#include "common.h"

#include <arpa/inet.h>

enum { EVERYBODY = 0xffffff, BYTES = 8192, HEADER = 40, QUEUES = 3 };

static struct device d;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[QUEUES + 1][BYTES];

static union ibv_gid group(const char *text)
{
    union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};
    if (inet_pton(AF_INET, text, gid.raw + 12) != 1)
        check(inet_pton(AF_INET6, text, gid.raw) == 1, "%s is no address", text);
    return gid;
}

static void open_all(void)
{
    if (d.context)
        return;
    device_open(&d);
    cq = cq_make(&d, 1000);
    mr = mr_make(&d, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
}

static void close_all(void)
{
    same(ibv_dereg_mr(mr), 0);
    same(ibv_destroy_cq(cq), 0);
    device_close(&d);
    d.context = NULL;
}

static struct ibv_qp *queue(void)
{
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.type = IBV_QPT_UD, .send_cq = cq});
    qp_connect(&d, qp, qp_address(&d, qp, NULL));
    return qp;
}

static struct ibv_ah *way_to(union ibv_gid gid)
{
    struct ibv_ah_attr a = {.is_global = 1, .port_num = 1,
                            .grh = {.dgid = gid, .sgid_index = (uint8_t)d.gid_index,
                                    .hop_limit = 64}};
    struct ibv_ah *ah = ibv_create_ah(d.pd, &a);
    check(ah, "ibv_create_ah: %m");
    return ah;
}

static void send_to(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t bytes, uint64_t word)
{
    fill(memory[QUEUES], bytes, word);
    post(qp, (struct operation){.opcode = IBV_WR_SEND_WITH_IMM, .id = 77, .local = memory[QUEUES],
                                .bytes = bytes, .lkey = mr->lkey, .ah = ah, .qpn = EVERYBODY,
                                .immediate = (uint32_t)word});
}

/* What came to receive `at`: this message, from that queue pair. */
static void came(struct ibv_wc wc, uint64_t at, uint32_t bytes, uint64_t word, uint32_t from,
                 union ibv_gid to)
{
    same(wc.status, 0);
    same(wc.wr_id, at);
    same(wc.byte_len, bytes + HEADER);
    same(wc.src_qp, from);
    check(wc.wc_flags & IBV_WC_WITH_IMM && wc.wc_flags & IBV_WC_GRH, "flags %x", wc.wc_flags);
    same(ntohl(wc.imm_data), word);
    const unsigned char *header = (unsigned char *)memory[at];
    same(unfilled(memory[at] + HEADER, bytes, word), -1);
    if (header[0] >> 4 == 6)
        check(!memcmp(header + 24, to.raw, 16), "for another group");
    else
        check(header[20] == 0x45 && !memcmp(header + 36, to.raw + 12, 4), "for another group");
}

static void give(struct ibv_qp *qp, uint64_t at)
{
    receive(qp, at, memory[at], BYTES, mr->lkey);
}

TEST(what_is_refused)
{
    open_all();
    struct ibv_device_attr a;
    same(ibv_query_device(d.context, &a), 0);
    check(a.max_mcast_grp > 0 && a.max_mcast_qp_attach > 0, "no groups");
    struct ibv_qp *qp = queue();
    struct ibv_qp *rc = qp_make(&d, (struct queue_options){.send_cq = cq});
    union ibv_gid one = group("239.5.6.7"), unicast = d.gid;
    same(ibv_attach_mcast(rc, &one, 0), EINVAL);
    same(ibv_attach_mcast(qp, &unicast, 0), EINVAL);
    same(ibv_detach_mcast(qp, &one, 0), EINVAL);
    same(ibv_attach_mcast(qp, &one, 0), 0);
    same(ibv_attach_mcast(qp, &one, 0), 0); /* once more is once */
    same(ibv_destroy_qp(qp), EBUSY);
    same(ibv_detach_mcast(qp, &one, 0), 0);
    same(ibv_detach_mcast(qp, &one, 0), EINVAL);
    /* As many as there may be, and not more. */
    int attached = 0, error = 0;
    for (; attached < 1000 && !error; attached += !error) {
        union ibv_gid next = group("239.7.0.0");
        next.raw[14] = (uint8_t)(attached >> 8);
        next.raw[15] = (uint8_t)attached;
        error = ibv_attach_mcast(qp, &next, 0);
    }
    same(error, ENOMEM);
    same(attached, a.max_mcast_grp);
    while (attached-- > 0) {
        union ibv_gid next = group("239.7.0.0");
        next.raw[14] = (uint8_t)(attached >> 8);
        next.raw[15] = (uint8_t)attached;
        same(ibv_detach_mcast(qp, &next, 0), 0);
    }
    same(ibv_destroy_qp(qp), 0);
    same(ibv_destroy_qp(rc), 0);
    close_all();
}

/* It is sent, and how many copies come: of as many receives as there are. */
static int copies_of_one(struct ibv_qp *from, struct ibv_ah *ah, uint64_t word, int awaited)
{
    send_to(from, ah, 20, word);
    int copies = 0;
    for (int left = awaited + 1; left; left--) {
        struct ibv_wc wc = completion(cq, 5000);
        same(wc.status, 0);
        if (wc.wr_id == 77)
            continue;
        same(ntohl(wc.imm_data), word);
        copies++;
    }
    return copies;
}

static void walk(struct ibv_qp *qp)
{
    qp_connect(&d, qp, qp_address(&d, qp, NULL));
}

/* Who is attached stays so, whatever state its queue pair goes through. */
TEST(states)
{
    open_all();
    struct ibv_qp *from = queue();
    struct ibv_qp *qp = qp_make(&d, (struct queue_options){.type = IBV_QPT_UD, .send_cq = cq});
    union ibv_gid one = group("239.3.3.3");
    struct ibv_ah *ah = way_to(one);
    same(ibv_attach_mcast(qp, &one, 0), 0); /* in RESET already */
    for (uint64_t word = 1; word < 6; word++) {
        walk(qp);
        give(qp, 0);
        same(copies_of_one(from, ah, word, 1), 1);
        if (word % 2)
            qp_move(qp, IBV_QPS_ERR);
        qp_move(qp, IBV_QPS_RESET);
    }
    walk(qp);
    give(qp, 0);
    same(copies_of_one(from, ah, 7, 1), 1);
    /* Detached, nothing comes any more, however soon that is after it was attached. */
    same(ibv_detach_mcast(qp, &one, 0), 0);
    give(qp, 1);
    for (int turn = 0; turn < 30; turn++) {
        same(ibv_attach_mcast(qp, &one, 0), 0);
        same(ibv_detach_mcast(qp, &one, 0), 0);
    }
    send_to(from, ah, 20, 8);
    expect(cq, 77, 0);
    expect_none(cq, 100);
    same(ibv_destroy_ah(ah), 0);
    same(ibv_destroy_qp(qp), 0);
    same(ibv_destroy_qp(from), 0);
    close_all();
}

/* A forked child has the parent's objects, and cannot take the parent out of its groups. */
TEST(forked)
{
    open_all();
    struct ibv_qp *qp = queue(), *idle = queue();
    union ibv_gid one = group("239.4.4.4");
    struct ibv_ah *ah = way_to(one);
    same(ibv_attach_mcast(qp, &one, 0), 0);
    same(ibv_attach_mcast(idle, &one, 0), 0);
    give(qp, 0);
    same(copies_of_one(qp, ah, 1, 1), 1); /* the other has no receive */
    for (uint64_t turn = 2; turn < 8; turn++) {
        fflush(NULL);
        pid_t child = fork();
        check(child >= 0, "fork: %m");
        if (child == 0) {
            check(ibv_detach_mcast(qp, &one, 0), "the child detached it");
            check(ibv_attach_mcast(qp, &one, 0), "the child attached it");
            same(ibv_destroy_qp(idle), 0);
            _exit(0);
        }
        reap(child);
        give(qp, 0);
        same(copies_of_one(qp, ah, turn, 1), 1);
    }
    same(ibv_detach_mcast(qp, &one, 0), 0);
    same(ibv_detach_mcast(idle, &one, 0), 0);
    same(ibv_destroy_ah(ah), 0);
    same(ibv_destroy_qp(qp), 0);
    same(ibv_destroy_qp(idle), 0);
    close_all();
}

/* In one process: a copy for each that is attached, the sender among them. */
TEST(copies)
{
    open_all();
    struct ibv_qp *qp[QUEUES];
    union ibv_gid one = group("239.1.2.3"), other = group("239.1.2.4");
    for (int i = 0; i < QUEUES; i++)
        qp[i] = queue();
    same(ibv_attach_mcast(qp[0], &one, 0), 0);
    same(ibv_attach_mcast(qp[1], &one, 0), 0);
    same(ibv_attach_mcast(qp[2], &other, 0), 0);
    struct ibv_ah *ah = way_to(one), *ah_other = way_to(other);
    for (uint64_t word = 1; word < 40; word++) {
        uint32_t bytes = (uint32_t)(word * 25 % 1000);
        for (uint64_t i = 0; i < QUEUES; i++)
            give(qp[i], i);
        send_to(qp[0], ah, bytes, word);
        bool seen[3] = {false};
        for (int i = 0; i < 3; i++) {
            struct ibv_wc wc = completion(cq, 5000);
            if (wc.wr_id == 77) {
                same(wc.status, 0);
                check(!seen[2], "sent twice");
                seen[2] = true;
                continue;
            }
            check(wc.wr_id < 2 && !seen[wc.wr_id], "receive %" PRIu64, wc.wr_id);
            seen[wc.wr_id] = true;
            same(wc.qp_num, qp[wc.wr_id]->qp_num);
            came(wc, wc.wr_id, bytes, word, qp[0]->qp_num, one);
        }
        /* And the third, of the other group. */
        send_to(qp[1], ah_other, bytes, word + 1);
        for (int i = 0; i < 2; i++) {
            struct ibv_wc wc = completion(cq, 5000);
            if (wc.wr_id != 77)
                came(wc, 2, bytes, word + 1, qp[1]->qp_num, other);
        }
    }
    same(ibv_destroy_ah(ah), 0);
    same(ibv_destroy_ah(ah_other), 0);
    same(ibv_detach_mcast(qp[0], &one, 0), 0);
    same(ibv_detach_mcast(qp[1], &one, 0), 0);
    same(ibv_detach_mcast(qp[2], &other, 0), 0);
    for (int i = 0; i < QUEUES; i++)
        same(ibv_destroy_qp(qp[i]), 0);
    close_all();
}

/* Who sends to a group and ends at once has nobody to wait for. */
static void sends_and_ends(int socket)
{
    open_all();
    struct ibv_qp *qp = queue();
    struct ibv_ah *ah = way_to(group("239.4.4.5"));
    meet(socket);
    send_to(qp, ah, 20, 4);
    same(ibv_destroy_qp(qp), 0);
    _exit(0);
}

TEST(last_words)
{
    for (int turn = 0; turn < 5; turn++) {
        pid_t child;
        int socket = spawn(sends_and_ends, &child);
        open_all();
        struct ibv_qp *qp = queue();
        union ibv_gid one = group("239.4.4.5");
        same(ibv_attach_mcast(qp, &one, 0), 0);
        give(qp, 0);
        meet(socket);
        struct ibv_wc wc = completion(cq, 20000);
        same(wc.status, 0);
        same(ntohl(wc.imm_data), 4);
        reap(child);
        same(ibv_detach_mcast(qp, &one, 0), 0);
        same(ibv_destroy_qp(qp), 0);
        close_all();
    }
}

/* ---- what cases/multicast.py asks for, a line each ---- */

/* Whether something that is sent to a group comes back. */
static bool echoes(struct ibv_qp *qp, union ibv_gid gid)
{
    static uint64_t word;
    struct ibv_ah *ah = way_to(gid);
    struct ibv_wc wc;
    bool came_back = false;
    send_to(qp, ah, 8, ++word);
    uint64_t until = now_ns() + 300 * 1000000ull;
    for (bool sent = false; now_ns() < until && !(sent && came_back);) {
        if (ibv_poll_cq(cq, 1, &wc) != 1)
            continue;
        same(wc.status, 0);
        if (wc.wr_id == 77) {
            sent = true;
            until = now_ns() + 300 * 1000000ull;
            continue;
        }
        came_back = came_back || ntohl(wc.imm_data) == word;
        give(qp, wc.wr_id);
    }
    same(ibv_destroy_ah(ah), 0);
    return came_back;
}

/* `attach GROUP` and `detach GROUP` print an errno; `echo GROUP` prints whether it gets its own. */
TEST(member)
{
    open_all();
    struct ibv_qp *qp = queue();
    give(qp, 0);
    printf("ready\n");
    fflush(stdout);
    char line[100], what[20], name[60];
    while (fgets(line, sizeof line, stdin)) {
        check(sscanf(line, "%19s %59s", what, name) == 2, "what is %s?", line);
        union ibv_gid gid = group(name);
        printf("%d\n", !strcmp(what, "attach") ? ibv_attach_mcast(qp, &gid, 0)
                      : !strcmp(what, "detach") ? ibv_detach_mcast(qp, &gid, 0)
                                                : echoes(qp, gid));
        fflush(stdout);
    }
    _exit(0);
}

/* ---- two processes ---- */

static const char *groups[2] = {"239.9.9.9", "ff15::9:9"};

static void listen_to(int socket)
{
    open_all();
    struct ibv_qp *qp = queue();
    for (int family = 0; family < 2; family++) {
        union ibv_gid gid = group(groups[family]);
        struct address theirs;
        get(socket, &theirs, sizeof theirs);
        if (!theirs.qpn) /* it has no address of that kind */
            break;
        same(ibv_attach_mcast(qp, &gid, 0), 0);
        meet(socket);
        give(qp, 0);
        came(completion(cq, 20000), 0, 5, 0, theirs.qpn, gid);
        meet(socket);
        for (uint64_t word = 1; word < 20; word++) {
            give(qp, 0);
            meet(socket);
            came(completion(cq, 20000), 0, 100 + (uint32_t)word, word, theirs.qpn, gid);
            meet(socket);
        }
        /* The other one is for its own queue pair as before: none of this comes here. */
        same(ibv_detach_mcast(qp, &gid, 0), 0);
        give(qp, 1);
        meet(socket);
        meet(socket);
        expect_none(cq, 100);
        same(ibv_destroy_qp(qp), 0);
        qp = queue();
        expect_none(cq, 0);
    }
    same(ibv_destroy_qp(qp), 0);
    close_all();
}

TEST(two_processes)
{
    pid_t child;
    int socket = spawn(listen_to, &child);
    open_all();
    for (int family = 0; family < 2; family++) {
        struct ibv_qp *qp = queue();
        union ibv_gid gid = group(groups[family]);
        struct address ours = qp_address(&d, qp, NULL);
        int index = d.gid_index, six = -1;
        for (int i = 0; i < d.port.gid_tbl_len; i++) {
            union ibv_gid own;
            if (!ibv_query_gid(d.context, 1, i, &own) && own.raw[0] == 0xfd)
                six = i;
        }
        if (family && six < 0) {
            printf("no address of IPv6\n");
            ours.qpn = 0;
            put(socket, &ours, sizeof ours);
            same(ibv_destroy_qp(qp), 0);
            break;
        }
        put(socket, &ours, sizeof ours);
        d.gid_index = family ? six : index;
        struct ibv_ah *ah = way_to(gid);
        d.gid_index = index;
        meet(socket);
        send_to(qp, ah, 5, 0); /* the very first one is not lost */
        expect(cq, 77, 0);
        meet(socket);
        for (uint64_t word = 1; word < 20; word++) {
            meet(socket);
            send_to(qp, ah, 100 + (uint32_t)word, word);
            expect(cq, 77, 0);
            meet(socket);
        }
        meet(socket);
        send_to(qp, ah, 10, 5);
        expect(cq, 77, 0);
        meet(socket);
        same(ibv_destroy_ah(ah), 0);
        same(ibv_destroy_qp(qp), 0);
    }
    reap(child);
    close_all();
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
