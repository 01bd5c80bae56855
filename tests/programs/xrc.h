/* Domains of XRC, and what is made in them. */
#include "common.h"

#include <fcntl.h>

enum { BYTES = 200000, RECEIVES = 16 };

static struct device d;
static struct ibv_mr *mr;
static char *memory;

static void begin(void)
{
    device_open(&d);
    check(d.attributes.device_cap_flags & IBV_DEVICE_XRC, "XRC is not offered");
    memory = aligned_alloc(4096, 1 << 18);
    mr = mr_make(&d, memory, BYTES, ALL_ACCESS);
}

static struct ibv_xrcd *domain(int file, int flags)
{
    struct ibv_xrcd_init_attr a = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = file,
        .oflags = flags};
    return ibv_open_xrcd(d.context, &a);
}

static struct ibv_srq *srq_make(struct ibv_xrcd *xrcd, struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_srq_init_attr_ex a = {
        .attr = {.max_wr = RECEIVES, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = pd,
        .xrcd = xrcd, .cq = cq,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                     IBV_SRQ_INIT_ATTR_CQ};
    struct ibv_srq *srq = ibv_create_srq_ex(d.context, &a);
    check(srq, "ibv_create_srq_ex: %m");
    return srq;
}

static struct ibv_qp *receiver_make(struct ibv_xrcd *xrcd)
{
    struct ibv_qp_init_attr_ex a = {.qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd,
                                    .comp_mask = IBV_QP_INIT_ATTR_XRCD};
    struct ibv_qp *qp = ibv_create_qp_ex(d.context, &a);
    check(qp, "ibv_create_qp_ex: %m");
    same(qp->qp_type, IBV_QPT_XRC_RECV);
    return qp;
}

static struct ibv_qp *opened(struct ibv_xrcd *xrcd, uint32_t number)
{
    struct ibv_qp_open_attr a = {
        .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE |
                     IBV_QP_OPEN_ATTR_CONTEXT,
        .qp_num = number, .xrcd = xrcd, .qp_context = &d, .qp_type = IBV_QPT_XRC_RECV};
    return ibv_open_qp(d.context, &a);
}
