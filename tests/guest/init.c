/* The first process of a test guest. It loads the modules named in /modules/order, mounts the
 * kernel's file systems, and then runs programs for the host, as many at a time as it is asked to.
 * If the kernel was given host_root=TAG they see what the host shows by 9p under that tag instead
 * of what has booted, and what they write stays in the guest's memory;
 * host_folders=THERE=HERE,... has folders of it in other places, too. In and out: a virtio-serial
 * port. From the host:
 *
 *     start NUMBER BYTES <newline> BYTES bytes: the words of a command line, each ended by NUL
 *     signal NUMBER SIGNAL <newline>
 *
 * NUMBER is the host's choice. To the host, always in whole messages:
 *
 *     ready 0 0 <newline>
 *     output NUMBER BYTES <newline> BYTES bytes of its stdout and stderr
 *     exit NUMBER STATUS <newline> as wait(2) gives it; always the last of NUMBER
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHILDREN 64
#define WORDS 64
#define PORT_NAME "omniverb.guest"

/* A guest without a purpose stops; the console tells the host why. */
__attribute__((noreturn, format(printf, 1, 2))) static void stop(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("init: ", stdout);
    vprintf(format, list);
    va_end(list);
    puts("");
    fflush(stdout);
    sync();
    reboot(RB_AUTOBOOT); /* which ends QEMU, see -no-reboot */
    _exit(1);
}

/* ---- setting up ---- */

static void mount_at(const char *source, const char *place, const char *type, unsigned long flags,
                     const char *options)
{
    mkdir(place, 0755);
    /* The kernel may have mounted /dev by itself. */
    if (mount(source, place, type, flags, options) && errno != EBUSY)
        stop("mounting %s: %m", place);
}

static void mount_all(void)
{
    static const struct {
        const char *type, *place;
    } mounts[] = {{"proc", "/proc"},      {"sysfs", "/sys"},     {"devtmpfs", "/dev"},
                  {"devpts", "/dev/pts"}, {"tmpfs", "/dev/shm"}, {"tmpfs", "/tmp"}};
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++)
        mount_at(mounts[i].type, mounts[i].place, mounts[i].type, 0, NULL);
}

/* A folder of the host's in another place; with the folders it is in. */
static void show_folder(const char *there, const char *here)
{
    char source[PATH_MAX], place[PATH_MAX];
    snprintf(source, sizeof source, "/host%s", there);
    snprintf(place, sizeof place, "/root%s", here);
    for (char *slash = place + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(place, 0755);
    }
    mount_at(source, place, NULL, MS_BIND, NULL);
}

static void enter_host_root(const char *tag, char *folders)
{
    mount_at(tag, "/host", "9p", MS_RDONLY,
             "trans=virtio,version=9p2000.L,cache=loose,msize=512000");
    mount_at("tmpfs", "/changes", "tmpfs", 0, NULL);
    mkdir("/changes/upper", 0755);
    mkdir("/changes/work", 0755);
    mount_at("overlay", "/root", "overlay", 0,
             "lowerdir=/host,upperdir=/changes/upper,workdir=/changes/work");
    for (char *one = strtok(folders, ","); one; one = strtok(NULL, ",")) {
        char *here = strchr(one, '=');
        if (!here)
            stop("what is `%s`?", one);
        *here++ = 0;
        show_folder(one, here);
    }
    if (chdir("/root") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
        stop("entering the host's root: %m");
}

/* Each line of /modules/order is the name of a file in /modules; `-` before it: it may fail. */
static void load_modules(void)
{
    char line[256], path[PATH_MAX];
    FILE *order = fopen("/modules/order", "r");
    if (!order)
        stop("/modules/order: %m");
    while (fgets(line, sizeof line, order)) {
        line[strcspn(line, "\n")] = 0;
        bool may_fail = *line == '-';
        snprintf(path, sizeof path, "/modules/%s", line + may_fail);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            stop("%s: %m", path);
        if (syscall(SYS_finit_module, file, "", 0) && errno != EEXIST && !may_fail)
            stop("loading %s: %m", path);
        close(file);
    }
    fclose(order);
}

static bool is_our_port(const char *name)
{
    char path[PATH_MAX], text[64] = "";
    snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t n = read(file, text, sizeof text - 1);
    close(file);
    text[strcspn(text, "\n")] = 0;
    return n > 0 && !strcmp(text, PORT_NAME);
}

/* The host names the port a moment after the driver has found it. */
static int open_port(void)
{
    char path[PATH_MAX];
    for (int turn = 0; turn < 1000; turn++) {
        DIR *folder = opendir("/sys/class/virtio-ports");
        for (struct dirent *entry; folder && (entry = readdir(folder));) {
            if (!is_our_port(entry->d_name))
                continue;
            snprintf(path, sizeof path, "/dev/%s", entry->d_name);
            int port = open(path, O_RDWR | O_CLOEXEC);
            if (port >= 0) {
                closedir(folder);
                return port;
            }
        }
        if (folder)
            closedir(folder);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    stop("there is no port " PORT_NAME);
}

/* ---- programs ---- */

static struct child {
    bool used;
    int number, output; /* our end of its pipe */
    pid_t pid;
} children[CHILDREN];
static int port;

static void put(const void *bytes, size_t length)
{
    while (length) {
        ssize_t n = write(port, bytes, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            stop("the host does not listen: %m");
        bytes = (const char *)bytes + n;
        length -= (size_t)n;
    }
}

static void say(const char *word, int number, long value)
{
    char line[64];
    put(line, (size_t)snprintf(line, sizeof line, "%s %d %ld\n", word, number, value));
}

/* Hands on what the program has printed so far. */
static void pass_on(struct child *c)
{
    static char text[65536];
    ssize_t n;
    while ((n = read(c->output, text, sizeof text)) > 0) {
        say("output", c->number, n);
        put(text, (size_t)n);
    }
}

__attribute__((noreturn)) static void become(char **words, int output)
{
    sigset_t none;
    int nothing = open("/dev/null", O_RDONLY);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    dup2(nothing, 0);
    dup2(output, 1);
    dup2(output, 2);
    execvp(words[0], words);
    fprintf(stderr, "%s: %m\n", words[0]);
    _exit(127);
}

static void start(int number, char *text, size_t length)
{
    char *words[WORDS + 1] = {0};
    size_t count = 0;
    int ends[2];
    struct child *c = children;
    if (length == 0 || text[length - 1])
        stop("a command line without an end");
    for (char *at = text; at < text + length && count < WORDS; at += strlen(at) + 1)
        words[count++] = at;
    while (c < children + CHILDREN && c->used)
        c++;
    if (c == children + CHILDREN || pipe2(ends, O_CLOEXEC))
        stop("too many programs");
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *c = (struct child){.used = true, .number = number, .output = ends[0], .pid = fork()};
    if (c->pid < 0)
        stop("fork: %m");
    if (c->pid == 0)
        become(words, ends[1]);
    close(ends[1]);
}

/* Also those that a program has started and left behind are ours to wait for. */
static void reap(void)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (struct child *c = children; c < children + CHILDREN; c++)
            if (c->used && c->pid == pid) {
                pass_on(c);
                close(c->output);
                c->used = false;
                say("exit", c->number, status);
            }
}

static void send_signal(int number, int signal)
{
    for (struct child *c = children; c < children + CHILDREN; c++)
        if (c->used && c->number == number)
            kill(-c->pid, signal); /* with all that it has started */
}

/* ---- what the host says ---- */

/* Carries out the first request in `text`; returns how many bytes it had, 0 if it is not whole. */
static size_t obey(char *text, size_t length)
{
    char *end = memchr(text, '\n', length), word[16];
    int number;
    unsigned value;
    if (!end)
        return 0;
    *end = 0;
    if (sscanf(text, "%15s %d %u", word, &number, &value) != 3)
        stop("what is `%s`?", text);
    *end = '\n';
    size_t line = (size_t)(end - text) + 1;
    if (!strcmp(word, "signal")) {
        send_signal(number, (int)value);
        return line;
    }
    if (strcmp(word, "start"))
        stop("what is `%s`?", word);
    if (length - line < value)
        return 0;
    start(number, end + 1, value);
    return line + value;
}

static void listen_to_host(void)
{
    static char text[65536];
    static size_t filled;
    ssize_t n = read(port, text + filled, sizeof text - filled);
    if (n <= 0)
        stop("the host is gone");
    filled += (size_t)n;
    for (size_t used; (used = obey(text, filled)) > 0;) {
        filled -= used;
        memmove(text, text + used, filled);
    }
}

static void serve(int deaths)
{
    struct pollfd waits[CHILDREN + 2] = {{.fd = port, .events = POLLIN},
                                         {.fd = deaths, .events = POLLIN}};
    for (;;) {
        for (int i = 0; i < CHILDREN; i++)
            waits[i + 2] = (struct pollfd){.fd = children[i].used ? children[i].output : -1,
                                           .events = POLLIN};
        if (poll(waits, CHILDREN + 2, -1) < 0 && errno != EINTR)
            stop("poll: %m");
        for (int i = 0; i < CHILDREN; i++) {
            if (waits[i + 2].revents & POLLIN) {
                pass_on(&children[i]);
            } else if (waits[i + 2].revents) { /* it has closed its output, but lives */
                close(children[i].output);
                children[i].output = -1;
            }
        }
        if (waits[1].revents) {
            struct signalfd_siginfo info;
            while (read(deaths, &info, sizeof info) > 0) {
            }
            reap();
        }
        if (waits[0].revents)
            listen_to_host();
    }
}

int main(void)
{
    sigset_t set;
    setenv("PATH", "/bin:/sbin:/usr/bin:/usr/sbin", 1);
    setenv("HOME", "/tmp", 1);
    setenv("LANG", "C.UTF-8", 1);
    load_modules();
    const char *tag = getenv("host_root"), *folders = getenv("host_folders");
    if (tag)
        enter_host_root(tag, strdup(folders ? folders : ""));
    mount_all();
    if (tag) /* else this may be systemd's guest, and that is systemd's */
        mount_at("tmpfs", "/run", "tmpfs", 0, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int deaths = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (deaths < 0)
        stop("signalfd: %m");
    port = open_port();
    say("ready", 0, 0);
    serve(deaths);
}
