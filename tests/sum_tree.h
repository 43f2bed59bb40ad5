/* The tree of gradient blocks by its definition: neighbours in pairs, the sums in pairs and so on,
 * where one that is left over goes up as it is. */
#ifndef SMP_TESTS_SUM_TREE_H
#define SMP_TESTS_SUM_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "schedule/plan/gradient_blocks.h"

/* Is it a node of the tree, by walking its levels? */
static inline bool sum_tree_has(int blocks, smp_gradient_node node)
{
    for (int64_t width = 1;; width *= 2) {
        const int64_t end = node.begin + width < blocks ? node.begin + width : blocks;
        if (node.begin % width == 0 && node.end == end)
            return true;
        if (width >= blocks)
            return false;
    }
}

/* The value of a node of which parts are given: node[i], of value[i], i < n. */
static inline float sum_tree_value(const smp_gradient_node *node, const float *value, int n,
                                   smp_gradient_node of)
{
    int width = 1;
    for (int i = 0; i < n; i++)
        if (node[i].begin == of.begin && node[i].end == of.end)
            return value[i];
    while (2 * width < of.end - of.begin)
        width *= 2;
    return sum_tree_value(node, value, n, (smp_gradient_node){of.begin, of.begin + width}) +
           sum_tree_value(node, value, n, (smp_gradient_node){of.begin + width, of.end});
}

#endif
