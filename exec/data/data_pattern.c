/* Patterns of the shell as sources: "shards/x-*.bin", "image=part-?.npy", expanded here so that a
 * list of files may be longer than a command line, and is in one order on all machines: that of the
 * bytes of the names, whatever the locale. A file whose name is the pattern itself comes first. */
#include "exec/data/data_source.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static smp_status append(smp_arena *arena, smp__spec_list *list, const char *before, size_t length,
                         const char *path)
{
    smp__spec *spec = SMP_ARENA_NEW(arena, smp__spec, 1);
    if (!spec)
        return SMP_ERR_NO_MEMORY;
    spec->text = smp_arena_printf(arena, "%.*s%s", (int)length, before, path);
    if (!spec->text)
        return SMP_ERR_NO_MEMORY;
    *(list->last ? &list->last->next : &list->first) = spec;
    list->last = spec;
    list->n++;
    return SMP_OK;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

smp_status smp__spec_expand(const smp_graph *graph, smp_arena *arena, const char *spec,
                            smp__spec_list *list)
{
    const char *path = smp__input_named(graph, spec) >= 0 ? strchr(spec, '=') + 1 : spec;
    if (!strpbrk(path, "*?[") || access(path, F_OK) == 0)
        return append(arena, list, spec, 0, spec);

    glob_t found = {0};
    smp_status status = SMP_OK;
    const int code = glob(path, GLOB_NOSORT, NULL, &found);
    if (code == GLOB_NOSPACE)
        status = smp_fail_memory(strlen(path));
    else if (code != 0 || found.gl_pathc == 0)
        status = smp_fail(SMP_ERR_INPUT, "%s: the pattern matches no file", path);
    if (status == SMP_OK)
        qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, compare);
    for (size_t i = 0; status == SMP_OK && i < found.gl_pathc; i++)
        status = append(arena, list, spec, (size_t)(path - spec), found.gl_pathv[i]);
    globfree(&found);
    return status;
}
