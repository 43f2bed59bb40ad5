/* Jobs of four ranks whose operators are split at random over groups of devices: a plan in a file,
 * and the job of it. */
#ifndef SMP_TESTS_MPI_SPLIT_JOB_H
#define SMP_TESTS_MPI_SPLIT_JOB_H

#include "graph/base/random.h"
#include "schedule/planner/planner.h"
#include "tests/mpi/ranks.h"

enum { SPLIT_RANKS = 4 };

typedef struct way {
    int tensor, stages, ddp, chunks, shard;
    smp_shard_what what;
} way;

static char split_plan_file[128];

/* One of the choices of every op, by the seed. */
static inline void choose_at_random(const smp_graph *whole, int devices, uint64_t seed,
                                    smp_split_choice *choice)
{
    for (int32_t o = 0; o < whole->n_op; o++) {
        smp_split_choice all[SMP_SPLIT_CHOICES];
        const int n = smp_split_choices(whole, o, devices, all);
        choice[o] = all[smp_random_mix(seed + smp_random_mix((uint64_t)o)) % (uint64_t)n];
    }
}

static inline smp_status plan_way(const char *model, way w, uint64_t seed)
{
    smp_graph *whole = NULL;
    smp_cluster *cluster = NULL, *groups = NULL;
    smp_planner_result result = {0};
    smp_text text = {0};
    smp_arena *arena = smp_arena_create();
    smp_search_request request = {.options.devices = SPLIT_RANKS / w.tensor,
                                  .options.stages = w.stages,
                                  .options.ddp = w.ddp,
                                  .options.chunks = w.chunks,
                                  .options.microbatches = SPLIT_RANKS / w.ddp,
                                  .options.microbatch_size = 1,
                                  .options.gradient_blocks = SPLIT_RANKS,
                                  .sharding = {.shard = w.shard, .what = w.what},
                                  .options.schedule = w.chunks > 1 ? "interleaved" : "1f1b"};
    must(smp_graph_read(model, &whole));
    must(smp_cluster_default((smp_target){0}, NULL, SPLIT_RANKS, &cluster));
    must(smp_cluster_group(cluster, w.tensor, &groups));
    request.cluster = w.tensor > 1 ? groups : cluster;
    if (w.tensor > 1) {
        smp_split_choice *choice = calloc((size_t)whole->n_op, sizeof *choice);
        choose_at_random(whole, w.tensor, seed, choice);
        must(smp_splitting_make(whole, w.tensor, choice, arena, &request.splitting));
        free(choice);
    }
    smp_status status = smp_splitting_apply(&request.splitting, 0, &whole);
    request.graph = whole;
    if (status == SMP_OK)
        status = smp_plan_make(&request, model, &result);
    if (status == SMP_OK)
        status = smp_plan_format(result.plan, &text);
    if (status == SMP_OK)
        status = smp_file_write(split_plan_file, text.data, text.length);
    smp_text_free(&text);
    smp_planner_result_destroy(&result);
    smp_cluster_destroy(groups);
    smp_cluster_destroy(cluster);
    smp_graph_destroy(whole);
    smp_arena_destroy(arena);
    return status;
}

/* Collective. Ways that not every seed allows (tied weights, stages of few ops) are not for it. */
static inline smp *open_way(const char *model, way w, uint64_t seed)
{
    smp *job = NULL;
    snprintf(split_plan_file, sizeof split_plan_file, "%s/plan.yaml", ranks_folder);
    if (world_rank == 0)
        must(plan_way(model, w, seed));
    MPI_Barrier(MPI_COMM_WORLD);
    smp_options options = smp_options_default();
    options.plan = split_plan_file;
    options.optimizer.lr = 0.01f;
    options.runtime.timeout_s = 30;
    must(smp_init(&job, &options));
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        unlink(split_plan_file);
    return job;
}

#endif
