/* Convolution by shifted planes, for groups of a few channels, which leave nothing of a matrix
 * product or of a layout in blocks of channels.
 *
 * A channel of the input is copied with its padding, the pixels at each offset (y mod stride, x mod
 * stride) into a plane of their own. All planes have the same pitch. In these the pixel that a tap
 * of the kernel reads for the output (line, column) lies at line * pitch + column, shifted by a
 * number that is the tap's alone. So an output channel is a sum of shifted planes, each times a
 * weight, in one loop over consecutive floats, whatever the strides, padding and dilation:
 *   y[i] = sum over channels and taps of w[tap] x[i + shift[tap]],
 *   dx[i] = sum of w[tap] dy[i - shift[tap]], over the taps of the pixel's plane,
 *   dw[tap] += sum over i of dy[i] x[i + shift[tap]].
 * Between the lines of y stand results of windows that do not exist: they are not copied, and those
 * of dy are zeros. (Hence what is infinite in x makes NaN of a channel's weight gradients.)
 *
 * Sums are in the order of the weights' elements, those of dw in SMP_LANES lanes for each sample:
 * the same bits on every machine. Blocks of four output channels and 32 places stay in
 * registers. */
#include "graph/math/convolution_planes.h"

#include <string.h>

#include "graph/math/vector.h"

enum {
    MOST_TAPS = 64,
    MOST_CHANNELS = 16,
    MOST_STRIDE = 4,
    OUTS = 4,
    WIDE = 2,
    COLUMNS = 3,
    SLACK = 2 * SMP_LANES
};

typedef struct tap {
    int64_t shift;  /* of a phase's plane */
    int64_t weight; /* index in a kernel */
} tap;

typedef struct planes {
    const smp_convolution_shape *s;
    int64_t in, out;      /* channels of a group */
    int64_t lines, pitch; /* of a plane */
    int64_t phases;       /* planes of an input channel */
    int64_t lead;         /* zeros in front of a channel of dy, no less than any shift */
    int64_t x_size;       /* floats of a plane and what may be read after it */
    int64_t y_size;       /* of a channel of y or dy, with the lead */
    int64_t area;         /* elements of a kernel */
} planes;

static int64_t divide_up(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static planes planes_of(const smp_convolution_shape *s)
{
    planes p = {.s = s,
                .in = s->in[SMP_CHANNELS] / s->groups,
                .out = s->out[SMP_CHANNELS] / s->groups,
                .lines = divide_up(s->in[SMP_HEIGHT] + 2 * s->padding[0], s->stride[0]),
                .pitch = divide_up(s->in[SMP_WIDTH] + 2 * s->padding[1], s->stride[1]),
                .phases = s->stride[0] * s->stride[1],
                .area = s->kernel[0] * s->kernel[1]};
    const int64_t size = (p.lines + 1) * p.pitch + SLACK;
    p.x_size = divide_up(size, SMP_LANES) * SMP_LANES;
    p.lead = p.x_size;
    p.y_size = p.lead + p.x_size;
    return p;
}

bool smp__planes_fit(const smp_convolution_shape *s)
{
    const int64_t in = s->in[SMP_CHANNELS] / s->groups, out = s->out[SMP_CHANNELS] / s->groups;
    if (s->groups == 1 || in > MOST_CHANNELS || out > MOST_CHANNELS)
        return false;
    if (s->kernel[0] > MOST_TAPS || s->kernel[1] > MOST_TAPS / s->kernel[0])
        return false;
    for (int i = 0; i < 2; i++) /* not where it is padding and gaps that are computed */
        if (s->stride[i] > MOST_STRIDE || s->padding[i] > s->in[SMP_HEIGHT + i])
            return false;
    return true;
}

int64_t smp__planes_workspace(const smp_convolution_shape *s)
{
    const planes p = planes_of(s);
    return ((p.in + OUTS) * p.phases * p.x_size + (p.out + OUTS) * p.y_size) *
           (int64_t)sizeof(float);
}

/* The taps that read `phase`, or all of them, -1; their number. */
static int taps_of(const planes *p, int64_t phase, tap *taps)
{
    const smp_convolution_shape *s = p->s;
    int n = 0;
    for (int64_t i = 0; i < p->area; i++) {
        const int64_t y = i / s->kernel[1] * s->dilation[0], x = i % s->kernel[1] * s->dilation[1];
        const int64_t own = y % s->stride[0] * s->stride[1] + x % s->stride[1];
        const int64_t shift = y / s->stride[0] * p->pitch + x / s->stride[1];
        if (phase < 0 || phase == own)
            taps[n++] = (tap){(phase < 0 ? own * p->x_size : 0) + shift, i};
    }
    return n;
}

/* A line of n floats, without a call for each: lines are short. */
static inline void copy_line(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i + SMP_LANES <= n; i += SMP_LANES)
        *(smp__loose *)(to + i) = *(const smp__loose *)(from + i);
    if (n >= SMP_LANES)
        *(smp__loose *)(to + n - SMP_LANES) = *(const smp__loose *)(from + n - SMP_LANES);
    for (int64_t i = 0; n < SMP_LANES && i < n; i++)
        to[i] = from[i];
}

/* Every `step`-th of n floats, or back to there. */
static inline void move_steps(float *dense, float *spread, int64_t step, int64_t n, bool back)
{
    if (step == 1)
        copy_line(back ? spread : dense, back ? dense : spread, n);
    for (int64_t i = 0; step > 1 && i < n; i++)
        if (back)
            spread[i * step] = dense[i];
        else
            dense[i] = spread[i * step];
}

/* Channels x [height, width] to their planes, whose padding is zeros before, or back. */
SMP_VECTOR static void move_phases(const planes *p, float *x, float *own, int64_t channels,
                                   bool back)
{
    const smp_convolution_shape *s = p->s;
    const int64_t width = s->in[SMP_WIDTH], across = s->stride[1];
    for (int64_t c = 0; c < channels; c++, own += p->phases * p->x_size)
        for (int64_t line = 0; line < s->in[SMP_HEIGHT]; line++, x += width) {
            const int64_t y = line + s->padding[0];
            for (int64_t first = 0; first < across && first < width; first++) {
                const int64_t at = first + s->padding[1];
                const int64_t phase = y % s->stride[0] * across + at % across;
                move_steps(own + phase * p->x_size + y / s->stride[0] * p->pitch + at / across,
                           x + first, across, divide_up(width - first, across), back);
            }
        }
}

/* Channels y [lines, columns] to planes between whose lines there are zeros, or back. */
SMP_VECTOR static void move_output(const planes *p, float *y, float *own, int64_t channels,
                                   bool back)
{
    const int64_t width = p->s->out[SMP_WIDTH];
    for (int64_t c = 0; c < channels; c++, own += p->y_size)
        for (int64_t line = 0; line < p->s->out[SMP_HEIGHT]; line++, y += width) {
            float *at = own + p->lead + line * p->pitch;
            copy_line(back ? y : at, back ? at : y, width);
        }
}

/* A sum of shifted planes: for the channels k < channels and the taps, in this order, those of
 * x + k * x_step times the weights w[o * w_out + k * w_channel + tap], to y + o * y_step. */
typedef struct sum {
    const float *x, *w;
    int64_t channels, x_step, w_channel, w_out;
    tap taps[MOST_TAPS];
    int n_taps;
    float *y;
    int64_t y_step, places;
} sum;

/* `outs` channels of `wide` vectors at place i, both constants. */
__attribute__((always_inline)) static inline void
sum_block(const sum *a, const float *start, int64_t i, const int outs, const int wide)
{
    smp__lanes total[OUTS][WIDE];
    for (int o = 0; o < outs; o++)
        for (int v = 0; v < wide; v++)
            total[o][v] = (smp__lanes){0} + (start ? start[o] : 0);
    for (int64_t k = 0; k < a->channels; k++)
        for (int t = 0; t < a->n_taps; t++) {
            const float *x = a->x + k * a->x_step + a->taps[t].shift + i;
            const float *w = a->w + k * a->w_channel + a->taps[t].weight;
            for (int v = 0; v < wide; v++) {
                const smp__lanes pixel = *(const smp__loose *)(x + v * SMP_LANES);
                for (int o = 0; o < outs; o++)
                    total[o][v] += pixel * w[o * a->w_out];
            }
        }
    for (int o = 0; o < outs; o++)
        for (int v = 0; v < wide; v++)
            *(smp__loose *)(a->y + o * a->y_step + i + v * SMP_LANES) = total[o][v];
}

SMP_VECTOR static void sum_planes(const sum *a, const float *start, int64_t outs)
{
    const int64_t vectors = (a->places + SMP_LANES - 1) / SMP_LANES;
    int64_t v = 0;
    for (; v + WIDE <= vectors; v += WIDE)
        if (outs == OUTS)
            sum_block(a, start, v * SMP_LANES, OUTS, WIDE);
        else
            sum_block(a, start, v * SMP_LANES, 1, WIDE);
    for (; v < vectors; v++)
        if (outs == OUTS)
            sum_block(a, start, v * SMP_LANES, OUTS, 1);
        else
            sum_block(a, start, v * SMP_LANES, 1, 1);
}

void smp__planes_forward(const smp_convolution_shape *s, const float *x, const float *w,
                         const float *bias, float *y, float *workspace)
{
    const planes p = planes_of(s);
    const int64_t pixels = s->in[SMP_HEIGHT] * s->in[SMP_WIDTH];
    const int64_t places = smp_convolution_places(s);
    float *result = workspace + p.in * p.phases * p.x_size;
    sum a = {.x = workspace,
             .channels = p.in,
             .x_step = p.phases * p.x_size,
             .w_channel = p.area,
             .w_out = p.in * p.area,
             .y = result + p.lead,
             .y_step = p.y_size,
             .places = (s->out[SMP_HEIGHT] - 1) * p.pitch + s->out[SMP_WIDTH]};
    memset(workspace, 0, (size_t)(p.in * p.phases * p.x_size) * sizeof *workspace);
    a.n_taps = taps_of(&p, -1, a.taps);
    for (int64_t g = 0; g < s->batch * s->groups; g++) {
        move_phases(&p, (float *)x + g * p.in * pixels, workspace, p.in, false);
        for (int64_t o = 0, outs; o < p.out; o += outs) {
            const int64_t channel = g % s->groups * p.out + o;
            outs = p.out - o >= OUTS ? OUTS : 1;
            a.w = w + channel * a.w_out;
            sum_planes(&a, bias ? bias + channel : NULL, outs);
            move_output(&p, y + (g * p.out + o) * places, result, outs, true);
        }
    }
}

/* `outs` input channels of a group, from dy's planes. */
static void input_channels(const planes *p, sum *a, int64_t outs, float *own, float *dx)
{
    for (int64_t phase = 0; phase < p->phases; phase++) {
        a->n_taps = taps_of(p, phase, a->taps);
        for (int t = 0; t < a->n_taps; t++)
            a->taps[t].shift = -a->taps[t].shift;
        a->y = own + phase * p->x_size;
        sum_planes(a, NULL, outs);
    }
    move_phases(p, dx, own, outs, true);
}

void smp__planes_backward_input(const smp_convolution_shape *s, const float *dy, const float *w,
                                float *dx, float *workspace)
{
    const planes p = planes_of(s);
    const int64_t pixels = s->in[SMP_HEIGHT] * s->in[SMP_WIDTH];
    sum a = {.x = workspace + p.lead,
             .channels = p.out,
             .x_step = p.y_size,
             .w_channel = p.in * p.area,
             .w_out = p.area,
             .y_step = p.phases * p.x_size,
             .places = p.lines * p.pitch};
    memset(workspace, 0, (size_t)(p.out * p.y_size) * sizeof *workspace);
    for (int64_t g = 0; g < s->batch * s->groups; g++) {
        move_output(&p, (float *)dy + g * p.out * smp_convolution_places(s), workspace, p.out,
                    false);
        for (int64_t c = 0, outs; c < p.in; c += outs, dx += outs * pixels) {
            outs = p.in - c >= OUTS ? OUTS : 1;
            a.w = w + (g % s->groups * p.out * p.in + c) * p.area;
            input_channels(&p, &a, outs, workspace + p.out * p.y_size, dx);
        }
    }
}

/* Products of `outs` channels of dy with the planes of `n` taps, both constants. */
__attribute__((always_inline)) static inline void dot_block(const planes *p, const float *x,
                                                            const float *dy, const tap *taps,
                                                            float *dw, int64_t places,
                                                            const int outs, const int n)
{
    smp__lanes total[OUTS][COLUMNS] = {0};
    for (int64_t i = 0; i < places; i += SMP_LANES)
        for (int t = 0; t < n; t++) {
            const smp__lanes pixel = *(const smp__loose *)(x + taps[t].shift + i);
            for (int o = 0; o < outs; o++)
                total[o][t] += *(const smp__loose *)(dy + o * p->y_size + i) * pixel;
        }
    for (int o = 0; o < outs; o++)
        for (int t = 0; t < n; t++) {
            float lane[SMP_LANES];
            memcpy(lane, &total[o][t], sizeof lane);
            dw[o * p->in * p->area + taps[t].weight] += smp__fold(lane);
        }
}

/* One channel of x with `outs` of dy. */
SMP_VECTOR static void dot_planes(const planes *p, const float *x, const float *dy, const tap *taps,
                                  int64_t places, int64_t outs, float *dw)
{
    int64_t t = 0;
    for (; t + COLUMNS <= p->area; t += COLUMNS)
        if (outs == OUTS)
            dot_block(p, x, dy, taps + t, dw, places, OUTS, COLUMNS);
        else
            dot_block(p, x, dy, taps + t, dw, places, 1, COLUMNS);
    for (; t < p->area; t++)
        if (outs == OUTS)
            dot_block(p, x, dy, taps + t, dw, places, OUTS, 1);
        else
            dot_block(p, x, dy, taps + t, dw, places, 1, 1);
}

void smp__planes_backward_weight(const smp_convolution_shape *s, const float *x, const float *dy,
                                 float *dw, float *workspace)
{
    const planes p = planes_of(s);
    const int64_t pixels = s->in[SMP_HEIGHT] * s->in[SMP_WIDTH];
    const int64_t places = (s->out[SMP_HEIGHT] - 1) * p.pitch + s->out[SMP_WIDTH];
    float *own = workspace + p.in * p.phases * p.x_size;
    tap taps[MOST_TAPS];
    taps_of(&p, -1, taps);
    memset(workspace, 0, (size_t)(own + p.out * p.y_size - workspace) * sizeof *workspace);
    for (int64_t g = 0; g < s->batch * s->groups; g++) {
        move_phases(&p, (float *)x + g * p.in * pixels, workspace, p.in, false);
        move_output(&p, (float *)dy + g * p.out * smp_convolution_places(s), own, p.out, false);
        for (int64_t o = 0, outs; o < p.out; o += outs) {
            float *of_group = dw + (g % s->groups * p.out + o) * p.in * p.area;
            outs = p.out - o >= OUTS ? OUTS : 1;
            for (int64_t c = 0; c < p.in; c++)
                dot_planes(&p, workspace + c * p.phases * p.x_size, own + o * p.y_size + p.lead,
                           taps, places, outs, of_group + c * p.area);
        }
    }
}
