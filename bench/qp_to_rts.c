/*
 * How long it takes to bring a reliable connection up: ibv_create_qp to RTS, and until the first
 * 8-byte WRITE has completed.
 *
 * Two processes exchange addresses over a socket pair; the waiting for that exchange is not
 * counted, the verbs calls are. Out: one JSON object with medians over the rounds, microseconds.
 * Usage: qp_to_rts [rounds [GID index]]
 */
#define _GNU_SOURCE
#include "verbs_helpers.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct address {
	uint64_t buffer;
	uint32_t rkey;
	uint32_t qp_num;
	union ibv_gid gid;
};

/* Nanoseconds. */
struct times {
	double create, modify, write, destroy;
};

static void swap(int peer, const void *mine, void *theirs, size_t size)
{
	errno = 0;
	if (write(peer, mine, size) != (ssize_t)size)
		fail("write to the other process");
	if (recv(peer, theirs, size, MSG_WAITALL) != (ssize_t)size)
		fail("the other process left");
}

static void write_once(struct ibv_qp *qp, struct ibv_mr *mr, const struct address *peer)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr, 8, mr->lkey};
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = peer->buffer, .rkey = peer->rkey},
	};

	check(ibv_post_send(qp, &wr, &bad), "post_send");
	completed(qp->send_cq, "the first WRITE");
}

/* One side; `first` is the one that measures the WRITE. */
static void run(int peer, int first, int rounds, int gid_index, struct times *times)
{
	static uint64_t memory[512];
	int count = 0;
	char token = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = list && count ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_cq *cq = pd ? ibv_create_cq(context, 64, NULL, NULL, 0) : NULL;
	struct ibv_mr *mr = cq ? ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE |
					    IBV_ACCESS_REMOTE_WRITE) : NULL;

	if (!mr)
		fail("no RDMA device, or no resources on it");
	for (int round = 0; round < rounds; round++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1,
				.max_recv_sge = 1},
		};
		struct address mine = {.buffer = (uintptr_t)memory, .rkey = mr->rkey}, theirs;
		double start = now();
		struct ibv_qp *qp = ibv_create_qp(pd, &init);

		times[round].create = now() - start;
		if (!qp)
			fail("create_qp");
		mine.qp_num = qp->qp_num;
		if (ibv_query_gid(context, 1, gid_index, &mine.gid))
			fail("query_gid");
		swap(peer, &mine, &theirs, sizeof(mine));
		start = now();
		to_rts(qp, theirs.qp_num, &theirs.gid, gid_index);
		times[round].modify = now() - start;
		swap(peer, &token, &token, 1);
		start = now();
		if (first)
			write_once(qp, mr, &theirs);
		times[round].write = now() - start;
		swap(peer, &token, &token, 1);
		start = now();
		check(ibv_destroy_qp(qp), "destroy_qp");
		times[round].destroy = now() - start;
	}
}

/* In microseconds. */
static void print(const char *name, double *values, int count, const char *after)
{
	qsort(values, count, sizeof(*values), compare);
	printf("\"%s\": {\"median\": %.3f, \"p99\": %.3f}%s", name, values[count / 2] / 1e3,
	       values[(count - 1) * 99 / 100] / 1e3, after);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 200, gid_index = argc > 2 ? atoi(argv[2]) : 0;
	int pair[2], status;
	struct times *times;
	double *column;
	pid_t child;

	if (rounds < 1 || rounds > 1000000) {
		fprintf(stderr, "qp_to_rts: rounds must be 1 to 1000000\n");
		return 2;
	}
	times = calloc(rounds, sizeof(*times));
	column = calloc(rounds, sizeof(*column));
	if (!times || !column || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		fail("set-up");
	child = fork();
	if (child < 0)
		fail("fork");
	/* Each side keeps one end only, so that the death of one is seen by the other. */
	close(pair[child == 0 ? 0 : 1]);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run(pair[1], 0, rounds, gid_index, times);
		return 0;
	}
	run(pair[0], 1, rounds, gid_index, times);
	if (waitpid(child, &status, 0) != child || status != 0) {
		fprintf(stderr, "qp_to_rts: the other process failed\n");
		return 1;
	}
	printf("{");
	for (int i = 0; i < rounds; i++)
		column[i] = times[i].create + times[i].modify;
	print("create_to_rts_us", column, rounds, ", ");
	for (int i = 0; i < rounds; i++)
		column[i] = times[i].create;
	print("create_us", column, rounds, ", ");
	for (int i = 0; i < rounds; i++)
		column[i] = times[i].write;
	print("first_write_us", column, rounds, ", ");
	for (int i = 0; i < rounds; i++)
		column[i] = times[i].destroy;
	print("destroy_us", column, rounds, "}\n");
	return 0;
}
