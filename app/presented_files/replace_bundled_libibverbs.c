/*
 * Puts our libibverbs and librdmacm before the copies that a program brings along under names of
 * their own, such as libibverbs-1de1263b.so.1.14.48.0: auditwheel gives the libraries of a Python
 * wheel such names, so that no search path leads to ours.
 * In: the files that a program was linked with, or opens by dlopen; what they need (elf(5)), and
 * where from. Out: our libraries in the global scope, where symbols are looked for first; only if
 * such a copy is about to be loaded. A program that was linked with one is started anew, with ours
 * preloaded. Nothing else changes: symbols of the copies that ours do not have stay theirs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

/* Files that are looked at for one dlopen: more than wheels have, and a millisecond of work. The
 * rest bounds the stack: a level of what needs what takes 9 KiB. */
enum { FILES = 128, DEPTH = 6, SEGMENTS = 16, ENTRIES = 128, NAME = 256, FOLDERS = 1024 };

/* Where two libraries of ours are: beside this one. */
static const char *const ours[] = {"libibverbs.so.1", "librdmacm.so.1"};

static const char *base(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* A copy of one of them under another name. */
static int is_copy(const char *path)
{
	const char *name = base(path);

	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
		size_t stem = strcspn(ours[i], ".");

		if (!strncmp(name, ours[i], stem) && name[stem] == '-' && strstr(name, ".so"))
			return 1;
	}
	return 0;
}

/* The path of one of ours, if it fits. */
static int path_of_ours(size_t which, char path[PATH_MAX])
{
	Dl_info here;

	if (!dladdr((void *)path_of_ours, &here) || !here.dli_fname)
		return 0;
	int folder = base(here.dli_fname) - here.dli_fname;
	return snprintf(path, PATH_MAX, "%.*s%s", folder, here.dli_fname, ours[which]) < PATH_MAX;
}

struct segment {
	uint64_t address, offset, bytes;
};

/* What a file says of itself. Every place in it is checked by where reading ends. */
struct file {
	int fd, loads;
	struct segment load[SEGMENTS];
	Elf64_Dyn entry[ENTRIES];
	size_t entries;
	uint64_t strings;
};

static int read_at(const struct file *f, void *to, size_t bytes, uint64_t at)
{
	return at <= INT64_MAX && pread(f->fd, to, bytes, (off_t)at) == (ssize_t)bytes;
}

/* Text of the table of strings; cut where it does not fit. */
static int text(const struct file *f, uint64_t at, char *to, size_t room)
{
	ssize_t got = at <= INT64_MAX - f->strings ?
			      pread(f->fd, to, room - 1, (off_t)(f->strings + at)) : -1;

	if (got <= 0)
		return 0;
	to[got] = '\0';
	return *to != '\0';
}

static int read_file(struct file *f)
{
	Elf64_Ehdr head;
	Elf64_Phdr row;
	uint64_t strings = 0, dynamic = 0, bytes = 0;

	if (!read_at(f, &head, sizeof head, 0) || memcmp(head.e_ident, ELFMAG, SELFMAG) ||
	    head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_phentsize != sizeof row)
		return 0;
	for (int i = 0; i < head.e_phnum && i < SEGMENTS; i++) {
		if (!read_at(f, &row, sizeof row, head.e_phoff + (uint64_t)i * sizeof row))
			return 0;
		if (row.p_type == PT_LOAD)
			f->load[f->loads++] = (struct segment){row.p_vaddr, row.p_offset, row.p_filesz};
		if (row.p_type == PT_DYNAMIC)
			dynamic = row.p_offset, bytes = row.p_filesz;
	}
	f->entries = bytes / sizeof *f->entry < ENTRIES ? bytes / sizeof *f->entry : ENTRIES;
	if (!f->entries || !read_at(f, f->entry, f->entries * sizeof *f->entry, dynamic))
		return 0;
	for (size_t i = 0; i < f->entries; i++)
		if (f->entry[i].d_tag == DT_STRTAB)
			strings = f->entry[i].d_un.d_ptr;
	for (int i = 0; i < f->loads; i++)
		if (strings >= f->load[i].address && strings - f->load[i].address < f->load[i].bytes)
			f->strings = f->load[i].offset + (strings - f->load[i].address);
	return f->strings != 0;
}

static int brings_copy(const char *path, int depth, int *files);

/* Whether a library that a file needs brings one, found by one of the file's own search paths. */
static int found_brings_copy(const char *path, const char *folders, const char *name, int depth,
			     int *files)
{
	static const char *const origins[] = {"$ORIGIN", "${ORIGIN}"};
	char found[PATH_MAX];

	for (const char *folder = folders; *folder;) {
		int length = strcspn(folder, ":"), skip = 0, fits;

		for (int i = 0; i < 2; i++)
			if (!strncmp(folder, origins[i], strlen(origins[i])))
				skip = strlen(origins[i]);
		fits = skip ? snprintf(found, sizeof found, "%.*s/%.*s/%s", (int)(base(path) - path), path,
				       length - skip, folder + skip, name)
			    : snprintf(found, sizeof found, "%.*s/%s", length, folder, name);
		if (length && fits < (int)sizeof found && !access(found, R_OK))
			return brings_copy(found, depth, files);
		folder += length + (folder[length] == ':');
	}
	return 0;
}

/* Whether the file of this path is such a copy, or needs one, itself or by what it needs. */
static __attribute__((noinline)) int brings_copy(const char *path, int depth, int *files)
{
	char name[NAME], folders[FOLDERS];
	struct file f = {.fd = -1};
	int found = 0;

	if (is_copy(path))
		return 1;
	if (!strchr(path, '/') || depth > DEPTH || ++*files > FILES)
		return 0;
	f.fd = open(path, O_RDONLY | O_CLOEXEC);
	if (f.fd < 0)
		return 0;
	folders[0] = '\0';
	if (read_file(&f)) {
		for (size_t i = 0; i < f.entries && f.entry[i].d_tag != DT_NULL; i++)
			if (f.entry[i].d_tag == DT_NEEDED && text(&f, f.entry[i].d_un.d_val, name, NAME))
				found |= is_copy(name);
			else if (f.entry[i].d_tag == DT_RPATH || f.entry[i].d_tag == DT_RUNPATH)
				text(&f, f.entry[i].d_un.d_val, folders, sizeof folders);
		for (size_t i = 0; !found && i < f.entries && f.entry[i].d_tag != DT_NULL; i++)
			if (f.entry[i].d_tag == DT_NEEDED && text(&f, f.entry[i].d_un.d_val, name, NAME))
				found = found_brings_copy(path, folders, name, depth + 1, files);
	}
	close(f.fd);
	return found;
}

typedef void *next_dlopen(const char *, int);
static next_dlopen *own_dlopen;
static int is_done; /* Ours are in front, or cannot be. */

static next_dlopen *find_own(void)
{
	next_dlopen *found = __atomic_load_n(&own_dlopen, __ATOMIC_RELAXED);

	if (!found) {
		found = (next_dlopen *)dlsym(RTLD_NEXT, "dlopen");
		__atomic_store_n(&own_dlopen, found, __ATOMIC_RELAXED);
	}
	return found;
}

/* Each thread that meets a copy opens ours before it goes on, whatever others are about: to open it
 * twice does nothing, and to wait for another thread could last for ever where that one waits for
 * the loader. */
static void put_ours_first(void)
{
	char path[PATH_MAX];

	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if (path_of_ours(i, path) && !access(path, R_OK) &&
		    !find_own()(path, RTLD_NOW | RTLD_GLOBAL))
			dlerror();
	__atomic_store_n(&is_done, 1, __ATOMIC_RELEASE);
}

static __attribute__((noinline)) void look_at(const char *file)
{
	int files = 0, kept = errno;

	if (brings_copy(file, 0, &files))
		put_ours_first();
	errno = kept;
}

/* The C library finds out by the return address for whom it opens a file: so the last thing here
 * is a jump, not a call (tests/cases/bundled_libibverbs.py). */
SHOWN void *dlopen(const char *file, int flags)
{
	if (file && !__atomic_load_n(&is_done, __ATOMIC_ACQUIRE))
		look_at(file);
	return find_own()(file, flags);
}

enum { COPY = 1, OURS = 2 };

static int note_loaded(struct dl_phdr_info *info, size_t size, void *found)
{
	(void)size;
	if (is_copy(info->dlpi_name))
		*(int *)found |= COPY;
	if (!strcmp(base(info->dlpi_name), ours[0]))
		*(int *)found |= OURS;
	return 0;
}

/* A program that was linked with a copy has its symbols bound by now: it begins once more, with
 * ours preloaded. Not if it was started by naming the loader: which program that is, it does not
 * say. */
static __attribute__((constructor)) void begin(int count, char **words, char **environment)
{
	static char preload[3 * PATH_MAX] = "LD_PRELOAD=", program[PATH_MAX], path[PATH_MAX];
	const char *others = secure_getenv("LD_PRELOAD");
	int found = 0, variables = 0;
	size_t length = strlen(preload);

	(void)count;
	dl_iterate_phdr(note_loaded, &found);
	if (found != COPY || !others || !getauxval(AT_BASE) || !path_of_ours(0, path) ||
	    access(path, R_OK) || strstr(others, path) || strpbrk(path, ": "))
		return;
	ssize_t end = readlink("/proc/self/exe", program, sizeof program - 1);
	if (end <= 0 || access(program, X_OK))
		return;
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if (path_of_ours(i, path) && !access(path, R_OK))
			length += snprintf(preload + length, sizeof preload - length, "%s:", path);
	if (length + strlen(others) >= sizeof preload)
		return;
	strcpy(preload + length, others);
	while (environment[variables])
		variables++;
	char *changed[variables + 1];
	for (int i = 0; i <= variables; i++) {
		int is_list = environment[i] && !strncmp(environment[i], "LD_PRELOAD=", 11);
		changed[i] = is_list ? preload : environment[i];
	}
	execve(program, words, changed);
}
