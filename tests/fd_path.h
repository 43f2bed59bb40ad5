/* Of what file a descriptor is, for calls that go wrong on some paths alone. */
#ifndef SMP_TESTS_FD_PATH_H
#define SMP_TESTS_FD_PATH_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Returns `path`; "" if there is none. */
static inline const char *fd_path(int fd, char path[4096])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, 4095);
    path[n > 0 ? n : 0] = '\0';
    return path;
}

static inline int ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

#endif
