/*
 * How long an operation takes that its target's process has to serve, by what the two programs do:
 * the target's program looks at its completion queue all the time, sleeps until there is a
 * completion, looks every so many microseconds, or never; the requester looks all the time, or
 * sleeps. A NIC would not care.
 *
 * The operation is a WRITE of 64 bytes to memory that the requester does not map, so the target
 * serves it (mediated): with OMNIVERB_ADOPTION=off no pages move; with SEPARATE=1 (as root) the
 * target has other namespaces and trusts the requester with no more than WRITEs. Out: one JSON
 * object, the median and the 99th percentile of the microseconds of one operation.
 * Usage: attention TARGET REQUESTER [OPERATIONS [GID index]]
 * TARGET: look, sleep, never, or microseconds between two looks. REQUESTER: look, or sleep.
 */
#define _GNU_SOURCE
#include "verbs_helpers.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64, OPERATIONS_MAX = 100000 };

/* What both processes share. */
static struct shared {
	pthread_barrier_t barrier;
	union ibv_gid gid;
	uint32_t numbers[2], rkey;
	uint64_t address;
	atomic_int over;
} *shared;

/* One side's objects. */
struct side {
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
};

static struct side make(int self, int gid_index)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct side side = {.pd = context ? ibv_alloc_pd(context) : NULL};
	void *memory = NULL;

	if (!side.pd)
		fail("no RDMA device, or no resources on it");
	side.channel = ibv_create_comp_channel(context);
	side.cq = side.channel ? ibv_create_cq(context, 16, NULL, side.channel, 0) : NULL;
	if (!side.cq || posix_memalign(&memory, 4096, 4096))
		fail("create_cq");
	side.mr = ibv_reg_mr(side.pd, memory, 4096,
			     IBV_ACCESS_LOCAL_WRITE | (self ? IBV_ACCESS_REMOTE_WRITE : 0));
	side.qp = ibv_create_qp(side.pd, &(struct ibv_qp_init_attr){
		.send_cq = side.cq, .recv_cq = side.cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
	});
	if (!side.mr || !side.qp)
		fail("reg_mr, create_qp");
	if (self) {
		if (ibv_query_gid(context, 1, gid_index, &shared->gid))
			fail("query_gid");
		shared->rkey = side.mr->rkey;
		shared->address = (uintptr_t)memory;
	}
	shared->numbers[self] = side.qp->qp_num;
	pthread_barrier_wait(&shared->barrier);
	to_rts(side.qp, shared->numbers[!self], &shared->gid, gid_index);
	pthread_barrier_wait(&shared->barrier);
	return side;
}

/* Waits for one completion, by looking or by sleeping. */
static void wait_for(struct side *side, int sleeps)
{
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *context;

	if (!sleeps)
		return completed(side->cq, "a WRITE");
	while (ibv_poll_cq(side->cq, 1, &wc) == 0) {
		check(ibv_req_notify_cq(side->cq, 0), "req_notify_cq");
		if (ibv_poll_cq(side->cq, 1, &wc))
			break;
		if (ibv_get_cq_event(side->channel, &cq, &context))
			fail("get_cq_event");
		ibv_ack_cq_events(cq, 1);
	}
	check(wc.status == IBV_WC_SUCCESS ? 0 : EIO, "a WRITE");
}

static void target(const char *how, int gid_index)
{
	if (getenv("SEPARATE") && unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC))
		fail("unshare");
	struct side side = make(1, gid_index);
	unsigned every = atoi(how);
	int looks = strcmp(how, "look") == 0;
	struct ibv_wc wc;

	/* What is armed has a program that sleeps. */
	if (strcmp(how, "sleep") == 0)
		check(ibv_req_notify_cq(side.cq, 0), "req_notify_cq");
	while (!atomic_load(&shared->over)) {
		if (looks) {
			ibv_poll_cq(side.cq, 1, &wc);
		} else if (every) {
			usleep(every);
			ibv_poll_cq(side.cq, 1, &wc);
		} else {
			usleep(10000);
		}
	}
	pthread_barrier_wait(&shared->barrier);
}

static void requester(int sleeps, int count, int gid_index)
{
	struct side side = make(0, gid_index);
	double *times = calloc(count, sizeof *times);
	struct ibv_sge sge = {
		.addr = (uintptr_t)side.mr->addr, .length = BYTES, .lkey = side.mr->lkey,
	};
	struct ibv_send_wr *bad, wr = {
		.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge,
		.num_sge = 1,
		.wr.rdma = {.remote_addr = shared->address, .rkey = shared->rkey},
	};

	for (int i = 0; i < count; i++) {
		double start = now();

		check(ibv_post_send(side.qp, &wr, &bad), "post_send");
		wait_for(&side, sleeps);
		times[i] = now() - start;
		usleep(i % 3 * 300); /* Not in step with who looks now and then. */
	}
	atomic_store(&shared->over, 1);
	pthread_barrier_wait(&shared->barrier);
	qsort(times, count, sizeof *times, compare);
	printf("{\"median\": %.2f, \"p99\": %.2f}\n", times[count / 2] / 1e3,
	       times[count * 99 / 100] / 1e3);
}

int main(int argc, char **argv)
{
	int count = argc > 3 ? atoi(argv[3]) : 1000, gid_index = argc > 4 ? atoi(argv[4]) : 0, status;
	pthread_barrierattr_t attr;
	pid_t child;

	if (argc < 3 || count < 1 || count > OPERATIONS_MAX) {
		fprintf(stderr, "usage: served_write_latency TARGET REQUESTER [OPERATIONS [GID index]]\n");
		return 2;
	}
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail("mmap");
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&shared->barrier, &attr, 2);
	child = fork();
	if (child < 0)
		fail("fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		target(argv[1], gid_index);
		return 0;
	}
	requester(strcmp(argv[2], "sleep") == 0, count, gid_index);
	if (waitpid(child, &status, 0) != child || status)
		return 1;
	return 0;
}
