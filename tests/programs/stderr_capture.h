/* What the library says on stderr, kept in a file that a test reads: `said`. A program has it in
 * one file. */
#pragma once

#include <sys/mman.h>
#include <unistd.h>

static int terminal, said;

/* What was said, to where it would have gone. */
static void pass_on(void)
{
    char text[8192];
    ssize_t length = pread(said, text, sizeof text, 0);
    if (length > 0)
        length = write(terminal, text, (size_t)length);
}

/* stderr into a file, which is passed on at the end. */
static void listen_to_stderr(void)
{
    terminal = dup(STDERR_FILENO);
    said = memfd_create("stderr", 0);
    check(said >= 0 && dup2(said, STDERR_FILENO) >= 0, "memfd_create: %m");
    atexit(pass_on);
}
