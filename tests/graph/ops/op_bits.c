/* What the operators compute, as digests to compare: a line "<operator> <pass> <digest>" for each
 * operator and pass, over its random models and its large ones. instruction_sets.sh compares
 * programs of this source whose kernels are compiled for one instruction set each. */
#include "tests/graph/ops/op_values.h"

enum { ROUNDS = 32 };

typedef struct digests {
    uint64_t forward, backward_input, backward_weight;
} digests;

static void add(uint64_t *digest, const buffer *b)
{
    for (size_t i = 0; i < b->bytes / 4; i++)
        *digest = smp_random_mix(*digest ^ ((const uint32_t *)b->data)[i]);
}

static void add_model(const model_text *m, uint64_t *rng, digests *d)
{
    op_run run;
    op_run_open(&run, m->yaml, "op", m->batch, 0);
    fill(&run, m, rng);
    for (int training = 0; training < 2; training++) {
        run.step.training = training;
        assert_int_equal(op_run_forward(&run), SMP_OK);
        add(&d->forward, &run.out);
    }
    op_run_backward_input(&run, ~0u);
    op_run_backward_weight(&run);
    for (int i = 0; i < run.op->n_in && run.op->kind->cpu.backward_input; i++)
        add(&d->backward_input, &run.din[i]);
    for (int i = 0; i < run.op->n_param; i++)
        add(&d->backward_weight, &run.dparam[i]);
    op_run_close(&run);
}

int main(void)
{
    for (int i = 0; smp_op_kinds()[i]; i++) {
        const op_case c = op_case_at(i);
        digests d = {0};
        model_text m;
        uint64_t rng;
        if (!c.kind->cpu.forward)
            continue;
        for (int round = 0; round < ROUNDS; round++) {
            op_case_model(&c, round, &m, &rng);
            add_model(&m, &rng, &d);
        }
        for (const large_case *l = c.large; l && l->inputs; l++) {
            large_case_model(&c, l, &m, &rng);
            add_model(&m, &rng, &d);
        }
        printf("%s forward %016llx\n", c.kind->name, (unsigned long long)d.forward);
        printf("%s backward_input %016llx\n", c.kind->name, (unsigned long long)d.backward_input);
        printf("%s backward_weight %016llx\n", c.kind->name, (unsigned long long)d.backward_weight);
    }
    return 0;
}
