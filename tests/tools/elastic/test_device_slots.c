/* Devices that an operator takes away and gives back, and those that are left out; and how many
 * blocks of gradients leave room for fewer of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/tools/scratch_folder.h"
#include "tools/elastic/device_slots.h"
#include "tools/elastic/plans.h"

static char path[300];

static void write_devices(const char *text)
{
    assert_int_equal(smp_file_write(path, text, strlen(text)), SMP_OK);
}

/* "0101": which can be used. */
static void expect_usable(const smp__slots *slots, const char *which)
{
    char got[32] = "";
    for (int i = 0; i < slots->n; i++)
        got[i] = smp__slot_usable(&slots->slot[i]) ? '1' : '0';
    assert_string_equal(got, which);
}

static void expect_look(smp__slots *slots, const char *text, bool changed, const char *which)
{
    write_devices(text);
    assert_int_equal(smp__slots_look(slots), changed);
    expect_usable(slots, which);
}

static void test_slots_by_a_file(void **state)
{
    smp__slots slots;
    int picked[2];
    (void)state;
    assert_int_equal(smp__slots_open(folder, 5, NULL, &slots), SMP_OK);
    assert_false(smp__slots_look(&slots));
    expect_usable(&slots, "11111");
    expect_look(&slots, "3\n", true, "11100");
    expect_look(&slots, "0, 2-3\n", true, "10110");
    smp__slots_pick(&slots, 2, picked);
    assert_int_equal(picked[0], 0);
    assert_int_equal(picked[1], 2);
    expect_look(&slots, "4,", true, "00001");
    expect_look(&slots, "1 2", true, "01100");
    expect_look(&slots, "1-2", false, "01100");
    expect_look(&slots, "", false, "01100"); /* is being written */
    expect_look(&slots, " \n", false, "01100");
    expect_look(&slots, "9,1", false, "01100");
    expect_look(&slots, "9 1", false, "01100");
    expect_look(&slots, "all", false, "01100");
    expect_look(&slots, "3-1", false, "01100");
    expect_look(&slots, "0,5", false, "01100");
    expect_look(&slots, "99", true, "11111");
    expect_look(&slots, "0", true, "00000");
    assert_int_equal(remove(path), 0);
    assert_true(smp__slots_look(&slots));
    assert_int_equal(smp__slots_count(&slots), 5);
    smp__slots_close(&slots);
}

static void test_slots_left_out(void **state)
{
    smp__slots slots;
    (void)state;
    assert_int_equal(smp__slots_open(folder, 3, NULL, &slots), SMP_OK);
    assert_false(smp__slots_look(&slots));
    assert_false(smp__slots_fail(&slots, 1, 10, 3));
    assert_false(smp__slots_fail(&slots, 1, 20, 3));
    assert_false(smp__slots_fail(&slots, 1, 120, 3)); /* 100 steps later it counts anew */
    assert_false(smp__slots_fail(&slots, 1, 121, 3));
    assert_true(smp__slots_fail(&slots, 1, 122, 3));
    expect_usable(&slots, "101");
    expect_look(&slots, "0-1", true, "110"); /* named again */
    assert_false(smp__slots_fail(&slots, 1, 123, 3));
    remove(path);
    smp__slots_close(&slots);
}

/* Slow ones are taken last, and are slow no more once they are named again. */
static void test_slots_that_are_slow(void **state)
{
    smp__slots slots;
    int picked[3];
    (void)state;
    assert_int_equal(smp__slots_open(folder, 4, NULL, &slots), SMP_OK);
    assert_false(smp__slots_look(&slots));
    slots.slot[1].speed = slots.slot[2].speed = 0.5;
    assert_int_equal(smp__slots_even(&slots), 2);
    smp__slots_pick(&slots, 2, picked);
    assert_int_equal(picked[0], 0);
    assert_int_equal(picked[1], 3);
    smp__slots_pick(&slots, 3, picked);
    assert_int_equal(picked[0], 0);
    assert_int_equal(picked[1], 1);
    assert_int_equal(picked[2], 3);
    expect_look(&slots, "0-1,3", true, "1101");
    assert_true(slots.slot[1].speed == 0.0 && slots.slot[2].speed == 0.5);
    assert_int_equal(smp__slots_even(&slots), 3);
    remove(path);
    smp__slots_close(&slots);
}

/* Hosts come and go, and one is added. */
static void test_slots_of_hosts(void **state)
{
    smp__host host[3] = {{.name = "h1", .devices = 2, .listed = true, .state = SMP__HOST_UP},
                         {.name = "10.0.0.2", .devices = 3, .listed = true, .state = SMP__HOST_UP},
                         {.name = "h3", .devices = 1, .listed = true, .state = SMP__HOST_UP}};
    smp__hosts hosts = {.n = 2, .host = host};
    smp__slots slots;
    char name[SMP__SLOT_NAME];
    (void)state;
    assert_int_equal(smp__slots_open(folder, 4, &hosts, &slots), SMP_OK);
    expect_usable(&slots, "00000"); /* nobody has looked yet */
    assert_true(smp__slots_look(&slots));
    expect_usable(&slots, "11111");
    assert_int_equal(smp__slots_count(&slots), 4); /* as many as are asked for */
    assert_string_equal(smp__slot_name(&slots, 3, name), "10.0.0.2:1");
    assert_int_equal(smp__slot_find(&slots, "10.0.0.2:1"), 3);
    assert_int_equal(smp__slot_find(&slots, "10.0.0.2:3"), -1);
    expect_look(&slots, "h1:1 10.0.0.2:0-1\n", true, "01110");
    expect_look(&slots, "10.0.0.2, 0\n", true, "10111");
    expect_look(&slots, "h1:2\n", false, "10111");
    expect_look(&slots, "h2\n", false, "10111");
    expect_look(&slots, "h1:1-0\n", false, "10111");
    expect_look(&slots, "h1:\n", false, "10111");
    slots.slot[3].speed = 0.5;
    host[1].state = SMP__HOST_DOWN;
    assert_true(smp__slots_look(&slots));
    assert_true(slots.slot[3].speed == 0.0); /* nothing is known of what comes back */
    expect_usable(&slots, "10000");
    expect_look(&slots, "3\n", true, "11000");
    hosts.n = 3;
    assert_true(smp__slots_look(&slots) || slots.n == 6);
    expect_usable(&slots, "110000");
    assert_int_equal(remove(path), 0);
    assert_true(smp__slots_look(&slots));
    expect_usable(&slots, "110001");
    host[1].state = SMP__HOST_UP;
    host[0].listed = false;
    assert_true(smp__slots_look(&slots));
    expect_usable(&slots, "001111");
    smp__slots_close(&slots);
}

static void test_blocks_leave_room(void **state)
{
    (void)state;
    assert_int_equal(smp__plans_choose_blocks(1, 8, 4), 4);  /* 3 have one or two */
    assert_int_equal(smp__plans_choose_blocks(1, 12, 4), 4); /* of 12 are too many blocks */
    assert_int_equal(smp__plans_choose_blocks(2, 12, 6), 6); /* 5 have one or two */
    assert_int_equal(smp__plans_choose_blocks(3, 7, 3), 3);
    assert_int_equal(smp__plans_choose_blocks(3, 7, 4), 3); /* nothing else divides */
    assert_int_equal(smp__plans_choose_blocks(8, 512, 8), 8);
    assert_int_equal(smp__plans_choose_blocks(4, 416, 30), 32); /* 17 and more replicas, too */
    assert_int_equal(smp__plans_choose_blocks(16, 512, 2), 16);
    assert_int_equal(smp__plans_choose_blocks(1, 1, 8), 1);
}

static int set_up(void **state)
{
    if (make_folder(state) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/devices", folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_by_a_file),     cmocka_unit_test(test_slots_left_out),
        cmocka_unit_test(test_slots_that_are_slow), cmocka_unit_test(test_slots_of_hosts),
        cmocka_unit_test(test_blocks_leave_room),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
