/* Relative paths; see the header. */
#include "schedule/plan/relative_path.h"

#include <stdlib.h>
#include <string.h>

#include "graph/base/text.h"

/* `path` as seen from `folder`, both absolute and clean; malloc'ed. */
static char *from_folder(const char *folder, const char *path)
{
    size_t same = 0;
    smp_text text = {0};
    for (size_t i = 0;; i++) {
        bool ends = folder[i] == '\0' || folder[i] == '/';
        if (ends && path[i] == '/')
            same = i;
        if (folder[i] == '\0' || folder[i] != path[i])
            break;
    }
    for (const char *c = folder + same; *c; c++)
        if (*c == '/' && c[1])
            smp_text_append(&text, "../");
    smp_text_append(&text, "%s", path + same + 1);
    if (text.failed)
        smp_text_free(&text);
    return text.data;
}

/* Real path of the folder that a file lies in; malloc'ed, NULL if there is none. */
static char *folder_of(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    if (!slash)
        return realpath(".", NULL);
    if (slash == path)
        return strdup("/");
    char *folder = strndup(path, (size_t)(slash - path)), *real = NULL;
    if (folder)
        real = realpath(folder, NULL);
    free(folder);
    return real;
}

char *smp_relative_path(const char *file, const char *target)
{
    const char *target_name, *file_name;
    char *result = NULL, *from = folder_of(file, &file_name);
    char *folder = folder_of(target, &target_name);
    smp_text path = {0};
    if (from && folder) {
        smp_text_append(&path, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, target_name);
        if (!path.failed)
            result = from_folder(strcmp(from, "/") == 0 ? "" : from, path.data);
    }
    smp_text_free(&path);
    free(from);
    free(folder);
    return result;
}
