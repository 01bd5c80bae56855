/* For sibling_library.c: what the process has of sockets and threads, and a pipe that the second
 * library watches. */
#ifndef SIBLING_LIBRARY_H
#define SIBLING_LIBRARY_H

#include "common.h"
#include "sibling/sibling.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/prctl.h>

/* ---- what the process has ---- */

/* Descriptors that are sockets. The connection to the daemon has two. */
static int sockets(void)
{
    return descriptors("socket:");
}

/* Threads of this name; all, if NULL, but for that which calls the daemon now and then. */
static int threads(const char *name)
{
    int found = 0;
    DIR *folder = opendir("/proc/self/task");
    check(folder, "/proc/self/task: %m");
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[300], comm[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file)
            continue;
        if (fgets(comm, sizeof comm, file)) {
            comm[strcspn(comm, "\n")] = 0;
            found += name ? !strcmp(comm, name) : !!strcmp(comm, "omniverb-calls");
        }
        fclose(file);
    }
    closedir(folder);
    return found;
}

/* ---- a watched pipe ---- */

struct watched {
    struct sibling *second;
    int ends[2];
    uint64_t watch;
    char thread[17];    /* that called */
    int asked;          /* what a question within the call was answered with */
    unsigned linger_ms; /* in the call */
    bool leaves, ends_itself;
    atomic_int calls, left;
};

static void ready(void *cookie, uint64_t watch)
{
    struct watched *w = cookie;
    char c;
    prctl(PR_GET_NAME, w->thread);
    w->asked = sibling_ask(w->second, SIBLING_QUERY_GIDS, 8, 0);
    if (!w->leaves)
        check(read(w->ends[0], &c, 1) == 1, "called for nothing: %m");
    if (w->ends_itself)
        same(sibling_unwatch(w->second, watch), 0);
    atomic_fetch_add(&w->calls, 1);
    if (w->linger_ms)
        sleep_ms(w->linger_ms);
    atomic_fetch_add(&w->left, 1);
}

static void watched_begin(struct watched *w, struct sibling *second)
{
    w->second = second;
    check(!pipe2(w->ends, O_CLOEXEC | O_NONBLOCK), "pipe: %m");
    same(sibling_watch(second, w->ends[0], 0, ready, w, &w->watch), 0);
}

static void await(atomic_int *count, int least)
{
    uint64_t begun = now_ns();
    while (atomic_load(count) < least) {
        check(now_ns() - begun < 30000000000u, "%d calls in 30 s, not %d", atomic_load(count),
              least);
        sleep_ms(1);
    }
}

static void poke(struct watched *w)
{
    check(write(w->ends[1], "x", 1) == 1, "pipe: %m");
}

static void watched_end(struct watched *w)
{
    close(w->ends[0]), close(w->ends[1]);
}

#endif
