/*
 * Functions that glibc got after version 2.28 without an older version of the same symbol, in
 * terms of the system call. `cargo xtask dist` links them into the library, so that it also loads
 * into containers with an old glibc. Functions that merely moved or got a new version number are
 * bound to their old version instead, see xtask/src/lower_glibc_version.rs.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* On 64-bit machines the kernel's struct is the C library's, so one body serves both names. */
_Static_assert(sizeof(struct stat) == 144 || sizeof(struct stat) == 128, "struct stat");

HIDDEN pid_t gettid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

HIDDEN int fstatat64(int dir, const char *path, struct stat64 *status, int flags)
{
	return (int)syscall(SYS_newfstatat, dir, path, status, flags);
}

HIDDEN int stat64(const char *path, struct stat64 *status)
{
	return fstatat64(AT_FDCWD, path, status, 0);
}

HIDDEN int lstat64(const char *path, struct stat64 *status)
{
	return fstatat64(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

HIDDEN int fstat64(int fd, struct stat64 *status)
{
	return fstatat64(fd, "", status, AT_EMPTY_PATH);
}
