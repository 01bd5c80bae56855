/* A gateway that lies: for tests/cases/light_two_hosts.py.
 *
 *     hostile_gateway ADDRESS PORT COUNT SEED
 *
 * Connects to the gateway of another host so many times, and says there what a gateway says, or
 * something else: letters of words that mean nothing, of no length that there is, in no order;
 * bytes written anywhere into the memory of a channel that it is given, and beyond it. A channel it
 * is given since it has a connection of TCP to the server as well. Says `sound N` at the end, N
 * being how many channels it was given.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    GATEWAY_PORT = 7473,
    /* sockets/formats/src/channel_layout.rs, channel_mirror.rs: bytes of a channel, words of a
     * side. */
    CHANNEL_BYTES = 2658304,
    SIDE_WORDS = 51,
    LONGEST = 8 * (3 + SIDE_WORDS),
    RECEIVES = 64,
    PLACE = 512,
    SCRATCH = 65536,
    PROVE = 1,
    PROVEN = 2,
    MEMORY = 4,
    NEWS = 5,
};
/* Milliseconds that a step may take, and a whole attack. */
enum { STEP = 3000, ATTACK = 150 };

static uint64_t state;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

struct gateway {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_cq *cq;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    char *memory;
    uint64_t address;
    uint32_t rkey;
    int is_proven, has_memory, is_over;
};

static int expect(struct gateway *gateway, enum rdma_cm_event_type what) {
    struct pollfd wanted = {.fd = gateway->channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    if (poll(&wanted, 1, STEP) != 1 || rdma_get_cm_event(gateway->channel, &event))
        return -1;
    int is_it = event->event == what;
    rdma_ack_cm_event(event);
    return is_it ? 0 : -1;
}

static void receive(struct gateway *gateway, uint64_t place) {
    struct ibv_sge piece = {(uintptr_t)gateway->memory + place * PLACE, PLACE, gateway->mr->lkey};
    struct ibv_recv_wr request = {.wr_id = place, .sg_list = &piece, .num_sge = 1}, *bad;
    gateway->is_over |= ibv_post_recv(gateway->id->qp, &request, &bad) != 0;
}

static int open_gateway(struct gateway *gateway, const char *address) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(GATEWAY_PORT)};
    inet_pton(AF_INET, address, &to.sin_addr);
    uint64_t hello[4] = {0x4f4d564645525259, 3, CHANNEL_BYTES, SIDE_WORDS};
    struct rdma_conn_param with = {.private_data = hello, .private_data_len = sizeof hello,
                                   .retry_count = 7, .rnr_retry_count = 7};
    gateway->channel = rdma_create_event_channel();
    if (!gateway->channel || rdma_create_id(gateway->channel, &gateway->id, NULL, RDMA_PS_TCP) ||
        rdma_resolve_addr(gateway->id, NULL, (struct sockaddr *)&to, STEP) ||
        expect(gateway, RDMA_CM_EVENT_ADDR_RESOLVED) || rdma_resolve_route(gateway->id, STEP) ||
        expect(gateway, RDMA_CM_EVENT_ROUTE_RESOLVED))
        return -1;
    gateway->pd = ibv_alloc_pd(gateway->id->verbs);
    gateway->cq = ibv_create_cq(gateway->id->verbs, 512, NULL, NULL, 0);
    gateway->memory = aligned_alloc(4096, RECEIVES * PLACE + SCRATCH);
    gateway->mr = ibv_reg_mr(gateway->pd, gateway->memory, RECEIVES * PLACE + SCRATCH,
                           IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp_init_attr attr = {.send_cq = gateway->cq, .recv_cq = gateway->cq,
                                    .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
                                    .cap = {.max_send_wr = 128, .max_recv_wr = RECEIVES,
                                            .max_send_sge = 1, .max_recv_sge = 1}};
    if (!gateway->mr || !gateway->cq || rdma_create_qp(gateway->id, gateway->pd, &attr))
        return -1;
    for (int place = 0; place < RECEIVES; place++)
        receive(gateway, place);
    return rdma_connect(gateway->id, &with) || expect(gateway, RDMA_CM_EVENT_ESTABLISHED) ? -1 : 0;
}

static void close_gateway(struct gateway *gateway) {
    rdma_disconnect(gateway->id);
    if (gateway->id->qp)
        rdma_destroy_qp(gateway->id);
    if (gateway->mr)
        ibv_dereg_mr(gateway->mr);
    ibv_destroy_cq(gateway->cq);
    ibv_dealloc_pd(gateway->pd);
    rdma_destroy_id(gateway->id);
    rdma_destroy_event_channel(gateway->channel);
    free(gateway->memory);
}

/* What is done, and what has come: as many requests are posted as are counted. */
static int take(struct gateway *gateway, int *posted) {
    struct ibv_wc done[16];
    int count = ibv_poll_cq(gateway->cq, 16, done);
    for (int at = 0; at < count; at++) {
        if (done[at].status != IBV_WC_SUCCESS) {
            gateway->is_over = 1;
        } else if (done[at].opcode & IBV_WC_RECV) {
            uint64_t words[PLACE / 8];
            memcpy(words, gateway->memory + done[at].wr_id * PLACE, PLACE);
            gateway->is_proven |= (uint32_t)words[0] == PROVEN;
            if ((uint32_t)words[0] == MEMORY) {
                gateway->address = words[1];
                gateway->rkey = words[2];
                gateway->has_memory = 1;
            }
            receive(gateway, done[at].wr_id);
            continue;
        }
        --*posted;
    }
    return count;
}

static void post(struct gateway *gateway, size_t bytes, int is_write, uint64_t offset,
                 int *posted) {
    struct ibv_sge piece = {
        (uintptr_t)gateway->memory + RECEIVES * PLACE, bytes, gateway->mr->lkey};
    struct ibv_send_wr request = {.sg_list = &piece, .num_sge = 1,
                                  .opcode = is_write ? IBV_WR_RDMA_WRITE : IBV_WR_SEND}, *bad;
    request.wr.rdma.remote_addr = gateway->address + offset;
    request.wr.rdma.rkey = gateway->rkey;
    if (ibv_post_send(gateway->id->qp, &request, &bad) == 0)
        ++*posted;
    else
        gateway->is_over = 1;
    /* One at a time, since all lie in the same place. */
    long until = now() + STEP;
    struct pollfd ends = {.fd = gateway->channel->fd, .events = POLLIN};
    while (*posted && !gateway->is_over && now() < until) {
        take(gateway, posted);
        gateway->is_over |= poll(&ends, 1, 0) > 0;
    }
}

static uint64_t *scratch(struct gateway *gateway) {
    return (uint64_t *)(gateway->memory + RECEIVES * PLACE);
}

static void prove(struct gateway *gateway, int end, int *posted) {
    struct sockaddr_in own, peer;
    socklen_t length = sizeof own;
    getsockname(end, (struct sockaddr *)&own, &length);
    length = sizeof peer;
    getpeername(end, (struct sockaddr *)&peer, &length);
    uint64_t *words = scratch(gateway);
    /* Kind, addresses, ports, and how many letters were read. */
    memset(words, 0, 64);
    words[0] = PROVE;
    words[5] = ntohs(own.sin_port);
    words[6] = ntohs(peer.sin_port);
    char *addresses = (char *)&words[1];
    memset(addresses + 10, 0xff, 2);
    memcpy(addresses + 12, &own.sin_addr, 4);
    memset(addresses + 26, 0xff, 2);
    memcpy(addresses + 28, &peer.sin_addr, 4);
    if (draw() % 8 == 0)
        addresses[draw() % 32] ^= 1;
    post(gateway, 64, 0, 0, posted);
    long until = now() + STEP;
    while (!gateway->has_memory && !gateway->is_over && now() < until)
        if (take(gateway, posted) == 0)
            usleep(100);
}

/* A number that is small, or near one that means something, or any. */
static uint64_t number(void) {
    static const uint64_t near[] = {0, 1, 65536, 262144, CHANNEL_BYTES, 1ULL << 32, 1ULL << 51, -1};
    uint64_t kind = draw() % 3;
    if (kind == 0)
        return draw() % 70000;
    return kind == 1 ? near[draw() % 8] + draw() % 17 - 8 : draw();
}

static void lie(struct gateway *gateway, int *posted) {
    uint64_t *words = scratch(gateway);
    if (gateway->has_memory && draw() % 2) {
        size_t bytes = 8 + draw() % 4096;
        for (size_t at = 0; at < bytes / 8 + 1; at++)
            words[at] = number();
        /* Where words are, mostly; sometimes beyond all. */
        uint64_t offset = draw() % 3 ? draw() % 4096 : draw() % (CHANNEL_BYTES - bytes);
        post(gateway, bytes, 1, draw() % 50 ? offset : number(), posted);
        return;
    }
    size_t count = 1 + draw() % (LONGEST / 8 + 2);
    for (size_t at = 0; at < count; at++)
        words[at] = number();
    words[0] = draw() % 3 ? NEWS : draw() % 10;
    if (words[0] == NEWS && draw() % 4) {
        words[1] = (draw() & draw()) & ((1ULL << SIDE_WORDS) - 1);
        count = 3 + __builtin_popcountll(words[1]);
    }
    if (draw() % 20)
        words[count - 1] = 0;
    post(gateway, count * 8 - (draw() % 30 == 0), 0, 0, posted);
}

int main(int count, char **words) {
    if (count != 5)
        return 2;
    int attacks = atoi(words[3]), given = 0;
    state = strtoull(words[4], NULL, 0) * 0x9e3779b97f4a7c15 + 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
    inet_pton(AF_INET, words[1], &to.sin_addr);
    for (int attack = 0; attack < attacks; attack++) {
        int end = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(end, (struct sockaddr *)&to, sizeof to))
            return perror("connect"), 1;
        struct gateway gateway = {0};
        int posted = 0;
        if (open_gateway(&gateway, words[1]))
            return fprintf(stderr, "attack %d: no gateway any more\n", attack), 1;
        if (draw() % 6)
            prove(&gateway, end, &posted);
        given += gateway.has_memory;
        for (long until = now() + ATTACK; now() < until && !gateway.is_over;)
            lie(&gateway, &posted);
        close_gateway(&gateway);
        close(end);
    }
    printf("sound %d\n", given);
    return 0;
}
