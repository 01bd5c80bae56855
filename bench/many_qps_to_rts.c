/*
 * How long it takes to bring up many reliable connections at once: ibv_create_qp to RTS of so many
 * queue pairs in each of so many processes, which all begin at the same moment.
 *
 * Every queue pair is connected with one of the next process (of its own, if there is no other).
 * Their numbers are exchanged in memory that all share. Each connection is tried then, which is not
 * counted. Out: one JSON object, microseconds: what a queue pair took with all of them under way
 * (the whole time by their number), and the median of a single one's calls.
 * Usage: many_qps_to_rts PROCESSES [QPS [GID index]]
 */
#define _GNU_SOURCE
#include "verbs_helpers.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES_MAX = 64, QPS_MAX = 1000 };

/* What the processes share. */
static struct shared {
	pthread_barrier_t barrier;
	union ibv_gid gid;
	uint32_t numbers[PROCESSES_MAX][QPS_MAX];
	double times[PROCESSES_MAX][QPS_MAX];
} *shared;

static int processes, count, gid_index;

/* A message of no bytes from every even queue pair to its odd one. */
static void try_them(struct ibv_qp **qps)
{
	for (int i = 1; i < count; i += 2) {
		struct ibv_recv_wr *bad, wr = {};

		check(ibv_post_recv(qps[i], &wr, &bad), "post_recv");
	}
	pthread_barrier_wait(&shared->barrier);
	for (int i = 0; i < count; i += 2) {
		struct ibv_send_wr *bad, wr = {
			.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		};

		check(ibv_post_send(qps[i], &wr, &bad), "post_send");
	}
	for (int i = 0; i < count; i++)
		completed(qps[0]->send_cq, "a message");
	pthread_barrier_wait(&shared->barrier);
}

/* Returns the nanoseconds from the first ibv_create_qp to the last RTS of all processes. */
static double run(int self)
{
	int found = 0, next = (self + 1) % processes, before = (self + processes - 1) % processes;
	struct ibv_device **list = ibv_get_device_list(&found);
	struct ibv_context *context = list && found ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_cq *cq = pd ? ibv_create_cq(context, 2 * count, NULL, NULL, 0) : NULL;
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1,
			.max_recv_sge = 1},
	};
	double *times = shared->times[self], began, start, ended;
	struct ibv_qp *qps[QPS_MAX];

	if (!cq)
		fail("no RDMA device, or no resources on it");
	if (self == 0 && ibv_query_gid(context, 1, gid_index, &shared->gid))
		fail("query_gid");
	pthread_barrier_wait(&shared->barrier);
	began = now();
	for (int i = 0; i < count; i++) {
		start = now();
		qps[i] = ibv_create_qp(pd, &init);
		if (!qps[i])
			fail("create_qp");
		times[i] = now() - start;
		shared->numbers[self][i] = qps[i]->qp_num;
	}
	pthread_barrier_wait(&shared->barrier);
	/* The even ones with the odd ones of the next process. */
	for (int i = 0; i < count; i++) {
		uint32_t other = i % 2 ? shared->numbers[before][i - 1]
				       : shared->numbers[next][i + 1];

		start = now();
		to_rts(qps[i], other, &shared->gid, gid_index);
		times[i] += now() - start;
	}
	pthread_barrier_wait(&shared->barrier);
	ended = now();
	try_them(qps);
	for (int i = 0; i < count; i++)
		check(ibv_destroy_qp(qps[i]), "destroy_qp");
	return ended - began;
}

/* Waits for the other processes; ends all of them if one fails, since the others wait for it. */
static void wait_for(int children)
{
	int status;

	while (children--)
		if (wait(&status) < 0 || status != 0) {
			fprintf(stderr, "many_qps_to_rts: a process failed\n");
			exit(1);
		}
}

static double median(void)
{
	static double all[PROCESSES_MAX * QPS_MAX];
	int number = 0;

	for (int i = 0; i < processes; i++)
		for (int j = 0; j < count; j++)
			all[number++] = shared->times[i][j];
	qsort(all, number, sizeof(*all), compare);
	return all[number / 2];
}

int main(int argc, char **argv)
{
	pthread_barrierattr_t attributes;
	int result[2];
	double took;

	processes = argc > 1 ? atoi(argv[1]) : 0;
	count = argc > 2 ? atoi(argv[2]) : 100;
	gid_index = argc > 3 ? atoi(argv[3]) : 0;
	if (processes < 1 || processes > PROCESSES_MAX || count < 2 || count > QPS_MAX || count % 2) {
		fprintf(stderr, "usage: many_qps_to_rts PROCESSES (1 to %d) [QPS (even, to %d) [GID index]]\n",
			PROCESSES_MAX, QPS_MAX);
		return 2;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		      -1, 0);
	if (shared == MAP_FAILED || pipe(result) || pthread_barrierattr_init(&attributes) ||
	    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) ||
	    pthread_barrier_init(&shared->barrier, &attributes, processes))
		fail("set-up");
	/* All of them are children: this one does nothing but to look after them. */
	for (int i = 0; i < processes; i++) {
		pid_t child = fork();

		if (child < 0)
			fail("fork");
		if (child)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		took = run(i);
		if (i == 0 && write(result[1], &took, sizeof(took)) != sizeof(took))
			fail("write");
		return 0;
	}
	wait_for(processes);
	if (read(result[0], &took, sizeof(took)) != sizeof(took))
		fail("read");
	printf("{\"each_us\": %.3f, \"median_us\": %.3f}\n", took / 1e3 / processes / count,
	       median() / 1e3);
	return 0;
}
