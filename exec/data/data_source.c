/* Helpers of the source kinds: files mapped for reading, model inputs by name. */
#include "exec/data/data_source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/base/text.h"

smp_status smp__file_map_open(const char *path, smp_file_map *map)
{
    /* Not blocking: opening a FIFO would wait for a writer for ever. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot open the data file: %s", path, strerror(errno));

    smp_status status = SMP_OK;
    struct stat info;
    if (fstat(fd, &info)) {
        status = smp_fail(SMP_ERR_INPUT, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = smp_fail(SMP_ERR_INPUT, "%s: got %s, expected a regular file", path,
                          S_ISDIR(info.st_mode) ? "a directory" : "a device, pipe or socket");
    } else if (info.st_size <= 0) {
        status = smp_fail(SMP_ERR_INPUT, "%s: the data file is empty", path);
    } else if ((uint64_t)info.st_size > SIZE_MAX) {
        status = smp_fail(SMP_ERR_INPUT, "%s: the data file is too large to map", path);
    } else {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status =
                smp_fail(SMP_ERR_INPUT, "%s: cannot map the data file: %s", path, strerror(errno));
        else
            *map = (smp_file_map){.data = data, .bytes = info.st_size};
    }
    close(fd);
    return status;
}

bool smp__file_begins(const char *path, const char *bytes, size_t n)
{
    smp_file_map map = {0};
    if (smp__file_map_open(path, &map) != SMP_OK)
        return false;
    bool same = (size_t)map.bytes >= n && memcmp(map.data, bytes, n) == 0;
    smp__file_map_close(&map);
    return same;
}

void smp__file_map_close(smp_file_map *map)
{
    if (map->data)
        munmap((void *)map->data, (size_t)map->bytes);
    *map = (smp_file_map){0};
}

bool smp__ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text);
    size_t tail = strlen(suffix);
    return length >= tail && !strcmp(text + length - tail, suffix);
}

int smp__input_find(const smp_graph *graph, const char *name)
{
    for (int i = 0; i < graph->n_input; i++) {
        if (!strcmp(graph->tensor[i].name, name))
            return i;
    }
    return -1;
}

char *smp__input_list(char *buffer, size_t size, const smp_graph *graph)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (int i = 0; i < graph->n_input && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%s'%s'", i ? ", " : "",
                                 graph->tensor[i].name);
    return buffer;
}

int smp__input_named(const smp_graph *graph, const char *spec)
{
    const char *equals = strchr(spec, '=');
    for (int i = 0; equals && i < graph->n_input; i++) {
        const char *name = graph->tensor[i].name;
        size_t length = (size_t)(equals - spec);
        if (strlen(name) == length && !memcmp(name, spec, length))
            return i;
    }
    return -1;
}

smp_status smp__input_parse(const smp_graph *graph, const char *spec, int *input)
{
    const char *equals = strchr(spec, '=');
    char list[512];
    if (!equals || equals == spec)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got an array without a name, expected input=file.npy, "
                        "input being one of %s",
                        spec, smp__input_list(list, sizeof list, graph));
    size_t length = (size_t)(equals - spec);
    *input = smp__input_named(graph, spec);
    if (*input >= 0)
        return SMP_OK;

    char name[SMP_MAX_NAME + 1];
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name), spec);
    const char **names = malloc(sizeof *names * (size_t)graph->n_input);
    if (!names)
        return smp_fail_memory(sizeof *names * (size_t)graph->n_input);
    for (int i = 0; i < graph->n_input; i++)
        names[i] = graph->tensor[i].name;
    const char *nearest = smp_nearest(name, names, (size_t)graph->n_input);
    if (nearest)
        smp_fail(SMP_ERR_INPUT, "%s: model '%s' has no such input; did you mean '%s'?", spec,
                 graph->name, nearest);
    else
        smp_fail(SMP_ERR_INPUT, "%s: model '%s' has no such input, only %s", spec, graph->name,
                 smp__input_list(list, sizeof list, graph));
    free(names);
    return SMP_ERR_INPUT;
}
