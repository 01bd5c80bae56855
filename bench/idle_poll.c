/*
 * What ibv_poll_cq costs where nothing has come: how long one takes with few and with many pairs of
 * reliable connections on one completion queue, before there was traffic and after it.
 *
 * Everything is in one process: its queue pairs are connected with each other. Out: one JSON
 * object, nanoseconds a poll, medians of several turns.
 * Usage: idle_poll [pairs [GID index]]
 */
#define _GNU_SOURCE
#include "verbs_helpers.h"

enum { TURNS = 21, POLLS = 20000 };

/* An empty message, and both its completions. */
static void message(struct ibv_qp *from, struct ibv_qp *to)
{
	struct ibv_send_wr *bad, send = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_recv_wr *bad_receive, receive = {0};

	check(ibv_post_recv(to, &receive, &bad_receive), "post_recv");
	check(ibv_post_send(from, &send, &bad), "post_send");
	completed(to->recv_cq, "a receive");
	completed(from->send_cq, "a send");
}

static double empty_poll(struct ibv_cq *cq)
{
	double turns[TURNS];
	struct ibv_wc wc;

	for (int turn = 0; turn < TURNS; turn++) {
		double start = now();

		for (int poll = 0; poll < POLLS; poll++)
			if (ibv_poll_cq(cq, 1, &wc))
				fail("a completion of nothing");
		turns[turn] = (now() - start) / POLLS;
	}
	qsort(turns, TURNS, sizeof(*turns), compare);
	return turns[TURNS / 2];
}

int main(int argc, char **argv)
{
	int pairs = argc > 1 ? atoi(argv[1]) : 1000, gid_index = argc > 2 ? atoi(argv[2]) : 0;
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = list && count ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_cq *sends = pd ? ibv_create_cq(context, 64, NULL, NULL, 0) : NULL;
	struct ibv_cq *receives = sends ? ibv_create_cq(context, 64, NULL, NULL, 0) : NULL;
	struct ibv_qp **from, **to;
	union ibv_gid gid;
	double fresh, used;

	if (pairs < 1 || pairs > 100000) {
		fprintf(stderr, "idle_poll: pairs must be 1 to 100000\n");
		return 2;
	}
	if (!receives || ibv_query_gid(context, 1, gid_index, &gid))
		fail("no RDMA device, or no resources on it");
	from = calloc(pairs, sizeof(*from));
	to = calloc(pairs, sizeof(*to));
	for (int i = 0; from && to && i < pairs; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_RC,
			.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
				.max_recv_sge = 1},
		};

		from[i] = ibv_create_qp(pd, &init);
		to[i] = from[i] ? ibv_create_qp(pd, &init) : NULL;
		if (!to[i])
			fail("create_qp");
		to_rts(from[i], to[i]->qp_num, &gid, gid_index);
		to_rts(to[i], from[i]->qp_num, &gid, gid_index);
	}
	if (!from || !to)
		fail("no memory");
	fresh = empty_poll(receives);
	for (int turn = 0; turn < 3; turn++)
		for (int i = 0; i < pairs; i++)
			message(from[i], to[i]);
	used = empty_poll(receives);
	printf("{\"fresh_ns\": %.2f, \"used_ns\": %.2f}\n", fresh, used);
	return 0;
}
