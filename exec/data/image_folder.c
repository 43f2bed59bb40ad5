/* Lists a folder of images: exec/data/image_folder.h. Takes n log n comparisons of names. */
#include "exec/data/image_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Paths in the order of their bytes. */
typedef struct name_list {
    char **path; /* malloc'ed; the paths lie in the arena */
    size_t n, capacity;
} name_list;

bool smp__is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static smp_status add_name(smp_arena *arena, const char *folder, const char *name, name_list *list)
{
    const char *slash = smp__ends_with(folder, "/") ? "" : "/";
    SMP_TRY(smp_array_reserve(&list->path, &list->capacity, sizeof *list->path, list->n + 1));
    list->path[list->n] = smp_arena_printf(arena, "%s%s%s", folder, slash, name);
    return list->path[list->n++] ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status read_names(smp_arena *arena, const char *path, name_list *list)
{
    DIR *folder = opendir(path);
    if (!folder)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot open the folder: %s", path, strerror(errno));
    smp_status status = SMP_OK;
    for (struct dirent *entry; status == SMP_OK && (errno = 0, entry = readdir(folder)) != NULL;)
        if (entry->d_name[0] != '.')
            status = add_name(arena, path, entry->d_name, list);
    if (status == SMP_OK && errno != 0)
        status = smp_fail(SMP_ERR_INPUT, "%s: cannot read the folder: %s", path, strerror(errno));
    closedir(folder);
    if (status == SMP_OK && list->n == 0)
        status = smp_fail(SMP_ERR_INPUT, "%s: the folder is empty, expected images", path);
    if (status == SMP_OK)
        qsort(list->path, list->n, sizeof *list->path, compare);
    return status;
}

/* A list being made. */
typedef struct file_list {
    smp__image_file *file; /* malloc'ed */
    size_t n, capacity;
} file_list;

/* None of the names of a class is a folder; which else is no image, its first bytes tell later. */
static smp_status add_files(const name_list *names, int32_t label, file_list *list)
{
    SMP_TRY(
        smp_array_reserve(&list->file, &list->capacity, sizeof *list->file, list->n + names->n));
    for (size_t i = 0; i < names->n; i++) {
        if (smp__is_folder(names->path[i]))
            return smp_fail(SMP_ERR_INPUT, "%s: got a folder, expected an image", names->path[i]);
        list->file[list->n++] = (smp__image_file){names->path[i], label};
    }
    return SMP_OK;
}

static smp_status add_class(smp_arena *arena, const char *path, int32_t label, file_list *list)
{
    name_list names = {0};
    smp_status status = SMP_OK;
    if (!smp__is_folder(path))
        status = smp_fail(SMP_ERR_INPUT,
                          "%s: a file beside folders: images lie either in one folder, without "
                          "classes, or each in that of its class",
                          path);
    if (status == SMP_OK)
        status = read_names(arena, path, &names);
    if (status == SMP_OK)
        status = add_files(&names, label, list);
    free(names.path);
    return status;
}

static smp_status fill(smp_arena *arena, const name_list *top, file_list *list, int32_t *n_class)
{
    bool classes = false;
    for (size_t i = 0; i < top->n; i++)
        classes = classes || smp__is_folder(top->path[i]);
    if (!classes)
        return add_files(top, 0, list);
    if (top->n > INT32_MAX)
        return smp_fail(SMP_ERR_INPUT, "%s: more classes than int32 has numbers", top->path[0]);
    for (*n_class = 0; (size_t)*n_class < top->n; ++*n_class)
        SMP_TRY(add_class(arena, top->path[*n_class], *n_class, list));
    return SMP_OK;
}

smp_status smp__image_folder_list(smp_arena *arena, const char *path, smp__image_folder *folder)
{
    name_list top = {0};
    file_list list = {0};
    int32_t n_class = 0;
    smp_status status = read_names(arena, path, &top);
    if (status == SMP_OK)
        status = fill(arena, &top, &list, &n_class);
    smp__image_file *file = NULL;
    if (status == SMP_OK && !(file = SMP_ARENA_NEW(arena, smp__image_file, list.n)))
        status = SMP_ERR_NO_MEMORY;
    if (status == SMP_OK) {
        memcpy(file, list.file, list.n * sizeof *file);
        *folder = (smp__image_folder){file, (int64_t)list.n, n_class};
    }
    free(list.file);
    free(top.path);
    return status;
}
