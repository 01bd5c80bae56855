/*
 * What a library that stands before calls of sockets could break: `preload_side_effects NAME` does
 * one thing and says ok, or what was wrong. It is run with and without the library. Where that can
 * say what it knows of a descriptor, it must be right.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define NEED(what) \
	do { \
		if (!(what)) { \
			printf("%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

/* What the library says of a descriptor begins so; without a library everything is true. */
static int is(int number, const char *kind)
{
	static int (*describe)(int, char *, size_t);
	char text[400] = "";
	static int is_looked_up;

	if (!is_looked_up++)
		describe = (int (*)(int, char *, size_t))dlsym(RTLD_DEFAULT, "omniverb_sockets_describe");
	if (!describe)
		return 1;
	describe(number, text, sizeof text);
	if (strncmp(text, kind, strlen(kind)) && !strstr(text, kind)) {
		printf("%d is %s, not %s\n", number, text, kind);
		return 0;
	}
	return 1;
}

static void pair(int ends[2])
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof at;
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	NEED(!bind(listener, (struct sockaddr *)&at, sizeof at) && !listen(listener, 1));
	NEED(!getsockname(listener, (struct sockaddr *)&at, &length));
	NEED(is(listener, "listening"));
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	NEED(!connect(ends[0], (struct sockaddr *)&at, sizeof at));
	ends[1] = accept(listener, NULL, NULL);
	NEED(ends[1] >= 0 && !close(listener));
	NEED(is(ends[0], "connected") && is(ends[1], "accepted"));
}

/* Children that have our memory close and replace descriptors: ours stay what they are. */
static void a_vfork(void)
{
	int ends[2];

	pair(ends);
	for (int i = 0; i < 100; i++) {
		pid_t child = vfork();

		if (!child) {
			close(ends[0]);
			dup2(1, ends[1]);
			syscall(SYS_close, ends[1]);
			execl("/bin/true", "true", NULL);
			_exit(1);
		}
		NEED(child > 0 && waitpid(child, NULL, 0) == child);
		NEED(is(ends[0], "connected") && is(ends[1], "accepted"));
	}
	NEED(!close(ends[0]) && is(ends[0], "unknown"));
}

static char stack[65536];
static int cloned[2];

static int in_clone(void *unused)
{
	(void)unused;
	close(cloned[0]);
	close_range(3, 20, 0);
	_exit(0);
}

static void a_clone(void)
{
	int status;
	pid_t child;

	pair(cloned);
	child = clone(in_clone, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
	NEED(child > 0 && waitpid(child, &status, 0) == child && !status);
	NEED(is(cloned[0], "connected") && is(cloned[1], "accepted"));
	child = clone(in_clone, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
	NEED(child > 0 && waitpid(child, &status, 0) == child && !status);
	NEED(is(cloned[0], "connected") && is(cloned[1], "accepted"));
	/* From here on everybody is asked who he is. */
	NEED(!close(cloned[1]) && is(cloned[1], "unknown") && is(cloned[0], "connected"));
	child = fork();
	if (!child) {
		NEED(is(cloned[0], "connected") && !close(cloned[0]) && is(cloned[0], "unknown"));
		_exit(0);
	}
	NEED(waitpid(child, &status, 0) == child && !status && is(cloned[0], "connected"));
}

static void a_spawn(void)
{
	posix_spawn_file_actions_t actions;
	char *words[] = { "true", NULL };
	int ends[2], status;
	pid_t child;

	pair(ends);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addclose(&actions, ends[0]);
	posix_spawn_file_actions_adddup2(&actions, 1, ends[1]);
	NEED(!posix_spawn(&child, "/bin/true", &actions, NULL, words, environ));
	NEED(waitpid(child, &status, 0) == child && !status);
	NEED(!system("exit 0") && is(ends[0], "connected") && is(ends[1], "accepted"));
}

static int cleaned, blocked;

static void clean(void *unused)
{
	(void)unused;
	cleaned++;
}

static void *waits(void *how)
{
	char byte;
	struct epoll_event event;
	struct msghdr message = { 0 };

	pthread_cleanup_push(clean, NULL);
	switch ((long)how) {
	case 0: read(blocked, &byte, 1); break;
	case 1: recv(blocked, &byte, 1, 0); break;
	case 2: recvmsg(blocked, &message, MSG_PEEK); break;
	case 3: accept(blocked, NULL, NULL); break;
	case 4: accept4(blocked, NULL, NULL, 0); break;
	case 5: epoll_wait(epoll_create1(0), &event, 1, -1); break;
	case 6: fcntl(blocked, F_SETLKW, &(struct flock){ .l_type = F_WRLCK }); break;
	}
	pthread_cleanup_pop(0);
	return NULL;
}

/* Threads that wait in a call can be cancelled, and clean up. */
static void a_cancel(void)
{
	int ends[2], listener = socket(AF_INET, SOCK_STREAM, 0), file, status;
	pid_t holder;
	pthread_t thread;
	void *result;

	pair(ends);
	NEED(!listen(listener, 1));
	file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
	NEED(file >= 0);
	holder = fork();
	if (!holder) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fcntl(file, F_SETLK, &(struct flock){ .l_type = F_WRLCK });
		pause();
	}
	usleep(20000);
	for (long how = 0; how < 7; how++) {
		blocked = how == 6 ? file : how == 3 || how == 4 ? listener : ends[0];
		NEED(!pthread_create(&thread, NULL, waits, (void *)how));
		usleep(10000);
		NEED(!pthread_cancel(thread) && !pthread_join(thread, &result));
		NEED(result == PTHREAD_CANCELED && cleaned == how + 1);
	}
	kill(holder, SIGKILL);
	waitpid(holder, &status, 0);
	/* syscall() is no cancellation point, nor is what the library does. */
	NEED(is(ends[0], "connected") && is(listener, "listening"));
}

static sigjmp_buf back;
static int pipe_of[2], mode;

static void on_alarm(int number)
{
	char byte = 'x';
	int saved = errno;

	(void)number;
	/* As a handler may. */
	NEED(write(pipe_of[1], &byte, 1) == 1 && read(pipe_of[0], &byte, 1) == 1);
	close(dup(pipe_of[0]));
	errno = saved;
	if (mode == 1)
		siglongjmp(back, 1);
}

static void after(int microseconds)
{
	struct itimerval when = { .it_value.tv_usec = microseconds };

	NEED(!setitimer(ITIMER_REAL, &when, NULL));
}

/* Handlers that call, interrupt, restart, and do not come back. */
static void a_signal(void)
{
	struct sigaction action = { .sa_handler = on_alarm };
	struct timeval patience = { .tv_usec = 60000 };
	int ends[2];
	char byte;

	pair(ends);
	NEED(!pipe(pipe_of) && !sigaction(SIGALRM, &action, NULL));
	after(10000);
	NEED(recv(ends[0], &byte, 1, 0) == -1 && errno == EINTR);
	after(10000);
	NEED(epoll_wait(epoll_create1(0), &(struct epoll_event){ 0 }, 1, -1) == -1 && errno == EINTR);
	action.sa_flags = SA_RESTART;
	NEED(!sigaction(SIGALRM, &action, NULL));
	NEED(!setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
	NEED(recv(ends[0], &byte, 1, 0) == -1 && errno == EAGAIN);
	patience.tv_usec = 0;
	NEED(!setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
	mode = 1;
	if (!sigsetjmp(back, 1)) {
		after(10000);
		recv(ends[0], &byte, 1, 0);
		NEED(0);
	}
	NEED(send(ends[1], "y", 1, 0) == 1 && recv(ends[0], &byte, 1, 0) == 1 && byte == 'y');
}

/* Streams, and functions with any number of arguments of any kind. */
static void a_stream(void)
{
	int ends[2], copy;
	char text[200] = "";
	FILE *stream;

	pair(ends);
	NEED(dprintf(ends[0], "%s %.3f %d %.1f %s\n", "a", 1.5, 7, 2.25, "end") > 0);
	NEED(recv(ends[1], text, sizeof text, 0) > 0 && !strcmp(text, "a 1.500 7 2.2 end\n"));
	NEED(is(ends[0], "why=stdio"));
	copy = dup(ends[1]);
	NEED(is(copy, "duplicated") && is(copy, "why=free"));
	stream = fdopen(copy, "w");
	NEED(stream && is(ends[1], "why=stdio"));
	NEED(fprintf(stream, "more\n") > 0 && !fclose(stream) && is(copy, "unknown"));
	NEED(recv(ends[0], text, sizeof text, 0) == 5 && is(ends[1], "why=stdio"));
	/* No stream has this one. */
	errno = 0;
	stream = fmemopen(text, sizeof text, "r");
	NEED(stream && !fclose(stream) && !errno);
}

/* Everything is where the kernel puts it, and nothing is in its way. */
static void a_limit(void)
{
	struct rlimit limit = { 64, 64 };
	int count = 0, first;

	closefrom(3);
	first = dup(0);
	NEED(first == 3 && !setrlimit(RLIMIT_NOFILE, &limit));
	while (socket(AF_INET, SOCK_STREAM, 0) == first + 1 + count)
		count++;
	NEED(errno == EMFILE && first + 1 + count == 64);
	NEED(!close_range(first + 1, ~0U, 0) && socket(AF_INET, SOCK_STREAM, 0) == first + 1);
	closefrom(first + 1);
	NEED(fcntl(first + 1, F_GETFD) == -1 && errno == EBADF);
}

/* Descriptors of the library's own are not there for the program, and survive it. */
static void a_keep(void)
{
	int (*keep)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "omniverb_sockets_keep");
	int ends[2], own, again = -1;
	char byte, path[64];

	if (!keep)
		return;
	NEED(!pipe(ends));
	own = keep(ends[0]);
	NEED(own > 900 && !close(ends[0]));
	NEED(close(own) == -1 && errno == EBADF && dup(own) == -1 && errno == EBADF);
	NEED(fcntl(own, F_GETFD) == -1 && errno == EBADF && dup2(own, 9) == -1);
	NEED(syscall(SYS_close, own) == -1 && errno == EBADF);
	NEED(!close_range(ends[1] + 1, ~0U, 0));
	closefrom(ends[1] + 1);
	NEED(write(ends[1], "x", 1) == 1 && syscall(SYS_read, own, &byte, 1) == 1);
	/* The program gets the number if it wants it. */
	NEED(dup2(1, own) == own && !close(own));
	for (int number = own - 70; number < own + 70; number++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", number);
		if (!access(path, F_OK))
			again = number;
	}
	NEED(again > 900 && again != own && write(ends[1], "x", 1) == 1);
	NEED(syscall(SYS_read, again, &byte, 1) == 1);
}

static volatile int stop;

static void *busy(void *unused)
{
	(void)unused;
	while (!stop) {
		int number = socket(AF_INET, SOCK_STREAM, 0), copy = dup(number);

		close(number);
		close(copy);
	}
	return NULL;
}

/* fork() while others make and close sockets; nobody waits for anybody. */
static void a_fork(void)
{
	pthread_t threads[3];

	for (int i = 0; i < 3; i++)
		NEED(!pthread_create(&threads[i], NULL, busy, NULL));
	for (int i = 0; i < 200; i++) {
		int status;
		pid_t child = i % 2 ? fork() : (pid_t)syscall(SYS_fork);

		if (!child) {
			int ends[2];

			pair(ends);
			_exit(0);
		}
		NEED(waitpid(child, &status, 0) == child && !status);
	}
	stop = 1;
	for (int i = 0; i < 3; i++)
		NEED(!pthread_join(threads[i], NULL));
}

static int in_call;

/* In place of the C library's: nobody allocates in a call. */
void *malloc(size_t size)
{
	extern void *__libc_malloc(size_t);

	if (in_call) {
		in_call = 0;
		printf("malloc in a call\n");
		exit(1);
	}
	return __libc_malloc(size);
}

static void a_heap(void)
{
	int ends[2], set;
	struct epoll_event event = { .events = EPOLLIN };
	char byte = 0;

	NEED(is(1, "o"));
	in_call = 1;
	pair(ends);
	set = epoll_create1(0);
	NEED(!epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
	NEED(send(ends[1], &byte, 1, MSG_NOSIGNAL) == 1 && read(ends[0], &byte, 1) == 1);
	NEED(dup2(ends[0], 100) == 100 && !close(ends[0]) && !close_range(90, 110, 0));
	NEED(socket(AF_INET, SOCK_STREAM, 0) == ends[0]);
	in_call = 0;
}

/* A table of a thread's own: nothing is sure any more, and everything works. */
static void a_table(void)
{
	int ends[2];
	char byte;

	pair(ends);
	NEED(!unshare(CLONE_FILES) && is(ends[0], "nothing is sure"));
	NEED(send(ends[0], "z", 1, 0) == 1 && recv(ends[1], &byte, 1, 0) == 1 && byte == 'z');
	NEED(!close(ends[0]) && recv(ends[1], &byte, 1, 0) == 0);
}

int main(int count, char **words)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {
		{ "vfork", a_vfork }, { "clone", a_clone }, { "spawn", a_spawn },
		{ "cancel", a_cancel }, { "signal", a_signal }, { "stream", a_stream },
		{ "limit", a_limit }, { "keep", a_keep }, { "fork", a_fork }, { "heap", a_heap },
		{ "table", a_table },
	};

	setvbuf(stdout, NULL, _IONBF, 0);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (count > 1 && strcmp(all[i].name, words[1]))
			continue;
		if (count == 1) {
			puts(all[i].name);
			continue;
		}
		all[i].run();
		puts("ok");
		return 0;
	}
	return count > 1;
}
