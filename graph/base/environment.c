/* See environment.h. */
#include "graph/base/environment.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

smp_status smp_environment_save(smp_environment *saved)
{
    size_t n = 0;
    while (environ && environ[n])
        n++;
    *saved = (smp_environment){.arena = smp_arena_create()};
    char **entry = saved->arena ? SMP_ARENA_NEW(saved->arena, char *, n + 1) : NULL;
    for (size_t i = 0; entry && i < n; i++) {
        entry[i] = smp_arena_strdup(saved->arena, environ[i]);
        if (!entry[i])
            entry = NULL;
    }
    saved->entry = entry;
    if (entry)
        return SMP_OK;
    smp_arena_destroy(saved->arena);
    saved->arena = NULL;
    return SMP_ERR_NO_MEMORY;
}

/* The first of this name, which ends at '=' in both: what getenv finds. NULL if there is none. */
static char *find(char *const *entries, const char *name)
{
    const size_t length = strcspn(name, "=");
    for (; *entries; entries++)
        if (strncmp(*entries, name, length) == 0 && (*entries)[length] == '=')
            return *entries;
    return NULL;
}

/* Allocates nothing, so it cannot fail: a name too long for libraries stays, as does an entry
 * without '=', of which unsetenv wrongly says that it is gone. */
static bool remove_entry(const char *entry)
{
    char name[256];
    const size_t length = strcspn(entry, "=");
    if (length == 0 || entry[length] != '=' || length >= sizeof name)
        return false;
    memcpy(name, entry, length);
    name[length] = '\0';
    return unsetenv(name) == 0;
}

void smp_environment_restore(smp_environment *saved)
{
    for (size_t i = 0; saved->entry && environ && environ[i];)
        if (find(saved->entry, environ[i]) || !remove_entry(environ[i]))
            i++;
    for (char **entry = saved->entry; entry && *entry; entry++) {
        const char *now = environ ? find(environ, *entry) : NULL;
        char *value = strchr(*entry, '=');
        if (find(saved->entry, *entry) != *entry || (now && strcmp(now, *entry) == 0))
            continue;
        *value = '\0';
        setenv(*entry, value + 1, 1);
        *value = '=';
    }
    smp_arena_destroy(saved->arena);
    *saved = (smp_environment){0};
}
