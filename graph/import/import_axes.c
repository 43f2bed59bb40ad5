/* How a tensor [T, parts * heads * width] lies where ONNX sees it as heads: each dimension there is
 * a group of letters, a comma between two. N is the batch, T positions, P parts of a packed
 * projection (q, k and v), H heads, R neighbours that share a head, W the width of one, 1 nothing.
 * "N,T,H,W" is how a projection is reshaped, "NH,T,W" one batch of all heads, "T,N,W" the order
 * that nn.MultiheadAttention has. */
#include "graph/import/importing.h"

#include <stdio.h>
#include <string.h>

enum { MOST_ATOMS = 12 };

/* Size of what a letter stands for. */
static int64_t size_of(const smp_import *im, const smp__bound *b, char letter)
{
    const smp__heads *h = &b->q;
    switch (letter) {
    case 'N':
        return im->model->batch;
    case 'T':
        return h->length;
    case 'P':
        return h->parts;
    case 'H':
        return h->heads;
    case 'R':
        return h->repeat;
    case 'W':
        return h->width;
    default:
        return 1;
    }
}

/* Group d, not ended by 0; "" if there are fewer. */
static const char *group(const char *axes, int d, int *length)
{
    for (; d > 0 && axes; d--)
        axes = strchr(axes, ',') ? strchr(axes, ',') + 1 : NULL;
    *length = axes ? (int)strcspn(axes, ",") : 0;
    return axes ? axes : "";
}

bool smp__axis_is(const smp__bound *b, int d, char letter)
{
    int length;
    const char *at = group(b->axes, d, &length);
    return length == 1 && *at == letter;
}

bool smp__axes_end_in_width(const smp__bound *b)
{
    const size_t n = strlen(b->axes);
    return b->q.parts == 1 && n > 1 && b->axes[n - 1] == 'W' && b->axes[n - 2] == ',';
}

/* Neighbours that share a head count as heads; the only head need not be there. */
bool smp__axes_are(const smp__bound *b, const char *wanted)
{
    const char *c = b->axes;
    const bool alone = b->q.heads == 1;
    for (; *wanted; wanted++) {
        const bool heads = *wanted == 'H';
        if (*c == *wanted || (heads && alone && (*c == '1' || *c == 'R')))
            c++;
        else if (!(heads && alone && c > b->axes && c[-1] == 'N'))
            return false;
        c += heads && *c == 'R';
    }
    return !*c;
}

bool smp__axes_fit(const smp_import *im, const smp__bound *b, const smp_onnx_value *v)
{
    const char *c = b->axes;
    for (int d = 0; d < v->n_dim; d++) {
        int64_t size = 1;
        for (; *c && *c != ','; c++)
            size *= size_of(im, b, *c);
        if (size != v->dim[d] || (*c == ',') != (d + 1 < v->n_dim))
            return false;
        c += *c == ',';
    }
    return !*c;
}

static int atoms_of(const smp__bound *b, char atom[MOST_ATOMS + 1])
{
    int n = 0;
    for (const char *c = b->axes; *c; c++)
        if (*c != ',' && *c != '1' && !(*c == 'H' && b->q.heads == 1) && n < MOST_ATOMS)
            atom[n++] = *c;
    atom[n] = '\0';
    return n;
}

/* Splits the width, which is all that a position has, or what a split has left of it: the first of
 * two pieces are heads, the first of three parts. again: heads in `axes` are of a split. */
static bool split_width(smp__bound *x, int64_t piece, bool again)
{
    if (piece < 1 || x->q.width % piece != 0 || x->q.repeat != 1 || x->q.parts != 1 ||
        (x->q.heads != 1 && !again))
        return false;
    char *h = strchr(x->axes, 'H');
    if (again && h) {
        *h = 'P';
        x->q.parts = x->q.heads;
    }
    x->q.heads = piece;
    x->q.width /= piece;
    return true;
}

bool smp__axes_reshape(const smp_import *im, smp__bound *x, const smp_onnx_value *out)
{
    char atom[MOST_ATOMS + 1];
    const int n = atoms_of(x, atom);
    int at = 0, length = 0;
    bool split = false;
    memset(x->axes, 0, sizeof(x->axes));
    for (int d = 0; d < out->n_dim; d++) {
        int64_t left = out->dim[d];
        const int begin = length + (d > 0);
        if (length + 6 + n - at >= (int)sizeof(x->axes))
            return false;
        if (d > 0)
            x->axes[length++] = ',';
        while ((left > 1 || length == begin) && at < n) {
            const int64_t size = size_of(im, x, atom[at]);
            if (left % size == 0 && (left > 1 || size == 1)) {
                x->axes[length++] = atom[at++];
                left /= size;
            } else if (left > 1 && atom[at] == 'W' && split_width(x, left, split)) {
                x->axes[length++] = 'H';
                left = 1;
                split = true;
            } else {
                break;
            }
        }
        if (left != 1)
            return false;
        if (length == begin)
            x->axes[length++] = '1';
    }
    /* Heads that are next to one another are one again. */
    static const char *const WHOLE[] = {",PHW", ",HW"};
    for (int k = 0; k < 2 && x->q.repeat == 1; k++) {
        const int rest = length - (int)strlen(WHOLE[k]);
        if (rest < 0 || strcmp(x->axes + rest, WHOLE[k]) != 0 || (k == 1 && x->q.parts != 1))
            continue;
        strcpy(x->axes + rest, ",W");
        x->q.width *= x->q.parts * x->q.heads;
        x->q.parts = x->q.heads = 1;
    }
    return at == n;
}

void smp__axes_without(smp__bound *x, int d, bool keeps)
{
    int length;
    char *at = x->axes + (group(x->axes, d, &length) - x->axes);
    if (keeps) {
        *at = '1';
    } else {
        const char *rest = at + length + (at[length] == ',');
        memmove(at, rest, strlen(rest) + 1);
        const size_t n = strlen(x->axes);
        if (n > 0 && x->axes[n - 1] == ',')
            x->axes[n - 1] = '\0';
    }
}

bool smp__axes_permute(smp__bound *x, const int64_t *perm, int n)
{
    char axes[sizeof(x->axes)] = "";
    size_t at = 0;
    for (int d = 0; d < n; d++) {
        int length;
        const char *from = group(x->axes, (int)perm[d], &length);
        if (length == 0 || at + (size_t)length + 2 > sizeof(axes))
            return false;
        at += (size_t)snprintf(axes + at, sizeof(axes) - at, "%s%.*s", d > 0 ? "," : "", length,
                               from);
    }
    memcpy(x->axes, axes, sizeof(axes));
    return true;
}

/* A tensor as it is, and nothing of heads about it: "N,T,.." or "NT,..", and a position's values in
 * their order. */
bool smp__axes_plain(const smp__bound *b, smp__bound *out)
{
    const bool merged = strncmp(b->axes, "NT,", 3) == 0;
    if (b->q.repeat != 1 || b->q.factor != 1 || (!merged && strncmp(b->axes, "N,T,", 4) != 0))
        return false;
    const char *c = b->axes + (merged ? 3 : 4);
    c += *c == 'P';
    c += *c == 'H';
    if (*c != 'W' || c[1])
        return false;
    *out = (smp__bound){
        .form = SMP__TENSOR,
        .tensor = b->q.tensor,
        .shape = {2, {b->q.length, b->q.parts * b->q.heads * b->q.width}},
        .merged = merged,
    };
    return true;
}

bool smp__axes_write(smp_import *im, const smp__bound *b, smp__bound *out)
{
    static const char BASE[] = "TPHW";
    const char *tensor = b->q.tensor, *near = tensor;
    char atom[MOST_ATOMS + 1], axes[64] = "", present[sizeof(BASE)] = "";
    const int n = atoms_of(b, atom);
    if (b->q.repeat != 1)
        return smp__refuse(im, "heads that are repeated");
    if (atom[0] != 'N' || b->axes[0] != 'N')
        return smp__refuse(im, "moves the batch to another place");
    if (b->q.factor != 1) {
        smp_text number = {0};
        smp_text_append_double(&number, b->q.factor);
        tensor = smp__emit_one(im, "scale", smp__unique(im, near), tensor, ", factor: %s}",
                               number.data ? number.data : "1");
        smp_text_free(&number);
    }
    const smp_shape rows = {2, {b->q.length, b->q.parts * b->q.heads * b->q.width}};
    smp_shape apart = {0}, moved = {0};
    for (const char *c = BASE; *c; c++)
        if (strchr(atom, *c)) {
            present[apart.n_dim] = *c;
            apart.dim[apart.n_dim++] = size_of(im, b, *c);
        }
    bool moves = false;
    for (int i = 1; i < n; i++) {
        const char *from = strchr(present, atom[i]);
        moves |= !from || from - present != moved.n_dim;
        if (!from || moved.n_dim == SMP_MAX_DIMS)
            return smp__refuse(im, "more dimensions than SMP has");
        snprintf(axes + strlen(axes), sizeof(axes) - strlen(axes), "%s%d", i > 1 ? ", " : "",
                 (int)(from - present));
        moved.dim[moved.n_dim++] = size_of(im, b, atom[i]);
    }
    tensor = smp__reshaped(im, near, tensor, &rows, &apart);
    if (moves)
        tensor =
            smp__emit_one(im, "transpose", smp__unique(im, near), tensor, ", axes: [%s]}", axes);
    *out = (smp__bound){.form = SMP__TENSOR};
    const char *c = b->axes + 1;
    for (; *c && *c != ','; c++) {
        out->shape.dim[out->shape.n_dim++] = size_of(im, b, *c);
        out->merged++;
    }
    for (; *c; c++) {
        if (*c == ',' && out->shape.n_dim == SMP_MAX_DIMS)
            return smp__refuse(im, "more dimensions than SMP has");
        if (*c == ',')
            out->shape.dim[out->shape.n_dim++] = 1;
        else
            out->shape.dim[out->shape.n_dim - 1] *= size_of(im, b, *c);
    }
    out->tensor = smp__reshaped(im, near, tensor, &moved, &out->shape);
    return true;
}
