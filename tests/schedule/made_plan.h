/* Plans for the tests of schedules, lowering, verifier and simulator: a model of opaque ops with
 * given edges, one op per stage, and programs made by lowering or written by hand. */
#ifndef SMP_TESTS_SCHEDULE_MADE_PLAN_H
#define SMP_TESTS_SCHEDULE_MADE_PLAN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "schedule/lower/lower.h"
#include "schedule/verify/verify.h"

typedef struct made_plan {
    smp_plan plan;
    smp_graph *graph;
    smp_flow *flow;
    smp_program *program; /* [pipeline], what plan.program points to */
    smp_plan_stage *stage;
    const char **name; /* [n_stage] op of each stage */
} made_plan;

enum { MADE_WEIGHT_BYTES = 1000, MADE_OUTPUT_BYTES = 64 };

/* Op i reads the ops j with reads(i, j), or a model input if there is none. */
typedef bool (*made_edges)(int reader, int producer);

static inline bool made_chain(int reader, int producer)
{
    return producer == reader - 1;
}

/* A chain in which some ops also read the first. */
static inline bool made_skips(int reader, int producer)
{
    return producer == reader - 1 || (producer == 0 && reader % 3 == 2);
}

static inline smp_graph *made_graph(int n_op, made_edges reads, bool training)
{
    smp_text text = {0};
    smp_text_append(
        &text, "smp: 1\nname: made\nmode: %s\ninputs:\n  t: {dtype: float32, shape: [4]}\nops:\n",
        training ? "training" : "inference");
    for (int i = 0; i < n_op; i++) {
        int inputs = 0;
        smp_text_append(&text, "  - {op: opaque, name: o%d, in: [", i);
        for (int j = 0; j < i; j++)
            if (reads(i, j))
                smp_text_append(&text, "%sx%d", inputs++ ? ", " : "", j);
        smp_text_append(&text,
                        "%s], out: x%d, cost: {forward_us: 1, backward_us: 2, weight_bytes: %d, "
                        "stash_bytes: 32, output_bytes: %d}}\n",
                        inputs ? "" : "t", i, MADE_WEIGHT_BYTES, MADE_OUTPUT_BYTES);
    }
    smp_graph *graph = NULL;
    smp_status status = smp_graph_parse("made.yaml", text.data, text.length, &graph);
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
    smp_text_free(&text);
    return graph;
}

/* A plan without programs. */
static inline void made_plan_stages(made_plan *made, const char *schedule, int pipeline, int chunks,
                                    int microbatches, bool training, made_edges reads)
{
    int n_stage = pipeline * chunks;
    *made = (made_plan){.graph = made_graph(n_stage, reads, training)};
    made->program = calloc((size_t)pipeline, sizeof *made->program);
    made->stage = calloc((size_t)n_stage, sizeof *made->stage);
    made->name = calloc((size_t)n_stage, sizeof *made->name);
    int32_t *stage_of_op = calloc((size_t)n_stage, sizeof *stage_of_op);
    assert_true(made->program && made->stage && made->name && stage_of_op);
    made->plan = (smp_plan){.model_path = "made.yaml",
                            .model_name = "made",
                            .fingerprint = made->graph->fingerprint,
                            .devices = pipeline,
                            .pipeline = pipeline,
                            .ddp = 1,
                            .gradient_blocks = 1,
                            .sharding = {.shard = 1},
                            .chunks = chunks,
                            .microbatches = microbatches,
                            .microbatch_size = 1,
                            .schedule = schedule,
                            .training = training,
                            .n_stage = n_stage,
                            .stage = made->stage,
                            .program = made->program};
    smp_schedule_shape shape = smp_plan_shape(&made->plan);
    for (int s = 0; s < n_stage; s++) {
        stage_of_op[s] = s;
        made->name[s] = made->graph->op[s].name;
        made->stage[s] = (smp_plan_stage){
            .rank = smp_schedule_stage_rank(smp_schedule_find(schedule), &shape, s),
            .n_op = 1,
            .op = &made->name[s],
            .forward_us = 1.0,
            .backward_us = training ? 2.0 : 0.0,
            .weight_bytes = MADE_WEIGHT_BYTES,
            .stash_bytes = 32};
    }
    if (smp_flow_build(made->graph, stage_of_op, n_stage, 1, &made->flow) != SMP_OK)
        fail_msg("%s", smp_last_error());
    free(stage_of_op);
}

static inline void made_plan_lower(made_plan *made)
{
    smp_schedule_shape shape = smp_plan_shape(&made->plan);
    if (smp_lower(smp_schedule_find(made->plan.schedule), &shape, made->flow, made->program))
        fail_msg("p %d v %d m %d: %s", shape.pipeline, shape.chunks, shape.microbatches,
                 smp_last_error());
}

static inline void made_plan_create(made_plan *made, const char *schedule, int pipeline, int chunks,
                                    int microbatches, bool training, made_edges reads)
{
    made_plan_stages(made, schedule, pipeline, chunks, microbatches, training, reads);
    made_plan_lower(made);
}

/* Replaces the program of a rank by text. */
static inline void made_plan_write(made_plan *made, int rank, const char *text)
{
    smp_program_free(&made->program[rank]);
    if (smp_program_parse(text, rank, (smp_where){"program", 1, 1}, &made->program[rank]))
        fail_msg("%s", smp_last_error());
}

static inline void made_plan_free(made_plan *made)
{
    for (int rank = 0; rank < made->plan.pipeline; rank++)
        smp_program_free(&made->program[rank]);
    smp_flow_destroy(made->flow);
    smp_graph_destroy(made->graph);
    free(made->program);
    free(made->stage);
    free(made->name);
}

static inline void assert_program(const smp_program *program, const char *expected)
{
    smp_text text = {0};
    smp_program_format(program, &text);
    assert_string_equal(text.data ? text.data : "", expected);
    smp_text_free(&text);
}

#endif
