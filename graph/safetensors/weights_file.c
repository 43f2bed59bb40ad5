/* Opening a file of weights by its kind, finding tensors, reading values; see the header. */
#include "graph/safetensors/weights_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/safetensors/weights_format.h"

/* The last one takes whatever the others do not know. */
static const smp__weights_format *const formats[] = {&smp__format_index, &smp__format_llmc,
                                                     &smp__format_safetensors};

static const int64_t most_elements = (int64_t)1 << 60;

bool smp_stored_elements(const smp_stored_shape *shape, int64_t *elements)
{
    int64_t n = 1;
    bool empty = false;
    for (int i = 0; i < shape->n_dim; i++) {
        const int64_t dim = shape->dim[i];
        if (dim < 0)
            return false;
        empty = empty || dim == 0;
        if (dim > 0 && n > most_elements / dim)
            return false;
        n *= dim > 0 ? dim : 1;
    }
    *elements = empty ? 0 : n;
    return true;
}

char *smp_stored_shape_text(const smp_stored_shape *shape, char buffer[SMP_SHAPE_TEXT])
{
    size_t at = 0;
    snprintf(buffer, SMP_SHAPE_TEXT, "a number");
    for (int i = 0; i < shape->n_dim; i++)
        at += (size_t)snprintf(buffer + at, SMP_SHAPE_TEXT - at, "%s%" PRId64, i > 0 ? "x" : "",
                               shape->dim[i]);
    return buffer;
}

bool smp_stored_shape_equal(const smp_stored_shape *a, const smp_stored_shape *b)
{
    return a->n_dim == b->n_dim && memcmp(a->dim, b->dim, (size_t)a->n_dim * sizeof a->dim[0]) == 0;
}

smp_status smp__weights_pread(int fd, const char *path, void *to, int64_t n, int64_t at)
{
    char *bytes = to;
    while (n > 0) {
        const ssize_t got = pread(fd, bytes, (size_t)(n < 1 << 30 ? n : 1 << 30), at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return smp_fail(SMP_ERR_INPUT, "%s: cannot read: %s", path, strerror(errno));
        if (got == 0)
            return smp_fail(SMP_ERR_INPUT,
                            "%s: byte %" PRId64 ": the file ends, expected %" PRId64 " bytes more",
                            path, at, n);
        bytes += got;
        at += got;
        n -= got;
    }
    return SMP_OK;
}

smp_status smp__weights_add_file(smp_weights_file *file, const char *path, int32_t *number)
{
    SMP_TRY(smp_array_reserve(&file->file, &file->file_capacity, sizeof *file->file,
                              (size_t)file->n_file + 1));
    const char *copy = smp_arena_strdup(file->arena, path);
    if (!copy)
        return SMP_ERR_NO_MEMORY;
    file->file[file->n_file] = copy;
    *number = file->n_file++;
    return SMP_OK;
}

smp_status smp__weights_add_tensor(smp_weights_file *file, const smp_stored_tensor *tensor)
{
    int64_t before;
    if (smp_map_get(file->by_name, tensor->name, &before))
        return smp_fail(SMP_ERR_INPUT, "tensor '%s' is there twice", tensor->name);
    SMP_TRY(smp_array_reserve(&file->tensor, &file->tensor_capacity, sizeof *file->tensor,
                              (size_t)file->n_tensor + 1));
    const char *name = smp_arena_strdup(file->arena, tensor->name);
    if (!name)
        return SMP_ERR_NO_MEMORY;
    file->tensor[file->n_tensor] = *tensor;
    file->tensor[file->n_tensor].name = name;
    SMP_TRY(smp_map_set(file->by_name, name, file->n_tensor));
    file->n_tensor++;
    return SMP_OK;
}

static smp_status read_heads(smp_weights_file *file)
{
    unsigned char first[8] = {0};
    int64_t length = 0;
    int fd = -1;
    SMP_TRY(smp_file_open(file->path, &fd, &length));
    const int64_t n = length < (int64_t)sizeof first ? length : (int64_t)sizeof first;
    const smp_status status = smp__weights_pread(fd, file->path, first, n, 0);
    close(fd);
    for (size_t i = 0; status == SMP_OK; i++)
        if (formats[i]->knows(file->path, first, (size_t)n))
            return formats[i]->read(file);
    return status;
}

/* The file to read for `path`: of a folder its index, else its only file. */
static const char *file_of(smp_arena *arena, const char *path)
{
    struct stat about;
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode))
        return smp_arena_strdup(arena, path);
    const char *index = smp_arena_printf(arena, "%s/model.safetensors.index.json", path);
    return index && access(index, F_OK) == 0
               ? index
               : smp_arena_printf(arena, "%s/model.safetensors", path);
}

smp_status smp_weights_file_open(const char *path, smp_weights_file **out)
{
    smp_weights_file *file = calloc(1, sizeof *file);
    if (!file)
        return smp_fail_memory(sizeof *file);
    file->fd = -1;
    file->arena = smp_arena_create();
    file->by_name = smp_map_create();
    smp_status status = file->arena && file->by_name ? SMP_OK : smp_fail_memory(sizeof *file);
    if (status == SMP_OK && !(file->path = file_of(file->arena, path)))
        status = SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = read_heads(file);
    if (status == SMP_OK)
        *out = file;
    else
        smp_weights_file_close(file);
    return status;
}

void smp_weights_file_close(smp_weights_file *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    free(file->tensor);
    free(file->file);
    smp_map_destroy(file->by_name);
    smp_arena_destroy(file->arena);
    free(file);
}

int32_t smp_weights_file_find(const smp_weights_file *file, const char *name)
{
    int64_t number;
    return smp_map_get(file->by_name, name, &number) ? (int32_t)number : -1;
}

/* One file is open at a time: shards may be many, and are read one after the other. */
static smp_status turn_to(smp_weights_file *file, int32_t number)
{
    int64_t length;
    if (file->fd >= 0 && file->open == number)
        return SMP_OK;
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
    SMP_TRY(smp_file_open(file->file[number], &file->fd, &length));
    file->open = number;
    return SMP_OK;
}

smp_status smp_weights_file_read(smp_weights_file *file, int32_t tensor, int64_t begin, int64_t n,
                                 float *values)
{
    const smp_stored_tensor *t = &file->tensor[tensor];
    const int64_t size = t->dtype->bytes;
    char part[1 << 14];
    SMP_TRY(turn_to(file, t->file));
    const char *path = file->file[t->file];
    if (t->dtype == &smp_stored_f32)
        return smp__weights_pread(file->fd, path, values, n * size, t->at + begin * size);
    for (int64_t done = 0, m; done < n; done += m) {
        const int64_t most = (int64_t)sizeof part / size;
        m = n - done < most ? n - done : most;
        SMP_TRY(smp__weights_pread(file->fd, path, part, m * size, t->at + (begin + done) * size));
        t->dtype->to_float(part, m, values + done);
    }
    return SMP_OK;
}
