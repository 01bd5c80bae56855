/*
 * Calls about descriptors that no socket of TCP is among, with the library's functions before them:
 * they give what the kernel gives, also for addresses that are none. `uninvolved WHAT` says "ok".
 * WHAT: "addresses"; "faults": the same of lists and sockets of TCP; "exclusive": of processes that
 * wait with EPOLLEXCLUSIVE each event wakes one; "stack": threads that have the least there may be
 * wait by all of poll and select; "numbers": calls by syscall(), also of sockets of TCP, are no
 * cancellation points, and say what the kernel says.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NEED(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
	exit(1); } } while (0)

enum { WAITERS = 8, ROUNDS = 20, PAGE = 4096, LONG_MS = 20000, PAUSE_US = 1000, MANY = 100 };

static int set_with(int member, uint32_t events)
{
	struct epoll_event event = {.events = events};
	int set = epoll_create1(0);

	NEED(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, member, &event));
	return set;
}

static int is_fault(long result)
{
	return result == -1 && errno == EFAULT;
}

static void addresses(void)
{
	void *none = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct epoll_event event;
	int ends[2], file = memfd_create("file", 0);

	NEED(none != MAP_FAILED && file >= 0 && !ftruncate(file, PAGE));
	NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	NEED(is_fault(sendfile(ends[0], file, none, 1)));
	NEED(write(ends[1], "w", 1) == 1);
	int set = set_with(ends[0], EPOLLIN);
	NEED(is_fault(epoll_pwait(set, &event, 1, 0, none)));
	NEED(is_fault(epoll_pwait(set, &event, 1, -1, none)));
	if (syscall(SYS_epoll_pwait2, set, &event, 1, NULL, NULL, 0) < 0 && errno == ENOSYS)
		return;
	NEED(is_fault(syscall(SYS_epoll_pwait2, -1, &event, 1, none, NULL, 0)));
	NEED(is_fault(syscall(SYS_epoll_pwait2, set, &event, 1, NULL, none, 8)));
}

/* Two ends of a connection, of whatever kind the library makes it. */
static void connect_both(int ends[2])
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof at;
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	NEED(!bind(listener, (struct sockaddr *)&at, sizeof at) && !listen(listener, 1));
	NEED(!getsockname(listener, (struct sockaddr *)&at, &length));
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	NEED(!connect(ends[0], (struct sockaddr *)&at, sizeof at));
	ends[1] = accept(listener, NULL, NULL);
	NEED(ends[1] >= 0 && !close(listener));
}

/* What two ends say of messages and lists of parts that cannot be read. */
static void fault_messages(const int ends[2], void *none)
{
	struct msghdr of_none = {.msg_iov = none, .msg_iovlen = 1};
	struct mmsghdr many = {.msg_hdr = of_none};

	NEED(write(ends[0], "w", 1) == 1);
	NEED(is_fault(sendmsg(ends[0], none, 0)));
	NEED(is_fault(sendmsg(ends[0], &of_none, 0)));
	NEED(is_fault(sendmmsg(ends[0], none, 1, 0)));
	NEED(is_fault(sendmmsg(ends[0], &many, 1, 0)));
	NEED(is_fault(writev(ends[0], none, 1)));
	NEED(is_fault(recvmsg(ends[1], none, 0)));
	NEED(is_fault(recvmsg(ends[1], &of_none, 0)));
	NEED(is_fault(recvmmsg(ends[1], none, 1, 0, NULL)));
	NEED(is_fault(recvmmsg(ends[1], &many, 1, 0, NULL)));
	NEED(is_fault(readv(ends[1], none, 1)));
}

/* Lists, sets and messages that cannot be read, or not to their end. */
static void faults(void)
{
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *none = pages + PAGE;
	int tcp[2], local[2], fresh = socket(AF_INET, SOCK_STREAM, 0);
	struct timespec zero = {0};
	struct timeval now = {0};
	fd_set set;

	NEED(pages != MAP_FAILED && !mprotect(none, PAGE, PROT_NONE) && fresh >= 0);
	NEED(is_fault(connect(fresh, none, sizeof(struct sockaddr_in))));
	connect_both(tcp);
	NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, local));
	NEED(is_fault(connect(tcp[0], none, sizeof(struct sockaddr_in))));
	for (int i = 0; i < 2; i++) {
		const int *ends = i ? local : tcp;
		struct pollfd one = {.fd = ends[0], .events = POLLOUT}, *last = none;
		char byte = 'x', control[CMSG_SPACE(sizeof(int))];
		struct iovec part = {&byte, 1};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = none,
					 .msg_controllen = sizeof control};

		last[-1] = one;
		NEED(poll(last - 1, 1, 0) == 1 && last[-1].revents == POLLOUT);
		NEED(is_fault(poll(last - 1, 2, 0)));
		NEED(is_fault(poll(none, 1, 0)));
		NEED(is_fault(ppoll(none, 1, &zero, NULL)));
		NEED(is_fault(syscall(SYS_ppoll, &one, 1, none, NULL, 8)));
		for (int which = 0; which < 3; which++) {
			fd_set *sets[3] = {NULL, NULL, NULL};

			sets[which] = none;
			NEED(is_fault(select(ends[0] + 1, sets[0], sets[1], sets[2], &now)));
			NEED(is_fault(pselect(ends[0] + 1, sets[0], sets[1], sets[2], &zero, NULL)));
		}
		FD_ZERO(&set);
		FD_SET(ends[0], &set);
		/* The C library reads these itself in its own functions. */
		NEED(is_fault(syscall(SYS_select, ends[0] + 1, NULL, &set, NULL, none)));
		NEED(is_fault(syscall(SYS_pselect6, ends[0] + 1, NULL, &set, NULL, none, NULL)));
		NEED(is_fault(sendmsg(ends[0], &message, 0)));
		fault_messages(ends, none);
		NEED(read(ends[1], &byte, 1) == 1 && byte == 'w');
	}
}

/* Whether the kernel says that a process sleeps in the call of this number. */
static int is_in(pid_t process, long number)
{
	char path[64], said[64] = "";
	snprintf(path, sizeof path, "/proc/%d/syscall", process);
	int file = open(path, O_RDONLY);

	NEED(file >= 0 && read(file, said, sizeof said - 1) >= 0);
	close(file);
	return said[0] != 'r' && atol(said) == number;
}

static void exclusive(void)
{
	int ends[2], told[2];
	pid_t waiters[WAITERS];
	char byte;

	NEED(!pipe(ends) && !pipe(told));
	for (int i = 0; i < WAITERS; i++) {
		waiters[i] = fork();
		NEED(waiters[i] >= 0);
		if (!waiters[i]) {
			struct epoll_event event;
			int set = set_with(ends[0], EPOLLIN | EPOLLET | EPOLLEXCLUSIVE);
			int got = epoll_wait(set, &event, 1, LONG_MS);
			_exit(got == 1 && write(told[1], "t", 1) == 1 ? 0 : 1);
		}
	}
	for (int i = 0; i < WAITERS; i++)
		while (!is_in(waiters[i], SYS_epoll_wait) && !is_in(waiters[i], SYS_epoll_pwait) &&
		       !is_in(waiters[i], SYS_ppoll))
			usleep(PAUSE_US);
	for (int i = 0; i < WAITERS; i++) {
		NEED(write(ends[1], "x", 1) == 1 && read(told[0], &byte, 1) == 1);
		/* Whoever is woken besides says so, too, before it is gone. */
		int status;
		NEED(wait(&status) > 0 && status == 0);
		usleep(ROUNDS * PAUSE_US);
		NEED(waitpid(-1, &status, WNOHANG) <= 0);
		NEED(read(ends[0], &byte, 1) == 1);
	}
}

/* Waits with little room, for a pipe that is ready among many that are not. */
static void *waits_on_little(void *pipes)
{
	struct timeval soon = {.tv_sec = LONG_MS / 1000};
	struct pollfd list[MANY];
	fd_set sets[2];
	const int *ends = pipes;
	int i, last = 0;

	FD_ZERO(&sets[0]);
	FD_ZERO(&sets[1]);
	for (i = 0; i < MANY; i++) {
		list[i] = (struct pollfd){.fd = ends[2 * i], .events = POLLIN};
		FD_SET(ends[2 * i], &sets[0]);
		last = ends[2 * i] > last ? ends[2 * i] : last;
	}
	NEED(poll(list, MANY, LONG_MS) == 1 && list[MANY - 1].revents == POLLIN);
	NEED(ppoll(list, MANY, NULL, NULL) == 1);
	NEED(select(last + 1, &sets[0], &sets[1], NULL, &soon) == 1 && FD_ISSET(last, &sets[0]));
	NEED(pselect(last + 1, &sets[0], NULL, NULL, NULL, NULL) == 1);
	return NULL;
}

static void stack(void)
{
	int pipes[2 * MANY], i;
	pthread_attr_t least;
	pthread_t thread;

	for (i = 0; i < MANY; i++)
		NEED(!pipe(pipes + 2 * i));
	NEED(write(pipes[2 * MANY - 1], "x", 1) == 1);
	NEED(!pthread_attr_init(&least));
	NEED(!pthread_attr_setstacksize(&least, PTHREAD_STACK_MIN));
	NEED(!pthread_create(&thread, &least, waits_on_little, pipes));
	NEED(!pthread_join(thread, NULL));
}

static int passed;

/* A thread that is cancelled already, and goes on to where it asks for that. */
static void *calls_by_number(void *of)
{
	const int *ends = of;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct pollfd one = {.fd = ends[1], .events = POLLIN};
	struct timespec second = {.tv_sec = 1};
	struct timeval now = {0};
	char bytes[2] = "xy";
	struct iovec part = {bytes, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	struct mmsghdr many = {.msg_hdr = message};
	struct epoll_event event;
	fd_set reads;
	int set = set_with(ends[1], EPOLLIN), other = dup(ends[0]), fresh, listener;

	fresh = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	NEED(other >= 0 && fresh >= 0 && listener >= 0 && !listen(listener, 1));
	FD_ZERO(&reads);
	FD_SET(ends[1], &reads);
	NEED(!pthread_cancel(pthread_self()));
	NEED(syscall(SYS_write, ends[0], bytes, 1) == 1);
	NEED(syscall(SYS_writev, ends[0], &part, 1) == 1);
	NEED(syscall(SYS_sendto, ends[0], bytes, 1, 0, NULL, 0) == 1);
	NEED(syscall(SYS_sendmsg, ends[0], &message, 0) == 1);
	NEED(syscall(SYS_sendmmsg, ends[0], &many, 1, 0) == 1);
	NEED(syscall(SYS_poll, &one, 1, LONG_MS) == 1 && one.revents == POLLIN);
	NEED(syscall(SYS_ppoll, &one, 1, &second, NULL, 0) == 1);
	NEED(syscall(SYS_select, ends[1] + 1, &reads, NULL, NULL, &now) == 1);
	second = (struct timespec){.tv_sec = 1};
	NEED(syscall(SYS_pselect6, ends[1] + 1, &reads, NULL, NULL, &second, NULL) == 1);
	NEED(syscall(SYS_epoll_wait, set, &event, 1, LONG_MS) == 1);
	NEED(syscall(SYS_epoll_pwait, set, &event, 1, LONG_MS, NULL, 0) == 1);
	second = (struct timespec){.tv_sec = 1};
	if (syscall(SYS_epoll_pwait2, set, &event, 1, &second, NULL, 0) != 1)
		NEED(errno == ENOSYS);
	NEED(syscall(SYS_read, ends[1], bytes, 1) == 1);
	NEED(syscall(SYS_readv, ends[1], &part, 1) == 1);
	NEED(syscall(SYS_recvfrom, ends[1], bytes, 1, 0, NULL, NULL) == 1);
	NEED(syscall(SYS_recvmsg, ends[1], &message, 0) == 1);
	NEED(syscall(SYS_recvmmsg, ends[1], &many, 1, 0, NULL) == 1);
	NEED(syscall(SYS_accept4, listener, NULL, NULL, 0) == -1 && errno == EAGAIN);
	/* Port 0: nobody listens there. */
	NEED(syscall(SYS_connect, fresh, &at, sizeof at) == -1);
	NEED(!syscall(SYS_close, other) && !syscall(SYS_close, set));
	NEED(!syscall(SYS_close, fresh) && !syscall(SYS_close, listener));
	passed++;
	pthread_testcancel();
	return NULL;
}

static void numbers(void)
{
	struct timespec second = {.tv_sec = 1};
	struct pollfd one = {.events = POLLIN};
	uint64_t mask = 0, with_size[2] = {(uintptr_t)&mask, sizeof mask / 2};
	struct epoll_event event;
	pthread_t thread;
	void *result;
	int ends[2][2], state;
	fd_set reads;

	NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends[0]));
	connect_both(ends[1]);
	for (int i = 0; i < 2; i++) {
		NEED(!pthread_create(&thread, NULL, calls_by_number, ends[i]));
		NEED(!pthread_join(thread, &result));
		NEED(result == PTHREAD_CANCELED && passed == i + 1);
	}
	NEED(!pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state));
	NEED(state == PTHREAD_CANCEL_ENABLE && !syscall(SYS_close, dup(ends[0][1])));
	NEED(!pthread_setcancelstate(state, &state) && state == PTHREAD_CANCEL_DISABLE);
	/* What the kernel says, and the C library's functions of these names leave out. */
	one.fd = ends[0][0];
	FD_ZERO(&reads);
	FD_SET(one.fd, &reads);
	NEED(write(ends[0][1], "x", 1) == 1);
	NEED(syscall(SYS_ppoll, &one, 1, &second, NULL, 0) == 1 && one.revents == POLLIN);
	NEED(second.tv_sec == 0);
	second = (struct timespec){.tv_sec = 1};
	NEED(syscall(SYS_pselect6, one.fd + 1, &reads, NULL, NULL, &second, NULL) == 1);
	NEED(FD_ISSET(one.fd, &reads) && second.tv_sec == 0);
	int set = set_with(one.fd, EPOLLIN);
	NEED(syscall(SYS_ppoll, &one, 1, NULL, &mask, 4) == -1 && errno == EINVAL);
	NEED(syscall(SYS_pselect6, one.fd + 1, &reads, NULL, NULL, NULL, with_size) == -1);
	NEED(errno == EINVAL);
	NEED(syscall(SYS_epoll_pwait, set, &event, 1, 0, &mask, 4) == -1 && errno == EINVAL);
	NEED(syscall(SYS_epoll_pwait, set, &event, 1, 0, &mask, 8) == 1);
	NEED(syscall(SYS_ppoll, &one, 1, NULL, &mask, 8) == 1);
	with_size[1] = sizeof mask;
	NEED(syscall(SYS_pselect6, one.fd + 1, &reads, NULL, NULL, NULL, with_size) == 1);
}

int main(int count, char **words)
{
	NEED(count == 2);
	if (!strcmp(words[1], "addresses"))
		addresses();
	else if (!strcmp(words[1], "faults"))
		faults();
	else if (!strcmp(words[1], "stack"))
		stack();
	else if (!strcmp(words[1], "numbers"))
		numbers();
	else
		exclusive();
	puts("ok");
	return 0;
}
