/*
 * How many instructions of the processor the calls of a message take, counted one by one: what is
 * the same on a slow processor, on a busy one, and on one that is emulated.
 *
 * Two processes exchange messages of 8 bytes (SEND over RC) in turns, so that nobody waits inside
 * a call. A third one executes what stands between two marks step by step (ptrace), and takes
 * away what the marks themselves cost. Out: one JSON object, the median of each call.
 * Usage: steps [MESSAGES [GID index]]
 */
#define _GNU_SOURCE
#include "verbs_helpers.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 8, MESSAGES_MAX = 1000, WARM = 5 };
enum call { MARKS, POST_RECV, POST_SEND, POLL_RECV, POLL_SEND, POLL_EMPTY, CALLS };
static const char *const names[CALLS] = {
	"marks", "post_recv", "post_send", "poll_received", "poll_sent", "poll_empty",
};

/* What all three processes share. */
static struct shared {
	pthread_barrier_t barrier;
	union ibv_gid gid;
	uint32_t numbers[2];
	double steps[CALLS][MESSAGES_MAX];
	/* What is between the marks of each side, and of which message. */
	enum call call[2];
	int message[2];
} *shared;

struct side {
	int self;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_sge sge;
};

static struct side make(int self, int gid_index)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct side side = {.self = self, .cq = pd ? ibv_create_cq(context, 16, NULL, NULL, 0) : NULL};
	void *memory = NULL;
	struct ibv_mr *mr;

	if (!side.cq || posix_memalign(&memory, 4096, 4096))
		fail("no RDMA device, or no resources on it");
	memset(memory, 1, 4096);
	mr = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	side.qp = ibv_create_qp(pd, &(struct ibv_qp_init_attr){
		.send_cq = side.cq, .recv_cq = side.cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
	});
	if (!mr || !side.qp)
		fail("reg_mr, create_qp");
	side.sge = (struct ibv_sge){.addr = (uintptr_t)memory, .length = BYTES, .lkey = mr->lkey};
	if (self && ibv_query_gid(context, 1, gid_index, &shared->gid))
		fail("query_gid");
	shared->numbers[self] = side.qp->qp_num;
	pthread_barrier_wait(&shared->barrier);
	to_rts(side.qp, shared->numbers[!self], &shared->gid, gid_index);
	pthread_barrier_wait(&shared->barrier);
	return side;
}

/* A mark: whoever counts begins, or ends. */
static void mark(void)
{
	raise(SIGUSR1);
}

static void begin(struct side *side, enum call call, int message)
{
	shared->call[side->self] = call;
	shared->message[side->self] = message;
	mark();
}

/* A poll that is counted; those before it, which find nothing yet, are not. */
static void found(struct side *side, enum call call, int message)
{
	double deadline = now() + 5e9;
	struct ibv_wc wc;
	int count = 0;

	/* The message is there, or comes as soon as a thread of a library has the processor. */
	while (count == 0 && now() < deadline) {
		begin(side, call, message);
		count = ibv_poll_cq(side->cq, 1, &wc);
		mark();
	}
	errno = 0;
	if (count != 1 || wc.status != IBV_WC_SUCCESS)
		fail("no completion");
}

static void requester(struct side *side, int message)
{
	struct ibv_send_wr *bad, wr = {
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &side->sge, .num_sge = 1,
	};
	struct ibv_wc wc;
	int error;

	begin(side, MARKS, message);
	mark();
	pthread_barrier_wait(&shared->barrier);
	begin(side, POST_SEND, message);
	error = ibv_post_send(side->qp, &wr, &bad);
	mark();
	check(error, "post_send");
	pthread_barrier_wait(&shared->barrier);
	pthread_barrier_wait(&shared->barrier);
	found(side, POLL_SEND, message);
	begin(side, POLL_EMPTY, message);
	error = ibv_poll_cq(side->cq, 1, &wc);
	mark();
	check(error ? EIO : 0, "an empty poll");
}

static void responder(struct side *side, int message)
{
	struct ibv_recv_wr *bad, wr = {.sg_list = &side->sge, .num_sge = 1};
	int error;

	begin(side, POST_RECV, message);
	error = ibv_post_recv(side->qp, &wr, &bad);
	mark();
	check(error, "post_recv");
	pthread_barrier_wait(&shared->barrier);
	pthread_barrier_wait(&shared->barrier);
	found(side, POLL_RECV, message);
	pthread_barrier_wait(&shared->barrier);
}

/* A side, in a process that is traced. */
static void run(int self, int messages, int gid_index)
{
	struct side side;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	side = make(self, gid_index);
	if (ptrace(PTRACE_TRACEME))
		fail("ptrace");
	for (int i = 0; i < messages; i++)
		(self ? responder : requester)(&side, i);
	pthread_barrier_wait(&shared->barrier);
	_exit(0);
}

/* Lets both go on until they have ended, step by step between their marks. */
static void count(const pid_t children[2])
{
	int counting[2] = {0, 0}, left = 2, status;
	double steps[2] = {0, 0};

	while (left) {
		pid_t pid = waitpid(-1, &status, 0);
		int self = pid == children[1], signal;

		if (pid < 0)
			fail("waitpid");
		if (!WIFSTOPPED(status)) {
			if (status)
				exit(1);
			left--;
			continue;
		}
		signal = WSTOPSIG(status);
		if (signal == SIGUSR1) {
			if (counting[self])
				shared->steps[shared->call[self]][shared->message[self]] = steps[self];
			counting[self] = !counting[self];
			steps[self] = 0;
			signal = 0;
		} else if (signal == SIGTRAP) {
			steps[self]++;
			signal = 0;
		}
		if (ptrace(counting[self] ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, 0, signal))
			fail("ptrace");
	}
}

int main(int argc, char **argv)
{
	int messages = argc > 1 ? atoi(argv[1]) : 50, gid_index = argc > 2 ? atoi(argv[2]) : 0;
	pthread_barrierattr_t attr;
	pid_t children[2];
	double marks = 0;

	if (messages <= WARM || messages > MESSAGES_MAX) {
		fprintf(stderr, "usage: instruction_count [MESSAGES [GID index]]\n");
		return 2;
	}
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail("mmap");
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&shared->barrier, &attr, 2);
	for (int self = 0; self < 2; self++) {
		children[self] = fork();
		if (children[self] < 0)
			fail("fork");
		if (children[self] == 0)
			run(self, messages, gid_index);
	}
	count(children);
	for (enum call call = MARKS; call < CALLS; call++) {
		double *steps = &shared->steps[call][WARM];

		qsort(steps, messages - WARM, sizeof *steps, compare);
		if (call == MARKS)
			marks = steps[(messages - WARM) / 2];
		else
			printf("%s\"%s\": %.0f", call == POST_RECV ? "{" : ", ", names[call],
			       steps[(messages - WARM) / 2] - marks);
	}
	printf("}\n");
	return 0;
}
