// Calls of event_loops.c: those of libc, and (BARE) system calls of the program's own as Rust's
// rustix, Zig and Go make them, which no preloaded library sees.
#pragma once
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifdef BARE
// The instruction itself: returns what the kernel returns, a negative errno if it fails.
static long instruction(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    result = x0;
#else
#error "a processor whose system calls are not known here"
#endif
    return result;
}

// The same, as libc says it: -1, and errno.
static long raw(long number, long a, long b, long c, long d, long e, long f)
{
    long result = instruction(number, a, b, c, d, e, f);
    if (result >= 0)
        return result;
    errno = -result;
    return -1;
}

static int raw_epoll_create(void)
{
    return raw(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0, 0, 0);
}

static int raw_epoll_ctl(int set, int op, int fd, struct epoll_event *event)
{
    return raw(SYS_epoll_ctl, set, op, fd, (long)event, 0, 0);
}

static int raw_epoll_wait(int set, struct epoll_event *events, int count, int milliseconds)
{
    return raw(SYS_epoll_pwait, set, (long)events, count, milliseconds, 0, 8);
}

static ssize_t raw_receive(int fd, void *data, size_t size)
{
    return raw(SYS_recvfrom, fd, (long)data, size, 0, 0, 0);
}

static ssize_t raw_send(int fd, const struct iovec *pieces, int count)
{
    return raw(SYS_writev, fd, (long)pieces, count, 0, 0, 0);
}

static int raw_accept(int fd, int flags)
{
    return raw(SYS_accept4, fd, 0, 0, flags, 0, 0);
}

static int raw_close(int fd)
{
    return raw(SYS_close, fd, 0, 0, 0, 0, 0);
}
#endif

static int libc_create(void)
{
    return epoll_create1(EPOLL_CLOEXEC);
}

static int libc_wait(int set, struct epoll_event *events, int count, int milliseconds)
{
    return epoll_wait(set, events, count, milliseconds);
}

static int libc_pwait(int set, struct epoll_event *events, int count, int milliseconds)
{
    sigset_t mask;
    sigemptyset(&mask);
    return epoll_pwait(set, events, count, milliseconds, &mask);
}

static ssize_t libc_receive(int fd, void *data, size_t size)
{
    return recv(fd, data, size, 0);
}

static ssize_t libc_read(int fd, void *data, size_t size)
{
    return read(fd, data, size);
}

static ssize_t libc_writev(int fd, const struct iovec *pieces, int count)
{
    return writev(fd, pieces, count);
}

static ssize_t libc_sendmsg(int fd, const struct iovec *pieces, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)pieces, .msg_iovlen = count};
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

static int libc_accept(int fd, int flags)
{
    return accept4(fd, NULL, NULL, flags);
}

// Four messages a call. What comes after a message without bytes is none.
static ssize_t several_received(int fd, void *data, size_t size)
{
    struct iovec pieces[4];
    struct mmsghdr messages[4] = {0};
    for (int at = 0; at < 4; at++) {
        pieces[at] = (struct iovec){(char *)data + at * (size / 4), size / 4};
        messages[at].msg_hdr = (struct msghdr){.msg_iov = &pieces[at], .msg_iovlen = 1};
    }
    int count = recvmmsg(fd, messages, 4, MSG_DONTWAIT, NULL);
    size_t all = 0;
    for (int at = 0; at < count; at++) {
        memmove((char *)data + all, pieces[at].iov_base, messages[at].msg_len);
        all += messages[at].msg_len;
    }
    return count < 0 ? -1 : (ssize_t)all;
}

// A list of pieces by one call, or as several messages, in turn.
static ssize_t several_sent(int fd, const struct iovec *pieces, int count)
{
    static __thread unsigned turn;
    if (turn++ % 2 || count < 4)
        return writev(fd, pieces, count);
    struct mmsghdr messages[4] = {0};
    for (int at = 0; at < 4; at++) {
        int first = count * at / 4, last = count * (at + 1) / 4;
        messages[at].msg_hdr = (struct msghdr){.msg_iov = (struct iovec *)pieces + first,
                                               .msg_iovlen = last - first};
    }
    int done = sendmmsg(fd, messages, 4, MSG_DONTWAIT | MSG_NOSIGNAL);
    size_t all = 0;
    for (int at = 0; at < done; at++) {
        all += messages[at].msg_len;
        size_t wanted = 0;
        for (size_t piece = 0; piece < messages[at].msg_hdr.msg_iovlen; piece++)
            wanted += messages[at].msg_hdr.msg_iov[piece].iov_len;
        if (messages[at].msg_len < wanted && at + 1 < done) {
            printf("a message followed one that was cut\n");
            exit(1);
        }
    }
    return done < 0 ? -1 : (ssize_t)all;
}

static int by_number(int fd)
{
    return syscall(SYS_close, fd);
}
