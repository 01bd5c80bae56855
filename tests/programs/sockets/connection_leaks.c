/*
 * Connections one after the other, some hundreds at a time: each sends a few messages there and
 * back, and is closed. In the end a process has what it had after the first tenth.
 *
 *     leaks serve PORT COUNT
 *     leaks connect PORT COUNT
 *
 * Every fourth is used until its bytes may have been carried; the others are over before that. Who
 * connects names one of many addresses of this machine, so that ports do not run out. At the end
 * each says how much memory and how many descriptors it had at both moments.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { AT_A_TIME = 200, SHORT = 2, LONG = 60, ADDRESSES = 200 };

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
	exit(1); } } while (0)

struct used {
	long kilobytes, descriptors, mappings;
};

/* What this process has now. */
static struct used used_now(void)
{
	struct used used = { 0, 0, 0 };
	DIR *folder = opendir("/proc/self/fd");
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	char line[512];

	CHECK(folder && file);
	while (readdir(folder))
		used.descriptors++;
	while (fgets(line, sizeof line, file))
		if (sscanf(line, "Rss: %ld", &used.kilobytes) == 1)
			break;
	fclose(file);
	file = fopen("/proc/self/maps", "r");
	CHECK(file);
	while (fgets(line, sizeof line, file))
		used.mappings++;
	fclose(file);
	closedir(folder);
	return used;
}

static struct sockaddr_in address(int port, unsigned number)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK + number % ADDRESSES);
	return to;
}

static int connected(int port, unsigned number)
{
	struct sockaddr_in to = address(port, number);
	int one = socket(AF_INET, SOCK_STREAM, 0), yes = 1;

	CHECK(one >= 0 && connect(one, (struct sockaddr *)&to, sizeof to) == 0);
	CHECK(setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0);
	return one;
}

static int accepted(int listener)
{
	int one = accept(listener, NULL, NULL);

	CHECK(one >= 0);
	return one;
}

static void use(int one, unsigned number, int is_server)
{
	int messages = number % 4 ? SHORT : LONG;
	unsigned said = number, heard;

	for (int message = 0; message < messages; message++, said += 7) {
		if (!is_server)
			CHECK(send(one, &said, sizeof said, 0) == sizeof said);
		CHECK(recv(one, &heard, sizeof heard, MSG_WAITALL) == sizeof heard);
		CHECK(heard == said);
		if (is_server)
			CHECK(send(one, &said, sizeof said, 0) == sizeof said);
	}
}

int main(int count, char **words)
{
	static int open_ones[AT_A_TIME];
	int is_server = count > 1 && !strcmp(words[1], "serve");
	int port, listener = -1, yes = 1;
	unsigned total;
	struct used then = { 0, 0, 0 }, now;

	CHECK(count == 4);
	port = atoi(words[2]);
	total = strtoul(words[3], NULL, 10);
	if (is_server) {
		struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons(port) };

		listener = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(!setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes));
		CHECK(!bind(listener, (struct sockaddr *)&own, sizeof own));
		CHECK(!listen(listener, AT_A_TIME));
	}
	for (unsigned done = 0; done < total; done += AT_A_TIME) {
		if (done >= total / 10 && !then.kilobytes)
			then = used_now();
		for (unsigned index = 0; index < AT_A_TIME; index++)
			open_ones[index] = is_server ? accepted(listener) : connected(port, done + index);
		for (unsigned index = 0; index < AT_A_TIME; index++)
			use(open_ones[index], done + index, is_server);
		/* By turns who closes first. */
		for (unsigned index = 0; index < AT_A_TIME; index++) {
			char byte;

			if ((index + is_server) % 2)
				CHECK(recv(open_ones[index], &byte, 1, 0) == 0);
			CHECK(close(open_ones[index]) == 0);
		}
	}
	now = used_now();
	printf("memory %ld %ld descriptors %ld %ld mappings %ld %ld\n", then.kilobytes, now.kilobytes,
	       then.descriptors, now.descriptors, then.mappings, now.mappings);
	return 0;
}
