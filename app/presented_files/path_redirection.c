/*
 * Shows a program the files of its device: calls that name a path below /sys/class/infiniband or
 * /dev/infiniband are answered from a folder that `omniverb present` keeps. In: the folder, in
 * OMNIVERB_PRESENTED; paths. Out: other paths, for the C library's own functions. Everything else
 * passes as it came. In C, since some of these functions take a variable number of arguments and
 * others have a form for each generation of the C library.
 *
 * The C library does not call itself by these names: each function that takes a path stands here.
 */
#define _GNU_SOURCE
/* The functions themselves, not what a header makes of their names. */
#undef _FORTIFY_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

/* What is redirected: these, and what is below them. */
static const char *const places[] = {
	"/sys/class/infiniband",
	"/sys/class/infiniband_verbs",
	"/sys/class/infiniband_mad",
	"/sys/class/misc/rdma_cm",
	"/dev/infiniband",
};

/* The folder; empty if there is none. Written once, by whoever comes first, and always the same. */
static char folder[PATH_MAX];
static size_t folder_length;
static int state; /* 0: not looked yet, 1: looked */

static void look(void)
{
	const char *found = secure_getenv("OMNIVERB_PRESENTED");
	size_t length = found ? strlen(found) : 0;

	/* A relative folder would be another one after a chdir. */
	if (length && length < sizeof folder / 2 && found[0] == '/') {
		memcpy(folder, found, length);
		folder_length = length;
	}
	__atomic_store_n(&state, 1, __ATOMIC_RELEASE);
}

/* The first characters of two paths are the same, where a row of slashes is one slash. The rest of
 * `path` if that is all of `place`, else null. */
static const char *below(const char *path, const char *place)
{
	for (; *place; place++, path++) {
		if (*path != *place)
			return NULL;
		while (*path == '/' && path[1] == '/')
			path++;
	}
	return *path == '\0' || *path == '/' ? path : NULL;
}

/* `path` may lead into the folder. Asked first, and without a buffer: callers with small stacks
 * (coroutines, signal handlers) are not to pay for paths that are none of ours. */
static __attribute__((noinline)) int leads(const char *path)
{
	if (!__atomic_load_n(&state, __ATOMIC_ACQUIRE))
		look();
	if (!folder_length || !path || path[0] != '/')
		return 0;
	for (size_t i = 0; i < sizeof places / sizeof *places; i++)
		if (below(path, places[i]))
			return 1;
	return 0;
}

/* The same for a path from an open folder: some programs name all paths from the root's. */
static __attribute__((noinline)) int leads_at(int from, const char *path)
{
	if (!path || path[0] == '/' || from == AT_FDCWD)
		return leads(path);
	return !strncmp(path, "sys/class/", 10) || !strncmp(path, "dev/infiniband", 14);
}

struct room {
	char path[PATH_MAX];
};

/* Says once where the folder is not here: its name may have come in an environment from elsewhere
 * (launchers of parallel programs take theirs along), and who finds no device there goes on without
 * one, slowly, and never says why. */
static void say_if_gone(void)
{
	static const char text[] =
		"omniverb: the folder that OMNIVERB_PRESENTED names is not here, so this program finds "
		"no omv0 in /dev/infiniband; start it with omniverb run\n";
	static int looked;

	if (__atomic_exchange_n(&looked, 1, __ATOMIC_RELAXED))
		return;
	int kept = errno;
	if (syscall(SYS_faccessat, AT_FDCWD, folder, F_OK) && errno == ENOENT &&
	    write(STDERR_FILENO, text, sizeof text - 1) < 0)
		errno = kept;
	errno = kept;
}

/* Where `path` leads: into the folder, by way of `room`, or where it says itself. */
static __attribute__((noinline)) const char *there(const char *path, struct room *room)
{
	if (!leads(path))
		return path;
	say_if_gone();
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		const char *rest = below(path, places[i]);
		size_t place = strlen(places[i]);

		if (!rest || folder_length + place + strlen(rest) >= sizeof room->path)
			continue;
		memcpy(room->path, folder, folder_length);
		memcpy(room->path + folder_length, places[i], place);
		strcpy(room->path + folder_length + place, rest);
		return room->path;
	}
	return path;
}

/* The same for a path from an open folder. */
static __attribute__((noinline)) const char *there_at(int from, const char *path, struct room *room)
{
	struct stat opened, root;
	char whole[PATH_MAX];

	if (path[0] == '/' || from == AT_FDCWD || strlen(path) >= sizeof whole - 1)
		return there(path, room);
	whole[0] = '/';
	strcpy(whole + 1, path);
	const char *found = there(whole, room);
	if (found == whole)
		return path;
	int kept = errno;
	int same = !syscall(SYS_newfstatat, from, "", &opened, AT_EMPTY_PATH) &&
		   !syscall(SYS_newfstatat, AT_FDCWD, "/", &root, 0) &&
		   opened.st_dev == root.st_dev && opened.st_ino == root.st_ino;
	errno = kept;
	return same ? found : path;
}

/* The C library's own function of this name, looked for before the program begins. Whoever comes
 * earlier than that, and whoever calls what this glibc has not, gets `otherwise`: `dlsym` may
 * allocate, and the caller may be an allocator that is just beginning and holds its lock. */
#define OWN(result, name, parameters, arguments, otherwise)                                \
	static next_##name *own_##name;                                                    \
	static __attribute__((constructor)) void begin_##name(void)                        \
	{                                                                                  \
		next_##name *found = (next_##name *)dlsym(RTLD_NEXT, #name);               \
		/* Not every glibc has all of them; nobody is to hear of that. */          \
		if (!found)                                                                \
			dlerror();                                                         \
		__atomic_store_n(&own_##name, found, __ATOMIC_RELAXED);                    \
	}                                                                                  \
	static inline result call_##name parameters                                        \
	{                                                                                  \
		next_##name *own = __atomic_load_n(&own_##name, __ATOMIC_RELAXED);         \
		return own ? own arguments : otherwise;                                    \
	}
/* What the C library allocates for is no allocator's to call: it can be looked for at any time. */
#define LATE(name, arguments, nothing)                                                     \
	(begin_##name(), own_##name) ? own_##name arguments : (errno = ENOSYS, nothing)
/* The name itself: the buffer is in a frame that only paths of ours have. */
#define NAMED(result, name, parameters, arguments, is_ours, moved)                         \
	static __attribute__((noinline)) result moved_##name parameters                    \
	{                                                                                  \
		struct room room;                                                          \
		return call_##name moved;                                                  \
	}                                                                                  \
	SHOWN result name parameters                                                       \
	{                                                                                  \
		return is_ours ? moved_##name arguments : call_##name arguments;           \
	}

/* A function whose first argument is the path. */
#define FIRST(result, name, rest, otherwise, ...)                                          \
	typedef result next_##name(const char *, UNPAREN rest);                            \
	OWN(result, name, (const char *path, UNPAREN rest), (path, __VA_ARGS__), otherwise) \
	NAMED(result, name, (const char *path, UNPAREN rest), (path, __VA_ARGS__),         \
	      leads(path), (there(path, &room), __VA_ARGS__))
/* One whose first argument is the folder to start from, and whose second is the path. */
#define SECOND(result, name, rest, otherwise, ...)                                         \
	typedef result next_##name(int, const char *, UNPAREN rest);                       \
	OWN(result, name, (int from, const char *path, UNPAREN rest),                      \
	    (from, path, __VA_ARGS__), otherwise)                                          \
	NAMED(result, name, (int from, const char *path, UNPAREN rest),                    \
	      (from, path, __VA_ARGS__), leads_at(from, path),                             \
	      (from, there_at(from, path, &room), __VA_ARGS__))
/* One with nothing but a path. */
#define ONLY(result, name, otherwise)                                                      \
	typedef result next_##name(const char *);                                          \
	OWN(result, name, (const char *path), (path), otherwise)                           \
	NAMED(result, name, (const char *path), (path), leads(path), (there(path, &room)))
/* One with a mode, if the flags say so. */
#define OPENS(name)                                                                        \
	typedef int next_##name(const char *, int, ...);                                   \
	OWN(int, name, (const char *path, int flags, mode_t mode), (path, flags, mode),    \
	    OPEN(AT_FDCWD, flags, mode))                                                   \
	static __attribute__((noinline)) int moved_##name(const char *path, int flags,     \
							  mode_t mode)                     \
	{                                                                                  \
		struct room room;                                                          \
		return call_##name(there(path, &room), flags, mode);                       \
	}                                                                                  \
	SHOWN int name(const char *path, int flags, ...)                                   \
	{                                                                                  \
		MODE(flags)                                                                \
		return leads(path) ? moved_##name(path, flags, mode)                       \
				   : call_##name(path, flags, mode);                       \
	}
#define OPENS_AT(name)                                                                     \
	typedef int next_##name(int, const char *, int, ...);                              \
	OWN(int, name, (int from, const char *path, int flags, mode_t mode),               \
	    (from, path, flags, mode), OPEN(from, flags, mode))                            \
	static __attribute__((noinline)) int moved_##name(int from, const char *path,      \
							  int flags, mode_t mode)          \
	{                                                                                  \
		struct room room;                                                          \
		return call_##name(from, there_at(from, path, &room), flags, mode);        \
	}                                                                                  \
	SHOWN int name(int from, const char *path, int flags, ...)                         \
	{                                                                                  \
		MODE(flags)                                                                \
		return leads_at(from, path) ? moved_##name(from, path, flags, mode)        \
					    : call_##name(from, path, flags, mode);        \
	}
#define MODE(flags)                                                                        \
	mode_t mode = 0;                                                                   \
	if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {                              \
		va_list more;                                                              \
		va_start(more, flags);                                                     \
		mode = va_arg(more, mode_t);                                               \
		va_end(more);                                                              \
	}
#define UNPAREN(...) __VA_ARGS__

/* What the functions come to; on 64 bits the kernel's structs are the C library's. */
#define OPEN(from, flags, mode) syscall(SYS_openat, from, path, flags, mode)
#define STATUS(from, flags) syscall(SYS_newfstatat, from, path, status, flags)
#define ACCESS(from, flags)                                                                \
	((flags) ? syscall(SYS_faccessat2, from, path, mode, flags)                        \
		 : syscall(SYS_faccessat, from, path, mode))
#define READLINK(from) syscall(SYS_readlinkat, from, path, to, size)
#define CHECKED(call) (size > room_for ? (abort(), -1) : call)

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
FIRST(int, __open_2, (int flags), OPEN(AT_FDCWD, flags, 0), flags)
FIRST(int, __open64_2, (int flags), OPEN(AT_FDCWD, flags, 0), flags)
SECOND(int, __openat_2, (int flags), OPEN(from, flags, 0), flags)
SECOND(int, __openat64_2, (int flags), OPEN(from, flags, 0), flags)
FIRST(FILE *, fopen, (const char *mode), LATE(fopen, (path, mode), NULL), mode)
FIRST(FILE *, fopen64, (const char *mode), LATE(fopen64, (path, mode), NULL), mode)

ONLY(DIR *, opendir, LATE(opendir, (path), NULL))
typedef int chosen(const struct dirent *);
typedef int order(const struct dirent **, const struct dirent **);
typedef int chosen64(const struct dirent64 *);
typedef int order64(const struct dirent64 **, const struct dirent64 **);
FIRST(int, scandir, (struct dirent ***list, chosen *choose, order *sort),
      LATE(scandir, (path, list, choose, sort), -1), list, choose, sort)
FIRST(int, scandir64, (struct dirent64 ***list, chosen64 *choose, order64 *sort),
      LATE(scandir64, (path, list, choose, sort), -1), list, choose, sort)
ONLY(int, chdir, syscall(SYS_chdir, path))

FIRST(int, stat, (struct stat *status), STATUS(AT_FDCWD, 0), status)
FIRST(int, stat64, (struct stat64 *status), STATUS(AT_FDCWD, 0), status)
FIRST(int, lstat, (struct stat *status), STATUS(AT_FDCWD, AT_SYMLINK_NOFOLLOW), status)
FIRST(int, lstat64, (struct stat64 *status), STATUS(AT_FDCWD, AT_SYMLINK_NOFOLLOW), status)
SECOND(int, fstatat, (struct stat *status, int flags), STATUS(from, flags), status, flags)
SECOND(int, fstatat64, (struct stat64 *status, int flags), STATUS(from, flags), status, flags)
SECOND(int, statx, (int flags, unsigned int mask, struct statx *status),
       syscall(SYS_statx, from, path, flags, mask, status), flags, mask, status)

FIRST(int, access, (int mode), ACCESS(AT_FDCWD, 0), mode)
FIRST(int, eaccess, (int mode), ACCESS(AT_FDCWD, AT_EACCESS), mode)
FIRST(int, euidaccess, (int mode), ACCESS(AT_FDCWD, AT_EACCESS), mode)
SECOND(int, faccessat, (int mode, int flags), ACCESS(from, flags), mode, flags)

FIRST(ssize_t, readlink, (char *to, size_t size), READLINK(AT_FDCWD), to, size)
FIRST(ssize_t, __readlink_chk, (char *to, size_t size, size_t room_for),
      CHECKED(READLINK(AT_FDCWD)), to, size, room_for)
SECOND(ssize_t, readlinkat, (char *to, size_t size), READLINK(from), to, size)
SECOND(ssize_t, __readlinkat_chk, (char *to, size_t size, size_t room_for),
       CHECKED(READLINK(from)), to, size, room_for)

/* Programs that list folders ask for these, too, and say so when there are none. */
#define ATTRIBUTE(name)                                                                    \
	FIRST(ssize_t, name, (const char *which, void *value, size_t size),                \
	      syscall(SYS_##name, path, which, value, size), which, value, size)
#define ATTRIBUTES(name)                                                                   \
	FIRST(ssize_t, name, (char *list, size_t size),                                    \
	      syscall(SYS_##name, path, list, size), list, size)
ATTRIBUTE(getxattr)
ATTRIBUTE(lgetxattr)
ATTRIBUTES(listxattr)
ATTRIBUTES(llistxattr)

/* What programs that were linked before glibc 2.33 call: the number of a struct comes first. */
#define OLD_STAT(name, kind, how)                                                          \
	typedef int next_##name(int, const char *, struct kind *);                         \
	OWN(int, name, (int version, const char *path, struct kind *status),               \
	    (version, path, status), STATUS(AT_FDCWD, how))                                \
	NAMED(int, name, (int version, const char *path, struct kind *status),             \
	      (version, path, status), leads(path), (version, there(path, &room), status))
#define OLD_STAT_AT(name, kind)                                                            \
	typedef int next_##name(int, int, const char *, struct kind *, int);               \
	OWN(int, name, (int version, int from, const char *path, struct kind *status, int flags), \
	    (version, from, path, status, flags), STATUS(from, flags))                     \
	NAMED(int, name,                                                                   \
	      (int version, int from, const char *path, struct kind *status, int flags),   \
	      (version, from, path, status, flags), leads_at(from, path),                  \
	      (version, from, there_at(from, path, &room), status, flags))
OLD_STAT(__xstat, stat, 0)
OLD_STAT(__xstat64, stat64, 0)
OLD_STAT(__lxstat, stat, AT_SYMLINK_NOFOLLOW)
OLD_STAT(__lxstat64, stat64, AT_SYMLINK_NOFOLLOW)
OLD_STAT_AT(__fxstatat, stat)
OLD_STAT_AT(__fxstatat64, stat64)

/* A path that leads into the folder is told as the program knows it. */
static char *back(char *path)
{
	if (path && folder_length && !strncmp(path, folder, folder_length) &&
	    path[folder_length] == '/')
		memmove(path, path + folder_length, strlen(path + folder_length) + 1);
	return path;
}

/* They answer with paths. */
#define TELLS(name, parameters, arguments, moved)                                          \
	typedef char *next_##name parameters;                                              \
	OWN(char *, name, parameters, arguments, LATE(name, arguments, NULL))              \
	static __attribute__((noinline)) char *moved_##name parameters                     \
	{                                                                                  \
		struct room room;                                                          \
		return call_##name moved;                                                  \
	}                                                                                  \
	SHOWN char *name parameters                                                        \
	{                                                                                  \
		return back(leads(path) ? moved_##name arguments : call_##name arguments); \
	}
TELLS(realpath, (const char *path, char *to), (path, to), (there(path, &room), to))
TELLS(__realpath_chk, (const char *path, char *to, size_t room_for), (path, to, room_for),
      (there(path, &room), to, room_for))
TELLS(canonicalize_file_name, (const char *path), (path), (there(path, &room)))
