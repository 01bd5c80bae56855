/* See common.h: processes with a socket between them. */
#include "common.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* Goes to the place that TEST_PEERS names for child `number`. */
static void go_to_peer(unsigned number)
{
    const char *peers = getenv("TEST_PEERS"), *next;
    if (!peers || !*peers)
        return;
    for (; number && (next = strchr(peers, ',')); number--)
        peers = next + 1;
    size_t length = strcspn(peers, "="), rest = strcspn(peers + length, ",");
    char namespace[256], daemon[256];
    check(length < sizeof namespace && rest > 1 && rest < sizeof daemon, "TEST_PEERS: %s", peers);
    snprintf(namespace, sizeof namespace, "%.*s", (int)length, peers);
    snprintf(daemon, sizeof daemon, "%.*s", (int)rest - 1, peers + length + 1);
    int file = open(namespace, O_RDONLY | O_CLOEXEC);
    check(file >= 0 && !setns(file, CLONE_NEWNET), "%s: %m", namespace);
    close(file);
    setenv("OMNIVERB_SOCKET", daemon, 1);
}

/* The child's side: streams come in the order in which they are made. */
static int accept_stream(unsigned short port)
{
    static int listener = -1;
    int yes = 1;
    if (listener < 0) {
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        check(!bind(listener, (struct sockaddr *)&any, sizeof any) && !listen(listener, 64),
              "port %u: %m", port);
    }
    int stream = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    check(stream >= 0, "accept: %m");
    return stream;
}

static int connect_stream(const char *address, unsigned short port)
{
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(port)};
    check(inet_pton(AF_INET, address, &there.sin_addr) == 1, "what is %s?", address);
    int stream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(stream >= 0 && !connect(stream, (struct sockaddr *)&there, sizeof there), "%s: %m",
          address);
    return stream;
}

void socket_pair(int ends[2])
{
    const char *elsewhere = getenv("TEST_ELSEWHERE"), *port;
    char address[64];
    int yes = 1;
    if (!elsewhere) {
        check(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair: %m");
        return;
    }
    ends[0] = ends[1] = -1;
    port = strchr(elsewhere, '=');
    if (port) {
        snprintf(address, sizeof address, "%.*s", (int)(port - elsewhere), elsewhere);
        ends[0] = connect_stream(address, (unsigned short)atoi(port + 1));
    } else {
        ends[1] = accept_stream((unsigned short)atoi(elsewhere));
    }
    setsockopt(ends[ends[0] < 0], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

int spawn(void (*run)(int socket), pid_t *child)
{
    static unsigned children;
    int ends[2];
    unsigned number = children++;
    pid_t parent = getpid();
    socket_pair(ends);
    if (ends[0] < 0) {
        run(ends[1]);
        fflush(NULL);
        _exit(0);
    }
    fflush(NULL);
    *child = fork();
    check(*child >= 0, "fork: %m");
    if (*child == 0 && ends[1] < 0)
        _exit(0);
    if (*child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        close(ends[0]);
        go_to_peer(number);
        run(ends[1]);
        fflush(NULL);
        _exit(0);
    }
    if (ends[1] >= 0)
        close(ends[1]);
    return ends[0];
}

void reap(pid_t child)
{
    int status;
    check(waitpid(child, &status, 0) == child, "waitpid: %m");
    check(status == 0, "the other process ended with status %#x", (unsigned)status);
}

void put(int socket, const void *data, size_t bytes)
{
    while (bytes) {
        ssize_t n = send(socket, data, bytes, MSG_NOSIGNAL);
        check(n > 0, "send to the other process: %m");
        data = (const char *)data + n;
        bytes -= (size_t)n;
    }
}

void get(int socket, void *data, size_t bytes)
{
    while (bytes) {
        ssize_t n = recv(socket, data, bytes, 0);
        check(n > 0, "the other process is gone");
        data = (char *)data + n;
        bytes -= (size_t)n;
    }
}

void swap(int socket, const void *ours, void *theirs, size_t bytes)
{
    put(socket, ours, bytes);
    get(socket, theirs, bytes);
}

void meet(int socket)
{
    char ours = 'm', theirs = 0;
    swap(socket, &ours, &theirs, 1);
    check(theirs == 'm', "the two processes are out of step");
}

int descriptors(const char *kind)
{
    int found = 0;
    DIR *folder = opendir("/proc/self/fd");
    check(folder, "/proc/self/fd: %m");
    for (struct dirent *entry; (entry = readdir(folder));) {
        char target[64] = "";
        if (readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1) > 0)
            found += !strncmp(target, kind, strlen(kind));
    }
    closedir(folder);
    return found;
}
