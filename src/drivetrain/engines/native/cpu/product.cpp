// The product of rows with the weight of a linear layer, in float32. Built and called by `panels.py`.
//
// With few rows, a product takes as long as reading its weight, so the weight lies in the order in which it is read:
// in panels of PANEL outputs, and in these by inputs. While a thread multiplies one panel with all rows, it fetches
// the next one from memory. Each output is summed over the inputs in their order, however many rows there are and
// whichever thread computes it: a row's result does not depend on its company.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
typedef float Lanes __attribute__((vector_size(64)));
typedef float Stored __attribute__((vector_size(64), aligned(4)));
constexpr int TALL = 8; // rows of a tile
constexpr int WIDE = 3; // vectors of a panel: with TALL rows, as many sums as leave registers for the rest
#else
typedef float Lanes __attribute__((vector_size(32)));
typedef float Stored __attribute__((vector_size(32), aligned(4)));
constexpr int TALL = 6;
constexpr int WIDE = 2;
#endif

constexpr int WIDTH = sizeof(Lanes) / sizeof(float);
constexpr int PANEL = WIDE * WIDTH;
constexpr int LINE = 16;    // numbers that are fetched at once
constexpr int LINES = PANEL / LINE;
constexpr int SOON = 20;    // inputs: the panel is in the nearest cache by this much before it is used
constexpr int DEEP = 1024;  // inputs of a panel that stay in the next cache while rows are multiplied with them
constexpr int LONGEST = 240; // rows that are multiplied with a panel in turn

struct Product {
    int64_t rows, inputs, outputs, num_threads;
    const float *in, *panels, *bias; // bias: filled up to whole panels, or null
    float *out;
};

struct Fetch { // of a panel to come: all lines with the inputs of a tile, or one with every second input, or none
    enum { ALL, ONE, NONE } lines;
    const float *from;
};

static inline Lanes stored(const float *from, int vector) { return *(const Stored *)(from + vector * WIDTH); }

template <int R>
static void tile(const float *in, int64_t by_row, const float *panel, int64_t count, Fetch fetch, const float *begin,
                 int64_t begin_by_row, float *out, int64_t out_by_row) {
    Lanes sum[R][WIDE] = {};
    if (begin)
        for (int r = 0; r < R; r++)
            for (int v = 0; v < WIDE; v++) sum[r][v] = stored(begin + r * begin_by_row, v);
    for (int64_t i = 0; i < count; i++, panel += PANEL) {
        if (fetch.lines == Fetch::ALL)
            for (int n = 0; n < LINES; n++) __builtin_prefetch(fetch.from + i * PANEL + n * LINE, 0, 2);
        else if (fetch.lines == Fetch::ONE && i % 2)
            __builtin_prefetch(fetch.from + i / 2 * LINE, 0, 2);
        for (int n = 0; n < LINES; n++) __builtin_prefetch(panel + SOON * PANEL + n * LINE, 0, 3);
        Lanes weight[WIDE];
        for (int v = 0; v < WIDE; v++) weight[v] = stored(panel, v);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < WIDE; v++) sum[r][v] += in[r * by_row + i] * weight[v];
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < WIDE; v++) *(Stored *)(out + r * out_by_row + v * WIDTH) = sum[r][v];
}

using Tile = decltype(&tile<1>);

template <int... R> static constexpr auto tiles_of(std::integer_sequence<int, R...>) {
    return std::array<Tile, sizeof...(R)>{&tile<R + 1>...};
}

constexpr auto TILES = tiles_of(std::make_integer_sequence<int, TALL>());

// The outputs of one panel for `count` rows.
static void multiply(const Product &product, int64_t panel, int64_t start, int64_t count, int64_t next) {
    const float *in = product.in + start * product.inputs;
    const int64_t first = panel * PANEL, width = std::min<int64_t>(PANEL, product.outputs - first);
    float aside[LONGEST][PANEL]; // where the last panel is not whole
    float *const out = width < PANEL ? aside[0] : product.out + start * product.outputs + first;
    const int64_t by_row = width < PANEL ? PANEL : product.outputs;
    const int64_t tiles = (count + TALL - 1) / TALL;
    for (int64_t i = 0; i < product.inputs; i += DEEP) {
        const int64_t deep = std::min<int64_t>(DEEP, product.inputs - i);
        const float *const weight = product.panels + (panel * product.inputs + i) * PANEL;
        const float *const coming = product.panels + (next * product.inputs + i) * PANEL;
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t row = t * count / tiles, end = (t + 1) * count / tiles;
            Fetch fetch{tiles == 1 ? Fetch::ALL : Fetch::NONE, coming};
            if (tiles > 1 && t < 2 * LINES) fetch = {Fetch::ONE, coming + t * (deep / 2) * LINE};
            const float *begin = i ? out + row * by_row : product.bias ? product.bias + first : nullptr;
            TILES[end - row - 1](in + row * product.inputs + i, product.inputs, weight, deep, fetch, begin,
                                 i ? by_row : 0, out + row * by_row, by_row);
        }
    }
    if (width < PANEL)
        for (int64_t r = 0; r < count; r++)
            memcpy(product.out + (start + r) * product.outputs + first, aside[r], width * sizeof(float));
}

extern "C" int64_t drivetrain_panel() { return PANEL; }

extern "C" void drivetrain_multiply(const Product *of) {
    const Product product = *of;
    const int64_t panels = (product.outputs + PANEL - 1) / PANEL, parts = (product.rows + LONGEST - 1) / LONGEST;
    std::atomic<int64_t> taken{0};
#pragma omp parallel num_threads(product.num_threads)
    {
        int64_t mine = taken++;
        while (mine < parts * panels) {
            const int64_t next = taken++;
            const int64_t part = mine / panels, start = part * product.rows / parts;
            multiply(product, mine % panels, start, (part + 1) * product.rows / parts - start, next % panels);
            mine = next;
        }
    }
}
