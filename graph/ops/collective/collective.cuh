/* What the operators between devices share on a GPU: parts of tensors packed and unpacked, and sums
 * over the devices.
 *
 * A group moves values, in the type of the activations, and they are added here: by rising device,
 * in float, rounded once. In 16 bits that is half of what sums in fp32 would move, and the same
 * bits, since the summands are rounded already. What is moved counts in floats: a row of 16 bits
 * goes as pairs and is filled up to a whole one.
 *
 * Where the parts of a tensor lie one after the other as they are (one sample, its first dimension
 * split), nothing is packed. */
#ifndef SMP_GRAPH_OPS_COLLECTIVE_CUH
#define SMP_GRAPH_OPS_COLLECTIVE_CUH

#include "graph/cuda/cuda_elementwise.cuh"
extern "C" {
#include "graph/ops/collective/collective.h"
}

template <typename T> static constexpr smp_dtype smp_dtype_of = SMP_F32;
template <> constexpr smp_dtype smp_dtype_of<bf16> = SMP_BF16;
template <> constexpr smp_dtype smp_dtype_of<fp16> = SMP_F16;

/* Elements from one device's row to the next, and floats of a row, of n values. */
template <typename T> static inline int64_t smp_row_stride_of(int64_t n)
{
    return smp__row_floats(smp_dtype_of<T>, n) * (int64_t)(sizeof(float) / sizeof(T));
}
template <typename T> static inline int64_t smp_row_floats_of(int64_t n)
{
    return smp__row_floats(smp_dtype_of<T>, n);
}

/* Room for rows of all devices in a workspace: the first and the second, as cuda_needs of the
 * operators have it (smp__parts_room_bytes). */
template <typename T>
static inline T *smp_rows_room(const smp_op_call *call, int64_t devices, int64_t n, int which)
{
    return reinterpret_cast<T *>(static_cast<char *>(call->workspace) +
                                 which * smp__rows_bytes(smp_dtype_of<T>, devices, n));
}

/* whole (rows, devices, run) to all (devices, stride), of which a device has (rows, run): TAKE; or
 * back. zigzag: of every second row the parts go backwards. */
template <bool TAKE, typename U>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_parts_kernel(U *to, const U *from, int64_t rows, int64_t devices, int64_t run,
                     int64_t stride, bool zigzag)
{
    for (int64_t i = smp_thread(); i < rows * devices * run; i += smp_threads()) {
        const int64_t place = i / run, row = place / devices, part = place - row * devices;
        const int64_t device = zigzag && row % 2 == 1 ? devices - 1 - part : part;
        const int64_t at = device * stride + row * run + (i - place * run);
        if (TAKE)
            to[at] = from[i];
        else
            to[i] = from[at];
    }
}

template <bool TAKE, typename U>
static smp_status smp_move_parts_as(const smp_op_call *call, void *to, const void *from,
                                    smp__parts parts, int64_t run_bytes, int64_t stride_bytes)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t size = (int64_t)sizeof(U), rows = parts.outer * parts.blocks;
    const auto kernel = smp_parts_kernel<TAKE, U>;
    SMP_LAUNCH(kernel, smp_grid(cuda, rows * parts.devices * (run_bytes / size)), SMP_BLOCK, 0,
               cuda->stream, static_cast<U *>(to), static_cast<const U *>(from), rows,
               parts.devices, run_bytes / size, stride_bytes / size, parts.blocks == 2);
    return smp__cuda_launched(call->op->kind->name);
}

template <bool TAKE, typename T>
static smp_status smp_move_parts(const smp_op_call *call, T *to, const T *from, smp__parts parts)
{
    const int64_t size = (int64_t)sizeof(T), run = parts.run * size;
    const int64_t stride = smp_row_stride_of<T>(smp__part_elements(parts)) * size;
    const int unit = smp_access_bytes(run | stride);
    return unit == 16  ? smp_move_parts_as<TAKE, uint4>(call, to, from, parts, run, stride)
           : unit == 4 ? smp_move_parts_as<TAKE, uint32_t>(call, to, from, parts, run, stride)
                       : smp_move_parts_as<TAKE, uint16_t>(call, to, from, parts, run, stride);
}

/* Is a whole tensor its parts, one after the other? */
template <typename T> static inline bool smp_parts_in_order(smp__parts parts)
{
    const int64_t n = smp__part_elements(parts);
    return parts.outer * parts.blocks == 1 && smp_row_stride_of<T>(n) == n;
}

/* Between a whole tensor and the part of one device: PUT, or taken. */
template <bool PUT, typename T>
static smp_status smp_copy_part(const smp_op_call *call, T *to, const T *from, smp__parts parts,
                                int64_t device)
{
    const int64_t run = parts.run * (int64_t)sizeof(T);
    const int64_t times = parts.blocks == 2 ? 2 : 1; /* a zigzag's blocks one by one */
    const int64_t of_part = times * run, of_whole = times * parts.devices * run;
    smp_strided c = {};
    c.width = run;
    c.to_stride = PUT ? of_whole : of_part;
    c.from_stride = PUT ? of_part : of_whole;
    c.rows = parts.outer * parts.blocks / times;
    for (int64_t i = 0; i < times; i++) {
        const int64_t in_part = i * parts.run, in_whole = smp__run_of(parts, i, device) * parts.run;
        c.to = reinterpret_cast<char *>(to + (PUT ? in_whole : in_part));
        c.from = reinterpret_cast<const char *>(from + (PUT ? in_part : in_whole));
        SMP_TRY(smp_copy_strided(call, c));
    }
    return SMP_OK;
}

template <typename T>
static smp_status smp_take_part(const smp_op_call *call, T *part, const T *whole, smp__parts parts,
                                int64_t device)
{
    return smp_copy_part<false>(call, part, whole, parts, device);
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_add_rows_kernel(T *sum, const T *rows, int64_t n, int64_t devices, int64_t stride)
// sum (n), rows (devices, stride); both begin at multiples of 16 bytes
{
    constexpr int N = smp_pack<T>::N;
    const int64_t packs = stride % N == 0 ? n / N : 0;
    for (int64_t i = smp_thread(); i < packs; i += smp_threads()) {
        float total[N], value[N];
        const T *row = rows + i * N;
        smp_read<N>(total, row);
        for (int d = 1; d < (int)devices; d++) {
            row += stride;
            smp_read<N>(value, row);
            for (int k = 0; k < N; k++)
                total[k] += value[k];
        }
        smp_write<N>(sum + i * N, total);
    }
    for (int64_t i = packs * N + smp_thread(); i < n; i += smp_threads()) {
        const T *row = rows + i;
        float total = smp_float(*row);
        for (int d = 1; d < (int)devices; d++) {
            row += stride;
            total += smp_float(*row);
        }
        sum[i] = smp_from<T>(total);
    }
}

template <typename T>
static smp_status smp_add_rows(const smp_op_call *call, T *sum, const T *rows, int64_t n,
                               int64_t devices)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    SMP_LAUNCH(smp_add_rows_kernel<T>, smp_grid(cuda, n / smp_pack<T>::N), SMP_BLOCK, 0,
               cuda->stream, sum, rows, n, devices, smp_row_stride_of<T>(n));
    return smp__cuda_launched(call->op->kind->name);
}

/* Rows of n values between the devices of a group. */
template <typename T>
static smp_status smp_exchange_rows(const smp_op_group *group, const T *all, T *got, int64_t n)
{
    return group->all_to_all(group->context, reinterpret_cast<const float *>(all),
                             reinterpret_cast<float *>(got), smp_row_floats_of<T>(n));
}
template <typename T>
static smp_status smp_gather_rows(const smp_op_group *group, const T *own, T *all, int64_t n)
{
    return group->all_gather(group->context, reinterpret_cast<const float *>(own),
                             reinterpret_cast<float *>(all), smp_row_floats_of<T>(n));
}

template <typename T>
static smp_status smp_copy_values(const smp_op_call *call, T *to, const T *from, int64_t n)
{
    return SMP_CUDA(cudaMemcpyAsync, to, from, (size_t)n * sizeof(T), cudaMemcpyDeviceToDevice,
                    smp_cuda_of(call)->stream);
}

/* The whole tensor of which every device has a part. */
template <typename T>
static smp_status smp_gather_parts(const smp_op_call *call, const smp_op_group *group, T *whole,
                                   const T *part, smp__parts parts)
{
    const int64_t n = smp__part_elements(parts);
    T *own = smp_rows_room<T>(call, parts.devices, n, 0);
    T *all = smp_rows_room<T>(call, parts.devices, n, 1);
    if (smp_row_stride_of<T>(n) != n) { /* the group reads whole floats */
        SMP_TRY(smp_copy_values(call, own, part, n));
        part = own;
    }
    if (smp_parts_in_order<T>(parts))
        return smp_gather_rows(group, part, whole, n);
    SMP_TRY(smp_gather_rows(group, part, all, n));
    return smp_move_parts<false>(call, whole, static_cast<const T *>(all), parts);
}

/* The own part of the sum of what every device has the whole of. */
template <typename T>
static smp_status smp_scatter_sum(const smp_op_call *call, const smp_op_group *group, T *part,
                                  const T *whole, smp__parts parts)
{
    const int64_t n = smp__part_elements(parts);
    T *sent = smp_rows_room<T>(call, parts.devices, n, 0);
    T *came = smp_rows_room<T>(call, parts.devices, n, 1);
    if (!smp_parts_in_order<T>(parts)) {
        SMP_TRY(smp_move_parts<true>(call, sent, whole, parts));
        whole = sent;
    }
    SMP_TRY(smp_exchange_rows(group, whole, came, n));
    return smp_add_rows(call, part, static_cast<const T *>(came), n, parts.devices);
}

/* backward_input in two calls: all of it runs beside the compute, if the group has a stream for
 * that, else at the beginning. */
template <smp_status (*backward_input)(const smp_op_call *)>
static smp_status smp_begin_beside(const smp_op_call *call)
{
    smp_op_call beside = *call;
    if (call->group && call->group->beside)
        SMP_TRY(call->group->beside(call->group->context, &beside.group, &beside.device));
    return backward_input(&beside);
}
static inline smp_status smp_end_beside(const smp_op_call *call)
{
    return call->group ? smp__group_finish(call->group) : SMP_OK;
}

#endif
