/*
 * Threads send and receive by two numbers whose sockets another thread closes and opens anew under
 * them, all the time:
 *
 *     reused_descriptors ROUNDS
 *
 * Each number has a port of its own. What comes by a connection is of its port, whole, and in order
 * without a gap from the first record of each of its two senders on, at both ends: no call that
 * began by one connection ends by another one, whatever is closed meanwhile.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SENDERS = 2, PORTS = 2 };

/* A record: of which port and sender, of which connection (none, if a client has sent it), and
 * which one. */
struct record {
	uint8_t port, sender;
	uint16_t connection;
	uint32_t count;
};

struct end {
	int number, port, connection, users, senders;
};

static int numbers[PORTS];
static int is_over;

static void fails(const char *what, const struct record *got, uint32_t wanted)
{
	fprintf(stderr, "%s: port %u, connection %u, %u, not %u: %s\n", what, got->port,
	        got->connection, got->count, wanted, strerror(errno));
	exit(1);
}

static void done(struct end *end)
{
	if (__atomic_sub_fetch(&end->users, 1, __ATOMIC_ACQ_REL) == 0) {
		close(end->number);
		free(end);
	}
}

/* The server's threads, of each connection. */
static void *answers(void *argument)
{
	struct end *end = argument;
	int sender = __atomic_fetch_add(&end->senders, 1, __ATOMIC_RELAXED);
	struct record record = { (uint8_t)end->port, (uint8_t)sender, (uint16_t)end->connection,
	                         0 };
	while (send(end->number, &record, sizeof record, MSG_NOSIGNAL) == sizeof record)
		record.count++;
	done(end);
	return NULL;
}

static void *listens(void *argument)
{
	struct end *end = argument;
	struct record got;
	uint32_t wanted[SENDERS] = { 0 };
	int is_known[SENDERS] = { 0 };
	long bytes;
	while ((bytes = recv(end->number, &got, sizeof got, MSG_WAITALL)) > 0) {
		/* A reset may come within one. */
		if (bytes != sizeof got && recv(end->number, &got, sizeof got, MSG_WAITALL) <= 0)
			break;
		if (bytes != sizeof got || got.port != end->port || got.sender >= SENDERS)
			fails("a server", &got, 0);
		if (is_known[got.sender] && got.count != wanted[got.sender])
			fails("a server", &got, wanted[got.sender]);
		wanted[got.sender] = got.count + 1;
		is_known[got.sender] = 1;
	}
	shutdown(end->number, SHUT_RDWR);
	done(end);
	return NULL;
}

static void starts(void *(*what)(void *), void *argument)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, what, argument))
		exit(3);
	pthread_detach(thread);
}

static void serves(const int *listeners, int told)
{
	struct pollfd all[] = { { listeners[0], POLLIN, 0 }, { listeners[1], POLLIN, 0 },
	                        { told, POLLIN, 0 } };
	int accepted[PORTS] = { 0 };
	while (poll(all, 3, -1) > 0 && !all[2].revents)
		for (int port = 0; port < PORTS; port++)
			if (all[port].revents) {
				struct end *end = malloc(sizeof *end);
				*end = (struct end){ accept(listeners[port], NULL, NULL), port,
				                     accepted[port]++, 1 + SENDERS, 0 };
				if (end->number < 0)
					exit(3);
				for (int sender = 0; sender < SENDERS; sender++)
					starts(answers, end);
				starts(listens, end);
			}
}

/* The client's threads, of each number. */
static void *sends(void *argument)
{
	int thread = (int)(intptr_t)argument, port = thread % PORTS;
	struct record record = { (uint8_t)port, (uint8_t)(thread / PORTS), 0, 0 };
	while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
		long sent = send(numbers[port], &record, sizeof record, MSG_NOSIGNAL);
		if (sent == sizeof record)
			record.count++;
		else if (sent >= 0)
			fails("a part was sent", &record, record.count);
		else
			sched_yield();
	}
	return NULL;
}

static void *receives(void *argument)
{
	int port = (int)(intptr_t)argument % PORTS, connection = -1;
	/* Of which connections there was something. They may be accepted in another order than they
	   were opened in, if not all are of one kind. */
	static char is_seen[PORTS][UINT16_MAX + 1];
	struct record got;
	uint32_t wanted[SENDERS] = { 0 }, all = 0;
	while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
		long bytes = recv(numbers[port], &got, sizeof got, MSG_WAITALL);
		if (bytes <= 0) {
			sched_yield();
			continue;
		}
		if (bytes != sizeof got) {
			/* The last one of its connection. */
			connection = -1;
			continue;
		}
		if (got.port != port || got.sender >= SENDERS)
			fails("a client", &got, 0);
		if (got.connection != connection) {
			if (is_seen[port][got.connection])
				fails("a client again", &got, 0);
			is_seen[port][got.connection] = 1;
			memset(wanted, 0, sizeof wanted);
		}
		if (got.count != wanted[got.sender])
			fails("a client", &got, wanted[got.sender]);
		connection = got.connection;
		wanted[got.sender] = got.count + 1;
		all++;
	}
	printf("port %d: %u records\n", port, all);
	return NULL;
}

static int opens(const struct sockaddr_in *address)
{
	int number = socket(AF_INET, SOCK_STREAM, 0);
	if (number < 0 || connect(number, (const struct sockaddr *)address, sizeof *address))
		exit(3);
	return number;
}

int main(int count, char **words)
{
	if (count != 2)
		return 2;
	long rounds = atol(words[1]);
	srand((unsigned)getpid());
	struct sockaddr_in addresses[PORTS];
	int listeners[PORTS], told[2];
	if (pipe(told))
		return 3;
	for (int port = 0; port < PORTS; port++) {
		socklen_t length = sizeof addresses[port];
		addresses[port] = (struct sockaddr_in){ .sin_family = AF_INET };
		addresses[port].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		listeners[port] = socket(AF_INET, SOCK_STREAM, 0);
		if (bind(listeners[port], (struct sockaddr *)&addresses[port], length) ||
		    listen(listeners[port], 10) ||
		    getsockname(listeners[port], (struct sockaddr *)&addresses[port], &length))
			return 3;
	}
	pid_t child = fork();
	if (child == 0) {
		close(told[1]);
		serves(listeners, told[0]);
		/* Threads go on until all is closed. */
		_exit(0);
	}
	enum { THREADS = PORTS * (SENDERS + 1) };
	pthread_t threads[THREADS];
	for (int port = 0; port < PORTS; port++) {
		close(listeners[port]);
		numbers[port] = opens(&addresses[port]);
	}
	for (int thread = 0; thread < THREADS; thread++)
		if (pthread_create(&threads[thread], NULL,
		                   thread < PORTS * SENDERS ? sends : receives,
		                   (void *)(intptr_t)thread))
			return 3;
	for (long round = 0; round < rounds; round++) {
		struct timespec pause = { 0, 1000000 + rand() % 12000000 };
		nanosleep(&pause, NULL);
		int port = rand() % PORTS, number = numbers[port];
		/* (For receiving, too, would cut a record that comes in two calls.) */
		if (rand() % 2)
			shutdown(number, SHUT_WR);
		close(number);
		/* The lowest number that is free is mostly the same; no other one may come to have it. */
		int now = opens(&addresses[port]);
		if (now != number && (dup2(now, number) != number || close(now)))
			return 3;
	}
	__atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
	for (int port = 0; port < PORTS; port++)
		shutdown(numbers[port], SHUT_RDWR);
	for (int thread = 0; thread < THREADS; thread++)
		pthread_join(threads[thread], NULL);
	close(told[1]);
	int status;
	return wait(&status) == child && status == 0 ? 0 : 1;
}
