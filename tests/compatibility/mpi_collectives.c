/* Collective operations of MPI, each with its result checked, and messages of many lengths between
 * all pairs. The last line says how many ranks there were, and whether what they said to each other
 * went through the RDMA device: its counter of bytes is looked at before and after. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 10000, LONGEST = 1 << 20, SECONDS = 10 };

static int rank, ranks;

static void expect(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "rank %d of %d: %s is wrong\n", rank, ranks, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static long counter(void)
{
    long bytes = -1;
    FILE *file = fopen("/sys/class/infiniband/omv0/ports/1/counters/port_xmit_data", "r");
    if (file) {
        if (fscanf(file, "%ld", &bytes) != 1)
            bytes = -1;
        fclose(file);
    }
    return bytes;
}

/* What rank `of` has at `i`. */
static int value(int of, int i)
{
    return of * 1000003 + i * 7;
}

static void one_to_all(int root, int *mine, int *all)
{
    for (int i = 0; i < COUNT; i++)
        mine[i] = rank == root ? value(root, i) : 0;
    MPI_Bcast(mine, COUNT, MPI_INT, root, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++)
        expect(mine[i] == value(root, i), "MPI_Bcast");
    for (int i = 0; i < COUNT * ranks; i++)
        all[i] = value(i / COUNT, i);
    MPI_Scatter(all, COUNT, MPI_INT, mine, COUNT, MPI_INT, root, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++)
        expect(mine[i] == value(rank, rank * COUNT + i), "MPI_Scatter");
    memset(all, 0, sizeof(int) * COUNT * ranks);
    MPI_Gather(mine, COUNT, MPI_INT, all, COUNT, MPI_INT, root, MPI_COMM_WORLD);
    for (int i = 0; rank == root && i < COUNT * ranks; i++)
        expect(all[i] == value(i / COUNT, i), "MPI_Gather");
}

static void all_to_all(int *mine, int *all, int *other)
{
    for (int i = 0; i < COUNT; i++)
        mine[i] = value(rank, i);
    MPI_Allgather(mine, COUNT, MPI_INT, all, COUNT, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT * ranks; i++)
        expect(all[i] == value(i / COUNT, i % COUNT), "MPI_Allgather");
    for (int i = 0; i < COUNT * ranks; i++)
        all[i] = value(rank, i);
    MPI_Alltoall(all, COUNT, MPI_INT, other, COUNT, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT * ranks; i++)
        expect(other[i] == value(i / COUNT, rank * COUNT + i % COUNT), "MPI_Alltoall");
}

static void reductions(int root, int *mine, int *all)
{
    long sum = 0;
    for (int of = 0; of < ranks; of++)
        sum += of + 1;
    for (int i = 0; i < COUNT; i++)
        mine[i] = (rank + 1) * (i % 1000);
    MPI_Allreduce(mine, all, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++)
        expect(all[i] == sum * (i % 1000), "MPI_Allreduce");
    MPI_Reduce(mine, all, COUNT, MPI_INT, MPI_MAX, root, MPI_COMM_WORLD);
    for (int i = 0; rank == root && i < COUNT; i++)
        expect(all[i] == ranks * (i % 1000), "MPI_Reduce");
    MPI_Scan(mine, all, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++)
        expect(all[i] == (rank + 1) * (rank + 2) / 2 * (i % 1000), "MPI_Scan");
}

/* Round the ring, from a byte to a mebibyte: eager and by rendezvous. */
static void neighbours(unsigned char *from, unsigned char *to)
{
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int length = 1; length <= LONGEST; length *= 4) {
        MPI_Status status;
        int got;
        for (int i = 0; i < length; i++)
            from[i] = value(rank, i + length);
        memset(to, 0, length);
        MPI_Sendrecv(from, length, MPI_BYTE, next, length, to, LONGEST, MPI_BYTE, before, length,
                     MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &got);
        expect(got == length, "the length in MPI_Sendrecv");
        for (int i = 0; i < length; i++)
            expect(to[i] == (unsigned char)value(before, i + length), "MPI_Sendrecv");
    }
}

/* One-sided: each puts into its neighbour's memory, and adds to a number of rank 0. */
static void windows(void)
{
    int *memory, *own = malloc(sizeof(int) * COUNT), one = 1;
    MPI_Win window;
    MPI_Win_allocate(sizeof(int) * (COUNT + 1), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory,
                     &window);
    memset(memory, 0, sizeof(int) * (COUNT + 1));
    for (int i = 0; i < COUNT; i++)
        own[i] = value(rank, i);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_fence(0, window);
    MPI_Put(own, COUNT, MPI_INT, (rank + 1) % ranks, 0, COUNT, MPI_INT, window);
    MPI_Accumulate(&one, 1, MPI_INT, 0, COUNT, 1, MPI_INT, MPI_SUM, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < COUNT; i++)
        expect(memory[i] == value((rank + ranks - 1) % ranks, i), "MPI_Put");
    expect(rank != 0 || memory[COUNT] == ranks, "MPI_Accumulate");
    MPI_Win_free(&window);
    free(own);
}

int main(int count, char **words)
{
    long before = counter(), after = before;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int *mine = malloc(sizeof(int) * COUNT), *all = malloc(sizeof(int) * COUNT * ranks);
    int *other = malloc(sizeof(int) * COUNT * ranks);
    unsigned char *from = malloc(LONGEST), *to = malloc(LONGEST);
    for (int root = 0; root < ranks; root++) {
        one_to_all(root, mine, all);
        reductions(root, mine, all);
    }
    all_to_all(mine, all, other);
    neighbours(from, to);
    if (count > 1 && !strcmp(words[1], "windows"))
        windows();
    MPI_Barrier(MPI_COMM_WORLD);
    /* The files under /sys are as old as a second, and older if nothing has happened. */
    for (int i = 0; rank == 0 && i < SECONDS * 10 && after <= before; i++) {
        if (ranks == 1)
            break;
        usleep(100000);
        after = counter();
    }
    if (rank == 0)
        printf("all is right, %d ranks, %s\n", ranks,
               after > before ? "by the device" : "not by the device");
    MPI_Finalize();
    return 0;
}
