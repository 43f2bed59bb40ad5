/* Helpers of the source kinds: files opened for reading, model inputs by name. */
#include "exec/data/data_source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/base/text.h"

smp_status smp__data_file_open(const char *path, smp_data_file *file)
{
    int fd;
    int64_t bytes;
    SMP_TRY(smp_file_open(path, &fd, &bytes));
    if (bytes == 0) {
        close(fd);
        return smp_fail(SMP_ERR_INPUT, "%s: the data file is empty", path);
    }
    *file = (smp_data_file){.path = path, .fd = fd, .bytes = bytes};
    return SMP_OK;
}

smp_status smp__data_file_read(const smp_data_file *file, int64_t offset, void *buffer, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(file->fd, (char *)buffer + done, n - done, offset + (int64_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return smp_fail(SMP_ERR_FAILED, "%s: cannot read the data file: %s", file->path,
                            strerror(errno));
        if (got == 0)
            return smp_fail(SMP_ERR_FAILED,
                            "%s: the data file ends at byte %lld: it had %lld bytes when it was "
                            "opened and has been truncated since",
                            file->path, (long long)offset + (long long)done,
                            (long long)file->bytes);
        done += (size_t)got;
    }
    return SMP_OK;
}

void smp__data_file_close(smp_data_file *file)
{
    if (file->bytes > 0)
        close(file->fd);
    *file = (smp_data_file){0};
}

bool smp__file_begins(const char *path, const char *bytes, size_t n)
{
    smp_data_file file = {0};
    char got[16];
    if (n > sizeof got || smp__data_file_open(path, &file) != SMP_OK)
        return false;
    bool same = file.bytes >= (int64_t)n && smp__data_file_read(&file, 0, got, n) == SMP_OK &&
                memcmp(got, bytes, n) == 0;
    smp__data_file_close(&file);
    return same;
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
