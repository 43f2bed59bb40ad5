/* The splittings that are worth planning for a group of T devices. */
#ifndef SMP_SCHEDULE_TENSOR_TENSOR_CHOICE_H
#define SMP_SCHEDULE_TENSOR_TENSOR_CHOICE_H

#include "graph/split/splitting.h"
#include "schedule/planner/space/request.h"

typedef struct smp__tensor_choice {
    smp_splitting splitting;
    double memory_price;
    bool exact;
    int32_t n_pieces; /* products that exchange in pieces */
} smp__tensor_choice;

/* Memory has four prices, each with products in pieces and without. */
enum { SMP__TENSOR_PRICES = 4, SMP__TENSOR_CHOICES = 2 * SMP__TENSOR_PRICES };

/* Splittings of request->graph, a whole one, for groups of `tensor` devices of `groups` (a cluster
 * made by smp_cluster_group), all different; in `arena`. A byte of memory is counted with
 * `memory_price` times what a micro-batch takes by what a device has: at 0 the fastest is chosen,
 * at a high price what needs least memory. fixed: entries of some ops, as names or patterns;
 * only_fixed: all others are whole, and there is one choice. deadline_s: after it no
 * more than one is made; 0: never. */
smp_status smp__tensor_choices(const smp_search_request *request, const smp_cluster *groups,
                               int tensor, const smp_split_entry *fixed, int32_t n_fixed,
                               bool only_fixed, double deadline_s, smp_arena *arena,
                               smp__tensor_choice out[SMP__TENSOR_CHOICES], int *n);

#endif
