/*
 * A null RDMA device: every work request completes the moment it is posted and no data moves.
 *
 * perftest on top of it runs at the speed of its own loops, which is the highest message rate and
 * the lowest latency perftest can show on this machine. Only what ib_send_* and ib_write_* call is
 * here; build.py adds a stub for every other symbol the programs import. A measuring tool, not a
 * library: do not use it for anything else.
 *
 * ib_write_lat does not look at completions but waits for the peer's byte to appear in memory.
 * With NULL_VERBS_ECHO set, posting a WRITE puts that byte in place at once, as if the peer had
 * answered: "server" (which sends first) gets the number just sent, "client" the next one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

/* Providers that get a device look just behind the public part: keep that readable and zero. */
static struct {
	struct ibv_device public;
	char spare[128];
} device = {
	.public = {
		.node_type = IBV_NODE_CA,
		.transport_type = IBV_TRANSPORT_IB,
		.name = "null0",
		.dev_name = "uverbs0",
	},
};

struct completion {
	uint64_t wr_id;
	uint32_t opcode;
	uint32_t length;
	uint32_t qp_num;
};

struct null_cq {
	struct ibv_cq_ex public;
	uint32_t mask, head, tail;
	struct completion ring[];
};

struct null_qp {
	struct ibv_qp_ex public;
	int signal_all;
};

static struct ibv_mr *last_mr;
/* 0: no echo; 1: server; 2: client. */
static int echo;

static inline int complete(struct ibv_cq *cq, uint64_t wr_id, uint32_t opcode, uint32_t length,
			   uint32_t qp_num)
{
	struct null_cq *null = (struct null_cq *)cq;

	if (null->tail - null->head > null->mask)
		return ENOMEM;
	null->ring[null->tail++ & null->mask] =
		(struct completion){wr_id, opcode, length, qp_num};
	return 0;
}

/* What the peer would have written in answer to this WRITE. rkey is the low half of the MR's
 * address, so remote address minus rkey is the offset, which is the same in both processes. */
static void answer(const struct ibv_send_wr *wr)
{
	const struct ibv_sge *sge = wr->sg_list;
	uint32_t last = sge->length - 1;
	uint32_t offset = (uint32_t)wr->wr.rdma.remote_addr - wr->wr.rdma.rkey + last;

	if (last_mr && offset < last_mr->length)
		((volatile char *)last_mr->addr)[offset] =
			((const char *)(uintptr_t)sge->addr)[last] + (echo == 2);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	const struct null_qp *null = (struct null_qp *)qp;

	for (; wr; wr = wr->next) {
		int write = wr->opcode == IBV_WR_RDMA_WRITE;

		if (echo && write)
			answer(wr);
		if (!null->signal_all && !(wr->send_flags & IBV_SEND_SIGNALED))
			continue;
		if (complete(qp->send_cq, wr->wr_id, write ? IBV_WC_RDMA_WRITE : IBV_WC_SEND, 0,
			     qp->qp_num)) {
			*bad = wr;
			return ENOMEM;
		}
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (; wr; wr = wr->next) {
		uint32_t length = wr->num_sge ? wr->sg_list->length : 0;

		if (complete(qp->recv_cq, wr->wr_id, IBV_WC_RECV, length, qp->qp_num)) {
			*bad = wr;
			return ENOMEM;
		}
	}
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int wanted, struct ibv_wc *wc)
{
	struct null_cq *null = (struct null_cq *)cq;
	int found = 0;

	for (; found < wanted && null->head != null->tail; found++) {
		const struct completion *done = &null->ring[null->head++ & null->mask];

		wc[found].wr_id = done->wr_id;
		wc[found].status = IBV_WC_SUCCESS;
		wc[found].opcode = done->opcode;
		wc[found].byte_len = done->length;
		wc[found].qp_num = done->qp_num;
		wc[found].wc_flags = 0;
	}
	return found;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	(void)cq, (void)solicited;
	return 0;
}

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	if (!list)
		return NULL;
	list[0] = &device.public;
	if (count)
		*count = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *unused)
{
	return unused->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *opened)
{
	struct ibv_context *context = calloc(1, sizeof(*context));
	const char *role = getenv("NULL_VERBS_ECHO");

	if (!context)
		return NULL;
	echo = !role ? 0 : strcmp(role, "client") ? 1 : 2;
	/* abi_compat stays NULL: no extended operations, callers use the plain ones. */
	context->device = opened;
	context->ops.poll_cq = poll_cq;
	context->ops.req_notify_cq = req_notify_cq;
	context->ops.post_send = post_send;
	context->ops.post_recv = post_recv;
	context->num_comp_vectors = 1;
	context->cmd_fd = eventfd(0, EFD_CLOEXEC);
	context->async_fd = eventfd(0, EFD_CLOEXEC);
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	free(context);
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	*attr = (struct ibv_device_attr){
		.max_mr_size = UINT64_MAX, .page_size_cap = 4096, .max_qp = 1024,
		.max_qp_wr = 32768, .max_sge = 16, .max_cq = 1024, .max_cqe = 1 << 20,
		.max_mr = 1024, .max_pd = 1024, .max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16,
		.atomic_cap = IBV_ATOMIC_HCA, .max_srq = 16, .max_srq_wr = 32768, .max_srq_sge = 16,
		.max_pkeys = 1, .phys_port_cnt = 1,
	};
	return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out)
{
	struct ibv_port_attr attr = {
		.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_4096,
		.gid_tbl_len = 1, .pkey_tbl_len = 1, .max_msg_sz = 1u << 31, .active_width = 2,
		.active_speed = 32, .phys_state = 5, .link_layer = IBV_LINK_LAYER_ETHERNET,
	};

	(void)context;
	if (port != 1)
		return EINVAL;
	/* The symbol fills the part of the struct that existed first. */
	memcpy(out, &attr, 48);
	return 0;
}

static const union ibv_gid loopback = {
	.raw = {[10] = 0xff, 0xff, 127, 0, 0, 1},
};

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	(void)context;
	if (port != 1 || index != 0) {
		errno = EINVAL;
		return -1;
	}
	*gid = loopback;
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
		      struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
	(void)context, (void)flags;
	if (port != 1 || index != 0)
		return EINVAL;
	struct ibv_gid_entry found = {
		.gid = loopback, .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V2};
	memcpy(entry, &found, size < sizeof(found) ? size : sizeof(found));
	return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	(void)context, (void)port, (void)index;
	*pkey = 0xffff;
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	if (pd)
		pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	(void)access;
	if (!mr)
		return NULL;
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = (uint32_t)(uintptr_t)addr;
	last_mr = mr;
	return mr;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				unsigned int access)
{
	(void)iova;
	return ibv_reg_mr(pd, addr, length, access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	if (last_mr == mr)
		last_mr = NULL;
	free(mr);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int vector)
{
	uint32_t size = 16;
	struct null_cq *null;

	(void)vector;
	while (size < (uint32_t)cqe)
		size *= 2;
	null = calloc(1, sizeof(*null) + size * sizeof(null->ring[0]));
	if (!null)
		return NULL;
	null->mask = size - 1;
	null->public.context = context;
	null->public.channel = channel;
	null->public.cq_context = cq_context;
	null->public.cqe = size;
	return ibv_cq_ex_to_cq(&null->public);
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	static uint32_t next = 1;
	struct null_qp *null = calloc(1, sizeof(*null));
	struct ibv_qp *qp;

	if (!null)
		return NULL;
	null->signal_all = init->sq_sig_all;
	qp = &null->public.qp_base;
	qp->context = pd->context;
	qp->qp_context = init->qp_context;
	qp->pd = pd;
	qp->send_cq = init->send_cq;
	qp->recv_cq = init->recv_cq;
	qp->qp_num = next++;
	qp->qp_type = init->qp_type;
	return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (mask & IBV_QP_STATE)
		qp->state = attr->qp_state;
	/* The client of ib_write_lat waits for the number 1 before it sends anything. */
	if (echo == 2 && qp->state == IBV_QPS_RTS && last_mr)
		memset(last_mr->addr, 1, last_mr->length);
	return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		 struct ibv_qp_init_attr *init)
{
	(void)mask;
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	attr->qp_state = qp->state;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	free(qp);
	return 0;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	(void)qp;
	return NULL;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah = calloc(1, sizeof(*ah));

	(void)attr;
	if (ah) {
		ah->context = pd->context;
		ah->pd = pd;
	}
	return ah;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	free(ah);
	return 0;
}
