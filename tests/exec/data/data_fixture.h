/* What the tests of data sources share: models made by hand, so that every index bound can be
 * chosen, and files in a folder of their own. */
#ifndef SMP_TESTS_EXEC_DATA_DATA_FIXTURE_H
#define SMP_TESTS_EXEC_DATA_DATA_FIXTURE_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/data/data_source.h"
#include "graph/model/op.h"

enum { MAX_PATH = 512 };

static char folder[MAX_PATH];

/* A model of up to four inputs, each read by one op that bounds its values. */
typedef struct model {
    smp_graph graph;
    smp_tensor tensor[4];
    smp_op op[4];
    int64_t consumer_begin[5];
    smp_consumer consumer[4];
    smp_attr_value bound[4][2];
} model;

static inline bool index_range(const smp_graph *graph, const smp_op *op, int slot, int64_t *min,
                               int64_t *max)
{
    (void)graph;
    (void)slot;
    *min = op->attr[0].i;
    *max = op->attr[1].i;
    return true;
}

static const smp_op_kind reader = {.name = "lookup", .index_range = index_range};
static const smp_op_kind plain_reader = {.name = "plain"};

static inline void model_init(model *m)
{
    memset(m, 0, sizeof *m);
    m->graph = (smp_graph){.name = "model",
                           .path = "model.yaml",
                           .tensor = m->tensor,
                           .op = m->op,
                           .consumer_begin = m->consumer_begin,
                           .consumer = m->consumer};
}

static inline void model_add(model *m, const char *name, smp_dtype dtype, smp_shape shape,
                             int64_t min, int64_t max)
{
    int i = m->graph.n_input++;
    m->graph.n_op = m->graph.n_tensor = m->graph.n_input;
    int64_t elements = 1;
    for (int d = 0; d < shape.n_dim; d++)
        elements *= shape.dim[d];
    m->tensor[i] = (smp_tensor){.name = name,
                                .dtype = dtype,
                                .batched = true,
                                .known = true,
                                .shape = shape,
                                .elements = elements,
                                .producer = -1};
    m->bound[i][0].i = min;
    m->bound[i][1].i = max;
    m->op[i] = (smp_op){
        .kind = dtype == SMP_I32 ? &reader : &plain_reader, .name = "op", .attr = m->bound[i]};
    m->consumer[i] = (smp_consumer){.op = i};
    m->consumer_begin[i + 1] = i + 1;
}

static inline smp_shape vector(int64_t length)
{
    return (smp_shape){.n_dim = 1, .dim = {length}};
}

static inline void model_tokens(model *m, int64_t length, int64_t vocabulary)
{
    model_init(m);
    model_add(m, "tokens", SMP_I32, vector(length), 0, vocabulary - 1);
    model_add(m, "targets", SMP_I32, vector(length), -1, vocabulary - 1);
}

static inline const char *path_of(const char *name)
{
    static char path[2][MAX_PATH + 300];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static inline const char *write_file(const char *name, const void *data, size_t bytes)
{
    const char *path = path_of(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

static inline smp_status open_sources(const model *m, int64_t batch, bool shuffle, smp_data **out,
                                      const char *first, const char *second)
{
    const char *const sources[] = {first, second};
    smp_data_options options = {.sources = sources,
                                .n_source = second  ? 2
                                            : first ? 1
                                                    : 0,
                                .global_batch = batch,
                                .seed = 5,
                                .shuffle = shuffle};
    return smp_data_open(&m->graph, &options, out);
}

static inline void expect_error(const model *m, int64_t batch, const char *first,
                                const char *second, const char *part)
{
    smp_data *data = NULL;
    assert_int_equal(open_sources(m, batch, true, &data, first, second), SMP_ERR_INPUT);
    assert_null(data);
    if (!strstr(smp_last_error(), part))
        fail_msg("got '%s', expected '%s' in it", smp_last_error(), part);
}

static inline int make_folder(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/smp_test_XXXXXX", base ? base : P_tmpdir);
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    (void)state;
    DIR *list = opendir(folder);
    if (!list)
        return -1;
    for (struct dirent *entry; (entry = readdir(list));)
        unlink(path_of(entry->d_name)); /* fails on . and .. */
    closedir(list);
    return rmdir(folder);
}

#endif
