/*
 * Many connections of TCP, as they are or as a preloaded library carries them:
 *
 *     connections robin PAIRS EACH COUNT TIMES   ns for 8 bytes there and back, by each connection
 *                                                in turn
 *     connections open PAIRS EACH COUNT TIMES    connections a second: made, accepted, closed
 *     connections crowd PAIRS EACH COUNT TIMES   round trips a second, of all pairs at a time
 *     connections rest PAIRS EACH COUNT TIMES    ns of processors' time a second, while all rest
 *     connections hold PAIRS EACH COUNT TIMES    bytes for each connection: of the processes, of
 *                                                the kernel
 *
 * PAIRS of processes have EACH connections; what is measured has COUNT steps in all, and is done so
 * many TIMES: a line each. With CONNECTIONS_CPUS="0" or "0,1" clients are on the first of these
 * processors and servers on the last.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAIRS_MAX = 1024, EVENTS = 64 };

/* What one process tells another. */
struct word {
	uint64_t what, count;
};

static int pairs, each;
/* By which a client is told what to do, and says that it is done; its server's port. */
static int orders[PAIRS_MAX][2], reports[PAIRS_MAX][2], ports[PAIRS_MAX][2];
static int members[2 * PAIRS_MAX];

static void check(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void pin(int is_server)
{
	const char *list = getenv("CONNECTIONS_CPUS");
	cpu_set_t set;

	if (!list)
		return;
	if (is_server && strchr(list, ','))
		list = strchr(list, ',') + 1;
	CPU_ZERO(&set);
	CPU_SET((size_t)atoi(list), &set);
	check(!sched_setaffinity(0, sizeof set, &set), "sched_setaffinity");
}

/* Answers all that comes, until it is killed. */
static void serve(int pair)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct epoll_event events[EVENTS], event = { .events = EPOLLIN };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), set = epoll_create1(0), one = 1;

	pin(1);
	check(listener >= 0 && set >= 0, "socket");
	check(!bind(listener, (void *)&address, length) && !listen(listener, 4096), "listen");
	check(!getsockname(listener, (void *)&address, &length), "getsockname");
	event.data.fd = listener;
	check(!epoll_ctl(set, EPOLL_CTL_ADD, listener, &event), "epoll_ctl");
	check(write(ports[pair][1], &address.sin_port, 2) == 2, "write");
	for (;;) {
		int count = epoll_wait(set, events, EVENTS, -1);

		check(count > 0 || errno == EINTR, "epoll_wait");
		for (int i = 0; i < count; i++) {
			int number = events[i].data.fd;
			uint64_t bytes;
			ssize_t got;

			if (number == listener) {
				number = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
				if (number < 0 && errno == EAGAIN)
					continue;
				check(number >= 0, "accept");
				setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
				event.data.fd = number;
				check(!epoll_ctl(set, EPOLL_CTL_ADD, number, &event), "epoll_ctl");
				continue;
			}
			got = recv(number, &bytes, sizeof bytes, 0);
			if (got > 0)
				check(send(number, &bytes, (size_t)got, MSG_NOSIGNAL) == got, "send");
			else if (got == 0 || errno != EAGAIN)
				close(number);
		}
	}
}

static int connected(const struct sockaddr_in *address)
{
	int number = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	check(number >= 0, "socket");
	check(!connect(number, (const void *)address, sizeof *address), "connect");
	setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return number;
}

static void there_and_back(int number)
{
	uint64_t bytes = 1;

	check(send(number, &bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes, "send");
	check(recv(number, &bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes, "recv");
}

static void ask(int pair)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int *all = calloc((size_t)each, sizeof *all), next = 0;
	struct word word = { 0, 0 };

	pin(0);
	check(all != NULL, "calloc");
	check(read(ports[pair][0], &address.sin_port, 2) == 2, "read");
	/* In light mode who waits for connections is found, and nobody before. */
	usleep(200000);
	while (read(orders[pair][0], &word, sizeof word) == sizeof word) {
		double began = now();

		for (uint64_t i = 0; i < word.count; i++) {
			if (word.what == 'c') {
				all[i] = connected(&address);
				there_and_back(all[i]);
			} else if (word.what == 'o') {
				int number = connected(&address);

				there_and_back(number);
				close(number);
			} else {
				there_and_back(all[next]);
				next = next + 1 == each ? 0 : next + 1;
			}
		}
		word.what = (uint64_t)(now() - began);
		check(write(reports[pair][1], &word, sizeof word) == sizeof word, "write");
	}
	exit(0);
}

static void order(int pair, int what, uint64_t count)
{
	struct word word = { (uint64_t)what, count };

	check(write(orders[pair][1], &word, sizeof word) == sizeof word, "write");
}

/* How many nanoseconds it took. */
static double report(int pair)
{
	struct word word;

	check(read(reports[pair][0], &word, sizeof word) == sizeof word, "a client has failed");
	return (double)word.what;
}

/* One pair after another. How long all of it took. */
static double in_turn(int what, uint64_t count)
{
	double all = 0;

	for (int i = 0; i < pairs; i++) {
		order(i, what, count);
		all += report(i);
	}
	return all;
}

static double at_once(int what, uint64_t count)
{
	double began = now();

	for (int i = 0; i < pairs; i++)
		order(i, what, count);
	for (int i = 0; i < pairs; i++)
		report(i);
	return now() - began;
}

/* A number behind a word of a file. */
static double found(const char *path, const char *form)
{
	char line[256];
	long value = 0;
	FILE *file = fopen(path, "r");

	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, form, &value) == 1)
			break;
	if (file)
		fclose(file);
	return (double)value;
}

static double kilobytes(void)
{
	double all = 0;

	for (int i = 0; i < 2 * pairs; i++) {
		char path[64];

		snprintf(path, sizeof path, "/proc/%d/smaps_rollup", members[i]);
		all += found(path, "Private_Dirty: %ld");
	}
	return all;
}

/* Of the kernel: what it has for objects, sockets among them. */
static double slab(void)
{
	return found("/proc/meminfo", "Slab: %ld");
}

static double processor_time(void)
{
	double all = 0;

	for (int i = 0; i < 2 * pairs; i++) {
		clockid_t clock;
		struct timespec time;

		check(!clock_getcpuclockid(members[i], &clock) && !clock_gettime(clock, &time), "clock");
		all += (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
	}
	return all;
}

static void begin(void)
{
	for (int i = 0; i < pairs; i++)
		check(!pipe(orders[i]) && !pipe(reports[i]) && !pipe(ports[i]), "pipe");
	for (int i = 0; i < 2 * pairs; i++) {
		members[i] = fork();
		check(members[i] >= 0, "fork");
		if (members[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* So that who waits for orders hears that there will be none, and all numbers are free. */
		for (int j = 0; j < pairs; j++) {
			close(orders[j][1]);
			close(reports[j][0]);
			if (j == i / 2)
				continue;
			close(orders[j][0]);
			close(reports[j][1]);
			close(ports[j][0]);
			close(ports[j][1]);
		}
		if (i % 2 == 0)
			serve(i / 2);
		ask(i / 2);
	}
}

static void end(void)
{
	for (int i = 0; i < pairs; i++)
		close(orders[i][1]);
	for (int i = 0; i < pairs; i++) {
		waitpid(members[2 * i + 1], NULL, 0);
		kill(members[2 * i], SIGKILL);
		waitpid(members[2 * i], NULL, 0);
	}
}

int main(int words, char **word)
{
	struct rlimit most;
	uint64_t count, share;
	int times, is_open;

	if (words != 6)
		return 2;
	pairs = atoi(word[2]);
	each = atoi(word[3]);
	count = (uint64_t)atol(word[4]);
	times = atoi(word[5]);
	is_open = strcmp(word[1], "open") == 0;
	if (pairs < 1 || pairs > PAIRS_MAX || each < 1)
		return 2;
	check(!getrlimit(RLIMIT_NOFILE, &most), "getrlimit");
	most.rlim_cur = most.rlim_max;
	check(!setrlimit(RLIMIT_NOFILE, &most), "setrlimit");
	share = count / (uint64_t)pairs ? count / (uint64_t)pairs : 1;
	begin();
	if (strcmp(word[1], "hold") == 0) {
		/* What there is once and not for each. */
		in_turn('o', 20);
		double ours = kilobytes(), kernels = slab();

		in_turn('c', (uint64_t)each);
		printf("%.0f %.0f\n", (kilobytes() - ours) * 1024 / pairs / each,
		       (slab() - kernels) * 1024 / pairs / each);
		end();
		return 0;
	}
	if (!is_open)
		in_turn('c', (uint64_t)each);
	for (int i = 0; i < times; i++) {
		if (is_open) {
			printf("%.0f\n", (double)share * pairs * 1e9 / at_once('o', share));
		} else if (strcmp(word[1], "crowd") == 0) {
			printf("%.0f\n", (double)share * pairs * 1e9 / at_once('r', share));
		} else if (strcmp(word[1], "rest") == 0) {
			double before = processor_time(), began = now();

			usleep(1000000);
			printf("%.0f\n", (processor_time() - before) * 1e9 / (now() - began));
		} else {
			printf("%.1f\n", in_turn('r', share) / (double)share / pairs);
		}
		fflush(stdout);
	}
	end();
	return 0;
}
