/* batchnorm with `sync` over replicas that are calls of this process: what they compute together is
 * what one call on the samples of all computes, of one with padding and one without samples too;
 * input gradients against finite differences of the loss of all; and how many sums there are. */
#include "tests/graph/ops/op_values.h"

enum { REPLICAS = 3, BATCH = 4, C = 3, SPACE = 10, SAMPLE = C * SPACE, MOST = 2 * C };

#define MODEL(more)                                                                                \
    "smp: 1\nname: joint\ninputs:\n  a: {dtype: float32, shape: [3, 5, 2]}\nops:\n"                \
    "  - {op: batchnorm, name: op, in: a, out: y, momentum: 0.25" more "}\n"

/* A call is made twice: first it says what it has, then it gets the sum of what all have said. */
typedef struct sums {
    bool collect;
    int calls;
    double own[REPLICAS][MOST];
    int replica;
} sums;

static smp_status sum(void *context, double *values, int64_t count)
{
    sums *s = context;
    assert_true(count <= MOST);
    s->calls += !s->collect;
    for (int64_t i = 0; i < count; i++) {
        if (s->collect) {
            s->own[s->replica][i] = values[i];
            continue;
        }
        values[i] = 0;
        for (int r = 0; r < REPLICAS; r++)
            values[i] += s->own[r][i];
    }
    return SMP_OK;
}

static op_run part[REPLICAS];
static sums state_of_sums;
static smp_op_joint joint = {
    .replicas = REPLICAS, .following = 1, .context = &state_of_sums, .sum = sum};

static void every_replica(void (*call)(op_run *run))
{
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < REPLICAS; r++) {
            state_of_sums.collect = pass == 0;
            state_of_sums.replica = r;
            call(&part[r]);
        }
}

static void forward(op_run *run)
{
    assert_int_equal(op_run_forward(run), SMP_OK);
}

static void backward_input(op_run *run)
{
    op_run_backward_input(run, ~0u);
}

/* The samples of `whole`, in order, to replicas that have room for BATCH each. */
static void open_parts(op_run *whole, const int64_t samples[REPLICAS])
{
    static const char model[] = MODEL(", sync: true");
    model_text m = {.magnitude = 2};
    uint64_t rng = 11;
    int64_t all = 0;
    for (int r = 0; r < REPLICAS; r++)
        all += samples[r];
    op_run_open(whole, MODEL(""), "op", all, 0);
    fill(whole, &m, &rng);
    for (size_t i = 0; i < whole->in[0].bytes / 4; i++) /* a mean far from 0 */
        ((float *)whole->in[0].data)[i] += 200;
    whole->step.following = joint.following;
    joint.samples = all;
    state_of_sums = (sums){0};
    int64_t first = 0;
    for (int r = 0; r < REPLICAS; first += samples[r++]) {
        op_run_open(&part[r], model, "op", BATCH, 0);
        fill(&part[r], &m, &rng);
        for (int p = 0; p < whole->op->n_param; p++)
            memcpy(part[r].param[p].data, whole->param[p].data, whole->param[p].bytes);
        memcpy(part[r].in[0].data, (float *)whole->in[0].data + first * SAMPLE,
               (size_t)(samples[r] * SAMPLE) * sizeof(float));
        memcpy(part[r].dout.data, (float *)whole->dout.data + first * SAMPLE,
               (size_t)(samples[r] * SAMPLE) * sizeof(float));
        part[r].padding = BATCH - samples[r];
        part[r].step.following = 0; /* that of the joint micro-batch counts */
        part[r].joint = &joint;
        op_run_poison_padding(&part[r]);
    }
}

static void close_all(op_run *whole)
{
    op_run_close(whole);
    for (int r = 0; r < REPLICAS; r++)
        op_run_close(&part[r]);
}

static void expect_near(const buffer *got, const float *want, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        const double is = (double)((float *)got->data)[i], due = (double)want[i];
        if (!(fabs(is - due) <= 2e-5 * (1 + fabs(due))))
            fail_msg("%s[%d] is %.9g, expected %.9g", what, (int)i, is, due);
    }
}

static void check_weights(const op_run *whole)
{
    for (int p = 0; p < whole->op->n_param; p++)
        for (int i = 0; i < C; i++) {
            const double want = (double)((float *)whole->dparam[p].data)[i] - FIRST_ACCUMULATOR;
            double got = 0;
            for (int r = 0; r < REPLICAS; r++)
                got += (double)((float *)part[r].dparam[p].data)[i] - FIRST_ACCUMULATOR;
            if (!(fabs(got - want) <= 2e-5 * (1 + fabs(want))))
                fail_msg("weight %d[%d] changes by %.9g, expected %.9g", p, i, got, want);
        }
}

static void test_joint_batchnorm_is_one_of_all_samples(void **state)
{
    static const int64_t given[][REPLICAS] = {{4, 4, 4}, {4, 3, 0}, {1, 0, 0}, {2, 4, 1}};
    (void)state;
    for (size_t g = 0; g < sizeof given / sizeof *given; g++) {
        op_run whole;
        int64_t first = 0;
        open_parts(&whole, given[g]);
        forward(&whole);
        backward_input(&whole);
        op_run_backward_weight(&whole);
        every_replica(forward);
        every_replica(backward_input);
        assert_int_equal(state_of_sums.calls, 2 * REPLICAS);
        for (int r = 0; r < REPLICAS; r++) {
            op_run_backward_weight(&part[r]);
            expect_near(&part[r].out, (float *)whole.out.data + first * SAMPLE,
                        given[g][r] * SAMPLE, "output");
            expect_near(&part[r].din[0], (float *)whole.din[0].data + first * SAMPLE,
                        given[g][r] * SAMPLE, "input gradient");
            assert_same_bits(&part[r].aux, &part[0].aux);
            first += given[g][r];
        }
        assert_int_equal(state_of_sums.calls, 2 * REPLICAS); /* none for the weights */
        check_weights(&whole);
        close_all(&whole);
    }
}

/* The sum over replicas of outputs times their gradients. */
static double loss_of_all(void)
{
    double loss = 0;
    every_replica(forward);
    for (int r = 0; r < REPLICAS; r++)
        for (int64_t i = 0; i < (BATCH - part[r].padding) * SAMPLE; i++)
            loss +=
                (double)((float *)part[r].out.data)[i] * (double)((float *)part[r].dout.data)[i];
    return loss;
}

static void test_joint_batchnorm_differences(void **state)
{
    const double h = 0x1p-5;
    uint64_t rng = 5;
    op_run whole;
    (void)state;
    open_parts(&whole, (const int64_t[]){4, 3, 2});
    every_replica(forward);
    every_replica(backward_input);
    for (int k = 0; k < 64; k++) {
        const int r = (int)random_int(&rng, 0, REPLICAS - 1);
        const int64_t i = random_int(&rng, 0, (BATCH - part[r].padding) * SAMPLE - 1);
        float *x = &((float *)part[r].in[0].data)[i];
        const float at = *x;
        const double got = (double)((float *)part[r].din[0].data)[i];
        *x = (float)((double)at + h);
        double want = loss_of_all();
        *x = (float)((double)at - h);
        want = (want - loss_of_all()) / (2 * h);
        *x = at;
        if (!(fabs(got - want) <= 2e-3 * (1 + fabs(want))))
            fail_msg("replica %d: gradient [%d] is %.9g, expected %.9g", r, (int)i, got, want);
    }
    close_all(&whole);
}

/* Without others, and in an evaluation, nothing is added up. */
static void test_joint_batchnorm_alone(void **state)
{
    op_run whole;
    (void)state;
    open_parts(&whole, (const int64_t[]){4, 0, 0});
    part[0].joint = NULL;
    forward(&whole);
    forward(&part[0]);
    assert_same_bits(&part[0].out, &whole.out);
    whole.step.training = part[1].step.training = false;
    state_of_sums.collect = false;
    forward(&part[1]);
    assert_int_equal(state_of_sums.calls, 0);
    close_all(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joint_batchnorm_is_one_of_all_samples),
        cmocka_unit_test(test_joint_batchnorm_differences),
        cmocka_unit_test(test_joint_batchnorm_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
