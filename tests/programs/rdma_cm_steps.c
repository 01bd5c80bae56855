/* Connects by address, one step after the other: `connecting tcp|udp ADDRESS PORT STEP...`. Each
 * step prints a line: its name and 0 or an error; of an event the name and the status. Cases
 * (tests/cases/rdma_cm_deaths.py) kill one of two such programs when both are at a `stop`. */
#include "common.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

enum { PATIENCE_MS = 60000, NOTHING_MS = 300 };

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id, *listener;
static struct sockaddr_in address = {.sin_family = AF_INET};
static enum rdma_port_space space;
/* Of a queue pair that is not the id's: who has one says by itself that it is ready. */
static uint32_t own_number;

static void said(const char *step, int failed)
{
    printf("%s %s\n", step, failed ? strerror(errno) : "0");
}

static bool comes(int limit_ms)
{
    struct pollfd file = {.fd = channel->fd, .events = POLLIN};
    return poll(&file, 1, limit_ms) > 0;
}

/* Takes the next event. The id of a request is the one that all else is done with. */
static void take(void)
{
    struct rdma_cm_event *event;
    if (!comes(PATIENCE_MS)) {
        puts("no event");
        return;
    }
    check(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event: %m");
    printf("%s %d\n", rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_"), event->status);
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
        id = event->id;
    check(!rdma_ack_cm_event(event), "rdma_ack_cm_event: %m");
}

static void listen_step(void)
{
    check(!rdma_create_id(channel, &listener, NULL, space), "rdma_create_id: %m");
    check(!rdma_bind_addr(listener, (struct sockaddr *)&address), "rdma_bind_addr: %m");
    said("listen", rdma_listen(listener, 5));
}

static void resolve(void)
{
    check(!rdma_create_id(channel, &id, NULL, space), "rdma_create_id: %m");
    check(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 5000), "rdma_resolve_addr: %m");
    take();
    check(!rdma_resolve_route(id, 5000), "rdma_resolve_route: %m");
    take();
}

static void queue_pair(void)
{
    struct ibv_qp_init_attr a = {.cap = {4, 4, 1, 1, 0},
                                 .qp_type = space == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC};
    said("qp", rdma_create_qp(id, NULL, &a));
}

static void own_queue_pair(void)
{
    struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
    struct ibv_cq *cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr a = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC, .send_cq = cq,
                                 .recv_cq = cq};
    struct ibv_qp *qp = pd && cq ? ibv_create_qp(pd, &a) : NULL;
    said("own", !qp);
    own_number = qp ? qp->qp_num : 0;
}

static struct rdma_conn_param *parameters(void)
{
    static struct rdma_conn_param p;
    p = (struct rdma_conn_param){.private_data = "hello", .private_data_len = 5,
                                 .responder_resources = 1, .initiator_depth = 1,
                                 .retry_count = 7, .rnr_retry_count = 7, .qp_num = own_number};
    return &p;
}

static void destroy(void)
{
    if (id && id->qp)
        rdma_destroy_qp(id);
    int failed = (id && rdma_destroy_id(id)) || (listener && rdma_destroy_id(listener));
    id = listener = NULL;
    said("destroy", failed);
}

/* Until somebody says that it may go on. */
static void stop(void)
{
    int c;
    puts("stopped");
    do
        c = getchar();
    while (c != '\n' && c != EOF);
}

static void step(const char *name)
{
    if (!strcmp(name, "listen"))
        listen_step();
    else if (!strcmp(name, "resolve"))
        resolve();
    else if (!strcmp(name, "qp"))
        queue_pair();
    else if (!strcmp(name, "own"))
        own_queue_pair();
    else if (!strcmp(name, "connect"))
        said(name, rdma_connect(id, parameters()));
    else if (!strcmp(name, "accept"))
        said(name, rdma_accept(id, parameters()));
    else if (!strcmp(name, "establish"))
        said(name, rdma_establish(id));
    else if (!strcmp(name, "disconnect"))
        said(name, rdma_disconnect(id));
    else if (!strcmp(name, "event"))
        take();
    else if (!strcmp(name, "nothing"))
        puts(comes(NOTHING_MS) ? "an event" : "nothing");
    else if (!strcmp(name, "destroy"))
        destroy();
    else if (!strcmp(name, "stop"))
        stop();
    else
        die("no such step: %s", name);
}

int main(int count, char **words)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    check(count > 4, "connecting tcp|udp ADDRESS PORT STEP...");
    space = strcmp(words[1], "udp") ? RDMA_PS_TCP : RDMA_PS_UDP;
    check(inet_pton(AF_INET, words[2], &address.sin_addr) == 1, "no address: %s", words[2]);
    address.sin_port = htons((uint16_t)atoi(words[3]));
    channel = rdma_create_event_channel();
    check(channel, "rdma_create_event_channel: %m");
    for (int i = 4; i < count; i++)
        step(words[i]);
    return 0;
}
