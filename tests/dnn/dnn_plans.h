/* What tests of cuDNN's plans share: the card that they are made for, without one, and the
 * operators of the examples. */
#ifndef SMP_TESTS_DNN_PLANS_H
#define SMP_TESTS_DNN_PLANS_H

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/case_count.h"
#include "graph/cuda/cuda.h"
#include "graph/cuda/cuda_dnn.h"
#include "graph/model/graph.h"
#include "graph/ops/ops.h"

enum { SKIPPED = 77, MOST_KINDS = 512 };

static char json[4096];
static smp_cuda cuda = {
    .dnn_device = json, .workspace_bytes = 64 << 20, .multiprocessors = 132, .capability = 90};

/* Of a micro-batch: as the examples and the benchmarks train them. */
static const struct {
    const char *model;
    int64_t samples;
} usual[] = {{"gpt2-124m", 32},  {"gpt2-774m", 8},   {"gpt2-30b-stage", 2}, {"gpt-tiny", 8},
             {"llama-tiny", 8},  {"vit-digits", 16}, {"vit-class", 32},     {"unet-sd", 4},
             {"vit-b16", 32},    {"resnet-18", 64},  {"resnet-50", 64},     {"resnet-small", 32},
             {"maskrcnn-fpn", 2}};

static inline int64_t samples_of(const char *path)
{
    const char *name = strrchr(path, '/') + 1;
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        if (strncmp(name, usual[i].model, strlen(usual[i].model)) == 0 &&
            strcmp(name + strlen(usual[i].model), ".yaml") == 0)
            return usual[i].samples;
    return 1;
}

static char seen[MOST_KINDS][SMP__CHOICE_ABOUT]; /* computations that were asked for */
static int n_seen;

static inline bool is_new(const char *about)
{
    for (int i = 0; i < n_seen; i++)
        if (strcmp(seen[i], about) == 0)
            return false;
    assert_true(n_seen < MOST_KINDS);
    strcpy(seen[n_seen++], about);
    return true;
}

/* Of every op of that kind in the examples, with the samples of a micro-batch. */
static inline void for_every_op(const char *kind,
                                void (*check)(const char *path, const smp_graph *graph,
                                              const smp_op *op, int64_t samples))
{
    glob_t models;
    assert_int_equal(glob(SMP_SOURCE_DIR "/examples/*.yaml", 0, NULL, &models), 0);
    for (size_t m = 0; m < models.gl_pathc; m++) {
        const char *path = models.gl_pathv[m];
        smp_graph *graph;
        if (strstr(path, "/cluster-"))
            continue;
        if (smp_graph_read(path, &graph) != SMP_OK ||
            smp_graph_set_target(graph, (smp_target){.backend = SMP_BACKEND_CUDA,
                                                     .precision = cuda.precision}) != SMP_OK)
            fail_msg("%s", smp_last_error());
        for (int32_t o = 0; o < graph->n_op; o++)
            if (strcmp(graph->op[o].kind->name, kind) == 0)
                check(path, graph, &graph->op[o], samples_of(path));
        smp_graph_destroy(graph);
    }
    globfree(&models);
}

/* The argument names the type of 16 bits. Opens cuDNN: 0, or what the program ends with. */
static inline int open_plans(int argc, char **argv)
{
    void *handle;
    if (argc == 2 && strcmp(argv[1], "fp16") == 0)
        cuda.precision = SMP_PRECISION_FP16;
    else if (argc == 2 && strcmp(argv[1], "bf16") == 0)
        cuda.precision = SMP_PRECISION_BF16;
    else
        return 2;
    FILE *file = fopen(SMP_SOURCE_DIR "/tests/dnn/h200.json", "r");
    if (!file || fread(json, 1, sizeof json - 1, file) == 0)
        return 2;
    fclose(file);
    if (smp__dnn_open(&handle, NULL) != SMP_OK || !smp__dnn.cudnnGetVersion) {
        printf("cuDNN is not here: %s\n", smp_last_error());
        return SKIPPED;
    }
    smp__dnn_close(handle); /* of a card, if there is one: plans are for the description alone */
    if (smp__dnn.cudnnGetVersion() < SMP__DNN_OLDEST) {
        printf("cuDNN is too old: %zu\n", smp__dnn.cudnnGetVersion());
        return SKIPPED;
    }
    return 0;
}

#endif
