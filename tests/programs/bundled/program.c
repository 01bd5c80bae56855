/* Says what the first device is by a module that it was linked with, or else opens, in several
 * threads at a time if their number follows; and whether a libibverbs of ours is loaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef STATIC_COPY
/* As rdma-core's own library says it. */
const char *volatile warning = "libibverbs: Warning: couldn't load driver";
#endif
#ifdef LINKED
const char *first_device(void);
int private_number(void);
#endif

static int look(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    if (strstr(info->dlpi_name, "/libibverbs.so.1"))
        *(int *)found = 1;
    return 0;
}

#ifndef LINKED
static pthread_barrier_t all_there;

static void *open_module(void *path)
{
    pthread_barrier_wait(&all_there);
    return dlopen(path, RTLD_NOW);
}

/* What the last thread got. */
static void *open_by_threads(char *path, int threads)
{
    pthread_t thread[threads];
    void *module = NULL;

    pthread_barrier_init(&all_there, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, open_module, path))
            exit(1);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], &module);
    return module;
}
#endif

int main(int count, char **words)
{
    const char *(*first)(void);
    int (*number)(void), ours = 0;

#ifdef LINKED
    (void)count, (void)words;
    first = first_device;
    number = private_number;
#else
    void *module = count > 2 ? open_by_threads(words[1], atoi(words[2]))
                   : count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
    if (!module) {
        fprintf(stderr, "%s\n", count > 1 ? dlerror() : "no module");
        return 1;
    }
    *(void **)&first = dlsym(module, "first_device");
    *(void **)&number = dlsym(module, "private_number");
#endif
    printf("first device: %s, private: %d", first(), number());
    dl_iterate_phdr(look, &ours);
    printf(", ours: %d\n", ours);
    return 0;
}
