/* Helpers of the source kinds: files mapped for reading, model inputs by name, bounds as text. */
#include "exec/data/data_source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/model/op.h"

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

char *smp__range_format(char *buffer, size_t size, const smp_source_range *range, int64_t value)
{
    const smp_op *op = value < range->min ? range->min_op : range->max_op;
    if (op)
        snprintf(buffer, size, "input '%s' takes %lld to %lld (%s '%s')", range->input,
                 (long long)range->min, (long long)range->max, op->kind->name, op->name);
    else
        snprintf(buffer, size, "input '%s' is int32", range->input);
    return buffer;
}
