/*
 * How long it takes, in one direction, until somebody runs who sleeps in a virtual machine: on a
 * completion channel, and bare, in read(2) of a virtio-serial port. Both in turns, by the same two
 * processes. Nothing comes back by the border: whoever has been woken stores a number in memory
 * that the host looks at all the time, before he does anything else.
 *
 * Usage: wake sleep PORT_NAME DEVICE_BYTES GID_INDEX
 *        wake ring MACHINE GID_INDEX PORT_SOCKET WINDOW COUNT
 * The first in the machine, whose window's device has so many bytes. The other one on the host: the
 * socket of the port's other end, and the window's file. Out: two numbers, nanoseconds in the
 * median, of the channel and bare.
 */
#define _GNU_SOURCE
#include "verbs_helpers.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { PAGE = 4096, TCP_PORT = 18777, COUNT_MAX = 10000, WARM = 20 };

/* In the last page of the window, which nobody is given before all others are. */
struct words {
	/* How often who sleeps in the port, and on the channel, has been woken. */
	uint64_t bare, event;
	/* How often he that sleeps on the channel is about to. */
	uint64_t ready;
};

struct side {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_sge sge;
	union ibv_gid gid;
};

/* What the two tell each other. */
struct told {
	union ibv_gid gid;
	uint32_t number;
};

static volatile struct words *words;
static int port;

static struct side make(int gid_index)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct side side = {.channel = context ? ibv_create_comp_channel(context) : NULL};
	static char memory[64];
	struct ibv_mr *mr;

	if (!side.channel || !pd)
		fail("no RDMA device, or no resources on it");
	side.cq = ibv_create_cq(context, 16, NULL, side.channel, 0);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	if (!side.cq || !mr)
		fail("create_cq, reg_mr");
	side.qp = ibv_create_qp(pd, &(struct ibv_qp_init_attr){
		.send_cq = side.cq, .recv_cq = side.cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
	});
	if (!side.qp || ibv_query_gid(context, 1, gid_index, &side.gid))
		fail("create_qp, query_gid");
	side.sge = (struct ibv_sge){.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
	return side;
}

static void receive(struct side *side)
{
	struct ibv_recv_wr *bad, wr = {.sg_list = &side->sge, .num_sge = 1};

	check(ibv_post_recv(side->qp, &wr, &bad), "post_recv");
}

static void connect_with(struct side *side, int socket, int gid_index)
{
	struct told ours = {side->gid, side->qp->qp_num}, theirs;

	if (write(socket, &ours, sizeof ours) != sizeof ours ||
	    recv(socket, &theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs)
		fail("the other side");
	to_rts(side->qp, theirs.number, &theirs.gid, gid_index);
	receive(side);
	/* Nobody begins before both can. */
	if (write(socket, &ours, 1) != 1 || recv(socket, &ours, 1, MSG_WAITALL) != 1)
		fail("the other side");
}

/* The first line of a file of the kernel's. */
static int said(const char *path, char *text, int room)
{
	FILE *file = fopen(path, "r");
	int found = file && fgets(text, room, file);

	if (file)
		fclose(file);
	text[found ? strcspn(text, "\n") : 0] = 0;
	return found;
}

/* The device of which a file in /sys says this. */
static int opened(const char *folder, const char *file, const char *wanted)
{
	char path[512], text[256];
	struct dirent *entry;
	DIR *all = opendir(folder);

	while (all && (entry = readdir(all))) {
		snprintf(path, sizeof path, "%s/%s/%s", folder, entry->d_name, file);
		if (entry->d_name[0] == '.' || !said(path, text, sizeof text) || strcmp(text, wanted))
			continue;
		snprintf(path, sizeof path, "/dev/%s", entry->d_name);
		return open(path, O_RDWR);
	}
	return -1;
}

static void map(int file, off_t at)
{
	void *memory = file < 0 ? MAP_FAILED :
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, at);

	if (memory == MAP_FAILED)
		fail("the window");
	words = memory;
}

static void *sleep_in_port(void *none)
{
	ssize_t got;
	char byte;

	/* Nothing: nobody is at the other end yet. */
	while ((got = read(port, &byte, 1)) >= 0)
		if (got)
			words->bare++;
		else
			usleep(1000);
	return none;
}

static int accepted(void)
{
	int one = 1, listening = socket(AF_INET, SOCK_STREAM, 0), other;
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};

	setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listening, (void *)&any, sizeof any) || listen(listening, 1))
		fail("listen");
	puts("listens");
	fflush(stdout);
	other = accept(listening, NULL, NULL);
	if (other < 0)
		fail("accept");
	return other;
}

static void sleeper(char **words_said)
{
	int gid_index = atoi(words_said[2]);
	struct side side = make(gid_index);
	struct pollfd one = {.fd = side.channel->fd, .events = POLLIN};
	pthread_t thread;
	struct ibv_cq *cq;
	void *context;

	port = opened("/sys/class/virtio-ports", "name", words_said[0]);
	if (port < 0)
		fail("the port");
	map(opened("/sys/bus/dax/devices", "size", words_said[1]), atol(words_said[1]) - PAGE);
	*(struct words *)words = (struct words){0};
	connect_with(&side, accepted(), gid_index);
	if (pthread_create(&thread, NULL, sleep_in_port, NULL))
		fail("a thread");
	for (;;) {
		check(ibv_req_notify_cq(side.cq, 0), "req_notify_cq");
		words->ready++;
		if (poll(&one, 1, -1) != 1)
			fail("poll");
		words->event++;
		if (ibv_get_cq_event(side.channel, &cq, &context))
			fail("get_cq_event");
		ibv_ack_cq_events(cq, 1);
		completed(side.cq, "receive");
		receive(&side);
	}
}

/* Until a word is what it is to be; nanoseconds since `begun`. */
static double seen(volatile uint64_t *word, uint64_t value, double begun)
{
	while (*word != value) {
		sched_yield();
		if (now() - begun > 20e9) {
			errno = ETIMEDOUT;
			fail("nobody was woken");
		}
	}
	return now() - begun;
}

static int connected(int socket, const void *address, socklen_t length)
{
	if (socket < 0 || connect(socket, address, length))
		fail("connect");
	return socket;
}

static int ringer(char **words_said)
{
	static double times[2][COUNT_MAX];
	int gid_index = atoi(words_said[1]), count = atoi(words_said[4]), bytes, window;
	struct side side = make(gid_index);
	struct sockaddr_in machine = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
	struct sockaddr_un far = {.sun_family = AF_UNIX};
	struct ibv_send_wr *bad, wr = {
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &side.sge, .num_sge = 1,
	};
	struct stat status;

	inet_pton(AF_INET, words_said[0], &machine.sin_addr);
	snprintf(far.sun_path, sizeof far.sun_path, "%s", words_said[2]);
	window = open(words_said[3], O_RDWR);
	if (fstat(window, &status) || count <= WARM || count > COUNT_MAX)
		fail("the window, or the count");
	map(window, status.st_size - PAGE);
	connect_with(&side, connected(socket(AF_INET, SOCK_STREAM, 0), &machine, sizeof machine),
		     gid_index);
	port = connected(socket(AF_UNIX, SOCK_STREAM, 0), &far, sizeof far);
	for (int turn = 1; turn <= count; turn++) {
		double begun;

		seen(&words->ready, turn, now());
		/* Whoever is to be woken has to be asleep. */
		usleep(3000);
		begun = now();
		check(ibv_post_send(side.qp, &wr, &bad), "post_send");
		times[0][turn - 1] = seen(&words->event, turn, begun);
		completed(side.cq, "send");
		usleep(3000);
		begun = now();
		bytes = write(port, "?", 1);
		if (bytes != 1)
			fail("the port");
		times[1][turn - 1] = seen(&words->bare, turn, begun);
	}
	for (int way = 0; way < 2; way++) {
		qsort(times[way] + WARM, count - WARM, sizeof(double), compare);
		printf("%.0f\n", times[way][WARM + (count - WARM) / 2]);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "sleep"))
		sleeper(argv + 2);
	if (argc == 7 && !strcmp(argv[1], "ring"))
		return ringer(argv + 2);
	fprintf(stderr, "vm_wake_latency: see bench/vm_wake_latency.c\n");
	return 2;
}
