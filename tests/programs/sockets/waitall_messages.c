/*
 * Messages that are wanted whole (MSG_WAITALL) are whole, whichever way their bytes come:
 *
 *     waitall_messages CONNECTIONS MESSAGES BYTES
 *
 * One process sends as fast as it can; the other one waits now and then, so that the first bytes
 * of what follows are the kernel's and the later ones are not. Each byte is what it should be.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static unsigned char *buffer;
static size_t size;

static void fails(const char *what, long got)
{
	fprintf(stderr, "%s: %ld of %zu: %s\n", what, got, size, strerror(errno));
	exit(1);
}

static void sends(int number, long messages)
{
	for (long i = 0; i < messages; i++) {
		memset(buffer, (int)i, size);
		long sent = send(number, buffer, size, MSG_NOSIGNAL);
		if (sent != (long)size)
			fails("send", sent);
	}
	if (recv(number, buffer, 1, 0) != 1)
		fails("the end", 0);
}

static void receives(int number, long messages)
{
	for (long i = 0; i < messages; i++) {
		errno = 0;
		long got = recv(number, buffer, size, MSG_WAITALL);
		if (got != (long)size)
			fails("recv", got);
		for (size_t at = 0; at < size; at += at % 97 + 1)
			if (buffer[at] != (unsigned char)i)
				fails("wrong bytes", (long)at);
		struct timespec pause = { 0, rand() % 300000 };
		if (rand() % 4 == 0)
			nanosleep(&pause, NULL);
	}
	if (send(number, "x", 1, MSG_NOSIGNAL) != 1)
		fails("the end", 0);
}

int main(int count, char **words)
{
	if (count != 4)
		return 2;
	long connections = atol(words[1]), messages = atol(words[2]);
	size = (size_t)atol(words[3]);
	buffer = malloc(size);
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof address;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 10) ||
	    getsockname(listener, (struct sockaddr *)&address, &length))
		fails("listen", 0);
	pid_t child = fork();
	for (long i = 0; i < connections; i++) {
		int number;
		if (child == 0) {
			number = socket(AF_INET, SOCK_STREAM, 0);
			if (connect(number, (struct sockaddr *)&address, length))
				fails("connect", 0);
			sends(number, messages);
		} else {
			number = accept(listener, NULL, NULL);
			if (number < 0)
				fails("accept", 0);
			receives(number, messages);
		}
		close(number);
	}
	if (child == 0)
		return 0;
	int status;
	return wait(&status) == child && status == 0 ? 0 : 1;
}
