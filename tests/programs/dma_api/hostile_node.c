/* Connects to a node by rdma_cm itself, and says what no node says: hostile_node WHAT ADDRESS PORT.
 * Ends well if the node ends the connection, and refuses those who do not say what they are. */
#include "../common.h"

#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

static const uint8_t hello[8] = "omvdma\1";

struct message {
    uint32_t kind, rights;
    uint64_t id, serial, address, length;
    uint32_t rkey, zero;
};

static struct rdma_cm_id *id;
static struct ibv_mr *mr;
static struct message *messages;
enum { ROOM = 1 << 16, BUFFER = 1, WITHDRAWN, LET_GO, ALL };

static bool reach(bool greets)
{
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *found;
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 64, .max_recv_wr = 512, .max_send_sge = 1, .max_recv_sge = 1}};
    check(!rdma_getaddrinfo(arguments[0], arguments[1], &hints, &found), "rdma_getaddrinfo: %m");
    check(!rdma_create_ep(&id, found, NULL, &attr), "rdma_create_ep: %m");
    rdma_freeaddrinfo(found);
    messages = calloc(1, ROOM);
    mr = rdma_reg_msgs(id, messages, ROOM);
    check(mr, "rdma_reg_msgs: %m");
    for (int i = 0; i < 512; i++)
        check(!rdma_post_recv(id, NULL, (char *)messages + ROOM / 2, 64, mr), "rdma_post_recv: %m");
    struct rdma_conn_param with = {.private_data = hello, .private_data_len = greets ? 8 : 0,
                                   .responder_resources = 1, .initiator_depth = 1,
                                   .retry_count = 7, .rnr_retry_count = 7};
    return !rdma_connect(id, &with);
}

/* Sends some bytes; false if the connection has ended. */
static bool say(const void *what, size_t bytes)
{
    struct ibv_wc done;
    memcpy(messages, what, bytes);
    if (rdma_post_send(id, NULL, messages, bytes, mr, IBV_SEND_SIGNALED))
        return false;
    return rdma_get_send_comp(id, &done) == 1 && done.status == IBV_WC_SUCCESS;
}

static bool tell(uint32_t kind, uint64_t buffer, uint64_t serial)
{
    struct message message = {.kind = kind, .serial = serial};
    if (kind == BUFFER)
        message = (struct message){kind, 3, buffer, serial, 4096, 4096, 7, 0};
    return say(&message, sizeof message);
}

/* The node has ended it; waits for that, if `waits`. */
static bool has_ended(bool waits)
{
    struct pollfd news = {.fd = id->channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    if (!waits && poll(&news, 1, 0) <= 0)
        return false;
    check(!rdma_get_cm_event(id->channel, &event), "rdma_get_cm_event: %m");
    same(event->event, RDMA_CM_EVENT_DISCONNECTED);
    rdma_ack_cm_event(event);
    return true;
}

static void is_ended(void)
{
    has_ended(true);
}

TEST(says_nothing_of_itself)
{
    check(!reach(false), "a stranger was let in");
    same(errno, ECONNREFUSED);
}

TEST(a_kind_that_there_is_not)
{
    check(reach(true), "rdma_connect: %m");
    tell(9, 0, 0);
    is_ended();
}

TEST(too_short)
{
    check(reach(true), "rdma_connect: %m");
    say("x", 1);
    is_ended();
}

TEST(too_long)
{
    static char much[1000];
    check(reach(true), "rdma_connect: %m");
    say(much, sizeof much);
    is_ended();
}

TEST(a_buffer_twice)
{
    check(reach(true), "rdma_connect: %m");
    tell(BUFFER, 5, 1);
    tell(BUFFER, 5, 2);
    is_ended();
}

TEST(what_was_not_withdrawn)
{
    check(reach(true), "rdma_connect: %m");
    tell(LET_GO, 0, 1);
    is_ended();
}

TEST(too_many_buffers)
{
    check(reach(true), "rdma_connect: %m");
    for (uint64_t serial = 1; serial <= 4096; serial++)
        check(tell(BUFFER, serial, serial), "only %" PRIu64, serial);
    check(!has_ended(false), "ended with as many as there may be");
    tell(BUFFER, 5000, 5000);
    is_ended();
}

/* Connects again and again, and never says what it has. There are places for others, and for those
 * whom the node connects with. */
TEST(greets_again_and_again)
{
    int places = 0;
    while (places < 40 && reach(true))
        places++;
    same(errno, ECONNREFUSED);
    /* The node may not have noticed yet that somebody before has gone. */
    check(places > 20 && places <= 32, "%d places", places);
}

TEST(greets_for_ever)
{
    check(reach(true), "rdma_connect: %m");
    is_ended();
}

/* Half a message, so to speak: is connected, and goes. The node must not wait for it. */
TEST(goes_at_once)
{
    check(reach(true), "rdma_connect: %m");
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
