/* Copies to and from host memory: two links of each runner, one for each direction. When a copy
 * begins is known as soon as its action is reached. O(1) an action, but for smp_offload_stored_by.
 */
#include "schedule/lower/offload_actions.h"
#include "schedule/simulate/simulate_state.h"

static bool travels(const smp_program *program)
{
    for (int64_t i = 0; i < program->n; i++)
        if (program->action[i].kind == SMP_ACTION_STORE ||
            program->action[i].kind == SMP_ACTION_LOAD)
            return true;
    return false;
}

static smp_status open_host(smp__sim *sim, smp__sim_runner *r)
{
    const smp_simulation_input *input = sim->input;
    const smp_program *program = smp__sim_program(sim, r);
    const size_t n_pair = (size_t)input->chunks * (size_t)input->microbatches;
    if (!travels(program))
        return SMP_OK;
    if (!input->offload_bytes || input->cluster->host.bytes_per_s <= 0.0)
        return smp_fail(SMP_ERR_INPUT,
                        "rank %d stores activations in host memory, and cluster '%s' has no links: "
                        "host",
                        r->rank, input->cluster->name);
    r->host = SMP_ARENA_NEW(sim->arena, smp__sim_host, 1);
    if (!r->host)
        return SMP_ERR_NO_MEMORY;
    r->host->stored_us = SMP_ARENA_NEW(sim->arena, double, (size_t)program->n + 1);
    r->host->moved_us = SMP_ARENA_NEW(sim->arena, double, n_pair);
    return r->host->stored_us && r->host->moved_us ? SMP_OK : SMP_ERR_NO_MEMORY;
}

smp_status smp__sim_offload_init(smp__sim *sim)
{
    for (int i = 0; i < sim->n_runner; i++)
        SMP_TRY(open_host(sim, &sim->runner[i]));
    return SMP_OK;
}

static double *moved(const smp__sim *sim, const smp__sim_runner *r, const smp_action *a)
{
    return &r->host->moved_us[(int64_t)a->chunk * sim->input->microbatches + a->microbatch];
}

double smp__sim_offload(const smp__sim *sim, smp__sim_runner *r, const smp_action *a)
{
    const smp_simulation_input *input = sim->input;
    const bool store = a->kind == SMP_ACTION_STORE;
    double *free_us = store ? &r->host->out_free_us : &r->host->in_free_us;
    double start_us = *free_us > sim->now_us ? *free_us : sim->now_us;
    if (!store && *moved(sim, r, a) > start_us)
        start_us = *moved(sim, r, a);
    const double end_us =
        start_us + smp_link_us(&input->cluster->host,
                               input->offload_bytes[smp__sim_stage(sim, r->rank, a->chunk)]);
    *free_us = *moved(sim, r, a) = end_us;
    if (store) { /* later stores end later */
        const int64_t by = smp_offload_stored_by(smp__sim_program(sim, r), r->next, input->horizon);
        r->host->stored_us[by] = end_us;
    }
    return end_us;
}

double smp__sim_offloaded_us(const smp__sim *sim, const smp__sim_runner *r, int64_t position)
{
    const smp_action *a = &smp__sim_program(sim, r)->action[position];
    if (!r->host)
        return 0.0;
    const double stored_us = r->host->stored_us[position];
    if (a->kind == SMP_ACTION_F || a->kind == SMP_ACTION_OPTIMIZE)
        return stored_us;
    const double loaded_us = *moved(sim, r, a);
    return loaded_us > stored_us ? loaded_us : stored_us;
}
