/* Options of queue pairs that are said when a connection is made ("enhanced connection
 * establishment"): both sides hear the other's, a request can be refused for them, and a queue pair
 * of ours has none. With TEST_PEERS the second process is elsewhere. */
#include "common.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

enum { VENDOR = 0xabcdef, OURS = 0x89abcdef, THEIRS = 0x01020304, REFUSED = 35 };

static struct device d;
static struct ibv_cq *cq;
static struct rdma_event_channel *channel;

static void open_all(void)
{
    device_open(&d);
    channel = rdma_create_event_channel();
    check(channel, "rdma_create_event_channel: %m");
}

/* The next event must be this. */
static struct rdma_cm_event *told(enum rdma_cm_event_type type, int status)
{
    struct rdma_cm_event *event;
    check(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event: %m");
    check(event->event == type && event->status == status, "%s, %d", rdma_event_str(event->event),
          event->status);
    return event;
}

static void pass(enum rdma_cm_event_type type)
{
    check(!rdma_ack_cm_event(told(type, 0)), "rdma_ack_cm_event: %m");
}

/* A queue pair of the program's own for an identifier that has a device. */
static struct ibv_qp *queue(struct rdma_cm_id *id)
{
    if (!cq)
        cq = ibv_create_cq(id->verbs, 10, NULL, NULL, 0);
    struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                 .cap = {4, 4, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(id->pd, &a);
    check(qp, "ibv_create_qp: %m");
    return qp;
}

static void move(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr a = {.qp_state = state};
    int mask;
    check(!rdma_init_qp_attr(id, &a, &mask), "rdma_init_qp_attr: %m");
    same(ibv_modify_qp(qp, &a, mask), 0);
}

static void to_ready(struct rdma_cm_id *id, struct ibv_qp *qp)
{
    move(id, qp, IBV_QPS_INIT);
    move(id, qp, IBV_QPS_RTR);
    move(id, qp, IBV_QPS_RTS);
}

static void peers_options(struct rdma_cm_id *id, uint32_t vendor, uint32_t options)
{
    struct ibv_ece ece = {1, 1, 1};
    check(!rdma_get_remote_ece(id, &ece), "rdma_get_remote_ece: %m");
    check(ece.vendor_id == vendor && ece.options == options && !ece.comp_mask,
          "vendor %x, options %x, mask %x", ece.vendor_id, ece.options, ece.comp_mask);
}

static void own_options(struct rdma_cm_id *id, uint32_t options)
{
    struct ibv_ece ece = {.vendor_id = VENDOR, .options = options};
    check(!rdma_set_local_ece(id, &ece), "rdma_set_local_ece: %m");
}

static struct rdma_cm_id *identifier(void)
{
    struct rdma_cm_id *id;
    check(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id: %m");
    return id;
}

static struct rdma_cm_id *asked(uint32_t vendor, uint32_t options)
{
    struct rdma_cm_event *event = told(RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    struct rdma_cm_id *id = event->id;
    check(!rdma_ack_cm_event(event), "rdma_ack_cm_event: %m");
    peers_options(id, vendor, options);
    return id;
}

static void end(struct rdma_cm_id *id, struct ibv_qp *qp)
{
    if (qp)
        same(ibv_destroy_qp(qp), 0);
    check(!rdma_destroy_id(id), "rdma_destroy_id: %m");
}

/* Whom the other process connects to. */
static void called(int socket)
{
    open_all();
    struct sockaddr_in address = {.sin_family = AF_INET};
    memcpy(&address.sin_addr, d.gid.raw + 12, 4);
    struct rdma_cm_id *listener = identifier();
    check(!rdma_bind_addr(listener, (struct sockaddr *)&address), "rdma_bind_addr: %m");
    check(!rdma_listen(listener, 5), "rdma_listen: %m");
    address.sin_port = rdma_get_src_port(listener);
    put(socket, &address, sizeof address);

    struct rdma_cm_id *id = asked(VENDOR, OURS);
    struct ibv_qp *qp = queue(id);
    struct rdma_conn_param param = {.qp_num = qp->qp_num};
    own_options(id, THEIRS);
    to_ready(id, qp);
    check(!rdma_accept(id, &param), "rdma_accept: %m");
    pass(RDMA_CM_EVENT_ESTABLISHED);
    meet(socket);
    end(id, qp);

    id = asked(VENDOR, OURS);
    check(!rdma_reject_ece(id, NULL, 0), "rdma_reject_ece: %m");
    end(id, NULL);

    /* One of ours has no options, whatever was said before it was made. */
    id = asked(0, 0);
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    check(!rdma_create_qp(id, NULL, &attr), "rdma_create_qp: %m");
    struct ibv_ece ece = {.vendor_id = VENDOR};
    same(rdma_set_local_ece(id, &ece), -1);
    same(errno, EINVAL);
    same(rdma_get_remote_ece(id, &ece), -1);
    same(errno, EINVAL);
    check(!rdma_accept(id, NULL), "rdma_accept: %m");
    pass(RDMA_CM_EVENT_ESTABLISHED);
    meet(socket);
    rdma_destroy_qp(id);
    end(id, NULL);
    end(listener, NULL);
    rdma_destroy_event_channel(channel);
}

static struct rdma_cm_id *resolved(struct sockaddr_in *address)
{
    struct rdma_cm_id *id = identifier();
    own_options(id, OURS);
    check(!rdma_resolve_addr(id, NULL, (struct sockaddr *)address, 5000), "rdma_resolve_addr: %m");
    pass(RDMA_CM_EVENT_ADDR_RESOLVED);
    check(!rdma_resolve_route(id, 5000), "rdma_resolve_route: %m");
    pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
    return id;
}

TEST(options)
{
    pid_t pid;
    int socket = spawn(called, &pid);
    struct sockaddr_in address;
    open_all();
    get(socket, &address, sizeof address);

    struct rdma_cm_id *id = resolved(&address);
    struct ibv_qp *qp = queue(id);
    struct rdma_conn_param param = {.qp_num = qp->qp_num, .retry_count = 7};
    check(!rdma_connect(id, &param), "rdma_connect: %m");
    pass(RDMA_CM_EVENT_CONNECT_RESPONSE);
    peers_options(id, VENDOR, THEIRS);
    to_ready(id, qp);
    check(!rdma_establish(id), "rdma_establish: %m");
    meet(socket);
    pass(RDMA_CM_EVENT_DISCONNECTED);
    end(id, qp);

    id = resolved(&address);
    qp = queue(id);
    param.qp_num = qp->qp_num;
    check(!rdma_connect(id, &param), "rdma_connect: %m");
    check(!rdma_ack_cm_event(told(RDMA_CM_EVENT_REJECTED, REFUSED)), "rdma_ack_cm_event: %m");
    end(id, qp);

    id = resolved(&address);
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    check(!rdma_create_qp(id, NULL, &attr), "rdma_create_qp: %m");
    check(!rdma_connect(id, NULL), "rdma_connect: %m");
    pass(RDMA_CM_EVENT_ESTABLISHED);
    meet(socket);
    rdma_destroy_qp(id);
    end(id, NULL);
    rdma_destroy_event_channel(channel);
    reap(pid);
}

TEST(what_is_refused)
{
    open_all();
    struct rdma_cm_id *id = identifier();
    struct ibv_ece wrong[] = {{0, 1, 0}, {VENDOR, 1, 1}};
    for (unsigned i = 0; i < 2; i++) {
        same(rdma_set_local_ece(id, &wrong[i]), -1);
        same(errno, EINVAL);
    }
    same(rdma_set_local_ece(id, NULL), -1);
    same(rdma_get_remote_ece(NULL, wrong), -1);
    peers_options(id, 0, 0);
    end(id, NULL);
    rdma_destroy_event_channel(channel);
}

int main(int count, char **words)
{
    return run_tests(count, words);
}
