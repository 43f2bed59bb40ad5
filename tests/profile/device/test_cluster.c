/* Cluster files good and broken, this machine, link times. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "profile/device/cluster.h"

static const char good[] = "smp: 1\n"
                           "name: two-nodes\n"
                           "nodes: 2\n"
                           "devices_per_node: 4\n"
                           "device: {name: h100, memory: 80GB, compute: {fp32: 60TFLOP/s, bf16: "
                           "989TFLOP/s}, bandwidth: 3.35TB/s}\n"
                           "links:\n"
                           "  intra_node: {bandwidth: 450GB/s, latency_us: 3}\n"
                           "  inter_node: {bandwidth: 50GB/s, latency_us: 8}\n"
                           "overlap: false\n";

#define DEVICE "device: {memory: 8GB, compute: {fp32: 1TFLOP/s}, bandwidth: 1GB/s}\n"
#define LINKS "links: {intra_node: {bandwidth: 1GB/s, latency_us: 1}}\n"

static char folder[64];

static smp_status read_text(const char *text, smp_cluster **out)
{
    char path[128];
    FILE *file;
    snprintf(path, sizeof path, "%s/c.yaml", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return smp_cluster_read(path, out);
}

static void test_cluster_reads_every_key(void **state)
{
    smp_cluster *c;
    (void)state;
    assert_int_equal(read_text(good, &c), SMP_OK);
    assert_string_equal(c->name, "two-nodes");
    assert_int_equal(smp_cluster_devices(c), 8);
    assert_int_equal(c->cores_per_node, 0);
    assert_false(c->overlap);
    for (int i = 0; i < 8; i++) {
        assert_string_equal(c->device[i].name, "h100");
        assert_int_equal(c->device[i].memory_bytes, 80000000000);
        assert_true(c->device[i].flops_fp32 == 60e12 && c->device[i].flops_bf16 == 989e12);
        assert_true(c->device[i].bytes_per_s == 3.35e12);
    }
    assert_ptr_equal(smp_cluster_link(c, 0, 3), &c->intra_node);
    assert_ptr_equal(smp_cluster_link(c, 3, 4), &c->inter_node);
    assert_ptr_equal(smp_cluster_link(c, 7, 4), &c->intra_node);
    assert_true(smp_link_us(&c->intra_node, 0) == 3);
    assert_true(smp_link_us(&c->inter_node, 50000000) == 8 + 1000);
    smp_cluster_destroy(c);
}

/* By hand, and out of a profile. */
static void test_cluster_reads_curves_of_links(void **state)
{
    static const char text[] =
        "smp: 1\nnodes: 2\ndevices_per_node: 2\n" DEVICE "links:\n"
        "  intra_node:\n"
        "    bandwidth: 1GB/s\n"
        "    latency_us: 2\n"
        "    points: [{bytes: 8, us: 2}, {bytes: 1008, us: 12}, {bytes: 1MB, us: 1010.992}]\n"
        "  inter_node: {latency_us: 38.4, bytes_per_s: 24816542,\n"
        "    points: [{bytes: 8, us: 38.4}, {bytes: 8388608, us: 338063.1}]}\n";
    smp_cluster *c;
    (void)state;
    assert_int_equal(read_text(text, &c), SMP_OK);
    assert_true(fabs(smp_link_us(&c->intra_node, 508) - 7) < 1e-9);
    assert_true(fabs(smp_link_us(&c->intra_node, 1008) - 12) < 1e-9);
    assert_true(c->intra_node.bytes_per_s == 1e9 && c->intra_node.latency_us == 2);
    assert_true(fabs(smp_link_us(&c->inter_node, 8388608) - 338063.1) < 1e-6);
    assert_true(c->inter_node.bytes_per_s == 24816542);
    smp_cluster_destroy(c);
}

static void test_cluster_fills_in_defaults(void **state)
{
    smp_cluster *c;
    (void)state;
    assert_int_equal(
        read_text("smp: 1\nnodes: 1\ndevices_per_node: 2\ncores_per_node: 2\n" DEVICE LINKS, &c),
        SMP_OK);
    assert_true(c->core_switch_us == SMP_DEFAULT_CORE_SWITCH_US);
    assert_true(c->overlap);
    assert_int_equal(c->cores_per_node, 2);
    assert_true(c->device[0].flops_bf16 == 0);
    assert_true(c->inter_node.latency_us == 1 && c->inter_node.bytes_per_s == 1e9);
    assert_true(c->launch.kernel_us == 0);
    smp_cluster_destroy(c);

    assert_int_equal(
        read_text("smp: 1\nnodes: 1\ndevices_per_node: 1\ncore_switch_us: 12.5\nscatter: 0.25\n"
                  "host_memory: 64GiB\nlaunch: {kernel_us: 2, graph_us: 6, graph_kernel_us: "
                  "0.25}\n" DEVICE,
                  &c),
        SMP_OK);
    assert_true(c->core_switch_us == 12.5 && c->scatter == 0.25);
    assert_true(c->host_memory_bytes == INT64_C(64) << 30);
    assert_true(c->launch.kernel_us == 2 && c->launch.graph_us == 6);
    assert_true(c->launch.graph_kernel_us == 0.25);
    assert_true(smp_link_us(smp_cluster_link(c, 0, 0), 1000) >= 0);
    smp_cluster_destroy(c);
}

static void test_cluster_speeds(void **state)
{
    static const char text[] =
        "smp: 1\nnodes: 1\ndevices_per_node: 4\n" LINKS "device:\n"
        "  - {memory: 1GB, compute: {fp32: 1TFLOP/s}, bandwidth: 1GB/s}\n"
        "  - {memory: 1GB, compute: {fp32: 1TFLOP/s}, bandwidth: 1GB/s, speed: 0.5}\n"
        "  - {memory: 1GB, compute: {fp32: 1TFLOP/s}, bandwidth: 1GB/s, speed: 1}\n"
        "  - {memory: 1GB, compute: {fp32: 1TFLOP/s}, bandwidth: 1GB/s}\n";
    const double speed[] = {0.25, 1.0, 2.0};
    smp_cluster *c, *groups;
    (void)state;
    assert_int_equal(read_text(text, &c), SMP_OK);
    assert_true(smp_device_speed(&c->device[0]) == 1 && smp_device_speed(&c->device[1]) == 0.5);
    assert_false(smp_devices_alike(&c->device[0], &c->device[1]));
    assert_true(smp_devices_alike(&c->device[0], &c->device[2]));
    assert_int_equal(smp_cluster_group(c, 2, &groups), SMP_OK);
    assert_true(smp_device_speed(&groups->device[0]) == 0.5); /* of the slowest */
    smp_cluster_destroy(groups);
    assert_int_equal(smp_cluster_set_speeds(c, speed, 2), SMP_OK);
    assert_true(c->device[0].speed == 0.25 && c->device[1].speed == 1 && c->device[3].speed == 1);
    assert_int_equal(smp_cluster_set_speeds(c, speed, 3), SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(), "speed of device 2: got 2, expected 0.001 to 1");
    assert_int_equal(smp_cluster_set_speeds(c, speed, 5), SMP_ERR_INPUT);
    assert_true(c->device[0].speed == 0.25);
    smp_cluster_destroy(c);
}

static void test_cluster_lists_devices_per_node_or_one_by_one(void **state)
{
    static const char head[] = "smp: 1\nnodes: 2\ndevices_per_node: 2\n"
                               "links: {intra_node: {bandwidth: 1GB/s, latency_us: 1}, "
                               "inter_node: {bandwidth: 1GB/s, latency_us: 1}}\n"
                               "device:\n";
    static const char entry[] = "  - {memory: %dGB, compute: {fp32: 1TFLOP/s}, bandwidth: 1GB/s}\n";
    (void)state;
    for (int given = 1; given <= 5; given++) {
        char text[1024];
        int used = snprintf(text, sizeof text, "%s", head);
        smp_cluster *c;
        for (int i = 0; i < given; i++)
            used += snprintf(text + used, sizeof text - (size_t)used, entry, i + 1);
        if (given != 2 && given != 4) {
            assert_int_equal(read_text(text, &c), SMP_ERR_INPUT);
            assert_non_null(strstr(smp_last_error(), "c.yaml:6:3: device: "));
            continue;
        }
        assert_int_equal(read_text(text, &c), SMP_OK);
        for (int i = 0; i < 4; i++)
            assert_int_equal(c->device[i].memory_bytes, (i % given + 1) * 1000000000LL);
        smp_cluster_destroy(c);
    }
}

typedef struct broken {
    const char *text;
    const char *where; /* line:column */
    const char *says;
} broken;

static const broken broken_files[] = {
    {"smp: 2\n", "1:6", "smp"},
    {"nodes: 1\n", "1:1", "smp"},
    {"smp: 1\n- x\n", "", ""},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\nnode: 1\n" DEVICE, "4:1", "nodes"},
    {"smp: 1\ndevices_per_node: 1\n" DEVICE, "1:1", "'nodes' is missing"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\n", "1:1", "'device' is missing"},
    {"smp: 1\nnodes: 0\ndevices_per_node: 1\n" DEVICE, "2:8", "nodes"},
    {"smp: 1\nnodes: -3\ndevices_per_node: 1\n" DEVICE, "2:8", "nodes"},
    {"smp: 1\nnodes: 1e3\ndevices_per_node: 1\n" DEVICE, "2:8", "nodes"},
    {"smp: 1\nnodes: 65536\ndevices_per_node: 4096\n" DEVICE LINKS, "2:8", "devices"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 99999999999999999999\n" DEVICE, "3:19",
     "devices_per_node"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 2\n" DEVICE, "1:1", "'links' is missing"},
    {"smp: 1\nnodes: 2\ndevices_per_node: 2\n" DEVICE LINKS, "5:8", "'inter_node' is missing"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ncores_per_node: -1\n" DEVICE, "4:17",
     "cores_per_node"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\noverlap: maybe\n" DEVICE, "4:10", "overlap"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: 7\n", "4:9", "device"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: 0, compute: {fp32: 1TFLOP/s}, "
     "bandwidth: 1GB/s}\n",
     "4:18", "memory"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: 9000000TB, compute: {fp32: "
     "1TFLOP/s}, "
     "bandwidth: 1GB/s}\n",
     "4:18", "memory"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: lots, compute: {fp32: 1TFLOP/s}, "
     "bandwidth: 1GB/s}\n",
     "4:18", "memory"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: 1GB, compute: {fp32: -1TFLOP/s}, "
     "bandwidth: 1GB/s}\n",
     "4:39", "fp32"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: 1GB, compute: {bf16: 1TFLOP/s}, "
     "bandwidth: 1GB/s}\n",
     "4:32", "'fp32' is missing"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: 1GB, compute: {fp32: 1TFLOP/s}, "
     "bandwidth: 0GB/s}\n",
     "4:61", "bandwidth"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: 1GB, compute: {fp32: 1TFLOP/s}, "
     "bandwith: 1GB/s}\n",
     "4:50", "bandwidth"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 2\n" DEVICE
     "links: {intra_node: {bandwidth: 1GB/s, latency_us: -1}}\n",
     "5:52", "latency_us"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 2\n" DEVICE
     "links: {intra_node: {bandwidth: 1GB/s, latency_us: nan}}\n",
     "5:52", "latency_us"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 2\n" DEVICE
     "links: {intra_node: {bandwidth: 1GB/s, latency_us: 1, points: [{bytes: 8, us: 1}, "
     "{bytes: 8, us: 2}]}}\n",
     "5:91", "expected more than in the point before"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 2\n" DEVICE
     "links: {intra_node: {bandwidth: 1GB/s, latency_us: 1, bytes_per_s: 1e9}}\n",
     "5:22", "bandwidth"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 2\n" DEVICE "links: {intra_node: {latency_us: 1}}\n",
     "5:21", "'bandwidth' is missing"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 2\n" DEVICE
     "links: {intra_node: {bandwidth: 1e-320, latency_us: 1}}\n",
     "5:33", "1e-320"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 2\n" DEVICE
     "links: {intra_node: {bandwidth: 1GB/s, latency_us: 1e-320}}\n",
     "5:52", "1e-320"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: 1e300, compute: {fp32: 1TFLOP/s}, "
     "bandwidth: 1GB/s}\n",
     "4:18", "1e300"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: 1GB, compute: {fp32: 1e-9}, "
     "bandwidth: 1GB/s}\n",
     "4:39", "1e-9"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: 1GB, compute: {fp32: 1TFLOP/s, "
     "bf16: 1e-9}, bandwidth: 1GB/s}\n",
     "4:55", "1e-9"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: 1GB, compute: {fp32: 1TFLOP/s}, "
     "bandwidth: 1e300GB/s}\n",
     "4:61", "1e300"},
    {"smp: 1\nnodes: 1\ndevices_per_node: 2\n" DEVICE "links: [1]\n", "5:8", "links"},
};

static void test_cluster_refuses_broken_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof broken_files / sizeof broken_files[0]; i++) {
        const broken *b = &broken_files[i];
        smp_cluster *c = NULL;
        char where[64];
        snprintf(where, sizeof where, "c.yaml:%s%s", b->where, *b->where ? ": " : "");
        if (read_text(b->text, &c) != SMP_ERR_INPUT || c || !strstr(smp_last_error(), where) ||
            !strstr(smp_last_error(), b->says))
            fail_msg("file %zu: got '%s', expected place %s and '%s'", i, smp_last_error(), where,
                     b->says);
    }
}

static void test_cluster_reads_the_examples(void **state)
{
    static const char *const names[] = {"laptop", "a100", "mixed"};
    static const int devices[] = {4, 16, 2};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char path[1024];
        smp_cluster *c = NULL;
        snprintf(path, sizeof path, "%s/examples/cluster-%s.yaml", SMP_SOURCE_DIR, names[i]);
        if (smp_cluster_read(path, &c) != SMP_OK)
            fail_msg("%s", smp_last_error());
        assert_int_equal(smp_cluster_devices(c), devices[i]);
        smp_cluster_destroy(c);
    }
}

static void test_cluster_rates_of_products(void **state)
{
    static const struct {
        const char *compute;
        double fp32, tf32, bf16, fp16, fp8;
    } cases[] = {
        {"{fp32: 10TFLOP/s}", 10e12, 10e12, 0, 0, 0},
        {"{fp32: 10TFLOP/s, bf16: 100TFLOP/s}", 10e12, 50e12, 100e12, 100e12, 100e12},
        {"{fp32: 10TFLOP/s, tf32: 40TFLOP/s, bf16: 100TFLOP/s}", 10e12, 40e12, 100e12, 100e12,
         100e12},
        {"{fp32: 10TFLOP/s, tf32: 40TFLOP/s}", 10e12, 40e12, 0, 0, 0},
        {"{fp32: 10TFLOP/s, fp16: 80TFLOP/s}", 10e12, 10e12, 0, 80e12, 0},
        {"{fp32: 10TFLOP/s, bf16: 60TFLOP/s, fp16: 80TFLOP/s}", 10e12, 30e12, 60e12, 80e12, 60e12},
        {"{fp32: 10TFLOP/s, bf16: 60TFLOP/s, fp8: 130TFLOP/s}", 10e12, 30e12, 60e12, 60e12, 130e12},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        smp_cluster *c;
        snprintf(text, sizeof text,
                 "smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {memory: 1GB, compute: %s, "
                 "bandwidth: 1TB/s}\n",
                 cases[i].compute);
        assert_int_equal(read_text(text, &c), SMP_OK);
        const smp_device_spec *device = &c->device[0];
        assert_true(smp_device_matrix_flops(device, SMP_PRECISION_FP32) == cases[i].fp32);
        assert_true(smp_device_matrix_flops(device, SMP_PRECISION_TF32) == cases[i].tf32);
        assert_true(smp_device_matrix_flops(device, SMP_PRECISION_BF16) == cases[i].bf16);
        assert_true(smp_device_matrix_flops(device, SMP_PRECISION_FP16) == cases[i].fp16);
        assert_true(smp_device_matrix_flops(device, SMP_PRECISION_FP8) == cases[i].fp8);
        smp_cluster_destroy(c);
    }
}

static void test_cluster_local_shares_this_machine(void **state)
{
    smp_cluster *one, *four;
    (void)state;
    assert_int_equal(smp_cluster_local(1, &one), SMP_OK);
    assert_int_equal(smp_cluster_local(4, &four), SMP_OK);
    assert_int_equal(smp_cluster_devices(four), 4);
    assert_true(four->cores_per_node >= 1);
    assert_true(four->device[3].memory_bytes == one->device[0].memory_bytes / 4);
    assert_true(one->device[0].memory_bytes > 1 << 26);
    assert_true(four->device[0].flops_fp32 > 0 && four->device[0].bytes_per_s > 0);
    assert_true(smp_link_us(smp_cluster_link(four, 0, 3), 1 << 20) > four->intra_node.latency_us);
    smp_cluster_destroy(one);
    smp_cluster_destroy(four);
    assert_int_equal(smp_cluster_local(0, &one), SMP_ERR_INPUT);
    assert_int_equal(smp_cluster_local(-4, &one), SMP_ERR_INPUT);
}

static void test_cluster_interpolates_measured_links(void **state)
{
    int64_t bytes[] = {100, 200, 1000};
    double us[] = {1, 3, 7};
    const smp_link_spec link = {
        .latency_us = 1, .bytes_per_s = 1e9, .n_point = 3, .point_bytes = bytes, .point_us = us};
    smp_cluster *c;
    (void)state;
    assert_int_equal(smp_cluster_local(2, &c), SMP_OK);
    assert_int_equal(smp_cluster_set_link(c, SMP_LINK_INTRA_NODE, &link), SMP_OK);
    bytes[1] = 0; /* it was copied */
    us[1] = 0;
    const smp_link_spec *got = smp_cluster_link(c, 0, 1);
    assert_true(smp_link_us(got, 0) == 1 && smp_link_us(got, 100) == 1);
    assert_true(smp_link_us(got, 150) == 2 && smp_link_us(got, 200) == 3);
    assert_true(smp_link_us(got, 600) == 5 && smp_link_us(got, 1000) == 7);
    assert_true(smp_link_us(got, 1800) == 11);

    const smp_link_spec single = {
        .latency_us = 1, .bytes_per_s = 1e6, .n_point = 1, .point_bytes = bytes, .point_us = us};
    assert_true(smp_link_us(&single, 50) == 1 && smp_link_us(&single, 110) == 11);
    smp_cluster_destroy(c);
}

/* Two nodes of four devices with all figures different. */
static smp_cluster make_cluster(smp_device_spec device[8])
{
    for (int d = 0; d < 8; d++)
        device[d] = (smp_device_spec){.name = d < 4 ? "near" : "far",
                                      .memory_bytes = 1000 + 10 * ((d * 3) % 8),
                                      .flops_fp32 = 100 + (d * 5) % 8,
                                      .flops_bf16 = 400 + (d * 7) % 8,
                                      .bytes_per_s = 50 + (d * 3 + 1) % 8};
    return (smp_cluster){.name = "eight",
                         .nodes = 2,
                         .devices_per_node = 4,
                         .device = device,
                         .intra_node = {.latency_us = 1, .bytes_per_s = 4e6},
                         .inter_node = {.latency_us = 2, .bytes_per_s = 1e6},
                         .overlap = true,
                         .core_switch_us = 7};
}

static smp_cluster *group(const smp_cluster *from, int size)
{
    smp_cluster *grouped = NULL;
    if (smp_cluster_group(from, size, &grouped) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_ptr_equal(grouped->of, from);
    assert_int_equal(grouped->group, size);
    return grouped;
}

static void test_cluster_groups_are_as_good_as_their_worst(void **state)
{
    smp_device_spec device[8];
    const smp_cluster from = make_cluster(device);
    (void)state;
    for (int size = 1; size <= 4; size *= 2) {
        smp_cluster *c = group(&from, size);
        assert_int_equal(c->nodes, 2);
        assert_int_equal(smp_cluster_devices(c), 8 / size);
        for (int g = 0; g < 8 / size; g++) {
            for (int m = SMP_PRECISION_FP32; m < SMP_N_PRECISION; m++) {
                double least = 1e300;
                for (int d = g * size; d < (g + 1) * size; d++)
                    least = fmin(least, smp_device_matrix_flops(&device[d], (smp_precision)m));
                assert_true(smp_device_matrix_flops(&c->device[g], (smp_precision)m) == least);
            }
            int64_t memory = INT64_MAX;
            double bytes_per_s = 1e300;
            for (int d = g * size; d < (g + 1) * size; d++) {
                memory = device[d].memory_bytes < memory ? device[d].memory_bytes : memory;
                bytes_per_s = fmin(bytes_per_s, device[d].bytes_per_s);
            }
            assert_int_equal(c->device[g].memory_bytes, memory);
            assert_true(c->device[g].bytes_per_s == bytes_per_s);
            assert_string_equal(c->device[g].name, device[g * size].name);
        }
        assert_true(smp_link_us(smp_cluster_link(c, 0, 8 / size - 1), 10) == 12);
        assert_true(smp_link_us(&c->intra_node, 8) == 3);
        assert_true(c->group_slowdown == 1 && c->core_switch_us == 7 && c->overlap);
        assert_int_equal(c->cores_per_node, 0);
        smp_cluster_destroy(c);
    }
    device[0].flops_tf32 = 50; /* the other leaves it to its bf16: about 200 */
    smp_cluster *c = group(&from, 2);
    assert_true(smp_device_matrix_flops(&c->device[0], SMP_PRECISION_TF32) == 50);
    smp_cluster_destroy(c);
    device[0].flops_tf32 = 300;
    c = group(&from, 2);
    assert_true(smp_device_matrix_flops(&c->device[0], SMP_PRECISION_TF32) ==
                device[1].flops_bf16 / 2);
    smp_cluster_destroy(c);
    device[1].flops_fp16 = 600; /* more than the bf16 that stands for the other's */
    c = group(&from, 2);
    assert_true(smp_device_matrix_flops(&c->device[0], SMP_PRECISION_FP16) == device[0].flops_bf16);
    smp_cluster_destroy(c);
}

/* Devices d and d + cores have one core: of a group of four on three, two have. */
static void test_cluster_groups_share_cores(void **state)
{
    static const struct {
        int cores, size, left;
        double slowdown;
    } cases[] = {{8, 2, 4, 1}, {4, 2, 2, 1}, {2, 2, 1, 1}, {3, 2, 1, 1}, {1, 2, 1, 2},
                 {2, 4, 1, 2}, {3, 4, 1, 2}, {1, 4, 1, 4}, {4, 4, 1, 1}, {1, 1, 1, 1}};
    smp_device_spec device[8];
    smp_cluster from = make_cluster(device);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        from.cores_per_node = cases[i].cores;
        smp_cluster *c = group(&from, cases[i].size);
        assert_int_equal(c->cores_per_node, cases[i].left);
        assert_true(c->group_slowdown == cases[i].slowdown);
        /* the busiest core of a group, by the one definition of who is where */
        int most = 0;
        for (int d = 0; d < cases[i].size; d++) {
            int n = 0;
            for (int other = 0; other < cases[i].size; other++)
                n += smp_cluster_core_of(&from, other) == smp_cluster_core_of(&from, d);
            most = n > most ? n : most;
        }
        assert_true(c->group_slowdown == most);
        smp_cluster_destroy(c);
    }
}

/* What the devices of a group send to another node at the same time, they send through the node's
 * adapters; within a node each sends by itself. */
static void test_cluster_groups_share_adapters(void **state)
{
    static const struct {
        int adapters, size, left, among;
    } cases[] = {{0, 2, 0, 1}, {4, 2, 2, 1}, {2, 2, 1, 1}, {1, 2, 1, 2},
                 {1, 4, 1, 4}, {2, 4, 1, 2}, {3, 2, 1, 1}, {3, 4, 1, 2}};
    static const int64_t bytes[] = {8, 100, 1000};
    static const double us[] = {2, 5, 9};
    smp_device_spec device[8];
    smp_cluster from = make_cluster(device);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int measured = 0; measured < 2; measured++) {
            from.adapters_per_node = cases[i].adapters;
            from.inter_node.n_point = measured ? 3 : 0;
            from.inter_node.point_bytes = bytes;
            from.inter_node.point_us = us;
            smp_cluster *c = group(&from, cases[i].size);
            assert_int_equal(c->adapters_per_node, cases[i].left);
            for (int64_t b = 8; b <= 4000; b = b * 5 / 4)
                if (!measured || b == 8 || b >= 1000) /* in between, straight lines */
                    assert_true(fabs(smp_link_us(&c->inter_node, b) -
                                     smp_link_us(&from.inter_node, cases[i].among * b)) < 1e-9);
            assert_true(smp_link_us(&c->intra_node, 40) == smp_link_us(&from.intra_node, 40));
            smp_cluster_destroy(c);
        }
}

/* Their devices share what each node has, and speak over the links between nodes. */
static void test_cluster_groups_of_nodes(void **state)
{
    smp_device_spec device[16];
    smp_cluster from = make_cluster(device);
    (void)state;
    memcpy(device + 8, device, 8 * sizeof *device);
    from.nodes = 4;
    from.cores_per_node = 2;
    from.adapters_per_node = 1;
    smp_cluster *c = group(&from, 8);
    assert_int_equal(2, c->nodes);
    assert_int_equal(1, c->devices_per_node);
    assert_true(c->device[0].memory_bytes == 1000 && c->device[1].flops_fp32 == 100);
    assert_true(c->inter_node.bytes_per_s == from.inter_node.bytes_per_s / 4);
    /* of the seven others three are on the node */
    assert_true(fabs(7 * smp_link_us(&c->intra_node, 4000) -
                     3 * smp_link_us(&from.intra_node, 4000) -
                     4 * smp_link_us(&c->inter_node, 4000)) < 1e-9);
    assert_int_equal(1, c->cores_per_node);
    assert_true(c->group_slowdown == 2);
    smp_cluster_destroy(c);
    static const int64_t bytes[] = {8, 100, 1000};
    static const double us[] = {2, 5, 9};
    from.intra_node.n_point = 3;
    from.intra_node.point_bytes = bytes;
    from.intra_node.point_us = us;
    c = group(&from, 8);
    assert_true(smp_link_us(&c->intra_node, 4000) == smp_link_us(&c->inter_node, 4000));
    smp_cluster_destroy(c);
    from.intra_node.n_point = 0;
    assert_true(smp_cluster_groups_fit(&from, 16));
    assert_false(smp_cluster_groups_fit(&from, 12));
    assert_false(smp_cluster_groups_fit(&from, 32));
}

static void test_cluster_groups_fit_into_nodes(void **state)
{
    static const int sizes[] = {0, -2, 3, 16};
    smp_device_spec device[8];
    const smp_cluster from = make_cluster(device);
    smp_cluster *c = NULL;
    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(smp_cluster_group(&from, sizes[i], &c), SMP_ERR_INPUT);
        assert_non_null(strstr(smp_last_error(), "'eight' has 2 nodes of 4 devices"));
        assert_null(c);
    }
}

/* The first device of each group stands for it, in its own place; what groups share goes by the
 * largest. */
static void test_cluster_groups_of_ranks(void **state)
{
    static const int begin[] = {0, 2, 3, 4}, astride[] = {0, 3, 5};
    smp_device_spec device[8];
    smp_cluster from = make_cluster(device);
    smp_cluster *c = NULL;
    (void)state;
    from.cores_per_node = 4;
    from.adapters_per_node = 1;
    assert_int_equal(SMP_OK, smp_cluster_group_ranks(&from, begin, 3, 2, &c));
    assert_ptr_equal(c->of, &from);
    assert_int_equal(2, c->group);
    assert_int_equal(8, smp_cluster_devices(c));
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < 3; r++) {
            const int first = 4 * k + begin[r], last = 4 * k + begin[r + 1] - 1;
            double flops = 1e9;
            for (int d = first; d <= last; d++)
                flops = device[d].flops_fp32 < flops ? device[d].flops_fp32 : flops;
            assert_true(c->device[first].flops_fp32 == flops);
        }
    assert_int_equal(2, c->cores_per_node);
    assert_true(c->inter_node.bytes_per_s == from.inter_node.bytes_per_s / 2);
    smp_cluster_destroy(c);
    c = NULL;
    assert_int_equal(SMP_ERR_INPUT, smp_cluster_group_ranks(&from, astride, 2, 1, &c));
    assert_string_equal(
        "cluster 'eight' has 4 devices per node: a group of 2 from device 3 on lies "
        "on two nodes",
        smp_last_error());
    assert_int_equal(SMP_ERR_INPUT, smp_cluster_group_ranks(&from, begin, 3, 3, &c));
    assert_string_equal("cluster 'eight' has 8 devices, 10 are needed", smp_last_error());
    assert_null(c);
}

static int make_folder(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.40s/smp-XXXXXX", base ? base : P_tmpdir);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char path[128];
    (void)state;
    snprintf(path, sizeof path, "%s/c.yaml", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cluster_reads_every_key),
        cmocka_unit_test(test_cluster_reads_curves_of_links),
        cmocka_unit_test(test_cluster_fills_in_defaults),
        cmocka_unit_test(test_cluster_speeds),
        cmocka_unit_test(test_cluster_lists_devices_per_node_or_one_by_one),
        cmocka_unit_test(test_cluster_refuses_broken_files),
        cmocka_unit_test(test_cluster_reads_the_examples),
        cmocka_unit_test(test_cluster_rates_of_products),
        cmocka_unit_test(test_cluster_local_shares_this_machine),
        cmocka_unit_test(test_cluster_interpolates_measured_links),
        cmocka_unit_test(test_cluster_groups_are_as_good_as_their_worst),
        cmocka_unit_test(test_cluster_groups_share_cores),
        cmocka_unit_test(test_cluster_groups_share_adapters),
        cmocka_unit_test(test_cluster_groups_fit_into_nodes),
        cmocka_unit_test(test_cluster_groups_of_ranks),
        cmocka_unit_test(test_cluster_groups_of_nodes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
