/* A file as the source of an input of floats, and of one of indices, whose values are all checked.
 * What is taken can be read to the last sample, and holds legal indices. */
#ifndef SMP_TESTS_FUZZ_FUZZ_SOURCE_H
#define SMP_TESTS_FUZZ_FUZZ_SOURCE_H

#include "tests/fuzz/fuzz.h"

#include "exec/data/data.h"

enum { FEATURES = 3, ROWS = 7 };

static const char float_model[] = "smp: 1\n"
                                  "mode: inference\n"
                                  "inputs: {x: {dtype: float32, shape: [3]}}\n"
                                  "ops: [{op: relu, name: relu, in: x, out: y}]\n";
static const char index_model[] = "smp: 1\n"
                                  "mode: inference\n"
                                  "inputs: {x: {dtype: int32, shape: [3]}}\n"
                                  "ops: [{op: embedding, name: wte, in: x, out: y, rows: 7, "
                                  "features: 2}]\n";

static inline const smp_graph *parse(smp_graph **graph, const char *text)
{
    if (!*graph)
        FUZZ_REQUIRE(smp_graph_parse("model.yaml", text, strlen(text), graph) == SMP_OK);
    return *graph;
}

static inline void read_as(const smp_graph *graph, const char *path, bool indices)
{
    char spec[80];
    const char *const sources[] = {spec};
    smp_data_options options = {.sources = sources, .n_source = 1, .global_batch = 1};
    smp_data *opened = NULL;
    snprintf(spec, sizeof spec, "x=%s", path);
    if (!fuzz_taken(smp_data_open(graph, &options, &opened)))
        return;
    const int64_t samples = smp_data_samples(opened);
    union {
        float f[FEATURES];
        int32_t i[FEATURES];
    } values;
    FUZZ_REQUIRE(samples >= 1);
    const int64_t stride = samples > 100 ? samples - 1 : 1; /* of many the first and the last */
    for (int64_t sample = 0; sample < samples; sample += stride) {
        FUZZ_REQUIRE(smp_data_read(opened, sample, 1, 0, &values) == SMP_OK);
        for (int k = 0; indices && k < FEATURES; k++)
            FUZZ_REQUIRE(values.i[k] >= 0 && values.i[k] < ROWS);
    }
    smp_data_close(opened);
}

static inline void fuzz_read_sources(const char *path)
{
    static smp_graph *of_floats, *of_indices;
    read_as(parse(&of_floats, float_model), path, false);
    read_as(parse(&of_indices, index_model), path, true);
}

#endif
