/* Is a file that is about to be written one that is read? An input may be a file under any name, a
 * pattern, a directory with what lies in its folders, or an index of files beside it. */
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "graph/base/text.h"

enum { MOST_INDEX_BYTES = 64 << 20 };

static bool is_same(const struct stat *a, const char *path)
{
    struct stat b;
    return stat(path, &b) == 0 && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Does the path, without links, lie in a folder of the directory, as samples of a class do? */
static bool lies_below(const char *path, const char *directory)
{
    char *below = realpath(path, NULL), *above = realpath(directory, NULL);
    const size_t n = above ? strlen(above) : 0;
    const bool found = below && above && strncmp(below, above, n) == 0 && below[n] == '/' &&
                       strchr(below + n + 1, '/');
    free(below);
    free(above);
    return found;
}

/* What comes before the last slash, cut off. */
static const char *folder_of(const char *path, char folder[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) : 0;
    if (!slash || n >= PATH_MAX)
        return ".";
    memcpy(folder, path, n);
    folder[n] = '\0';
    return n > 0 ? folder : "/";
}

static bool lies_beside(const char *one, const char *other)
{
    char folder[PATH_MAX], others[PATH_MAX];
    struct stat a;
    return stat(folder_of(one, folder), &a) == 0 && is_same(&a, folder_of(other, others));
}

/* Does an index (of Hugging Face's form) that lies beside the output name it? */
static smp_status is_indexed(const char *output, const char *index, bool *found)
{
    const char *slash = strrchr(output, '/');
    char *text = NULL;
    size_t bytes;
    smp_text name = {0};
    *found = false;
    if (!lies_beside(output, index))
        return SMP_OK;
    SMP_TRY(smp_file_read(index, MOST_INDEX_BYTES, &text, &bytes));
    smp_text_append_quoted(&name, slash ? slash + 1 : output);
    *found = name.data && strstr(text, name.data);
    const smp_status status = name.failed ? smp_fail_memory(name.capacity) : SMP_OK;
    smp_text_free(&name);
    free(text);
    return status;
}

/* If an output is a directory, weights are written to it. */
static bool is_weights_within(const struct stat *directory, const char *input)
{
    char folder[PATH_MAX];
    const bool weights = ends_with(input, ".safetensors") || ends_with(input, ".index.json");
    return S_ISDIR(directory->st_mode) &&
           is_same(directory, weights ? folder_of(input, folder) : input);
}

/* If an input is a directory, weights are read from it. */
static bool is_weights_of(const char *output, const struct stat *directory)
{
    char folder[PATH_MAX];
    return ends_with(output, ".safetensors") && is_same(directory, folder_of(output, folder));
}

static smp_status is_input(const char *output, const struct stat *written, const char *input,
                           bool *found)
{
    struct stat read;
    *found = false;
    if (stat(input, &read) != 0)
        return SMP_OK;
    if (is_weights_within(written, input))
        *found = true;
    else if (S_ISREG(written->st_mode) && S_ISDIR(read.st_mode))
        *found = lies_below(output, input) || is_weights_of(output, &read);
    else if (S_ISREG(written->st_mode) && is_same(&read, output))
        *found = true;
    else if (S_ISREG(written->st_mode) && ends_with(input, ".index.json"))
        SMP_TRY(is_indexed(output, input, found));
    return SMP_OK;
}

static smp_status is_matched(const char *output, const struct stat *written, const char *pattern,
                             bool *found)
{
    glob_t all = {0};
    smp_status status = SMP_OK;
    if (strpbrk(pattern, "*?[") && glob(pattern, GLOB_NOSORT, NULL, &all) == 0)
        for (size_t i = 0; i < all.gl_pathc && !*found && status == SMP_OK; i++)
            status = is_input(output, written, all.gl_pathv[i], found);
    globfree(&all);
    return status;
}

smp_status smp_file_spares(const char *output, const char *input)
{
    struct stat written;
    bool found = false;
    if (!output || !input || stat(output, &written) != 0)
        return SMP_OK;
    SMP_TRY(is_input(output, &written, input, &found));
    if (!found)
        SMP_TRY(is_matched(output, &written, input, &found));
    if (!found)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT, "%s: it is read, too, and would be replaced: name another file",
                    output);
}
