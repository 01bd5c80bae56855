/*
 * What memory that a peer maps costs its owner: the time of registering it, of having all of it
 * mapped, of a fork, and of deregistering it, and how much memory there was at most.
 *
 * Another process reads all of the region until its pages are mapped, before the fork and again
 * after it. The child of the fork ends at once. If OWNER_CGROUP names the folder of a memory
 * cgroup, the owner enters it, and what it was charged with at most is told, too. Out: one JSON
 * object; times in milliseconds, memory as multiples of the region.
 * Usage: registration MIB [GID index]
 */
#define _GNU_SOURCE
#include "verbs_helpers.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, STEP = 1 * MIB, TURNS_MAX = 200 };

/* What both processes share. */
static struct shared {
	pthread_barrier_t barrier;
	union ibv_gid gid;
	uint32_t numbers[2], rkey;
	uint64_t address, length;
	atomic_int over;
} *shared;

/* One side's objects. */
struct side {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct side make(int self, int gid_index)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct side side = {.pd = context ? ibv_alloc_pd(context) : NULL};

	if (!side.pd)
		fail("no RDMA device, or no resources on it");
	side.cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	side.qp = side.cq ? ibv_create_qp(side.pd, &(struct ibv_qp_init_attr){
		.send_cq = side.cq, .recv_cq = side.cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
	}) : NULL;
	if (!side.qp || (self && ibv_query_gid(context, 1, gid_index, &shared->gid)))
		fail("create_cq, create_qp, query_gid");
	shared->numbers[self] = side.qp->qp_num;
	pthread_barrier_wait(&shared->barrier);
	to_rts(side.qp, shared->numbers[!self], &shared->gid, gid_index);
	pthread_barrier_wait(&shared->barrier);
	return side;
}

/* Reads all of the owner's region, as often as it says. */
static void peer(int gid_index)
{
	struct side side = make(0, gid_index);
	void *memory = NULL;
	struct ibv_mr *mr;

	if (posix_memalign(&memory, 4096, STEP))
		fail("posix_memalign");
	mr = ibv_reg_mr(side.pd, memory, STEP, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		fail("reg_mr");
	for (;;) {
		pthread_barrier_wait(&shared->barrier);
		if (atomic_load(&shared->over))
			return;
		for (uint64_t at = 0; at < shared->length; at += STEP) {
			struct ibv_sge sge = {
				.addr = (uintptr_t)memory, .length = STEP, .lkey = mr->lkey,
			};
			struct ibv_send_wr *bad, wr = {
				.opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
				.sg_list = &sge, .num_sge = 1,
				.wr.rdma = {.remote_addr = shared->address + at,
					    .rkey = shared->rkey},
			};

			check(ibv_post_send(side.qp, &wr, &bad), "post_send");
			completed(side.cq, "a READ");
			if (*(char *)memory != 7)
				fail("wrong bytes");
		}
		pthread_barrier_wait(&shared->barrier);
	}
}

/* Bytes of the region that are on files, which others can map. */
static uint64_t on_files(void)
{
	FILE *file = fopen("/proc/self/maps", "r");
	unsigned long start, end;
	char line[512], flags[8];
	uint64_t bytes = 0;

	if (!file)
		fail("/proc/self/maps");
	while (fgets(line, sizeof line, file))
		if (sscanf(line, "%lx-%lx %7s", &start, &end, flags) == 3 && flags[3] == 's' &&
		    start >= shared->address && end <= shared->address + shared->length)
			bytes += end - start;
	fclose(file);
	return bytes;
}

/* Has the peer read until nearly all is mapped. Nanoseconds. */
static double map(void)
{
	double start = now();
	int turns = 0;

	while (on_files() < shared->length / 10 * 9) {
		errno = 0;
		if (turns++ == TURNS_MAX)
			fail("pages do not move here");
		pthread_barrier_wait(&shared->barrier);
		pthread_barrier_wait(&shared->barrier);
	}
	return now() - start;
}

static void enter_cgroup(const char *folder)
{
	char name[4096], number[32];
	int file, length = snprintf(number, sizeof number, "%d", getpid());

	snprintf(name, sizeof name, "%s/cgroup.procs", folder);
	file = open(name, O_WRONLY);
	if (file < 0 || write(file, number, length) != length)
		fail(name);
	close(file);
}

/* The number in a file, behind a word if that is not NULL; 0 without one. */
static double number_in(const char *folder, const char *name, const char *word)
{
	char path[4096], line[256];
	double found = 0;
	FILE *file;

	snprintf(path, sizeof path, "%s/%s", folder, name);
	file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file))
		if (!word || strncmp(line, word, strlen(word)) == 0)
			found = atof(line + (word ? strlen(word) : 0));
	if (file)
		fclose(file);
	return found;
}

static void owner(uint64_t length, int gid_index)
{
	const char *cgroup = getenv("OWNER_CGROUP");
	struct side side = make(1, gid_index);
	double start, registered, mapped, forked, deregistered, charged = 0;
	int status;
	pid_t child;
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	if (memory == MAP_FAILED)
		fail("mmap");
	if (cgroup && *cgroup)
		enter_cgroup(cgroup);
	memset(memory, 7, length);
	start = now();
	mr = ibv_reg_mr(side.pd, memory, length, IBV_ACCESS_LOCAL_WRITE |
			IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	registered = now() - start;
	if (!mr)
		fail("reg_mr");
	shared->rkey = mr->rkey;
	shared->address = (uintptr_t)memory;
	shared->length = length;
	mapped = map();
	start = now();
	child = fork();
	if (child == 0)
		_exit(0);
	forked = now() - start;
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		fail("fork");
	map();
	start = now();
	check(ibv_dereg_mr(mr), "dereg_mr");
	deregistered = now() - start;
	if (cgroup && *cgroup) {
		charged = number_in(cgroup, "memory.max_usage_in_bytes", NULL);
		charged = charged ? charged : number_in(cgroup, "memory.peak", NULL);
	}
	atomic_store(&shared->over, 1);
	pthread_barrier_wait(&shared->barrier);
	printf("{\"register_ms\": %.3f, \"map_ms\": %.1f, \"fork_ms\": %.2f, \"deregister_ms\": %.2f, "
	       "\"resident\": %.3f, \"charged\": %.3f}\n", registered / 1e6, mapped / 1e6,
	       forked / 1e6, deregistered / 1e6,
	       number_in("/proc/self", "status", "VmHWM:") * 1024 / length, charged / length);
}

int main(int argc, char **argv)
{
	uint64_t length = argc > 1 ? strtoull(argv[1], NULL, 10) * MIB : 0;
	int gid_index = argc > 2 ? atoi(argv[2]) : 0, status;
	pthread_barrierattr_t attr;
	pid_t child;

	if (length == 0) {
		fprintf(stderr, "usage: registration_cost MIB [GID index]\n");
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
		peer(gid_index);
		return 0;
	}
	owner(length, gid_index);
	if (waitpid(child, &status, 0) != child || status)
		return 1;
	return 0;
}
