/* Relative paths; see the header. */
#include "schedule/plan/relative_path.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/text.h"

/* `path` as seen from `folder`, both absolute and clean. */
static void append_path(smp_text *text, const char *folder, const char *path)
{
    size_t same = 0;
    for (size_t i = 0;; i++) {
        bool ends = folder[i] == '\0' || folder[i] == '/';
        if (ends && path[i] == '/')
            same = i;
        if (folder[i] == '\0' || folder[i] != path[i])
            break;
    }
    for (const char *c = folder + same; *c; c++)
        if (*c == '/' && c[1])
            smp_text_append(text, "../");
    smp_text_append(text, "%s", path + same + 1);
}

/* Real path of the folder that a file lies in, without a slash at the end; malloc'ed, NULL if there
 * is none. */
static smp_status find_folder(const char *path, const char **name, char **out)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 1;
    *name = slash ? slash + 1 : path;
    *out = NULL;
    char *folder = slash == path ? strdup("/") : strndup(slash ? path : ".", length);
    if (!folder)
        return smp_fail_memory(length);
    char *real = realpath(folder, NULL);
    const bool no_memory = !real && errno == ENOMEM;
    free(folder);
    if (no_memory)
        return smp_fail_memory(PATH_MAX);
    if (real && strcmp(real, "/") == 0)
        real[0] = '\0';
    *out = real;
    return SMP_OK;
}

smp_status smp_relative_path(const char *file, const char *target, char **out)
{
    const char *target_name, *file_name;
    char *from = NULL, *folder = NULL;
    smp_text path = {0}, text = {0};
    smp_status status = find_folder(file, &file_name, &from);
    if (status == SMP_OK)
        status = find_folder(target, &target_name, &folder);
    if (status == SMP_OK && from && folder) {
        smp_text_append(&path, "%s/%s", folder, target_name);
        if (!path.failed)
            append_path(&text, from, path.data);
        if (path.failed || text.failed)
            status = smp_fail_memory(strlen(folder) + strlen(from) + strlen(target));
    }
    if (status == SMP_OK)
        *out = text.data;
    else
        smp_text_free(&text);
    smp_text_free(&path);
    free(from);
    free(folder);
    return status;
}
