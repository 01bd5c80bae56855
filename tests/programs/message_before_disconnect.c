/* A last message: the client connects by address, sends it without asking for a completion, and
 * disconnects at once; the server must get it. `last_message ADDRESS s|c`: 40 connections, one
 * after the other; the server says how many messages came. */
#include "common.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

enum { TURNS = 40, PORT = 7471, PATIENCE_MS = 20000 };

static char bytes[64];
static struct sockaddr_in address = {.sin_family = AF_INET};

/* The next event, and its id. What is over of an older connection is none. */
static enum rdma_cm_event_type next(struct rdma_event_channel *channel, struct rdma_cm_id **id)
{
    for (;;) {
        struct rdma_cm_event *event;
        check(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event: %m");
        *id = event->id;
        enum rdma_cm_event_type came = event->event;
        check(!rdma_ack_cm_event(event), "rdma_ack_cm_event: %m");
        if (came != RDMA_CM_EVENT_TIMEWAIT_EXIT)
            return came;
    }
}

/* The next event must be this; its id. */
static struct rdma_cm_id *event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
    struct rdma_cm_id *id;
    enum rdma_cm_event_type came = next(channel, &id);
    check(came == kind, "%s, not %s", rdma_event_str(came), rdma_event_str(kind));
    return id;
}

static struct ibv_mr *with_queue_pair(struct rdma_cm_id *id)
{
    struct ibv_cq *cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
    check(cq, "ibv_create_cq: %m");
    struct ibv_qp_init_attr a = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC, .send_cq = cq,
                                 .recv_cq = cq};
    check(!rdma_create_qp(id, NULL, &a), "rdma_create_qp: %m");
    struct ibv_mr *mr = ibv_reg_mr(id->pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    check(mr, "ibv_reg_mr: %m");
    return mr;
}

static void end(struct rdma_cm_id *id, struct ibv_mr *mr)
{
    struct ibv_cq *cq = id->qp->send_cq;
    rdma_destroy_qp(id);
    same(ibv_destroy_cq(cq), 0);
    same(ibv_dereg_mr(mr), 0);
    check(!rdma_destroy_id(id), "rdma_destroy_id: %m");
}

static struct rdma_conn_param parameters = {.retry_count = 7, .rnr_retry_count = 7};

static void serve(struct rdma_event_channel *channel)
{
    struct rdma_cm_id *listener;
    check(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id: %m");
    check(!rdma_bind_addr(listener, (struct sockaddr *)&address), "rdma_bind_addr: %m");
    check(!rdma_listen(listener, 5), "rdma_listen: %m");
    int came = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        struct rdma_cm_id *id = event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
        struct ibv_mr *mr = with_queue_pair(id);
        memset(bytes, 0, sizeof bytes);
        receive(id->qp, 1, bytes, sizeof bytes, mr->lkey);
        check(!rdma_accept(id, &parameters), "rdma_accept: %m");
        /* Where the RTU is lost the DREQ may come first (cm_dreq_handler() of Linux). */
        struct rdma_cm_id *same_id;
        if (next(channel, &same_id) != RDMA_CM_EVENT_DISCONNECTED)
            event(channel, RDMA_CM_EVENT_DISCONNECTED);
        rdma_disconnect(id);
        struct ibv_wc wc = completion(id->qp->recv_cq, PATIENCE_MS);
        came += wc.status == IBV_WC_SUCCESS && !strcmp(bytes, "the last one");
        end(id, mr);
    }
    printf("%d of %d came\n", came, TURNS);
    check(came == TURNS, "%d of %d last messages came", came, TURNS);
    check(!rdma_destroy_id(listener), "rdma_destroy_id: %m");
}

static void send_one(struct rdma_event_channel *channel)
{
    struct rdma_cm_id *id;
    check(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id: %m");
    check(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 5000), "rdma_resolve_addr: %m");
    event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    check(!rdma_resolve_route(id, 5000), "rdma_resolve_route: %m");
    event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct ibv_mr *mr = with_queue_pair(id);
    check(!rdma_connect(id, &parameters), "rdma_connect: %m");
    event(channel, RDMA_CM_EVENT_ESTABLISHED);
    strcpy(bytes, "the last one");
    struct operation o = {.opcode = IBV_WR_SEND, .local = bytes, .bytes = sizeof bytes,
                          .lkey = mr->lkey};
    same(try_post(id->qp, o), 0);
    check(!rdma_disconnect(id), "rdma_disconnect: %m");
    event(channel, RDMA_CM_EVENT_DISCONNECTED);
    end(id, mr);
}

int main(int count, char **words)
{
    check(count == 3, "last_message ADDRESS s|c");
    address.sin_port = htons(PORT);
    check(inet_pton(AF_INET, words[1], &address.sin_addr) == 1, "no address: %s", words[1]);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    check(channel, "rdma_create_event_channel: %m");
    if (*words[2] == 's')
        serve(channel);
    for (int turn = 0; *words[2] == 'c' && turn < TURNS; turn++)
        send_one(channel);
    rdma_destroy_event_channel(channel);
    puts("end");
    return 0;
}
