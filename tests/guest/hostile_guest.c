/* A hostile guest: root in it has the whole window mapped, and the machine's port.
 *
 * hostile_guest SEED SECONDS: writes random and plausible words all over every window for so long,
 * prints `written`, waits until no other process has the port, and says random and plausible things
 * there for as long again; then prints `said`. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PORT_NAME "omniverb.control"
#define WINDOWS 8
#define PAGE 4096
/* Where WindowHead (rnic/session/src/vm.rs) has the version and the number of a window. */
#define HEAD_VERSION 8
#define HEAD_NUMBER 40
/* Kinds of frames, and bytes that the longest may have. */
#define KINDS 12
#define FRAME_MAX 4400

static struct {
    uint64_t *words, count;
} windows[WINDOWS];
static int windows_count;
static uint64_t state;
static unsigned char head[PAGE];

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static uint64_t next(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t below(uint64_t limit)
{
    return next() % limit;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int text_of(const char *path, char *text, size_t size)
{
    int file = open(path, O_RDONLY);
    ssize_t n = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0)
        close(file);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* ---- the window ---- */

static void map_windows(void)
{
    DIR *folder = opendir("/sys/bus/dax/devices");
    char path[512], text[64];
    for (struct dirent *e; folder && (e = readdir(folder)) && windows_count < WINDOWS;) {
        snprintf(path, sizeof path, "/sys/bus/dax/devices/%s/size", e->d_name);
        if (*e->d_name == '.' || !text_of(path, text, sizeof text))
            continue;
        uint64_t bytes = strtoull(text, NULL, 10);
        snprintf(path, sizeof path, "/dev/%s", e->d_name);
        int file = open(path, O_RDWR);
        if (file < 0)
            die(path);
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory == MAP_FAILED)
            die("mmap");
        /* That of the machine's own: it is what the port speaks of. */
        if (!memcmp(memory, "OMNIVERB", 8))
            memcpy(head, memory, sizeof head);
        windows[windows_count].words = memory;
        windows[windows_count++].count = bytes / 8;
    }
    if (!windows_count)
        die("no window");
}

static uint64_t value(volatile uint64_t *words, uint64_t count, uint64_t at)
{
    switch (below(8)) {
    case 0:
        return next();
    case 1:
        return below(0x1000);
    case 2:
        return 1ull << below(64);
    case 3:
        return ~below(16);
    case 4:
        return words[below(count)];
    case 5: /* the same as near by: a record again, a position again */
        return words[at ^ below(64)];
    default: /* a little more or less than what is there */
        return words[at] + below(17) - 8;
    }
}

/* Mostly where something is: pages of zeros are nobody's, or hardly used. */
static void write_all_over(double seconds)
{
    for (double end = now() + seconds; now() < end;) {
        int which = (int)below((uint64_t)windows_count);
        volatile uint64_t *words = windows[which].words;
        uint64_t count = windows[which].count, page = 0;
        for (int tries = 0; tries < 64; tries++) {
            page = below(count / 512) * 512;
            if (words[page] || words[page + 8] || words[page + 1])
                break;
        }
        for (int i = 0; i < 64; i++) {
            uint64_t at = page + (below(2) ? below(64) : below(512));
            words[at] = value(words, count & ~63ull, at);
        }
    }
}

/* ---- the port ---- */

static int open_port(void)
{
    char path[512], text[64];
    for (double end = now() + 60; now() < end; usleep(50000)) {
        DIR *folder = opendir("/sys/class/virtio-ports");
        int file = -1;
        for (struct dirent *e; folder && file < 0 && (e = readdir(folder));) {
            snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", e->d_name);
            if (*e->d_name == '.' || !text_of(path, text, sizeof text) ||
                strncmp(text, PORT_NAME, strlen(PORT_NAME)))
                continue;
            snprintf(path, sizeof path, "/dev/%s", e->d_name);
            file = open(path, O_RDWR | O_NONBLOCK);
        }
        if (folder)
            closedir(folder);
        if (file >= 0)
            return file;
    }
    die(PORT_NAME);
    return -1;
}

static void put(unsigned char *at, uint64_t number, int bytes)
{
    memcpy(at, &number, (size_t)bytes);
}

/* A frame, whole and of a known kind but now and then; what is in it is noise. */
static size_t frame(unsigned char *out)
{
    static const unsigned lengths[KINDS + 1] = {0, 32, 8, 4096, 4096, 0, 4096, 0, 0, 4392, 0};
    uint64_t kind = 1 + below(KINDS);
    size_t length = below(4) ? lengths[kind] : below(lengths[kind] + 1);
    unsigned char *body = out + 16;
    uint16_t version;
    memcpy(&version, head + HEAD_VERSION, sizeof version);
    for (size_t i = 0; i < FRAME_MAX; i += 8)
        put(body + i, below(2) ? next() : below(256), 8);
    if (kind == 1)
        memcpy(body, head + HEAD_NUMBER, 8);
    if (kind == 9 && below(4)) { /* a packet from a container to the machine, or what looks so */
        static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
        memcpy(body, mapped, sizeof mapped);
        memcpy(body + 12, "\x0a\x4d\x00\xc8", 4);
        memcpy(body + 16, mapped, sizeof mapped);
        memcpy(body + 28, "\x0a\x4d\x00\x01", 4);
        put(body + 32, 0, 8);
        put(body + 36, 4791, 2);
        length = 40 + below(lengths[kind] - 39);
    }
    if (kind == 3 || kind == 4 || kind == 6) { /* a message: version, kind, no error, tag */
        put(body, version, 2);
        put(body + 2, below(90), 2);
        put(body + 4, 0, 4);
        length = below(2) ? 16 + 8 * below(12) : length;
    }
    put(out, version, 2);
    put(out + 2, kind, 2);
    put(out + 4, length, 4);
    put(out + 8, below(4), 4);
    put(out + 12, 0, 4);
    if (!below(1000)) /* which ends the proxy */
        put(out + below(16), next(), 1);
    return 16 + length;
}

static void say_things(double seconds)
{
    static unsigned char out[16 + FRAME_MAX], first[48], heard[65536];
    int port = open_port();
    unsigned long said = 0, lost = 0;
    bool begins = true;
    for (double end = now() + seconds; now() < end;) {
        if (begins || !below(100)) { /* what an agent begins with, before anything else */
            memcpy(first, head + HEAD_VERSION, 2);
            put(first + 2, 1, 2);
            put(first + 4, 32, 4);
            memcpy(first + 16, head + HEAD_NUMBER, 8);
            put(first + 24, next(), 8);
            put(first + 32, below(4), 8); /* a boot, or that none is known */
            begins = write(port, first, sizeof first) < 0;
        }
        size_t length = frame(out);
        if (write(port, out, length) < 0) {
            lost++;
            begins = true;
            usleep(1000); /* nobody is there, or there is no room */
        } else {
            said++;
        }
        while (read(port, heard, sizeof heard) > 0) {
        }
    }
    close(port);
    printf("said %lu, not taken %lu\n", said, lost);
}

int main(int count, char **words)
{
    state = count > 1 ? strtoull(words[1], NULL, 0) : 1;
    double seconds = count > 2 ? atof(words[2]) : 5;
    setvbuf(stdout, NULL, _IOLBF, 0);
    map_windows();
    write_all_over(seconds);
    puts("written");
    say_things(seconds);
    return 0;
}
