/*
 * Sends each byte that comes by a port of the machine back by the same port: what it takes to wake
 * somebody in a virtual machine, and to be woken by him, without anything of ours.
 * Usage: echo NAME
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The device of the port that is called so. */
static int opened(const char *name)
{
	static const char folder[] = "/sys/class/virtio-ports";
	char path[512], text[256];
	struct dirent *entry;
	DIR *ports = opendir(folder);

	while (ports && (entry = readdir(ports))) {
		FILE *file;

		snprintf(path, sizeof path, "%s/%s/name", folder, entry->d_name);
		file = fopen(path, "r");
		if (!file)
			continue;
		if (fgets(text, sizeof text, file))
			text[strcspn(text, "\n")] = 0;
		fclose(file);
		if (strcmp(text, name) == 0) {
			snprintf(path, sizeof path, "/dev/%s", entry->d_name);
			return open(path, O_RDWR);
		}
	}
	return -1;
}

int main(int argc, char **argv)
{
	int port = argc == 2 ? opened(argv[1]) : -1;
	char byte;

	if (port < 0) {
		fprintf(stderr, "echo: no such port\n");
		return 1;
	}
	while (read(port, &byte, 1) == 1)
		if (write(port, &byte, 1) != 1)
			return 1;
	return 0;
}
